"""Durable queues, messages and notifications: changes in, durable; IDs in, records out.

All changes decided while one batch commits go into the next. A batch runs its statements in a fixed
order, which is right because an ID is never used again: what it inserts, it may also delete.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Any

from heliograph.db.database import Database
from heliograph.db.dialects import Row, Transaction
from heliograph.db.errors import DatabaseError
from heliograph.smp.records import Message, Notification, Notifier, Queue, QueueStatus, Service
from heliograph.wire.fields import QueueMode
from heliograph.wire.handshakes import ServiceRole

logger = logging.getLogger(__name__)

Peeked = dict[bytes, Message]
AfterCommit = Callable[[Peeked], None]
AfterFailure = Callable[[DatabaseError], None]

_QUEUE_COLUMNS = (
    "recipient_id, sender_id, recipient_key, secret, sender_key, mode, status,"
    " notifier_id, notifier_key, notifier_secret, notifier_service_id"
)
_UPSERT_QUEUE = (
    f"INSERT INTO queues ({_QUEUE_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
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
_NOTIFICATION = "SELECT n.seq, n.notifier_id, n.nonce, n.meta, n.timestamp FROM notifications n"


class Entity(Enum):
    """By which of its IDs a queue is found."""

    RECIPIENT = "recipient_id"
    SENDER = "sender_id"
    NOTIFIER = "notifier_id"


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
        self.peeks: set[bytes] = set()
        """Queues whose first message, after all of this, is wanted."""
        self.after: list[tuple[AfterCommit, AfterFailure]] = []
        self._queue_rows: list[Row] = []
        self._service_rows: list[Row] = []

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
        self._service_rows = [_service_row(service) for service in self.services.values()]

    def apply(self, tx: Transaction) -> Peeked:
        tx.many(_UPSERT_QUEUE, self._queue_rows)
        tx.many(_UPSERT_SERVICE, self._service_rows)
        tx.many(_INSERT_MESSAGE, self.messages)
        tx.many(_INSERT_NOTIFICATION, self.notifications)
        tx.many("DELETE FROM messages WHERE seq = ?", self.deleted_messages)
        tx.many("DELETE FROM notifications WHERE seq = ?", self.deleted_notifications)
        tx.many("DELETE FROM notifications WHERE notifier_id = ?", self.deleted_notifiers)
        tx.many("DELETE FROM messages WHERE recipient_id = ?", self.deleted_queues)
        tx.many("DELETE FROM queues WHERE recipient_id = ?", self.deleted_queues)
        return self.peek(tx)

    def peek(self, tx: Transaction) -> Peeked:
        found = {}
        for recipient_id in self.peeks:
            rows = tx.query(_PEEK, (recipient_id,))
            if rows:
                found[recipient_id] = _message(rows[0])
        return found


class Store:
    """The only user of the router's database."""

    def __init__(
        self,
        database: Database,
        on_failure: Callable[[], None],
        on_settled: Callable[[], None],
    ) -> None:
        self._database = database
        self._on_failure = on_failure
        self._on_settled = on_settled
        self._drained = asyncio.Event()
        self._drained.set()
        self._changes = Changes()
        self._committing: Changes | None = None
        self.next_message = 0
        self.next_notification = 0

    async def start(self) -> list[Service]:
        def load(tx: Transaction) -> tuple[int, int, list[Row]]:
            [[message]] = tx.query("SELECT COALESCE(MAX(seq), 0) FROM messages")
            [[notification]] = tx.query("SELECT COALESCE(MAX(seq), 0) FROM notifications")
            services = tx.query(
                "SELECT service_id, role, fingerprint, queue_count, ids_hash FROM services"
            )
            return message, notification, services

        message, notification, services = await self._database.read(load)
        self.next_message = message + 1
        self.next_notification = notification + 1
        return [
            Service(service_id, ServiceRole(role.encode()), fingerprint, count, ids_hash)
            for service_id, role, fingerprint, count, ids_hash in services
        ]

    @property
    def changes(self) -> Changes:
        """Where to put what is decided now; call `commit` afterwards."""
        return self._changes

    def is_changing(self, recipient_id: bytes) -> bool:
        """Whether a queue has changes that are not durable yet."""
        committing = self._committing
        return recipient_id in self._changes.touched or (
            committing is not None and recipient_id in committing.touched
        )

    def commit(self) -> None:
        """Make what was decided durable, together with all that is decided until it can be."""
        changes = self._changes
        if self._committing is not None or not (changes.after or changes.writes()):
            return
        self._committing = changes
        self._drained.clear()
        self._changes = Changes()
        if changes.writes():
            changes.freeze()
            future = self._database.write(changes.apply)
        else:
            future = self._database.read(changes.peek)
        future.add_done_callback(lambda done: self._committed(changes, done))

    def _committed(self, changes: Changes, future: Any) -> None:
        self._committing = None
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            peeked = future.result()
            for committed, _ in changes.after:
                committed(peeked)
        else:
            self._fail(changes, error)
        self._on_settled()
        self.commit()
        if self._committing is None:
            self._drained.set()

    async def drained(self) -> None:
        """Until all that was decided is durable."""
        self.commit()
        await self._drained.wait()

    def _fail(self, changes: Changes, error: BaseException) -> None:
        """What was decided on top of a failed batch is void too."""
        logger.error("the store failed: %s", error)
        failure = error if isinstance(error, DatabaseError) else DatabaseError(str(error))
        void, self._changes = self._changes, Changes()
        self._on_failure()
        for _, failed in (*changes.after, *void.after):
            failed(failure)

    async def load(self, entity: Entity, ids: Sequence[bytes]) -> list[Queue]:
        """Queues by their IDs, as far as they exist."""

        def load(tx: Transaction) -> list[Queue]:
            rows = tx.query_in(
                f"SELECT {_QUEUE_COLUMNS} FROM queues WHERE {entity.value} IN {{in}}",
                ids,
            )
            queues = {row[0]: _queue(row) for row in rows}
            sizes = tx.query_in(
                "SELECT recipient_id, COUNT(*), MAX(seq) FROM messages"
                " WHERE recipient_id IN {in} GROUP BY recipient_id",
                list(queues),
            )
            last = {seq: recipient_id for recipient_id, _, seq in sizes}
            for recipient_id, size, _ in sizes:
                queues[recipient_id].size = size
            full = tx.query_in(
                "SELECT seq FROM messages WHERE seq IN {in} AND body IS NULL", list(last)
            )
            for (seq,) in full:
                queues[last[seq]].accepts = False
            return list(queues.values())

        return await self._database.read(load)

    async def notifications(self, notifier_ids: Sequence[bytes]) -> list[Notification]:
        """What waits for these notifiers, oldest first."""
        rows = await self._database.read(
            lambda tx: tx.query_in(f"{_NOTIFICATION} WHERE n.notifier_id IN {{in}}", notifier_ids)
        )
        return sorted(Notification(*row) for row in rows)

    async def service_notifications(
        self, service_id: bytes, after: int, limit: int
    ) -> list[Notification]:
        """A page of what waits for the queues of a service, oldest first."""
        rows = await self._database.read(
            lambda tx: tx.query(
                f"{_NOTIFICATION} JOIN queues q ON q.notifier_id = n.notifier_id"
                " WHERE q.notifier_service_id = ? AND n.seq > ? ORDER BY n.seq LIMIT ?",
                (service_id, after, limit),
            )
        )
        return [Notification(*row) for row in rows]

    async def expire(self, messages_before: int, notifications_before: int) -> dict[bytes, int]:
        """Delete what is too old; how many messages of which queues."""

        def expire(tx: Transaction) -> dict[bytes, int]:
            rows = tx.query(
                "SELECT recipient_id, COUNT(*) FROM messages WHERE timestamp < ?"
                " GROUP BY recipient_id",
                (messages_before,),
            )
            tx.execute("DELETE FROM messages WHERE timestamp < ?", (messages_before,))
            tx.execute("DELETE FROM notifications WHERE timestamp < ?", (notifications_before,))
            return dict(rows)

        return await self._database.write(expire)

    async def counts(self) -> tuple[int, int, int, int]:
        """Queues, queues with a notifier, messages, notifications."""

        def count(tx: Transaction) -> tuple[int, int, int, int]:
            [[queues, notifiers]] = tx.query("SELECT COUNT(*), COUNT(notifier_id) FROM queues")
            [[messages]] = tx.query("SELECT COUNT(*) FROM messages")
            [[notifications]] = tx.query("SELECT COUNT(*) FROM notifications")
            return queues, notifiers, messages, notifications

        return await self._database.read(count)


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


def _queue(row: Row) -> Queue:
    recipient_id, sender_id, recipient_key, secret, sender_key, mode, status, *credentials = row
    return Queue(
        recipient_id,
        sender_id,
        recipient_key,
        secret,
        sender_key,
        mode and QueueMode(mode.encode()),
        QueueStatus(status),
        Notifier(*credentials) if credentials[0] is not None else None,
    )


def _service_row(service: Service) -> Row:
    return (
        service.service_id,
        service.role.value.decode(),
        service.fingerprint,
        service.count,
        service.ids_hash,
    )


def _message(row: Iterable[Any]) -> Message:
    seq, recipient_id, msg_id, timestamp, notification, body = row
    return Message(seq, recipient_id, msg_id, timestamp, bool(notification), body)
