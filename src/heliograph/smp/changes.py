"""What one batch makes durable.

A batch runs its statements in a fixed order, which is right because an ID is never used again:
what it inserts, it may also delete.
"""

from collections.abc import Callable, Iterable
from typing import Any

from heliograph.db.dialects import Row, Transaction
from heliograph.db.errors import DatabaseError
from heliograph.smp.records import Message, Notification, Queue, Service

Peeked = dict[bytes, Message]
AfterCommit = Callable[[Peeked], None]
AfterFailure = Callable[[DatabaseError], None]

QUEUE_COLUMNS = (
    "recipient_id, sender_id, recipient_key, secret, sender_key, mode, status,"
    " notifier_id, notifier_key, notifier_secret, notifier_service_id"
)
_UPSERT_QUEUE = (
    f"INSERT INTO queues ({QUEUE_COLUMNS})"  # noqa: S608 - constants
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (recipient_id) DO UPDATE SET sender_key = excluded.sender_key,"
    " status = excluded.status, notifier_id = excluded.notifier_id,"
    " notifier_key = excluded.notifier_key, notifier_secret = excluded.notifier_secret,"
    " notifier_service_id = excluded.notifier_service_id"
)
_INSERT_MESSAGE = (
    "INSERT INTO messages (seq, recipient_id, msg_id, timestamp, notification, body)"
    " VALUES (?, ?, ?, ?, ?, ?)"
)
_INSERT_NOTIFICATION = (
    "INSERT INTO notifications (seq, notifier_id, nonce, meta, timestamp) VALUES (?, ?, ?, ?, ?)"
)
_UPSERT_SERVICE = (
    "INSERT INTO services (service_id, role, fingerprint, queue_count, ids_hash)"
    " VALUES (?, ?, ?, ?, ?) ON CONFLICT (service_id) DO UPDATE SET"
    " queue_count = excluded.queue_count, ids_hash = excluded.ids_hash"
)
_PEEK = (
    "SELECT seq, recipient_id, msg_id, timestamp, notification, body FROM messages"
    " WHERE recipient_id = ? ORDER BY seq LIMIT 1"
)


class Changes:
    """What one batch makes durable, and what happens then."""

    def __init__(self) -> None:
        self.touched: set[bytes] = set()
        """Queues whose records differ from what the store had before."""
        self.queues: dict[bytes, Queue] = {}
        self.services: dict[bytes, Service] = {}
        self.messages: list[Message] = []
        self.notifications: list[Notification] = []
        self.deleted_messages: list[tuple[int]] = []
        self.deleted_notifications: list[tuple[int]] = []
        self.deleted_notifiers: list[tuple[bytes]] = []
        self.deleted_queues: list[tuple[bytes]] = []
        self.removed: list[bytes] = []
        """The nonces of what goes with the deleted notifiers, once it was written."""
        self.peeks: set[bytes] = set()
        """Queues whose first message, after all of this, is wanted."""
        self.after: list[tuple[AfterCommit, AfterFailure]] = []
        self._queue_rows: list[Row] = []
        self.service_rows: list[Row] = []
        self._was_tried = False

    def writes(self) -> bool:
        return bool(
            self.queues
            or self.services
            or self.messages
            or self.notifications
            or self.deleted_messages
            or self.deleted_notifications
            or self.deleted_notifiers
            or self.deleted_queues
        )

    def then(self, committed: AfterCommit, failed: AfterFailure) -> None:
        self.after.append((committed, failed))

    def freeze(self) -> None:
        """Take the rows now: records go on changing while the batch commits."""
        self._queue_rows = [_queue_row(queue) for queue in self.queues.values()]
        self.service_rows = [_service_row(service) for service in self.services.values()]

    def apply(self, tx: Transaction) -> Peeked:
        if not self._is_applied(tx):
            self._write(tx)
        self._was_tried = True
        return self.peek(tx)

    def _is_applied(self, tx: Transaction) -> bool:
        """Whether an earlier attempt was committed, and the database lost before it could say so.

        All but the insertions may be repeated; and those too, if nothing of them is left.
        """
        if not self._was_tried:
            return False
        ours = {message.seq: message.msg_id for message in self.messages}
        rows = tx.query_in("SELECT seq, msg_id FROM messages WHERE seq IN {in}", list(ours))
        return any(ours[seq] == msg_id for seq, msg_id in rows)

    def _write(self, tx: Transaction) -> None:
        tx.many(_UPSERT_QUEUE, self._queue_rows)
        tx.many(_UPSERT_SERVICE, self.service_rows)
        tx.many(_INSERT_MESSAGE, [_message_row(message) for message in self.messages])
        tx.many(_INSERT_NOTIFICATION, self.notifications)
        tx.many("DELETE FROM messages WHERE seq = ?", self.deleted_messages)
        tx.many("DELETE FROM notifications WHERE seq = ?", self.deleted_notifications)
        if self.deleted_notifiers:
            self._remove_notifiers(tx)
        tx.many("DELETE FROM messages WHERE recipient_id = ?", self.deleted_queues)
        tx.many("DELETE FROM queues WHERE recipient_id = ?", self.deleted_queues)

    def _remove_notifiers(self, tx: Transaction) -> None:
        rows = tx.query_in(
            "SELECT nonce FROM notifications WHERE notifier_id IN {in}",
            [notifier_id for (notifier_id,) in self.deleted_notifiers],
        )
        self.removed = [nonce for (nonce,) in rows]
        tx.many("DELETE FROM notifications WHERE notifier_id = ?", self.deleted_notifiers)

    def peek(self, tx: Transaction) -> Peeked:
        found = {}
        for recipient_id in self.peeks:
            rows = tx.query(_PEEK, (recipient_id,))
            if rows:
                found[recipient_id] = _message(rows[0])
        return found


def _queue_row(queue: Queue) -> Row:
    notifier = queue.notifier
    credentials = (
        (None, None, None, None)
        if notifier is None
        else (notifier.notifier_id, notifier.key, notifier.secret, notifier.service_id)
    )
    return (
        queue.recipient_id,
        queue.sender_id,
        queue.recipient_key,
        queue.secret,
        queue.sender_key,
        queue.mode and queue.mode.value.decode(),
        queue.status.value,
        *credentials,
    )


def _service_row(service: Service) -> Row:
    return (
        service.service_id,
        service.role.value.decode(),
        service.fingerprint,
        service.count,
        service.ids_hash,
    )


def _message_row(message: Message) -> Row:
    seq, recipient_id, msg_id, timestamp, notification, body = message
    return seq, recipient_id, msg_id, timestamp, int(notification), body


def _message(row: Iterable[Any]) -> Message:
    seq, recipient_id, msg_id, timestamp, notification, body = row
    return Message(seq, recipient_id, msg_id, timestamp, bool(notification), body)
