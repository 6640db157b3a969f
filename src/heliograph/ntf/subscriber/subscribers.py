"""The subscribers to all messaging routers: each begins with the first subscription there, and
ends with the last.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping

from heliograph.db.errors import DatabaseError
from heliograph.ntf.observing.observer import NtfObserver
from heliograph.ntf.store.records import QueueKey
from heliograph.ntf.store.restrictions import NO_RESTRICTIONS, Restrictions
from heliograph.ntf.store.subscriptions.servers import ServerRecord
from heliograph.ntf.store.subscriptions.subscription_store import ServerStore
from heliograph.ntf.subscriber.dials import Dials
from heliograph.ntf.subscriber.settings import Receive, SubscriberSettings
from heliograph.ntf.subscriber.subscriber import SmpSubscriber
from heliograph.runtime import logs
from heliograph.tasks import TaskScope
from heliograph.wire.addresses import decode_address
from heliograph.wire.errors import WireError

logger = logging.getLogger(__name__)

SWEEP_INTERVAL = 5.0
"""Seconds between looks for routers without subscriptions."""


class SmpSubscribers(Mapping[int, SmpSubscriber]):
    """Subscribers by the ID of their messaging router in the store."""

    def __init__(
        self,
        store: ServerStore,
        observer: NtfObserver,
        receive: Receive,
        settings: SubscriberSettings,
        restrictions: Restrictions = NO_RESTRICTIONS,
    ) -> None:
        self._restrictions = restrictions
        self.dials = Dials(settings.dials)
        self._store = store
        self._observer = observer
        self._receive = receive
        self._settings = settings
        self._subscribers: dict[int, SmpSubscriber] = {}
        self._running: dict[int, asyncio.Task[None]] = {}
        self._tasks = TaskScope()

    def __getitem__(self, server_id: int) -> SmpSubscriber:
        return self._subscribers[server_id]

    def __iter__(self) -> Iterator[int]:
        return iter(self._subscribers)

    def __len__(self) -> int:
        return len(self._subscribers)

    async def run(self) -> None:
        """Subscribe at all messaging routers of the store, and stop subscribers without queues."""
        await self._start()
        while True:
            await asyncio.sleep(SWEEP_INTERVAL)
            try:
                await self.end_unused()
            except DatabaseError as exc:
                logger.error("messaging routers cannot be read, retrying: %s", exc)

    def add(self, server: ServerRecord, queue: QueueKey) -> None:
        """Subscribe a new queue. Raises `WireError` for an address that cannot be understood."""
        self._get(server, is_proven=False).add(queue)

    def resubscribe(self, server: ServerRecord, queue: QueueKey, *, was_active: bool) -> None:
        """Subscribe a queue of the store again. Raises `WireError` as `add` does."""
        self._get(server, is_proven=False).resubscribe(queue, was_active=was_active)

    async def end_unused(self) -> None:
        """End the subscribers to messaging routers that have no subscription any more."""
        before = {server_id: each.added for server_id, each in self._subscribers.items()}
        used = {server.server_id for server in await self._store.servers()}
        unused = [
            server_id
            for server_id, added in before.items()
            if server_id not in used and self._subscribers[server_id].added == added
        ]
        ending = [self._running[server_id] for server_id in unused]
        for server_id, task in zip(unused, ending, strict=True):
            del self._subscribers[server_id]
            task.cancel()
        if ending:
            await asyncio.wait(ending)
            for server_id in unused:
                if server_id not in self._subscribers:
                    self._observer.server_removed(server_id)
            # A new router may get the ID of a deleted one: not while that has a subscriber.
            await self._store.delete_unused_servers({*self._subscribers})

    async def close(self, grace: float) -> None:
        await self._tasks.close(grace)

    async def _start(self) -> None:
        while True:
            try:
                await self._store.all_inactive()
                servers = await self._store.servers()
                proven = await self._store.proven_servers()
                break
            except DatabaseError as exc:
                logger.error("messaging routers cannot be read, retrying: %s", exc)
                await asyncio.sleep(1.0)
        for server in servers:
            try:
                self._get(server, is_proven=server.server_id in proven)
            except WireError:
                logger.error("the address of a messaging router cannot be understood")

    def _get(self, server: ServerRecord, *, is_proven: bool) -> SmpSubscriber:
        server_id = server.server_id
        subscriber = self._subscribers.get(server_id)
        if subscriber is None:
            address = decode_address(server.address)
            self._observer.server_added(server_id, server.address)
            subscriber = self._subscribers[server_id] = SmpSubscriber(
                server,
                address,
                self._store,
                self._observer,
                self._receive,
                self._settings,
                self.dials,
                is_proven=is_proven,
                restrictions=self._restrictions,
            )
            work = self._run(subscriber, self._running.get(server_id))
            self._running[server_id] = self._tasks.spawn(work, name="subscribe at a router")
        return subscriber

    async def _run(self, subscriber: SmpSubscriber, previous: "asyncio.Task[None] | None") -> None:
        """Run a subscriber, after one for the same router that is ending."""
        server_id = subscriber.server.server_id
        try:
            if previous is not None:
                await asyncio.wait([previous])
            with logs.fields(smp=self._observer.server_label(server_id)):
                await subscriber.run()
        finally:
            if self._running.get(server_id) is asyncio.current_task():
                del self._running[server_id]
