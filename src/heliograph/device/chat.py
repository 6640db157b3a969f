"""The chat model, as far as notifications speak of it: users, contacts, groups, items, calls."""

from collections.abc import Sequence
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


@dataclass(frozen=True, slots=True)
class Contact:
    contact_id: int
    name: str
    notifications: bool = True

    @property
    def chat_id(self) -> ChatId:
        return f"@{self.contact_id}"


@dataclass(frozen=True, slots=True)
class Group:
    group_id: int
    name: str
    notifications: bool = True

    @property
    def chat_id(self) -> ChatId:
        return f"#{self.group_id}"


Chat = Contact | Group


@dataclass(frozen=True, slots=True)
class ContactRequest:
    """Somebody joined a link whose owner wants to be asked."""

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


class Purpose(Enum):
    """What a connection is for, when there is nothing better to say of it."""

    DIRECT = "direct"
    GROUP = "group"
    SENT_FILE = "sent file"
    RECEIVED_FILE = "received file"
    CONTACT_ADDRESS = "contact address"


@dataclass(frozen=True, slots=True)
class ConnectionEntity:
    """A connection as a chat knows it. `contact` is None until the other side said who it is."""

    purpose: Purpose
    contact: Contact | None = None
    group: Group | None = None
    member: str = ""


# What is worth a notification.


@dataclass(frozen=True, slots=True)
class ConnectionEvent:
    """The best that can be said before, or without, the message itself."""

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


ChatEvent = ConnectionEvent | ContactConnected | ContactRequested | MessageReceived | CallInvited


@dataclass(frozen=True, slots=True)
class ExpectedMessage:
    """What a push says of a message that is still with the messaging router."""

    msg_id: bytes
    timestamp: int


@dataclass(frozen=True, slots=True)
class NotifiedConnection:
    """One entry of a push: whose connection, what to expect, and the notification's nonce."""

    conn_id: str
    user: User
    entity: ConnectionEntity
    expected: ExpectedMessage | None
    nonce: bytes = field(default=b"", repr=False)
    is_old: bool = False
    """The user was told of its message before."""

    @property
    def is_muted(self) -> bool:
        chat = self.entity.group or self.entity.contact
        return not self.user.show_notifications or (chat is not None and not chat.notifications)
