"""Chats in the store: functions of a transaction, from received bodies to what is worth telling.

A message is stored before it is acknowledged, and under its router's ID, so that one received twice
is stored once. Whether it was shown is stored too: an extension that is killed between the two
shows it when it is asked again.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from heliograph.db.dialects import Transaction
from heliograph.device.badge import Badge, total_unread_for_all_users
from heliograph.device.body import Body, Call, Hello, Text, decode_body
from heliograph.device.chat import (
    CallInvitation,
    CallInvited,
    CallMedia,
    ChatEvent,
    ChatId,
    ChatItem,
    ConnectionEntity,
    Contact,
    ContactConnected,
    ContactRequest,
    ContactRequested,
    Group,
    MessageReceived,
    Purpose,
    User,
)
from heliograph.device.entity import Got
from heliograph.device.manager import Loaded
from heliograph.device.ports import Seal
from heliograph.device.store import BADGE, change_badge, set_setting
from heliograph.device.text import format_text


class Stage(Enum):
    """How far a contact is."""

    INVITED = "invited"
    """We made a link."""
    ASKING = "asking"
    """We made a link, and want to be asked about who joins."""
    REQUESTED = "requested"
    """Somebody joined it, and waits."""
    JOINED = "joined"
    """We joined a link."""
    CONNECTED = "connected"


@dataclass(frozen=True, slots=True)
class ContactRow:
    contact_id: int
    user_id: int
    conn_id: str
    name: str | None
    stage: Stage
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
    """A received message as stored, and what is to be sent back."""

    got: Got
    replies: Sequence[Body] = ()


# Users and contacts.


def add_user(tx: Transaction, name: str, *, show_notifications: bool = True) -> int:
    tx.execute(
        "INSERT INTO users (name, show_notifications) VALUES (?, ?)",
        (name, int(show_notifications)),
    )
    [[user_id]] = tx.query("SELECT MAX(user_id) FROM users")
    return int(user_id)


def set_show_notifications(tx: Transaction, user_id: int, show: bool) -> None:
    tx.execute("UPDATE users SET show_notifications = ? WHERE user_id = ?", (int(show), user_id))


def users(tx: Transaction) -> list[User]:
    """With what is unread of each."""
    rows = tx.query(
        "SELECT u.user_id, u.name, u.show_notifications,"
        " (SELECT COUNT(*) FROM items i WHERE i.user_id = u.user_id AND i.is_read = 0)"
        " FROM users u ORDER BY u.user_id"
    )
    return [User(user_id, name, bool(show), unread) for user_id, name, show, unread in rows]


def add_contact(
    tx: Transaction, user_id: int, conn_id: str, name: str | None, stage: Stage
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


def contacts(tx: Transaction) -> list[ContactRow]:
    return [_row(row) for row in tx.query(f"{_CONTACTS} ORDER BY contact_id")]


def find_contact(tx: Transaction, conn_id: str) -> ContactRow | None:
    rows = tx.query(f"{_CONTACTS} WHERE conn_id = ?", (conn_id,))
    return _row(rows[0]) if rows else None


def set_muted(tx: Transaction, chat_id: ChatId, muted: bool) -> None:
    sql = "UPDATE contacts SET notifications = ? WHERE contact_id = ?"
    if chat_id.startswith("#"):
        sql = "UPDATE groups SET notifications = ? WHERE group_id = ?"
    tx.execute(sql, (int(not muted), int(chat_id.lstrip("<@#"))))


def accept_request(tx: Transaction, chat_id: ChatId) -> ContactRow | None:
    """The contact that a request becomes, or None if there is none such."""
    rows = tx.query(
        f"{_CONTACTS} WHERE contact_id = ? AND stage = ?",
        (int(chat_id.lstrip("<@")), Stage.REQUESTED.value),
    )
    if not rows:
        return None
    row = _row(rows[0])
    _set_contact(tx, row, row.name, Stage.CONNECTED)
    return row


def waiting(tx: Transaction, calls_since: int) -> Loaded:
    """What waits for an answer: contact requests, and calls that were not seen yet."""
    rows = tx.query(f"{_CONTACTS} WHERE stage = ?", (Stage.REQUESTED.value,))
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
        Stage(stage),
        bool(notifications),
    )


def _set_contact(tx: Transaction, row: ContactRow, name: str | None, stage: Stage) -> ContactRow:
    tx.execute(
        "UPDATE contacts SET name = ?, stage = ? WHERE contact_id = ?",
        (name, stage.value, row.contact_id),
    )
    return ContactRow(row.contact_id, row.user_id, row.conn_id, name, stage, row.notifications)


def _user(tx: Transaction, user_id: int) -> User:
    return next(user for user in users(tx) if user.user_id == user_id)


def entity_of(tx: Transaction, conn_id: str) -> tuple[User, ConnectionEntity] | None:
    """What a connection is, as far as is known before its messages are."""
    row = find_contact(tx, conn_id)
    if row is None:
        return None
    purpose = Purpose.CONTACT_ADDRESS if row.stage is Stage.ASKING else Purpose.DIRECT
    contact = None if row.name is None else row.contact
    return _user(tx, row.user_id), ConnectionEntity(purpose, contact)


# Messages.


def process(
    tx: Transaction, seal: Seal, conn_id: str, msg_id: bytes, at: int, data: bytes
) -> Processed:
    """Store a message. One that was stored before is told again only if it was never shown."""
    row = find_contact(tx, conn_id)
    if row is None:
        return Processed(Got(msg_id, at))
    is_known = is_stored(tx, conn_id, msg_id)
    match decode_body(data):
        case Hello() as hello:
            return _hello(tx, seal, row, msg_id, at, hello, is_known=is_known)
        case Text() | Call() if is_known:
            pass
        case Text() as text:
            return _text(tx, seal, row, msg_id, at, text)
        case Call() as call:
            said = call.media.value
            _add_item(tx, seal, row, msg_id, at, row.contact.chat_id, "call", text=said)
        case None:
            return Processed(Got(msg_id, at))
    return Processed(Got(msg_id, at, unshown(tx, seal, conn_id, msg_id)))


def _hello(
    tx: Transaction,
    seal: Seal,
    row: ContactRow,
    msg_id: bytes,
    at: int,
    hello: Hello,
    *,
    is_known: bool,
) -> Processed:
    """Answered each time it is received: the first answer may never have left."""
    asked = row.stage in (Stage.ASKING, Stage.REQUESTED)
    if not is_known and row.stage is not Stage.CONNECTED:
        stage = Stage.REQUESTED if asked else Stage.CONNECTED
        row = _set_contact(tx, row, row.name or hello.name, stage)
        chat_id = row.request.chat_id if asked else row.contact.chat_id
        kind = "request" if asked else "connected"
        _add_item(tx, seal, row, msg_id, at, chat_id, kind, is_read=True)
    replies = () if hello.answer or asked else (Hello(_user(tx, row.user_id).name, answer=True),)
    return Processed(Got(msg_id, at, unshown(tx, seal, row.conn_id, msg_id)), replies)


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
    return Processed(Got(msg_id, at, unshown(tx, seal, row.conn_id, msg_id)))


def _group(tx: Transaction, user_id: int, name: str) -> Group:
    tx.execute(
        "INSERT INTO groups (user_id, name, notifications) VALUES (?, ?, 1)"
        " ON CONFLICT (user_id, name) DO NOTHING",
        (user_id, name),
    )
    rows = tx.query(
        "SELECT group_id, name, notifications FROM groups WHERE user_id = ? AND name = ?",
        (user_id, name),
    )
    return Group(rows[0][0], rows[0][1], bool(rows[0][2]))


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
        " content, text, file_name, member, is_read, is_shown)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, '', '', '', ?, 0)",
        (
            *(row.conn_id, msg_id, at, row.user_id, chat_id, kind, group_id),
            *(seal.seal(_content(text, file_name, member)), int(is_read)),
        ),
    )
    if not is_read:
        change_badge(tx, 1)


def _content(*said: str) -> bytes:
    return json.dumps(said).encode()


def seal_texts(tx: Transaction, seal: Seal) -> None:
    """Of messages that were stored when texts were not sealed; nothing of them is left behind."""
    tx.query("PRAGMA secure_delete = ON")
    for item_id, *said in tx.query(
        "SELECT item_id, text, file_name, member FROM items WHERE content IS NULL"
    ):
        tx.execute(
            "UPDATE items SET content = ?, text = '', file_name = '', member = ''"
            " WHERE item_id = ?",
            (seal.seal(_content(*said)), item_id),
        )


def has_unsealed(tx: Transaction) -> bool:
    return bool(tx.query("SELECT 1 FROM items WHERE content IS NULL LIMIT 1"))


_ITEM = "SELECT is_shown FROM items WHERE conn_id = ? AND msg_id = ?"


def is_stored(tx: Transaction, conn_id: str, msg_id: bytes) -> bool:
    return bool(tx.query(_ITEM, (conn_id, msg_id)))


def unshown(tx: Transaction, seal: Seal, conn_id: str, msg_id: bytes) -> ChatEvent | None:
    """What a stored message says, if it was not shown yet and its chat is not muted."""
    rows = tx.query(
        "SELECT kind, group_id, content, received_at FROM items"
        " WHERE conn_id = ? AND msg_id = ? AND is_shown = 0",
        (conn_id, msg_id),
    )
    row = find_contact(tx, conn_id)
    if not rows or row is None:
        return None
    [(kind, group_id, content, at)] = rows
    user = _user(tx, row.user_id)
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
    chat: Contact | Group = row.contact
    if group_id is not None:
        [(name, notifications)] = tx.query(
            "SELECT name, notifications FROM groups WHERE group_id = ?", (group_id,)
        )
        chat = Group(group_id, name, bool(notifications))
    if not chat.notifications:
        return None
    return MessageReceived(user, chat, ChatItem(text, format_text(text), file_name, member))


def set_shown(tx: Transaction, conn_id: str, up_to: int) -> None:
    """What was received until this time has been told of."""
    tx.execute(
        "UPDATE items SET is_shown = 1 WHERE conn_id = ? AND received_at <= ? AND is_shown = 0",
        (conn_id, up_to),
    )


def read_chat(tx: Transaction, chat_id: ChatId) -> int:
    """The chat was opened: less is unread, and the badge shows it. Returns the badge's number."""
    [[count]] = tx.query("SELECT COUNT(*) FROM items WHERE chat_id = ? AND is_read = 0", (chat_id,))
    tx.execute("UPDATE items SET is_read = 1, is_shown = 1 WHERE chat_id = ?", (chat_id,))
    return change_badge(tx, -count)


def count_unread(tx: Transaction) -> int:
    """Of all users; the badge is set to it."""
    badge = Badge().set(total_unread_for_all_users(users(tx)))
    set_setting(tx, BADGE, str(badge.count))
    return badge.count
