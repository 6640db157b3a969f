"""Chats that the device's tests speak of."""

from heliograph.device.chats.model import (
    CallInvitation,
    CallInvited,
    CallMedia,
    ChatGroup,
    ChatItem,
    ConnectionEntity,
    ConnectionPurpose,
    Contact,
    ContactConnected,
    ContactRequest,
    ContactRequested,
    ExpectedMessage,
    MessageReceived,
    NotifiedConnection,
    User,
)
from heliograph.device.chats.text import format_text

USER = User(1, "me")
MUTED_USER = User(2, "quiet me", show_notifications=False)
ALICE = Contact(7, "Alice")
BOB = Contact(8, "Bob")
GROUP = ChatGroup(9, "Climbing")
REQUEST = ContactRequest(10, "Mallory")


def message(text: str, chat: Contact | ChatGroup = ALICE, member: str = "") -> MessageReceived:
    return MessageReceived(USER, chat, ChatItem(text, format_text(text), member=member))


def call(contact: Contact = ALICE, media: CallMedia = CallMedia.AUDIO) -> CallInvited:
    return CallInvited(CallInvitation(USER, contact, media))


CONNECTED = ContactConnected(USER, ALICE)
REQUESTED = ContactRequested(USER, REQUEST)


def notified(
    conn_id: str = "a",
    msg_id: bytes = b"1",
    timestamp: int = 100,
    contact: Contact | None = ALICE,
    user: User = USER,
) -> NotifiedConnection:
    entity = ConnectionEntity(ConnectionPurpose.DIRECT, contact)
    return NotifiedConnection(conn_id, user, entity, ExpectedMessage(msg_id, timestamp))
