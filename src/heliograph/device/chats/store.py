"""Chats in the store: functions of a transaction, from received bodies to notifications.

A message is stored before it is acknowledged, and under its router's ID, so that a duplicate is
stored once. Whether it was shown is stored too: if an extension is killed in between, the message
is shown at the next request.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from heliograph.db.dialects import Transaction
from heliograph.device.chats.body import Body, Call, CallAnswer, Greeting, Text, decode_body
from heliograph.device.chats.model import (
    CallAnswered,
    CallInvitation,
    CallInvited,
    CallMedia,
    ChatEvent,
    ChatGroup,
    ChatId,
    ChatItem,
    ConnectionEntity,
    ConnectionPurpose,
    Contact,
    ContactConnected,
    ContactRequest,
    ContactRequested,
    FetchedMessage,
    Loaded,
    MessageReceived,
    User,
)
from heliograph.device.chats.text import format_text
from heliograph.device.chats.users import get_user
from heliograph.device.store import change_badge


class Seal(Protocol):
    """Encrypts texts at rest, if the user gave a passphrase."""

    def seal(self, plain: bytes) -> bytes: ...

    def open(self, sealed: bytes) -> bytes: ...


class ContactStage(Enum):
    """The progress of a contact."""

    INVITED = "invited"
    """We created a link."""
    ASKING = "asking"
    """We created a link that asks before it accepts a contact."""
    REQUESTED = "requested"
    """Someone joined the link, and waits to be accepted."""
    JOINED = "joined"
    """We joined a link."""
    CONNECTED = "connected"


@dataclass(frozen=True, slots=True)
class ContactRow:
    contact_id: int
    user_id: int
    conn_id: str
    name: str | None
    stage: ContactStage
    notifications: bool

    @property
    def contact(self) -> Contact:
        name = self.name or f"contact {self.contact_id}"
        return Contact(self.contact_id, name, self.notifications)

    @property
    def request(self) -> ContactRequest:
        return ContactRequest(self.contact_id, self.contact.name)


@dataclass(frozen=True, slots=True)
class Processed:
    """A received message as stored, and the reply to send."""

    got: FetchedMessage
    replies: Sequence[Body] = ()


# Contacts.


def add_contact(
    tx: Transaction, user_id: int, conn_id: str, name: str | None, stage: ContactStage
) -> Contact:
    tx.execute(
        "INSERT INTO contacts (user_id, conn_id, name, stage, notifications)"
        " VALUES (?, ?, ?, ?, 1)",
        (user_id, conn_id, name, stage.value),
    )
    row = find_contact(tx, conn_id)
    if row is None:
        raise LookupError(conn_id)
    return row.contact


def contacts(tx: Transaction, user_id: int) -> list[ContactRow]:
    """Return the contacts of a profile, oldest first."""
    rows = tx.query(f"{_CONTACTS} WHERE user_id = ? ORDER BY contact_id", (user_id,))
    return [_row(row) for row in rows]


def find_contact(tx: Transaction, conn_id: str) -> ContactRow | None:
    rows = tx.query(f"{_CONTACTS} WHERE conn_id = ?", (conn_id,))
    return _row(rows[0]) if rows else None


def set_muted(tx: Transaction, chat_id: ChatId, muted: bool) -> None:
    sql = "UPDATE contacts SET notifications = ? WHERE contact_id = ?"
    if chat_id.startswith("#"):
        sql = "UPDATE groups SET notifications = ? WHERE group_id = ?"
    tx.execute(sql, (int(not muted), int(chat_id.lstrip("<@#"))))


def mute_group(tx: Transaction, user_id: int, name: str, muted: bool) -> bool:
    """Return whether the profile has such a group."""
    rows = tx.query("SELECT group_id FROM groups WHERE user_id = ? AND name = ?", (user_id, name))
    for (group_id,) in rows:
        set_muted(tx, f"#{group_id}", muted)
    return bool(rows)


def accept_request(tx: Transaction, chat_id: ChatId) -> ContactRow | None:
    """Return the contact that a request becomes, or None if there is no such request."""
    row = _request(tx, chat_id)
    if row is not None:
        _set_contact(tx, row, row.name, ContactStage.CONNECTED)
    return row


def _request(tx: Transaction, chat_id: ChatId) -> ContactRow | None:
    rows = tx.query(
        f"{_CONTACTS} WHERE contact_id = ? AND stage = ?",
        (int(chat_id.lstrip("<@")), ContactStage.REQUESTED.value),
    )
    return _row(rows[0]) if rows else None


def reject_request(tx: Transaction, chat_id: ChatId) -> ContactRow | None:
    """Remove a contact request, and return it; None if there is no such request."""
    row = _request(tx, chat_id)
    if row is not None:
        tx.execute("DELETE FROM items WHERE conn_id = ?", (row.conn_id,))
        tx.execute("DELETE FROM contacts WHERE contact_id = ?", (row.contact_id,))
    return row


def answer_call(tx: Transaction, chat_id: ChatId, since: int) -> ContactRow | None:
    """Mark a chat's pending call answered, and return the caller; None if no call is pending."""
    pending = tx.query(
        "SELECT conn_id FROM items WHERE chat_id = ? AND kind = 'call' AND is_read = 0"
        " AND received_at >= ?",
        (chat_id, since),
    )
    if not pending:
        return None
    tx.execute(
        "UPDATE items SET is_read = 1, is_shown = 1 WHERE chat_id = ? AND kind = 'call'",
        (chat_id,),
    )
    change_badge(tx, -len(pending))
    return find_contact(tx, pending[0][0])


