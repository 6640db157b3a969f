"""The part of the chat model that notifications need: users, contacts, groups, items, calls."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum

ChatId = str
UserId = int


@dataclass(frozen=True, slots=True)
class User:
    """A profile; a phone may have several, and shows the unread items of all on its badge."""

    user_id: UserId
    name: str
    show_notifications: bool = True
    unread: int = 0
    is_active: bool = False
    view_password: str | None = field(default=None, repr=False)
    """A hash. With one the profile is hidden: it is never listed and causes no notification."""

    @property
    def is_hidden(self) -> bool:
        return self.view_password is not None


@dataclass(frozen=True, slots=True)
class Contact:
    contact_id: int
    name: str
    notifications: bool = True

    @property
    def chat_id(self) -> ChatId:
        return f"@{self.contact_id}"


@dataclass(frozen=True, slots=True)
class ChatGroup:
    group_id: int
    name: str
    notifications: bool = True

    @property
    def chat_id(self) -> ChatId:
        return f"#{self.group_id}"


Chat = Contact | ChatGroup


@dataclass(frozen=True, slots=True)
class ContactRequest:
    """A request by someone who joined a link whose owner wants to be asked."""

    request_id: int
    name: str

    @property
    def chat_id(self) -> ChatId:
        return f"<@{self.request_id}"


class Format(Enum):
    PLAIN = "plain"
    SECRET = "secret"  # noqa: S105 - how a text is formatted


@dataclass(frozen=True, slots=True)
class Formatted:
    text: str
    format: Format = Format.PLAIN


@dataclass(frozen=True, slots=True)
class ChatItem:
    """A received item; `member` is its author if the chat is a group."""

    text: str
    formatted: Sequence[Formatted] = ()
    file_name: str = ""
    member: str = ""


class CallMedia(Enum):
    AUDIO = "audio"
    VIDEO = "video"


@dataclass(frozen=True, slots=True)
class CallInvitation:
    user: User
    contact: Contact
    media: CallMedia
    at: float = 0.0


class ConnectionPurpose(Enum):
    """The purpose of a connection, when nothing better is known about it."""

    DIRECT = "direct"
    GROUP = "group"
    SENT_FILE = "sent file"
    RECEIVED_FILE = "received file"
    CONTACT_ADDRESS = "contact address"


@dataclass(frozen=True, slots=True)
class ConnectionEntity:
    """The connection of a chat. `contact` is None until the other side has sent its name."""

    purpose: ConnectionPurpose
    contact: Contact | None = None
    group: ChatGroup | None = None
    member: str = ""


# Events that cause notifications.


@dataclass(frozen=True, slots=True)
class ConnectionEvent:
    """An event of a connection, shown before, or without, the message itself."""

    user: User
    entity: ConnectionEntity


@dataclass(frozen=True, slots=True)
class ContactConnected:
    user: User
    contact: Contact


@dataclass(frozen=True, slots=True)
class ContactRequested:
    user: User
    request: ContactRequest


@dataclass(frozen=True, slots=True)
class MessageReceived:
    user: User
    chat: Chat
    item: ChatItem


@dataclass(frozen=True, slots=True)
class CallInvited:
    invitation: CallInvitation


@dataclass(frozen=True, slots=True)
class CallAnswered:
    user: User
    contact: Contact
    accepted: bool


ChatEvent = (
    ConnectionEvent
    | ContactConnected
    | ContactRequested
    | MessageReceived
    | CallInvited
    | CallAnswered
)


@dataclass(frozen=True, slots=True)
class ExpectedMessage:
    """The message that a push announces, which is still at the messaging router."""

    msg_id: bytes
    timestamp: int


@dataclass(frozen=True, slots=True)
class NotifiedConnection:
    """One entry of a push: its connection, the expected message, and the notification's nonce."""

    conn_id: str
    user: User
    entity: ConnectionEntity
    expected: ExpectedMessage | None
    nonce: bytes = field(default=b"", repr=False)
    is_old: bool = False
    """Its message was already shown."""

    @property
    def is_muted(self) -> bool:
        chat = self.entity.group or self.entity.contact
        return not self.user.show_notifications or (chat is not None and not chat.notifications)


@dataclass(frozen=True, slots=True)
class FetchedMessage:
    """A processed and stored message; without an event there is nothing to show."""

    msg_id: bytes
    timestamp: int
    event: ChatEvent | None = None


@dataclass(frozen=True, slots=True)
class Loaded:
    """Contact requests and calls that the app has loaded."""

    requests: Collection[ChatId] = ()
    calls: Collection[ChatId] = ()
