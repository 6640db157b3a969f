import itertools
from dataclasses import replace

import pytest

from heliograph.device.app.manager import (
    CATEGORIES,
    DISMISS_ACTION,
    AcceptContact,
    AppActivity,
    CallAction,
    Effect,
    Input,
    LocalNotifier,
    NotificationAction,
    OpenApp,
    OpenChat,
    Permission,
    PermissionAnswer,
    Responded,
    Response,
    Responses,
    SwitchUser,
    TakeCall,
    ask,
    present,
    respond,
)
from heliograph.device.chats.content import MUTED, Category, Content, build, create_app_stopped
from heliograph.device.chats.model import Loaded
from heliograph.device.extension.service import ORIGINAL
from heliograph.device.states import Presentation, PreviewMode
from tests.device.support import ALICE, BOB, CONNECTED, REQUESTED, USER, call, message

MODE = PreviewMode.MESSAGE
MESSAGE = build(message("hi"), MODE)
REQUEST = build(REQUESTED, MODE)
CALL = build(call(), MODE)
STOPPED = create_app_stopped()
OTHER_USER = replace(MESSAGE, info={"userId": 2})
MANY = Content(Category.MANY_EVENTS, "New messages", "From: Alice and Bob", info={"userId": 1})

TAP = Responded(Response(MESSAGE))
TAP_OTHER = Responded(Response(OTHER_USER))
TAP_MANY = Responded(Response(MANY))
TAP_STOPPED = Responded(Response(STOPPED))
TAP_REQUEST = Responded(Response(REQUEST))
DISMISS = Responded(Response(MESSAGE, DISMISS_ACTION))
ACCEPT = Responded(Response(REQUEST, NotificationAction.ACCEPT_CONTACT.value))
ACCEPT_CALL = Responded(Response(CALL, NotificationAction.ACCEPT_CALL.value))
REJECT_CALL = Responded(Response(CALL, NotificationAction.REJECT_CALL.value))
WRONG = Responded(Response(MESSAGE, NotificationAction.ACCEPT_CALL.value))
LOADED = Loaded(requests=["<@10"], calls=["@7"])
NOTHING_LOADED = Loaded()
RESPONSES = (
    *(TAP, TAP_OTHER, TAP_MANY, TAP_STOPPED, TAP_REQUEST, ACCEPT, ACCEPT_CALL, REJECT_CALL),
    WRONG,
)
INPUTS: tuple[Input, ...] = (*RESPONSES, DISMISS, *AppActivity, LOADED, NOTHING_LOADED)

INACTIVE = Responses(user=1)
KEPT = Responses(user=1, kept=Response(MESSAGE))
ACTIVE = Responses(user=1, is_active=True)
KNOWING = Responses(user=1, is_active=True, requests=frozenset({"<@10"}), calls=frozenset({"@7"}))
WITHOUT_CALL = replace(KNOWING, calls=frozenset())
PENDING = Responses(user=1, is_active=True, request="<@10", call=("@7", CallAction.REJECT))
PENDING_INACTIVE = replace(PENDING, is_active=False)
STATES = {
    "inactive": INACTIVE,
    "kept": KEPT,
    "active": ACTIVE,
    "knowing": KNOWING,
    "pending": PENDING,
    "pending inactive": PENDING_INACTIVE,
}


def loaded(state: Responses) -> Responses:
    return replace(state, requests=frozenset({"<@10"}), calls=frozenset({"@7"}))


Result = tuple[Responses, tuple[Effect, ...]]
Row = list[tuple[Input, Result]]
"""The first that fits; what is not there changes nothing."""


def active(state: Responses) -> Row:
    """What an active app that knows no request and no call does with each response."""
    return [
        (TAP, (state, (OpenChat("@7"),))),
        (TAP_OTHER, (replace(state, user=2), (SwitchUser(2), OpenChat("@7")))),
        (TAP_MANY, (state, (OpenApp(),))),
        (TAP_STOPPED, (state, (OpenApp(),))),
        (TAP_REQUEST, (state, (OpenApp(),))),
        (WRONG, (state, (OpenChat("@7"),))),
        (ACCEPT, (replace(state, request="<@10"), ())),
        (ACCEPT_CALL, (replace(state, call=("@7", CallAction.ACCEPT)), ())),
        (REJECT_CALL, (replace(state, call=("@7", CallAction.REJECT)), ())),
        (AppActivity.INACTIVE, (replace(state, is_active=False), ())),
    ]


def inactive(state: Responses) -> Row:
    return [(item, (replace(state, kept=item.response), ())) for item in RESPONSES]