def waiting(tx: Transaction, calls_since: int) -> Loaded:
    """Return pending contact requests, and unread calls that can still be answered."""
    rows = tx.query(f"{_CONTACTS} WHERE stage = ?", (ContactStage.REQUESTED.value,))
    calls = tx.query(
        "SELECT DISTINCT chat_id FROM items"
        " WHERE kind = 'call' AND is_read = 0 AND received_at >= ?",
        (calls_since,),
    )
    requests = frozenset(_row(row).request.chat_id for row in rows)
    return Loaded(requests, frozenset(chat_id for (chat_id,) in calls))


_CONTACTS = "SELECT contact_id, user_id, conn_id, name, stage, notifications FROM contacts"


def _row(row: Sequence[object]) -> ContactRow:
    contact_id, user_id, conn_id, name, stage, notifications = row
    return ContactRow(
        int(str(contact_id)),
        int(str(user_id)),
        str(conn_id),
        None if name is None else str(name),
        ContactStage(stage),
        bool(notifications),
    )


def _set_contact(
    tx: Transaction, row: ContactRow, name: str | None, stage: ContactStage
) -> ContactRow:
    tx.execute(
        "UPDATE contacts SET name = ?, stage = ? WHERE contact_id = ?",
        (name, stage.value, row.contact_id),
    )
    return ContactRow(row.contact_id, row.user_id, row.conn_id, name, stage, row.notifications)


def entity_of(tx: Transaction, conn_id: str) -> tuple[User, ConnectionEntity] | None:
    """Return what is known about a connection before its messages."""
    row = find_contact(tx, conn_id)
    if row is None:
        return None
    purpose = (
        ConnectionPurpose.CONTACT_ADDRESS
        if row.stage is ContactStage.ASKING
        else ConnectionPurpose.DIRECT
    )
    contact = None if row.name is None else row.contact
    return get_user(tx, row.user_id), ConnectionEntity(purpose, contact)


# Messages.


def process(
    tx: Transaction, seal: Seal, conn_id: str, msg_id: bytes, at: int, data: bytes
) -> Processed:
    """Store a message. A duplicate causes an event again only if it was never shown."""
    row = find_contact(tx, conn_id)
    if row is None:
        return Processed(FetchedMessage(msg_id, at))
    is_known = is_stored(tx, conn_id, msg_id)
    match decode_body(data):
        case Greeting() as hello:
            return _hello(tx, seal, row, msg_id, at, hello, is_known=is_known)
        case Text() | Call() | CallAnswer() if is_known:
            pass
        case Text() as text:
            return _text(tx, seal, row, msg_id, at, text)
        case Call() as call:
            said = call.media.value
            _add_item(tx, seal, row, msg_id, at, row.contact.chat_id, "call", text=said)
        case CallAnswer() as answer:
            kind = "call accepted" if answer.accepted else "call declined"
            _add_item(tx, seal, row, msg_id, at, row.contact.chat_id, kind, is_read=True)
        case None:
            return Processed(FetchedMessage(msg_id, at))
    return Processed(FetchedMessage(msg_id, at, unshown(tx, seal, conn_id, msg_id)))


def _hello(
    tx: Transaction,
    seal: Seal,
    row: ContactRow,
    msg_id: bytes,
    at: int,
    hello: Greeting,
    *,
    is_known: bool,
) -> Processed:
    """Store a greeting, and answer it each time: the first answer may never have been sent."""
    asked = row.stage in (ContactStage.ASKING, ContactStage.REQUESTED)
    if not is_known and row.stage is not ContactStage.CONNECTED:
        stage = ContactStage.REQUESTED if asked else ContactStage.CONNECTED
        row = _set_contact(tx, row, row.name or hello.name, stage)
        chat_id = row.request.chat_id if asked else row.contact.chat_id
        kind = "request" if asked else "connected"
        _add_item(tx, seal, row, msg_id, at, chat_id, kind, is_read=True)
    replies = (
        () if hello.answer or asked else (Greeting(get_user(tx, row.user_id).name, answer=True),)
    )
    return Processed(FetchedMessage(msg_id, at, unshown(tx, seal, row.conn_id, msg_id)), replies)


