"""A batch of changes to the store.

Its statements run in a fixed order. That is correct because IDs are not reused: a batch may delete
what it inserts, and never the other way round.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from heliograph.db.dialects import Row, Transaction
from heliograph.db.errors import DatabaseError
from heliograph.smp.store.records import (
    LinkRecord,
    NotifierRecord,
    QueueRecord,
    QueueStatus,
    ServiceRecord,
    StoredLinkData,
    StoredMessage,
    StoredNotification,
)
from heliograph.wire.errors import BLOCKED, decode_error, encode_error
from heliograph.wire.primitives import Reader, list_of, short
from heliograph.wire.smp.fields import QueueMode


@dataclass(slots=True)
class Peeked:
    """What a batch was asked to read after its changes, by recipient ID."""

    messages: dict[bytes, StoredMessage] = field(default_factory=dict)
    links: dict[bytes, StoredLinkData] = field(default_factory=dict)


AfterCommit = Callable[[Peeked], None]
AfterFailure = Callable[[DatabaseError], None]

QUEUE_COLUMNS = (
    "recipient_id, sender_id, recipient_keys, secret, sender_key, mode, status, blocked,"
    " link_id, link_hash, service_id,"
    " notifier_id, notifier_key, notifier_secret, notifier_service_id"
)
UPSERT_QUEUE = (
    f"INSERT INTO queues ({QUEUE_COLUMNS})"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (recipient_id) DO UPDATE SET recipient_keys = excluded.recipient_keys,"
    " sender_key = excluded.sender_key, status = excluded.status, blocked = excluded.blocked,"
    " link_id = excluded.link_id, link_hash = excluded.link_hash,"
    " service_id = excluded.service_id, notifier_id = excluded.notifier_id,"
    " notifier_key = excluded.notifier_key, notifier_secret = excluded.notifier_secret,"
    " notifier_service_id = excluded.notifier_service_id"
)
INSERT_MESSAGE = (
    "INSERT INTO messages (seq, recipient_id, msg_id, timestamp, notification, body)"
    " VALUES (?, ?, ?, ?, ?, ?)"
)
INSERT_NOTIFICATION = (
    "INSERT INTO notifications (seq, notifier_id, nonce, meta, timestamp) VALUES (?, ?, ?, ?, ?)"
)
_UPSERT_SERVICE = (
    "INSERT INTO services (service_id, role, fingerprint, queue_count, ids_hash)"
    " VALUES (?, ?, ?, ?, ?) ON CONFLICT (service_id) DO UPDATE SET"
    " queue_count = excluded.queue_count, ids_hash = excluded.ids_hash"
)
UPSERT_LINK = (
    "INSERT INTO links (recipient_id, fixed_data, user_data) VALUES (?, ?, ?)"
    " ON CONFLICT (recipient_id) DO UPDATE SET fixed_data = excluded.fixed_data,"
    " user_data = excluded.user_data"
)
_PEEK = (
    "SELECT seq, recipient_id, msg_id, timestamp, notification, body FROM messages"
    " WHERE recipient_id = ? ORDER BY seq LIMIT 1"
)


_KEYS = list_of(short)


class Changes:
    """The changes of one batch, and the callbacks for when it is durable or has failed.

    It has one collection per kind of change, since each becomes one statement of the batch.
    """

    def __init__(self) -> None:
        self.touched: set[bytes] = set()
        """Queues that the batch changes."""
        self.queues: dict[bytes, QueueRecord] = {}
        self.services: dict[bytes, ServiceRecord] = {}
        self.links: dict[bytes, StoredLinkData | None] = {}
        """New link data by recipient ID; None deletes it."""
        self.messages: list[StoredMessage] = []
        self.notifications: list[StoredNotification] = []
        self.deleted_messages: list[tuple[int]] = []
        self.deleted_notifications: list[tuple[int]] = []
        self.deleted_notifiers: list[tuple[bytes]] = []
        self.deleted_queues: list[tuple[bytes]] = []
        self.removed: list[bytes] = []
        """The nonces of notifications deleted with their notifiers, set by `apply`."""
        self.peeks: set[bytes] = set()
        """Queues whose first message is read after the changes."""
        self.link_peeks: set[bytes] = set()
        """Queues whose link data is read after the changes."""
        self.after: list[tuple[AfterCommit, AfterFailure]] = []
        self._queue_rows: list[Row] = []
        self.service_rows: list[Row] = []
        self._was_tried = False

    def writes(self) -> bool:
        return bool(
            self.queues
            or self.services
            or self.links
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
        """Copy the rows: records go on changing while the batch commits."""
        self._queue_rows = [queue_row(queue) for queue in self.queues.values()]
        self.service_rows = [_service_row(service) for service in self.services.values()]

    def apply(self, tx: Transaction) -> Peeked:
        if not self._is_applied(tx):
            self._write(tx)
        self._was_tried = True
        return self.peek(tx)

    def _is_applied(self, tx: Transaction) -> bool:
        """Return whether an earlier attempt was committed although the connection was lost.

        All statements but the insertions may be repeated; and those too, if no row is left.
        """
        if not self._was_tried:
            return False
        ours = {message.seq: message.msg_id for message in self.messages}
        rows = tx.query_in("SELECT seq, msg_id FROM messages WHERE seq IN {in}", list(ours))
        return any(ours[seq] == msg_id for seq, msg_id in rows)

    def _write(self, tx: Transaction) -> None:
        tx.many(UPSERT_QUEUE, self._queue_rows)
        tx.many(_UPSERT_SERVICE, self.service_rows)
        links = self.links.items()
        tx.many(UPSERT_LINK, [(queue, *data) for queue, data in links if data is not None])
        deleted = [(queue,) for queue, data in links if data is None]
        tx.many("DELETE FROM links WHERE recipient_id = ?", deleted)
        tx.many(INSERT_MESSAGE, [_message_row(message) for message in self.messages])
        tx.many(INSERT_NOTIFICATION, self.notifications)
        tx.many("DELETE FROM messages WHERE seq = ?", self.deleted_messages)
        tx.many("DELETE FROM notifications WHERE seq = ?", self.deleted_notifications)
        if self.deleted_notifiers:
            self._remove_notifiers(tx)
        tx.many("DELETE FROM messages WHERE recipient_id = ?", self.deleted_queues)
        tx.many("DELETE FROM links WHERE recipient_id = ?", self.deleted_queues)
        tx.many("DELETE FROM queues WHERE recipient_id = ?", self.deleted_queues)

    def _remove_notifiers(self, tx: Transaction) -> None:
        rows = tx.query_in(
            "SELECT nonce FROM notifications WHERE notifier_id IN {in}",
            [notifier_id for (notifier_id,) in self.deleted_notifiers],
        )
        self.removed = [nonce for (nonce,) in rows]
        tx.many("DELETE FROM notifications WHERE notifier_id = ?", self.deleted_notifiers)

    def peek(self, tx: Transaction) -> Peeked:
        peeked = Peeked()
        for recipient_id in self.peeks:
            rows = tx.query(_PEEK, (recipient_id,))
            if rows:
                peeked.messages[recipient_id] = _message(rows[0])
        if self.link_peeks:
            rows = tx.query_in(
                "SELECT recipient_id, fixed_data, user_data FROM links WHERE recipient_id IN {in}",
                list(self.link_peeks),
            )
            peeked.links = {recipient_id: StoredLinkData(*data) for recipient_id, *data in rows}
        return peeked


def queue_row(queue: QueueRecord) -> Row:
    notifier = queue.notifier
    credentials = (
        (None, None, None, None)
        if notifier is None
        else (notifier.notifier_id, notifier.key, notifier.secret, notifier.service_id)
    )
    return (
        queue.recipient_id,
        queue.sender_id,
        _KEYS.encode(queue.recipient_keys),
        queue.secret,
        queue.sender_key,
        queue.mode and queue.mode.value.decode(),
        queue.status.value,
        queue.blocked and encode_error(queue.blocked).decode(),
        *(queue.link or (None, None)),
        queue.service_id,
        *credentials,
    )


def _service_row(service: ServiceRecord) -> Row:
    return (
        service.service_id,
        service.role.value.decode(),
        service.fingerprint,
        service.count,
        service.ids_hash,
    )


def _message_row(message: StoredMessage) -> Row:
    seq, recipient_id, msg_id, timestamp, notification, body = message
    return seq, recipient_id, msg_id, timestamp, int(notification), body


def _message(row: Row) -> StoredMessage:
    seq, recipient_id, msg_id, timestamp, notification, body = row
    return StoredMessage(seq, recipient_id, msg_id, timestamp, bool(notification), body)


def queue_of(row: Row) -> QueueRecord:
    """Return the record of a row with `QUEUE_COLUMNS`."""
    recipient_id, sender_id, keys, secret, sender_key, mode, status, blocked, *rest = row
    link_id, link_hash, service_id, *credentials = rest
    reason = decode_error(blocked.encode()) if blocked else None
    return QueueRecord(
        recipient_id,
        sender_id,
        _KEYS.decode(Reader(keys)),
        secret,
        sender_key,
        mode and QueueMode(mode.encode()),
        QueueStatus(status),
        reason if isinstance(reason, BLOCKED) else None,
        None if link_id is None else LinkRecord(link_id, link_hash),
        service_id,
        NotifierRecord(*credentials) if credentials[0] is not None else None,
    )


SUBSTITUTE: Row = (
    *(bytes(24), bytes(24), _KEYS.encode((bytes(44),)), bytes(32), bytes(44)),
    *(QueueMode.MESSAGING.value.decode(), QueueStatus.ACTIVE.value, None, None, None, None),
    *(bytes(24), bytes(44), bytes(32), None),
)
"""A row to parse in place of one that does not exist, so that the time does not tell."""