TABLE: dict[str, Row] = {
    "inactive": [
        *inactive(INACTIVE),
        (AppActivity.ACTIVE, (ACTIVE, ())),
        (LOADED, (loaded(INACTIVE), ())),
    ],
    "kept": [
        *inactive(KEPT),
        (AppActivity.ACTIVE, (ACTIVE, (OpenChat("@7"),))),
        (LOADED, (loaded(KEPT), ())),
    ],
    "active": [*active(ACTIVE), (LOADED, (KNOWING, ()))],
    "knowing": [
        (ACCEPT, (replace(KNOWING, requests=frozenset()), (AcceptContact("<@10"),))),
        (ACCEPT_CALL, (WITHOUT_CALL, (TakeCall("@7", CallAction.ACCEPT),))),
        (REJECT_CALL, (WITHOUT_CALL, (TakeCall("@7", CallAction.REJECT),))),
        *active(KNOWING),
    ],
    "pending": [
        *active(PENDING),
        (LOADED, (ACTIVE, (AcceptContact("<@10"), TakeCall("@7", CallAction.REJECT)))),
    ],
    "pending inactive": [
        *inactive(PENDING_INACTIVE),
        (AppActivity.ACTIVE, (PENDING, ())),
        (LOADED, (loaded(PENDING_INACTIVE), ())),
    ],
}
PAIRS = list(itertools.product(STATES, range(len(INPUTS))))


@pytest.mark.parametrize(("name", "number"), PAIRS)
def test_every_pair(name: str, number: int) -> None:
    state, happened = STATES[name], INPUTS[number]
    expected = next((then for item, then in TABLE[name] if item == happened), (state, ()))
    assert respond(state, happened) == expected


def test_what_is_pending_is_done_when_the_app_is_active_and_it_is_loaded() -> None:
    state, effects = respond(INACTIVE, ACCEPT)
    assert effects == ()
    state, effects = respond(state, AppActivity.ACTIVE)
    assert effects == ()
    state, effects = respond(state, Loaded(requests=["<@10"]))
    assert effects == (AcceptContact("<@10"),)
    assert state == ACTIVE


def test_a_request_that_was_loaded_while_inactive_is_accepted_on_activation() -> None:
    state, _ = respond(INACTIVE, Loaded(requests=["<@10"]))
    state, _ = respond(state, ACCEPT)
    state, effects = respond(state, AppActivity.ACTIVE)
    assert effects == (AcceptContact("<@10"),)


# Categories.


def test_categories_and_their_actions() -> None:
    registered = {item.category: item for item in CATEGORIES}
    assert set(registered) == set(Category) - {Category.CHECK_MESSAGE}
    buttons = {
        item.category: [(button.action.value, button.foreground) for button in item.buttons]
        for item in CATEGORIES
        if item.buttons
    }
    assert buttons == {
        Category.CONTACT_REQUEST: [("NTF_ACT_ACCEPT_CONTACT", True)],
        Category.CALL_INVITATION: [
            ("NTF_ACT_ACCEPT_CALL", True),
            ("NTF_ACT_REJECT_CALL", False),
        ],
    }
    assert all(item.hidden_text for item in CATEGORIES)


# Permission, rate limit, presentation.


@pytest.mark.parametrize(
    ("permission", "answer"), list(itertools.product(Permission, PermissionAnswer))
)
def test_every_permission(permission: Permission, answer: PermissionAnswer) -> None:
    expected = Permission.GRANTED if answer is PermissionAnswer.GRANTED else Permission.DENIED
    assert ask(permission, answer) is expected


@pytest.mark.parametrize("permission", Permission)
def test_nothing_is_shown_without_permission(permission: Permission) -> None:
    _, shown = LocalNotifier(permission).notify(MESSAGE, 1.0)
    assert shown == (permission is Permission.GRANTED)


def test_the_rate_limit_is_of_chats() -> None:
    notifier = LocalNotifier(Permission.GRANTED)
    shown = []
    for content, at in (
        (MESSAGE, 1.0),
        (MESSAGE, 1.5),
        (build(message("hi", BOB), MODE), 1.5),
        (STOPPED, 1.5),
        (STOPPED, 1.5),
        (CALL, 1.6),
        (MUTED, 1.6),
        (MESSAGE, 2.0),
    ):
        notifier, one = notifier.notify(content, at)
        shown.append(one)
    assert shown == [True, False, True, True, True, True, False, True]


P = Presentation


@pytest.mark.parametrize(
    ("content", "active", "chat", "user", "how"),
    [
        (ORIGINAL, True, None, 1, P.NOTHING),
        (ORIGINAL, False, None, 1, P.NOTHING),
        (MUTED, False, None, 1, P.NOTHING),
        (MESSAGE, False, None, 1, P.BANNER),
        (MESSAGE, True, None, 1, P.LIST),
        (MESSAGE, True, "@7", 1, P.LIST),
        (MESSAGE, True, "@8", 1, P.BANNER),
        (MESSAGE, True, None, 2, P.BANNER),
        (MESSAGE, True, "@7", 2, P.BANNER),
        (CALL, True, None, 1, P.NOTHING),
        (CALL, False, None, 1, P.BANNER),
        (build(CONNECTED, MODE), True, "@7", 1, P.BANNER),
    ],
)
def test_how_it_is_presented(
    content: Content, active: bool, chat: str | None, user: int, how: Presentation
) -> None:
    assert present(content, is_active=active, open_chat=chat, user=user) is how
    assert (USER.user_id, ALICE.chat_id) == (1, "@7")
