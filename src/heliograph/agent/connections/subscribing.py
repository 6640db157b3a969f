"""Subscriptions of this process, made in batches and renewed after a connection was lost.

Each process has its own set of wanted connections. The queues of a connection are always read from
the store, because the other process may have changed them.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from heliograph.agent.clients import ClientPool, is_temporary
from heliograph.agent.connections import queues
from heliograph.agent.errors import AgentError
from heliograph.agent.events import AgentEvent, QueueGone, SubscriptionEnded
from heliograph.agent.records import RcvQueue, RcvStatus
from heliograph.agent.store import AgentStore
from heliograph.db.errors import DatabaseError
from heliograph.runtime.backoff import Backoff
from heliograph.tasks import TaskScope
from heliograph.transport.client import Client, ClientRequest
from heliograph.transport.errors import ClientError, RequestRefused
from heliograph.wire import smp
from heliograph.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

SUBSCRIBE_BATCH_SIZE = 1000
RECEIVABLE = (RcvStatus.NEW, RcvStatus.SECURING, RcvStatus.ACTIVE)


@dataclass(slots=True)
class _Router:
    """Queues `wanted` by recipient ID; `done` are those subscribed on the current connection."""

    wanted: dict[bytes, RcvQueue] = field(default_factory=dict)
    done: set[bytes] = field(default_factory=set)
    asked: set[bytes] = field(default_factory=set)
    """Queues whose SUB is in flight."""
    failures: int = 0
    task: "asyncio.Task[None] | None" = None
    woken: asyncio.Event = field(default_factory=asyncio.Event)

    def missing(self) -> list[RcvQueue]:
        there = self.done | self.asked
        return [queue for rcv_id, queue in self.wanted.items() if rcv_id not in there]


class QueueSubscriptions:
    def __init__(
        self,
        store: AgentStore,
        clients: ClientPool,
        backoff: Backoff,
        report: Callable[[AgentEvent], None],
    ) -> None:
        self._store = store
        self._clients = clients
        self._backoff = backoff
        self._report = report
        self._connections: set[str] = set()
        self._ended: set[int] = set()
        self._routers: dict[bytes, _Router] = {}
        self._tasks = TaskScope()

    async def subscribe(self, conn_ids: Sequence[str]) -> dict[str, ClientError | None]:
        """Subscribe, and return the error of each connection. Temporary failures are retried."""
        self._connections.update(conn_ids)
        found = await self._queues(conn_ids)
        self._ended.difference_update(queue.queue_id for queue in found)
        self._want(found)
        by_router: dict[bytes, list[RcvQueue]] = {}
        for queue in found:
            by_router.setdefault(queue.address.fingerprint, []).append(queue)
        there = {queue.conn_id for queue in found}
        outcomes: dict[str, ClientError | None] = {
            conn_id: None if conn_id in there else RequestRefused(ErrorCode.AUTH)
            for conn_id in conn_ids
        }
        results = await asyncio.gather(*[self._subscribe(items) for items in by_router.values()])
        for failed in results:
            for queue, error in failed:
                outcomes[queue.conn_id] = error
                if is_temporary(error):
                    self._begin(queue.address.fingerprint)
        return outcomes

    def created(self, queue: RcvQueue, client: Client) -> None:
        """Add a new queue, which is subscribed while the connection that created it lasts."""
        self._connections.add(queue.conn_id)
        self._want([queue])
        if self._clients.connected(queue.address) is client:
            self._routers[queue.address.fingerprint].done.add(queue.rcv_id)
        else:
            self._begin(queue.address.fingerprint)

    def forget(self, conn_id: str) -> None:
        self._connections.discard(conn_id)
        for router in self._routers.values():
            gone = [key for key, queue in router.wanted.items() if queue.conn_id == conn_id]
            self._remove(router, gone)

    async def refresh(self) -> None:
        """Reload the queues: a message or the other process may have added or removed some."""
        if not self._connections:
            return
        found = await self._queues(sorted(self._connections))
        ids = {queue.queue_id for queue in found}
        for router in self._routers.values():
            gone = [key for key, queue in router.wanted.items() if queue.queue_id not in ids]
            self._remove(router, gone)
        new = [queue for queue in found if not self._is_wanted(queue)]
        new = [queue for queue in new if queue.queue_id not in self._ended]
        self._want(new)
        for fingerprint in {queue.address.fingerprint for queue in new}:
            self._begin(fingerprint)

    def repeat(self, queue: RcvQueue) -> None:
        """Subscribe again, so that the router redelivers the pending message of the queue."""
        router = self._routers.get(queue.address.fingerprint)
        if router is not None and queue.rcv_id in router.wanted:
            router.done.discard(queue.rcv_id)
            self._begin(queue.address.fingerprint)

    def is_subscribed(self, queue: RcvQueue) -> bool:
        router = self._routers.get(queue.address.fingerprint)
        return router is not None and queue.rcv_id in router.done

    # From routers.

    def connected(self, client: Client) -> None:
        router = self._routers.get(client.address.fingerprint)
        if router is not None:
            router.done.clear()
            self._begin(client.address.fingerprint)

    def disconnected(self, client: Client) -> None:
        router = self._routers.get(client.address.fingerprint)
        if router is not None:
            router.done.clear()

    def ended(self, client: Client, rcv_id: bytes) -> None:
        """Handle END. Resubscribing here would make two processes take the queue in turns."""
        if self._clients.connected(client.address) is not client:
            return  # our own new connection took it over
        router = self._routers.get(client.address.fingerprint)
        queue = router.wanted.get(rcv_id) if router is not None else None
        if router is not None and queue is not None:
            self._ended.add(queue.queue_id)
            self._remove(router, [rcv_id])
            self._report(SubscriptionEnded(queue.conn_id, queue.queue_id))

    async def deleted(self, client: Client, rcv_id: bytes) -> None:
        fingerprint = client.address.fingerprint
        vault = self._store.vault
        queue = await self._store.read(
            lambda tx: queues.rcv_queue_by_id(tx, vault, fingerprint, rcv_id)
        )
        if queue is not None and queue.status in RECEIVABLE:
            await self._gone(queue)
        router = self._routers.get(fingerprint)
        if router is not None and rcv_id in router.wanted:
            self._remove(router, [rcv_id])

    async def close(self) -> None:
        await self._tasks.close()

    # Internal.

    async def _queues(self, conn_ids: Sequence[str]) -> list[RcvQueue]:
        vault = self._store.vault
        found = await self._store.read(lambda tx: queues.rcv_queues_of(tx, vault, conn_ids))
        return [queue for queue in found if queue.status in RECEIVABLE]

    def _want(self, items: Iterable[RcvQueue]) -> None:
        for queue in items:
            router = self._routers.setdefault(queue.address.fingerprint, _Router())
            router.wanted[queue.rcv_id] = queue
            self._clients.keep(queue.address)

    def _is_wanted(self, queue: RcvQueue) -> bool:
        router = self._routers.get(queue.address.fingerprint)
        return router is not None and queue.rcv_id in router.wanted

    def _remove(self, router: _Router, rcv_ids: Iterable[bytes]) -> None:
        for rcv_id in rcv_ids:
            queue = router.wanted.pop(rcv_id)
            router.done.discard(rcv_id)
            if not router.wanted:
                self._clients.keep(queue.address, wanted=False)

    def _begin(self, fingerprint: bytes) -> None:
        """Subscribe the queues of a router that are wanted and not subscribed."""
        router = self._routers[fingerprint]
        router.woken.set()
        if router.task is None:
            router.task = self._tasks.spawn(self._run(router), name="agent subscriptions")

    async def _run(self, router: _Router) -> None:
        """Subscribe until no queue is missing."""
        try:
            while router.woken.is_set() or router.missing():
                router.woken.clear()
                try:
                    await self._subscribe_missing(router)
                except (DatabaseError, AgentError) as exc:
                    logger.warning("queues cannot be subscribed now, retrying: %s", exc)
                if router.missing():
                    await self._back_off(router)
                else:
                    router.failures = 0
        finally:
            router.task = None

    async def _back_off(self, router: _Router) -> None:
        """Back off, or wait until the router is connected again."""
        router.failures += 1
        delay = self._backoff.delay(router.failures, random.random())  # noqa: S311
        try:
            async with asyncio.timeout(delay):
                await router.woken.wait()
        except TimeoutError:
            pass

    async def _subscribe_missing(self, router: _Router) -> None:
        missing = router.missing()
        for start in range(0, len(missing), SUBSCRIBE_BATCH_SIZE):
            if await self._subscribe(missing[start : start + SUBSCRIBE_BATCH_SIZE]):
                return

    async def _subscribe(self, items: Sequence[RcvQueue]) -> list[tuple[RcvQueue, ClientError]]:
        """Subscribe queues of one router, and return those that failed."""
        router = self._routers[items[0].address.fingerprint]
        items = [queue for queue in items if queue.rcv_id not in router.done]
        ids = {queue.rcv_id for queue in items} - router.asked
        router.asked |= ids
        try:
            client = await self._clients.smp(items[0].address) if items else None
            if client is None:
                return []
            requests = [ClientRequest(smp.SUB(), q.rcv_id, q.recipient_key) for q in items]
            answers = await client.request_many(requests)
        except ClientError as exc:
            return [(queue, exc) for queue in items]
        finally:
            router.asked -= ids
        failed: list[tuple[RcvQueue, ClientError]] = []
        for queue, answer in zip(items, answers, strict=True):
            if not isinstance(answer, ClientError):
                is_current = self._clients.connected(queue.address) is client
                if is_current and queue.rcv_id in router.wanted:
                    router.done.add(queue.rcv_id)
                continue
            failed.append((queue, answer))
            if _is_gone(answer):
                await self._gone(queue)
            elif not is_temporary(answer) and queue.rcv_id in router.wanted:
                self._remove(router, [queue.rcv_id])
        return failed

    async def _gone(self, queue: RcvQueue) -> None:
        await self._store.write(
            lambda tx: queues.set_rcv_status(tx, queue.queue_id, RcvStatus.GONE)
        )
        router = self._routers.get(queue.address.fingerprint)
        if router is not None and queue.rcv_id in router.wanted:
            self._remove(router, [queue.rcv_id])
        self._report(QueueGone(queue.conn_id, queue.queue_id))


def _is_gone(error: ClientError) -> bool:
    return isinstance(error, RequestRefused) and error.error is ErrorCode.AUTH
