"""Deletes queues at their routers: those of deleted connections and those that were replaced.

The queues to delete are in the store, so deletion continues after a restart until each router has
answered.
"""

import asyncio
import logging
import random
from collections.abc import Sequence

from heliograph.agent.clients import ClientPool, is_temporary
from heliograph.agent.connections import queues
from heliograph.agent.errors import AgentError
from heliograph.agent.records import RcvQueue
from heliograph.agent.store import AgentStore
from heliograph.db.dialects import Transaction
from heliograph.db.errors import DatabaseError
from heliograph.runtime.backoff import Backoff
from heliograph.tasks import TaskScope
from heliograph.transport.client import ClientRequest
from heliograph.transport.errors import ClientError
from heliograph.wire import smp

logger = logging.getLogger(__name__)


class Deleter:
    def __init__(self, store: AgentStore, clients: ClientPool, backoff: Backoff) -> None:
        self._store = store
        self._clients = clients
        self._backoff = backoff
        self._kicked = asyncio.Event()
        self._tasks = TaskScope()
        self._tasks.spawn(self._run(), name="queue deletion")

    def wake(self) -> None:
        self._kicked.set()

    async def close(self) -> None:
        await self._tasks.close()

    async def _run(self) -> None:
        failures = 0
        while True:
            self._kicked.clear()
            try:
                left = await self._delete_all()
            except (DatabaseError, AgentError) as exc:
                logger.warning("queues cannot be deleted now, retrying: %s", exc)
                left = True
            failures = failures + 1 if left else 0
            wait = self._backoff.delay(failures, random.random()) if left else None  # noqa: S311
            try:
                async with asyncio.timeout(wait):
                    await self._kicked.wait()
            except TimeoutError:
                pass

    async def _delete_all(self) -> bool:
        """Delete all marked queues, and return whether any is left."""
        vault = self._store.vault
        async with self._store.locks.hold("delete"):
            found = await self._store.read(lambda tx: queues.rcv_queues_to_delete(tx, vault))
            by_router: dict[bytes, list[RcvQueue]] = {}
            for queue in found:
                by_router.setdefault(queue.address.fingerprint, []).append(queue)
            left = await asyncio.gather(*[self._delete(items) for items in by_router.values()])
        return any(left)

    async def _delete(self, items: Sequence[RcvQueue]) -> bool:
        try:
            client = await self._clients.smp(items[0].address)
        except ClientError:
            return True
        requests = [ClientRequest(smp.DEL(), q.rcv_id, q.recipient_key) for q in items]
        answers = await client.request_many(requests)
        done = [
            queue
            for queue, answer in zip(items, answers, strict=True)
            if not (isinstance(answer, ClientError) and is_temporary(answer))
        ]

        def forget(tx: Transaction) -> None:
            for queue in done:
                queues.delete_rcv_queue(tx, queue.queue_id)
                queues.forget_deleted(tx, queue.conn_id)

        await self._store.write(forget)
        return len(done) < len(items)
