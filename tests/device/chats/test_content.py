"""What every builder says, in every preview mode."""

import pytest

from heliograph.device.chats.content import (
    MUTED,
    Category,
    Content,
    DatabaseProblem,
    build,
    build_all,
    create_app_stopped,
    create_error,
    create_many_events,
)
from heliograph.device.chats.model import (
    CallMedia,
    ChatEvent,
    ConnectionEntity,
    ConnectionEvent,
    ConnectionPurpose,
    Contact,
)
from heliograph.device.states import PreviewMode as M
from tests.device.support import ALICE, BOB, CONNECTED, GROUP, REQUESTED, USER, call, message

SECRET = message("the code is #1234#")
IN_GROUP = message("up we go", GROUP, "Alice")


def event(purpose: ConnectionPurpose, **values: object) -> ConnectionEvent:
    return ConnectionEvent(USER, ConnectionEntity(purpose, **values))  # type: ignore[arg-type]


DIRECT = event(ConnectionPurpose.DIRECT, contact=ALICE)
UNKNOWN = event(ConnectionPurpose.DIRECT)
MEMBER = event(ConnectionPurpose.GROUP, group=GROUP, member="Alice")
NO_GROUP = event(ConnectionPurpose.GROUP)
SENT, RECEIVED = event(ConnectionPurpose.SENT_FILE), event(ConnectionPurpose.RECEIVED_FILE)
ADDRESS = event(ConnectionPurpose.CONTACT_ADDRESS)
VIDEO = call(media=CallMedia.VIDEO)

# Title and body, in the modes message, contact and hidden.
TEXTS: list[tuple[ChatEvent, Category, list[tuple[str, str]]]] = [
    (
        SECRET,
        Category.MESSAGE_RECEIVED,
        [("Alice", "the code is ..."), ("Alice", "New message"), ("SimpleX", "New message")],
    ),
    (
        IN_GROUP,
        Category.MESSAGE_RECEIVED,
        [
            ("#Climbing Alice", "up we go"),
            ("#Climbing Alice", "New message"),
            ("SimpleX", "New message"),
        ],
    ),
    (
        CONNECTED,
        Category.CONTACT_CONNECTED,
        [
            *[("Alice is connected!", "You can now send messages to Alice")] * 2,
            ("A new contact is connected!", "You can now send messages to this contact"),
        ],
    ),
    (
        REQUESTED,
        Category.CONTACT_REQUEST,
        [
            *[("Mallory wants to connect!", "Accept contact request from Mallory?")] * 2,
            ("Somebody wants to connect!", "Accept contact request from this contact?"),
        ],
    ),
    (
        call(),
        Category.CALL_INVITATION,
        [*[("Alice", "Incoming audio call")] * 2, ("SimpleX", "Incoming audio call")],
    ),
    (
        VIDEO,
        Category.CALL_INVITATION,
        [*[("Alice", "Incoming video call")] * 2, ("SimpleX", "Incoming video call")],
    ),
    (
        DIRECT,
        Category.CONNECTION_EVENT,
        [*[("Alice", "Message received")] * 2, ("SimpleX", "Message received")],
    ),
    (UNKNOWN, Category.CONNECTION_EVENT, [("New contact", "Message received")] * 3),
    (
        MEMBER,
        Category.CONNECTION_EVENT,
        [*[("#Climbing Alice", "Message received")] * 2, ("Group message", "Message received")],
    ),
    (NO_GROUP, Category.CONNECTION_EVENT, [("Group message", "Message received")] * 3),
    (SENT, Category.CONNECTION_EVENT, [("Sent file event", "")] * 3),
    (RECEIVED, Category.CONNECTION_EVENT, [("Received file event", "")] * 3),
    (ADDRESS, Category.CONNECTION_EVENT, [("New contact request", "")] * 3),
]
CASES = [
    (event, category, mode, *texts)
    for event, category, all_texts in TEXTS
    for mode, texts in zip(M, all_texts, strict=True)
]


@pytest.mark.parametrize(("event", "category", "mode", "title", "body"), CASES)
def test_what_each_event_says_in_each_mode(
    event: ChatEvent, category: Category, mode: M, title: str, body: str
) -> None:
    content = build(event, mode, 3)
    assert (content.category, content.title, content.body) == (category, title, body)
    assert content.badge == 3
    assert content.info["userId"] == USER.user_id
    assert content.sound


