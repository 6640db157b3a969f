"""The store of queues, messages, notifications and services.

Changes are committed in batches: what is decided while one batch commits goes into the next.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import TypeVar

from heliograph.db.database import Database
from heliograph.db.dialects import Row, Transaction
from heliograph.db.errors import DatabaseError
from heliograph.smp.store.changes import QUEUE_COLUMNS, SUBSTITUTE, Changes, Peeked, queue_of
from heliograph.smp.store.records import (
    QueueRecord,
    ServiceRecord,
    StoredNotification,
)
from heliograph.wire.handshakes import ServiceRole

logger = logging.getLogger(__name__)

T = TypeVar("T")

Expired = tuple[list[int], int]
"""The `seq` of each expired message of a queue, and the lowest that a remaining one can have."""

_EXPIRED_PAGE = 2_000
_CALLBACK_FAILED = "continuing after a commit failed"
_NOTIFICATION = "SELECT n.seq, n.notifier_id, n.nonce, n.meta, n.timestamp FROM notifications n"


# One statement, so that a queue that exists takes as many as one that does not.
_QUEUES = (
    f"SELECT {QUEUE_COLUMNS},"
    " (SELECT COUNT(*) FROM messages m WHERE m.recipient_id = q.recipient_id),"
    " (SELECT MIN(m.seq) FROM messages m WHERE m.recipient_id = q.recipient_id),"
    " (SELECT CASE WHEN m.body IS NULL THEN 1 ELSE 0 END FROM messages m"
    " WHERE m.recipient_id = q.recipient_id ORDER BY m.seq DESC LIMIT 1)"
    " FROM queues q"
)


class EntityKind(Enum):
    """The ID by which a queue is named."""

    RECIPIENT = "recipient_id"
    SENDER = "sender_id"
    NOTIFIER = "notifier_id"
    LINK = "link_id"


class SmpStore:
    """The only user of the router's database."""

    def __init__(
        self,
        database: Database,
        on_failure: Callable[[], None],
        on_settled: Callable[[], None],
        on_removed: Callable[[list[bytes]], None] = lambda nonces: None,
    ) -> None:
        """`on_removed` gets the nonces of notifications deleted with their notifier."""
        self.database = database
        self._on_failure = on_failure
        self._on_settled = on_settled
        self._on_removed = on_removed
        self.is_failing = False
        """The last commit failed."""
        self._drained = asyncio.Event()
        self._drained.set()
        self.changes = Changes()
        """The batch that takes changes now; call `commit` after adding to it."""
        self._committing: Changes | None = None
        self._durable_services: dict[bytes, tuple[int, bytes]] = {}
        self.next_message = 0
        self.next_notification = 0

    async def start(self) -> list[ServiceRecord]:
        def load(tx: Transaction) -> tuple[int, int, list[Row]]:
            [[message]] = tx.query("SELECT COALESCE(MAX(seq), 0) FROM messages")
            [[notification]] = tx.query("SELECT COALESCE(MAX(seq), 0) FROM notifications")
            services = tx.query(
                "SELECT service_id, role, fingerprint, queue_count, ids_hash FROM services"
            )
            return message, notification, services

        message, notification, services = await self.database.read(load)
        self.next_message = message + 1
        self.next_notification = notification + 1
        self._record_durable(services)
        return [
            ServiceRecord(service_id, ServiceRole(role.encode()), fingerprint, count, ids_hash)
            for service_id, role, fingerprint, count, ids_hash in services
        ]

    def is_changing(self, recipient_id: bytes) -> bool:
        """Return whether a queue has changes that are not durable yet."""
        committing = self._committing
        return recipient_id in self.changes.touched or (
            committing is not None and recipient_id in committing.touched
        )

    def is_durable(self, service: ServiceRecord) -> bool:
        return service.service_id in self._durable_services

    def commit(self) -> None:
        """Commit the current batch, or let it grow while another one commits."""
        changes = self.changes
        if self._committing is not None or not (changes.after or changes.writes()):
            return
        self._committing = changes
        self._drained.clear()
        self.changes = Changes()
        if changes.writes():
            changes.freeze()
            future = self.database.write(changes.apply)
        else:
            future = self.database.read(changes.peek)
        future.add_done_callback(lambda done: self._committed(changes, done))

    def _committed(self, changes: Changes, future: "asyncio.Future[Peeked]") -> None:
        self._committing = None
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            self.is_failing = self.is_failing and not changes.writes()
            self._record_durable(changes.service_rows)
            peeked = future.result()
            for committed, _ in changes.after:
                try:
                    committed(peeked)
                except Exception:
                    logger.exception(_CALLBACK_FAILED)
            if changes.removed:
                _call(self._on_removed, changes.removed)
        else:
            self._fail(changes, error)
        self._on_settled()
        self.commit()
        if self._committing is None:
            self._drained.set()

    async def drained(self) -> None:
        """Wait until all changes are durable."""
        self.commit()
        await self._drained.wait()

    async def check(self) -> None:
        """Raise if a commit fails now."""
        await self.database.check()
        self.is_failing = False

    async def settled(self) -> None:
        """Wait until all changes up to now are durable, or void."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def settle(_: object) -> None:
            if not future.done():
                future.set_result(None)

        self.changes.then(settle, settle)
        self.commit()
        await future

    def _fail(self, changes: Changes, error: BaseException) -> None:
        """Void the failed batch, and the one that was decided on top of it."""
        if not self.is_failing:  # log once, not for every command
            logger.error("the store failed; commands are refused until it works: %s", error)
        self.is_failing = True
        failure = error if isinstance(error, DatabaseError) else DatabaseError(str(error))
        void, self.changes = self.changes, Changes()
        for service in (*changes.services.values(), *void.services.values()):
            durable = self._durable_services.get(service.service_id)
            if durable is not None:
                service.count, service.ids_hash = durable
        self._on_failure()
        for _, failed in (*changes.after, *void.after):
            _call(failed, failure)

    def _record_durable(self, rows: Iterable[Row]) -> None:
        for service_id, _, _, count, ids_hash in rows:
            self._durable_services[service_id] = count, ids_hash

    async def load(self, entity: EntityKind, ids: Sequence[bytes]) -> list[QueueRecord]:
        """Return the queues with these IDs, as far as they exist.

        Those that do not exist are parsed, too: the time of a refusal must not distinguish them.
        """
        next_message = self.next_message

        def load(tx: Transaction) -> list[QueueRecord]:
            queues = []
            sql = f"{_QUEUES} WHERE q.{entity.value} IN {{in}}"
            for *columns, size, first, is_full in tx.query_in(sql, ids):
                queue = queue_of(tuple(columns))
                queue.size = size
                queue.first = next_message if first is None else first
                queue.accepts = not is_full
                queues.append(queue)
            for _ in range(len(ids) - len(queues)):
                queue_of(SUBSTITUTE)
            return queues

        return await self.database.read(load)

    async def notifications(
        self, notifier_ids: Sequence[bytes], after: int, limit: int
    ) -> list[StoredNotification]:
        """Return a page of the notifications of at most `MAX_IN` notifiers, oldest first."""
        rows = await self.database.read(
            lambda tx: tx.query_in(
                f"{_NOTIFICATION} WHERE n.notifier_id IN {{in}} AND n.seq > ?"
                " ORDER BY n.seq LIMIT ?",
                notifier_ids,
                after,
                limit,
            )
        )
        return [StoredNotification(*row) for row in rows]

    async def service_notifications(
        self, service_id: bytes, after: int, limit: int
    ) -> list[StoredNotification]:
        """Return a page of the notifications of a service's queues, oldest first."""
        rows = await self.database.read(
            lambda tx: tx.query(
                f"{_NOTIFICATION} JOIN queues q ON q.notifier_id = n.notifier_id"
                " WHERE q.notifier_service_id = ? AND n.seq > ? ORDER BY n.seq LIMIT ?",
                (service_id, after, limit),
            )
        )
        return [StoredNotification(*row) for row in rows]

    async def waiting_queues(self, service_id: bytes, after: bytes, limit: int) -> list[bytes]:
        """Return a page of the recipient IDs of a service's queues that have messages."""
        rows = await self.database.read(
            lambda tx: tx.query(
                "SELECT q.recipient_id FROM queues q WHERE q.service_id = ? AND q.recipient_id > ?"
                " AND EXISTS (SELECT 1 FROM messages m WHERE m.recipient_id = q.recipient_id)"
                " ORDER BY q.recipient_id LIMIT ?",
                (service_id, after, limit),
            )
        )
        return [recipient_id for (recipient_id,) in rows]

    async def expire_messages(self, before: int) -> dict[bytes, Expired]:
        """Delete a page of messages older than `before`; return them by queue."""

        def expire(tx: Transaction) -> dict[bytes, Expired]:
            rows = tx.query(
                "SELECT recipient_id, seq FROM messages WHERE timestamp < ?"
                " ORDER BY timestamp LIMIT ?",
                (before, _EXPIRED_PAGE),
            )
            tx.many("DELETE FROM messages WHERE seq = ?", [(seq,) for _, seq in rows])
            seqs: dict[bytes, list[int]] = {}
            for recipient_id, seq in rows:
                seqs.setdefault(recipient_id, []).append(seq)
            first: dict[bytes, int] = dict(
                tx.query_in(
                    "SELECT recipient_id, MIN(seq) FROM messages WHERE recipient_id IN {in}"
                    " GROUP BY recipient_id",
                    list(seqs),
                )
            )
            return {
                recipient_id: (expired, first.get(recipient_id, max(expired) + 1))
                for recipient_id, expired in seqs.items()
            }

        return await self.database.write(expire)

    async def stored_nonces(self, after: int, before: int, limit: int) -> list[tuple[int, bytes]]:
        """Return a page of all stored notifications: `seq` and nonce."""
        rows = await self.database.read(
            lambda tx: tx.query(
                "SELECT seq, nonce FROM notifications WHERE seq > ? AND seq < ?"
                " ORDER BY seq LIMIT ?",
                (after, before, limit),
            )
        )
        return [(seq, nonce) for seq, nonce in rows]

    async def expire_notifications(self, before: int) -> tuple[list[bytes], bool]:
        """Delete a page older than `before`; return their nonces, and whether there may be more."""

        def expire(tx: Transaction) -> list[bytes]:
            old = tx.query(
                "SELECT seq, nonce FROM notifications WHERE timestamp < ? ORDER BY seq LIMIT ?",
                (before, _EXPIRED_PAGE),
            )
            tx.many("DELETE FROM notifications WHERE seq = ?", [(seq,) for seq, _ in old])
            return [nonce for _, nonce in old]

        nonces = await self.database.write(expire)
        return nonces, len(nonces) == _EXPIRED_PAGE

    async def delete_services(self, service_ids: Sequence[bytes]) -> list[bytes]:
        """Delete those of the services that no queue is associated with, and return them."""
        rows = await self.database.write(
            lambda tx: tx.query_in(
                "DELETE FROM services WHERE service_id IN {in} AND queue_count = 0"
                " AND NOT EXISTS (SELECT 1 FROM queues q WHERE q.service_id = services.service_id"
                " OR q.notifier_service_id = services.service_id) RETURNING service_id",
                service_ids,
            )
        )
        deleted = [service_id for (service_id,) in rows]
        for service_id in deleted:
            self._durable_services.pop(service_id, None)
        return deleted

    async def counts(self) -> tuple[int, int, int, int]:
        """Return the numbers of queues, queues with a notifier, messages and notifications."""

        def count(tx: Transaction) -> tuple[int, int, int, int]:
            [[queues, notifiers]] = tx.query("SELECT COUNT(*), COUNT(notifier_id) FROM queues")
            [[messages]] = tx.query("SELECT COUNT(*) FROM messages")
            [[notifications]] = tx.query("SELECT COUNT(*) FROM notifications")
            return queues, notifiers, messages, notifications

        return await self.database.read(count)


def _call(callback: Callable[[T], None], argument: T) -> None:
    """Call a callback, and log its failure so that the others still run."""
    try:
        callback(argument)
    except Exception:
        logger.exception(_CALLBACK_FAILED)
