"""NtfManager: categories and their actions, permission, local notifications, and responses.

    INACTIVE ──response──> INACTIVE (kept) ──active──> ACTIVE, and it is processed
    ACTIVE ──response──> switch user, then open the chat, accept the contact, or take the call

An action on something that is not loaded yet is kept until it is.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import assert_never

from heliograph.device.chat import ChatId, UserId
from heliograph.device.content import Category, Content
from heliograph.device.rate_limit import RateLimit

OPEN_ACTION = "com.apple.UNNotificationDefaultActionIdentifier"
DISMISS_ACTION = "com.apple.UNNotificationDismissActionIdentifier"


class Action(Enum):
    ACCEPT_CONTACT = "NTF_ACT_ACCEPT_CONTACT"
    ACCEPT_CALL = "NTF_ACT_ACCEPT_CALL"
    REJECT_CALL = "NTF_ACT_REJECT_CALL"


@dataclass(frozen=True, slots=True)
class Button:
    action: Action
    title: str
    foreground: bool
    """Whether the app is opened for it."""


@dataclass(frozen=True, slots=True)
class RegisteredCategory:
    category: Category
    hidden_text: str
    """What the platform shows where it hides previews."""
    buttons: tuple[Button, ...] = ()


CATEGORIES = (
    RegisteredCategory(
        Category.CONTACT_REQUEST,
        "New contact request",
        (Button(Action.ACCEPT_CONTACT, "Accept", True),),
    ),
    RegisteredCategory(Category.CONTACT_CONNECTED, "Contact is connected"),
    RegisteredCategory(Category.MESSAGE_RECEIVED, "New message"),
    RegisteredCategory(
        Category.CALL_INVITATION,
        "Incoming call",
        (
            Button(Action.ACCEPT_CALL, "Accept", True),
            Button(Action.REJECT_CALL, "Reject", False),
        ),
    ),
    RegisteredCategory(Category.CONNECTION_EVENT, "SimpleX encrypted message or connection event"),
    RegisteredCategory(Category.MANY_EVENTS, "New events"),
)


# Permission and local notifications.


class Permission(Enum):
    UNKNOWN = "not asked yet"
    GRANTED = "granted"
    DENIED = "denied"


class Asked(Enum):
    """Outcomes of asking the platform, which asks the user only once."""

    GRANTED = "granted"
    DENIED = "denied"


def ask(permission: Permission, answer: Asked) -> Permission:
    """The user may change it in the settings at any time: the newest answer counts."""
    match answer:
        case Asked.GRANTED:
            return Permission.GRANTED
        case Asked.DENIED:
            return Permission.DENIED


class Presentation(Enum):
    NOTHING = "nothing"
    LIST = "in the list, with a sound"
    BANNER = "a banner too"


@dataclass(frozen=True, slots=True)
class Notifier:
    """Whether a notification made by the app itself is shown."""

    permission: Permission = Permission.UNKNOWN
    limit: RateLimit = field(default_factory=RateLimit)

    def notify(self, content: Content, now: float) -> tuple["Notifier", bool]:
        """The rate limit is of chats: what belongs to none is shown always."""
        if self.permission is not Permission.GRANTED or not content.is_shown:
            return self, False
        if not content.thread or content.category is Category.CALL_INVITATION:
            return self, True
        limit, shown = self.limit.ask(content.thread, now)
        return replace(self, limit=limit), shown


def present(
    content: Content, *, is_active: bool, open_chat: ChatId | None, user: UserId | None
) -> Presentation:
    """How the platform shows a notification that is delivered while the app runs."""
    if not content.is_shown or content.category is Category.CHECK_MESSAGE:
        return Presentation.NOTHING  # from the notification router: the app knows more than it
    if not is_active:
        return Presentation.BANNER
    match content.category:
        case Category.CALL_INVITATION:
            return Presentation.NOTHING  # the app shows the call itself
        case Category.MESSAGE_RECEIVED:
            own = content.info.get("userId") == user
            if own and open_chat in (None, content.target):
                return Presentation.LIST  # it can be seen already
    return Presentation.BANNER


# Responses.


@dataclass(frozen=True, slots=True)
class Response:
    """What a user did with a notification: an `Action`, `OPEN_ACTION` or `DISMISS_ACTION`."""

    content: Content
    action: str = OPEN_ACTION


class CallAction(Enum):
    ACCEPT = "accept"
    REJECT = "reject"


@dataclass(frozen=True, slots=True)
class Responded:
    response: Response


class App(Enum):
    ACTIVE = "the app became active"
    INACTIVE = "the app became inactive"


@dataclass(frozen=True, slots=True)
class Loaded:
    """Contact requests and calls that the app knows of now."""

    requests: Collection[ChatId] = ()
    calls: Collection[ChatId] = ()


Input = Responded | App | Loaded


@dataclass(frozen=True, slots=True)
class SwitchUser:
    user: UserId


@dataclass(frozen=True, slots=True)
class OpenChat:
    chat: ChatId


@dataclass(frozen=True, slots=True)
class OpenApp:
    """Without a chat: for many events, and what belongs to none."""


@dataclass(frozen=True, slots=True)
class AcceptContact:
    """Never incognito; the chat of the new contact is opened then."""

    chat: ChatId


@dataclass(frozen=True, slots=True)
class TakeCall:
    chat: ChatId
    action: CallAction


Effect = SwitchUser | OpenChat | OpenApp | AcceptContact | TakeCall


@dataclass(frozen=True, slots=True)
class Responses:
    user: UserId | None = None
    is_active: bool = False
    kept: Response | None = None
    """The newest response, while the app is inactive."""
    request: ChatId | None = None
    """A contact request to accept as soon as it is loaded."""
    call: tuple[ChatId, CallAction] | None = None
    """For the call controller, as soon as the invitation is loaded."""
    requests: frozenset[ChatId] = frozenset()
    calls: frozenset[ChatId] = frozenset()


def respond(state: Responses, happened: Input) -> tuple[Responses, tuple[Effect, ...]]:
    match happened:
        case Responded(response):
            if response.action == DISMISS_ACTION:
                return state, ()
            return _process(state, response) if state.is_active else _keep(state, response)
        case App.ACTIVE:
            state = replace(state, is_active=True)
            if state.kept is None:
                return state, ()
            return _process(replace(state, kept=None), state.kept)
        case App.INACTIVE:
            return replace(state, is_active=False), ()
        case Loaded():
            return _loaded(state, happened)
        case _:
            assert_never(happened)


def _keep(state: Responses, response: Response) -> tuple[Responses, tuple[Effect, ...]]:
    return replace(state, kept=response), ()


def _process(state: Responses, response: Response) -> tuple[Responses, tuple[Effect, ...]]:
    effects: list[Effect] = []
    content = response.content
    user = content.info.get("userId")
    if isinstance(user, int) and user != state.user:
        effects.append(SwitchUser(user))
        state = replace(state, user=user)
    chat = content.info.get("chatId")
    match content.category, response.action:
        case Category.CONTACT_REQUEST, Action.ACCEPT_CONTACT.value if isinstance(chat, str):
            if chat not in state.requests:
                return replace(state, request=chat), tuple(effects)
            effects.append(AcceptContact(chat))
            state = replace(state, requests=state.requests - {chat})
        case Category.CALL_INVITATION, (Action.ACCEPT_CALL.value | Action.REJECT_CALL.value) if (
            isinstance(chat, str)
        ):
            accept = response.action == Action.ACCEPT_CALL.value
            action = CallAction.ACCEPT if accept else CallAction.REJECT
            if chat not in state.calls:
                return replace(state, call=(chat, action)), tuple(effects)
            effects.append(TakeCall(chat, action))
            state = replace(state, calls=state.calls - {chat})
        case _ if content.target is not None:
            effects.append(OpenChat(content.target))
        case _:
            effects.append(OpenApp())
    return state, tuple(effects)


def _loaded(state: Responses, loaded: Loaded) -> tuple[Responses, tuple[Effect, ...]]:
    """Only while active are actions carried out: otherwise they stay pending."""
    requests = state.requests | frozenset(loaded.requests)
    calls = state.calls | frozenset(loaded.calls)
    state = replace(state, requests=requests, calls=calls)
    effects: list[Effect] = []
    if state.is_active and state.request in requests and state.request is not None:
        effects.append(AcceptContact(state.request))
        state = replace(state, request=None, requests=requests - {state.request})
    if state.is_active and state.call is not None and state.call[0] in calls:
        effects.append(TakeCall(*state.call))
        state = replace(state, call=None, calls=calls - {state.call[0]})
    return state, tuple(effects)