def shown(content: Content) -> str:
    return f"{content.title} {content.subtitle} {content.body}"


@pytest.mark.parametrize("event", [item[0] for item in TEXTS])
def test_hidden_names_nobody_and_says_nothing(event: ChatEvent) -> None:
    text = shown(build(event, M.HIDDEN))
    assert not any(word in text for word in ("Alice", "Mallory", "Climbing", "code", "up we go"))


@pytest.mark.parametrize("event", [item[0] for item in TEXTS])
def test_contact_says_no_message(event: ChatEvent) -> None:
    text = shown(build(event, M.CONTACT))
    assert "code" not in text
    assert "up we go" not in text


@pytest.mark.parametrize(
    ("event", "thread", "target", "chat"),
    [
        (SECRET, "@7", "@7", None),
        (IN_GROUP, "#9", "#9", None),
        (CONNECTED, "@7", "@7", None),
        (REQUESTED, "", None, "<@10"),
        (VIDEO, "@7", None, "@7"),
        (DIRECT, "@7", "@7", None),
        (MEMBER, "#9", "#9", None),
        (UNKNOWN, "", None, None),
        (SENT, "", None, None),
    ],
)
def test_threads_group_chats_and_targets_open_them(
    event: ChatEvent, thread: str, target: str | None, chat: str | None
) -> None:
    content = build(event, M.HIDDEN)
    assert (content.thread, content.target, content.info.get("chatId")) == (thread, target, chat)


def test_a_contact_request_can_be_accepted() -> None:
    assert build(REQUESTED, M.MESSAGE).info["contactRequestId"] == 10


@pytest.mark.parametrize("problem", DatabaseProblem)
def test_errors(problem: DatabaseProblem) -> None:
    content = create_error(problem, 2)
    assert (content.category, content.title) == (Category.CONNECTION_EVENT, problem.value)
    assert content.badge == 2
    assert content.is_shown


def test_app_stopped() -> None:
    content = create_app_stopped(4)
    assert content.title == "Encrypted message: app is stopped"
    assert (content.category, content.badge) == (Category.CONNECTION_EVENT, 4)


CAROL, DAVE = Contact(11, "Carol"), Contact(12, "Dave")


@pytest.mark.parametrize(
    ("contacts", "body"),
    [
        ([ALICE, BOB], "From: Alice and Bob"),
        ([ALICE, ALICE], "From: Alice"),
        ([ALICE, BOB, CAROL], "From: Alice, Bob and Carol"),
        ([ALICE, BOB, CAROL, DAVE], "From: Alice, Bob and 2 other chats"),
    ],
)
@pytest.mark.parametrize("mode", M)
def test_many_messages(contacts: list[Contact], body: str, mode: M) -> None:
    content = create_many_events([message("secret", item) for item in contacts], mode, 9)
    count = len({item.chat_id for item in contacts})
    assert content.title == "New messages"
    assert content.body == (f"From {count} chat(s)" if mode is M.HIDDEN else body)
    assert (content.category, content.badge) == (Category.MANY_EVENTS, 9)
    assert content.target is None
    assert content.info == {"userId": 1}


def test_many_other_events() -> None:
    content = create_many_events([CONNECTED, REQUESTED], M.MESSAGE)
    assert (content.title, content.body) == ("New events", "2 new events")


def test_one_notification_for_all() -> None:
    one, other = message("one"), message("two", BOB)
    assert build_all([], M.MESSAGE) is MUTED
    assert not MUTED.is_shown
    assert build_all([one], M.MESSAGE, 1) == build(one, M.MESSAGE, 1)
    assert build_all([DIRECT, one], M.MESSAGE) == build(one, M.MESSAGE)
    assert build_all([one, DIRECT, other], M.MESSAGE).body == "From: Alice and Bob"
    assert build_all([one, other, VIDEO], M.MESSAGE) == build(VIDEO, M.MESSAGE)
    assert build_all([CONNECTED, DIRECT], M.MESSAGE).title == "New events"