def _text(
    tx: Transaction, seal: Seal, row: ContactRow, msg_id: bytes, at: int, text: Text
) -> Processed:
    group_id = None
    chat_id = row.contact.chat_id
    if text.group:
        group = _group(tx, row.user_id, text.group)
        group_id, chat_id = group.group_id, group.chat_id
    _add_item(
        tx,
        seal,
        row,
        msg_id,
        at,
        chat_id,
        "message",
        text=text.text,
        file_name=text.file_name,
        member=text.member or row.contact.name if text.group else "",
        group_id=group_id,
    )
    return Processed(FetchedMessage(msg_id, at, unshown(tx, seal, row.conn_id, msg_id)))


def _group(tx: Transaction, user_id: int, name: str) -> ChatGroup:
    tx.execute(
        "INSERT INTO groups (user_id, name, notifications) VALUES (?, ?, 1)"
        " ON CONFLICT (user_id, name) DO NOTHING",
        (user_id, name),
    )
    rows = tx.query(
        "SELECT group_id, name, notifications FROM groups WHERE user_id = ? AND name = ?",
        (user_id, name),
    )
    return ChatGroup(rows[0][0], rows[0][1], bool(rows[0][2]))


def _add_item(
    tx: Transaction,
    seal: Seal,
    row: ContactRow,
    msg_id: bytes,
    at: int,
    chat_id: ChatId,
    kind: str,
    *,
    text: str = "",
    file_name: str = "",
    member: str = "",
    group_id: int | None = None,
    is_read: bool = False,
) -> None:
    tx.execute(
        "INSERT INTO items (conn_id, msg_id, received_at, user_id, chat_id, kind, group_id,"
        " content, is_read, is_shown) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 0)",
        (
            *(row.conn_id, msg_id, at, row.user_id, chat_id, kind, group_id),
            *(seal.seal(_content(text, file_name, member)), int(is_read)),
        ),
    )
    if not is_read:
        change_badge(tx, 1)


def _content(*said: str) -> bytes:
    return json.dumps(said).encode()


_ITEM = "SELECT is_shown FROM items WHERE conn_id = ? AND msg_id = ?"


def is_stored(tx: Transaction, conn_id: str, msg_id: bytes) -> bool:
    return bool(tx.query(_ITEM, (conn_id, msg_id)))


def unshown(tx: Transaction, seal: Seal, conn_id: str, msg_id: bytes) -> ChatEvent | None:
    """Return the event of a stored message, unless it was shown or its chat is muted."""
    rows = tx.query(
        "SELECT kind, group_id, content, received_at FROM items"
        " WHERE conn_id = ? AND msg_id = ? AND is_shown = 0",
        (conn_id, msg_id),
    )
    row = find_contact(tx, conn_id)
    if not rows or row is None:
        return None
    [(kind, group_id, content, at)] = rows
    user = get_user(tx, row.user_id)
    if not user.show_notifications:
        return None
    text, file_name, member = json.loads(seal.open(content))
    match kind:
        case "connected":
            return ContactConnected(user, row.contact)
        case "request":
            return ContactRequested(user, row.request)
        case "call":
            invitation = CallInvitation(user, row.contact, CallMedia(text), at)
            return CallInvited(invitation)
        case "call accepted" | "call declined":
            return CallAnswered(user, row.contact, kind == "call accepted")
    chat: Contact | ChatGroup = row.contact
    if group_id is not None:
        [(name, notifications)] = tx.query(
            "SELECT name, notifications FROM groups WHERE group_id = ?", (group_id,)
        )
        chat = ChatGroup(group_id, name, bool(notifications))
    if not chat.notifications:
        return None
    return MessageReceived(user, chat, ChatItem(text, format_text(text), file_name, member))


def set_shown(tx: Transaction, conn_id: str, up_to: int) -> None:
    """Mark messages received until this time as shown."""
    tx.execute(
        "UPDATE items SET is_shown = 1 WHERE conn_id = ? AND received_at <= ? AND is_shown = 0",
        (conn_id, up_to),
    )


def read_chat(tx: Transaction, chat_id: ChatId) -> int:
    """Mark a chat's items read, and return the new badge."""
    [[count]] = tx.query("SELECT COUNT(*) FROM items WHERE chat_id = ? AND is_read = 0", (chat_id,))
    tx.execute("UPDATE items SET is_read = 1, is_shown = 1 WHERE chat_id = ?", (chat_id,))
    return change_badge(tx, -count)
