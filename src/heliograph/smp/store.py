"""Durable queues, messages and notifications: changes in, durable; IDs in, records out.

All changes decided while one batch commits go into the next.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Any

from heliograph.db.database import Database
from heliograph.db.dialects import Row, Transaction
from heliograph.db.errors import DatabaseError
from heliograph.smp.changes import QUEUE_COLUMNS, Changes
from heliograph.smp.records import Notification, Notifier, Queue, QueueStatus, Service
from heliograph.wire.fields import QueueMode
from heliograph.wire.handshakes import ServiceRole

logger = logging.getLogger(__name__)

Expired = tuple[list[int], int]
"""The `seq` of each message that is gone, and the least that one still there can have."""

_EXPIRED_PAGE = 2_000
_CALLBACK_FAILED = "continuing after a commit failed"
_NOTIFICATION = "SELECT n.seq, n.notifier_id, n.nonce, n.meta, n.timestamp FROM notifications n"


class Entity(Enum):
    """By which of its IDs a queue is found."""

    RECIPIENT = "recipient_id"
    SENDER = "sender_id"
    NOTIFIER = "notifier_id"


class Store:
    """The only user of the router's database."""

    def __init__(
        self,
        database: Database,
        on_failure: Callable[[], None],
        on_settled: Callable[[], None],
        on_removed: Callable[[list[bytes]], None] = lambda nonces: None,
    ) -> None:
        """`on_removed` gets the nonces of notifications that went with their notifier."""
        self._database = database
        self._on_failure = on_failure
        self._on_settled = on_settled
        self._on_removed = on_removed
        self.is_failing = False
        """The last attempt to make something durable failed."""
        self._drained = asyncio.Event()
        self._drained.set()
        self.changes = Changes()
        """Where to put what is decided now; call `commit` afterwards."""
        self._committing: Changes | None = None
        self._durable_services: dict[bytes, tuple[int, bytes]] = {}
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
        self._note_durable(services)
        return [
            Service(service_id, ServiceRole(role.encode()), fingerprint, count, ids_hash)
            for service_id, role, fingerprint, count, ids_hash in services
        ]

    def is_changing(self, recipient_id: bytes) -> bool:
        """Whether a queue has changes that are not durable yet."""
        committing = self._committing
        return recipient_id in self.changes.touched or (
            committing is not None and recipient_id in committing.touched
        )

    def is_durable(self, service: Service) -> bool:
        return service.service_id in self._durable_services

    def commit(self) -> None:
        """Make what was decided durable, together with all that is decided until it can be."""
        changes = self.changes
        if self._committing is not None or not (changes.after or changes.writes()):
            return
        self._committing = changes
        self._drained.clear()
        self.changes = Changes()
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
            self.is_failing = self.is_failing and not changes.writes()
            self._note_durable(changes.service_rows)
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
        """Until all that was decided is durable."""
        self.commit()
        await self._drained.wait()

    async def check(self) -> None:
        """Raise if nothing can be made durable now."""
        await self._database.write(lambda tx: tx.execute("UPDATE migrations SET at = at"))
        self.is_failing = False

    async def settled(self) -> None:
        """Until all that was decided up to now is durable, or void."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def settle(_: object) -> None:
            if not future.done():
                future.set_result(None)

        self.changes.then(settle, settle)
        self.commit()
        await future

    def _fail(self, changes: Changes, error: BaseException) -> None:
        """What was decided on top of a failed batch is void too."""
        if not self.is_failing:  # once, and not for every command
            logger.error("the store failed, and nothing is accepted until it works: %s", error)
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

    def _note_durable(self, rows: Iterable[Row]) -> None:
        for service_id, _, _, count, ids_hash in rows:
            self._durable_services[service_id] = count, ids_hash

    async def load(self, entity: Entity, ids: Sequence[bytes]) -> list[Queue]:
        """Queues by their IDs, as far as they exist."""
        next_message = self.next_message

        def load(tx: Transaction) -> list[Queue]:
            rows = tx.query_in(
                f"SELECT {QUEUE_COLUMNS} FROM queues WHERE {entity.value} IN {{in}}",
                ids,
            )
            queues = {row[0]: _queue(row) for row in rows}
            for queue in queues.values():
                queue.first = next_message
            sizes = tx.query_in(
                "SELECT recipient_id, COUNT(*), MIN(seq), MAX(seq) FROM messages"
                " WHERE recipient_id IN {in} GROUP BY recipient_id",
                list(queues),
            )
            last = {seq: recipient_id for recipient_id, _, _, seq in sizes}
            for recipient_id, size, first, _ in sizes:
                queues[recipient_id].size = size
                queues[recipient_id].first = first
            full = tx.query_in(
                "SELECT seq FROM messages WHERE seq IN {in} AND body IS NULL", list(last)
            )
            for (seq,) in full:
                queues[last[seq]].accepts = False
            return list(queues.values())

        return await self._database.read(load)

    async def notifications(
        self, notifier_ids: Sequence[bytes], after: int, limit: int
    ) -> list[Notification]:
        """A page of what waits for these notifiers, no more than `MAX_IN`, oldest first."""
        rows = await self._database.read(
            lambda tx: tx.query_in(
                f"{_NOTIFICATION} WHERE n.notifier_id IN {{in}} AND n.seq > ?"
                " ORDER BY n.seq LIMIT ?",
                notifier_ids,
                after,
                limit,
            )
        )
        return [Notification(*row) for row in rows]

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

    async def expire_messages(self, before: int, now: int) -> dict[bytes, Expired]:
        """Delete a page of messages that are too old; which they were, by queue."""

        def expire(tx: Transaction) -> dict[bytes, Expired]:
            # Those that a clock which was wrong put into the future must not hold back the others.
            oldest = tx.query(
                "SELECT recipient_id, seq, timestamp FROM messages WHERE timestamp <= ?"
                " ORDER BY seq LIMIT ?",
                (now, _EXPIRED_PAGE),
            )
            rows = [(recipient_id, seq) for recipient_id, seq, at in oldest if at < before]
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
                recipient_id: (gone, first.get(recipient_id, max(gone) + 1))
                for recipient_id, gone in seqs.items()
            }

        return await self._database.write(expire)

    async def waiting(self, after: int, before: int, limit: int) -> list[tuple[int, bytes]]:
        """A page of notifications, whoever they are for: `seq` and nonce."""
        rows = await self._database.read(
            lambda tx: tx.query(
                "SELECT seq, nonce FROM notifications WHERE seq > ? AND seq < ?"
                " ORDER BY seq LIMIT ?",
                (after, before, limit),
            )
        )
        return [(seq, nonce) for seq, nonce in rows]

    async def expire_notifications(self, before: int) -> tuple[list[bytes], bool]:
        """Delete a page of those that are too old; their nonces, and whether there may be more."""

        def expire(tx: Transaction) -> list[bytes]:
            oldest = tx.query(
                "SELECT seq, timestamp, nonce FROM notifications ORDER BY seq LIMIT ?",
                (_EXPIRED_PAGE,),
            )
            old = [(seq, nonce) for seq, timestamp, nonce in oldest if timestamp < before]
            tx.many("DELETE FROM notifications WHERE seq = ?", [(seq,) for seq, _ in old])
            return [nonce for _, nonce in old]

        nonces = await self._database.write(expire)
        return nonces, len(nonces) == _EXPIRED_PAGE

    async def counts(self) -> tuple[int, int, int, int]:
        """Queues, queues with a notifier, messages, notifications."""

        def count(tx: Transaction) -> tuple[int, int, int, int]:
            [[queues, notifiers]] = tx.query("SELECT COUNT(*), COUNT(notifier_id) FROM queues")
            [[messages]] = tx.query("SELECT COUNT(*) FROM messages")
            [[notifications]] = tx.query("SELECT COUNT(*) FROM notifications")
            return queues, notifiers, messages, notifications

        return await self._database.read(count)


def _call(callback: Callable[[Any], None], argument: Any) -> None:
    """One that fails must not cost the others theirs."""
    try:
        callback(argument)
    except Exception:
        logger.exception(_CALLBACK_FAILED)


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
