"""The subscribers of the shards that this process owns."""

import asyncio
import contextlib
import functools
import logging
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from heliograph.db.dialects import Transaction
from heliograph.db.errors import DatabaseError
from heliograph.ntf.cluster import tables
from heliograph.ntf.cluster.load import Load, smoothed
from heliograph.ntf.cluster.member import ClusterMember
from heliograph.ntf.cluster.roster import ShardId
from heliograph.ntf.cluster.shard_store import ShardStore
from heliograph.ntf.observing.observer import NtfObserver
from heliograph.ntf.store.records import Incoming, QueueKey
from heliograph.ntf.store.restrictions import NO_RESTRICTIONS, Restrictions
from heliograph.ntf.store.subscriptions import subscriptions
from heliograph.ntf.store.subscriptions.servers import ServerRecord
from heliograph.ntf.subscriber.dials import Dials
from heliograph.ntf.subscriber.settings import Receive, SubscriberSettings
from heliograph.ntf.subscriber.subscriber import SmpSubscriber
from heliograph.runtime import logs
from heliograph.tasks import TaskScope
from heliograph.wire.addresses import decode_address
from heliograph.wire.errors import WireError

__all__ = ["ShardSubscribers"]

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.25
"""Between looks for subscriptions that clients made at other processes."""
MEASURE_SECONDS = 30.0
"""Between two measurements of the load of a shard."""
HANDOVER_SECONDS = 10.0
"""To wait at shutdown until others have subscribed what is subscribed here."""


@dataclass(slots=True)
class _Running:
    generation: int
    count: int
    """How many shards the router had when this one was started."""
    task: "asyncio.Task[None]"
    subscriber: SmpSubscriber | None = None
    received: int = 0
    """Notifications since `measured_at`, in monotonic seconds."""
    measured_at: float = field(default_factory=time.monotonic)

    def receive(
        self, receive: Receive, server_id: int, incoming: list[Incoming]
    ) -> asyncio.Future[int]:
        self.received += len(incoming)
        return receive(server_id, incoming)


class ShardSubscribers(Mapping[ShardId, SmpSubscriber]):
    """Subscribers by shard; those that other processes own are not here."""

    def __init__(
        self,
        member: ClusterMember,
        observer: NtfObserver,
        receive: Receive,
        settings: SubscriberSettings,
        restrictions: Restrictions = NO_RESTRICTIONS,
    ) -> None:
        self._restrictions = restrictions
        self.dials = Dials(settings.dials)
        self._member = member
        self._observer = observer
        self._receive = receive
        self._settings = settings
        self._running: dict[ShardId, _Running] = {}
        self._ending: defaultdict[ShardId, set[asyncio.Task[None]]] = defaultdict(set)
        self._tasks = TaskScope()
        self._poll = asyncio.Event()
        self._is_closing = False
        member.may_split = not settings.use_service
        member.ready = self._ready
        member.measure = self._measure
        member.changed = self._sync

    def __getitem__(self, key: ShardId) -> SmpSubscriber:
        subscriber = self._running[key].subscriber
        if subscriber is None:
            raise KeyError(key)
        return subscriber

    def __iter__(self) -> Iterator[ShardId]:
        return iter([key for key, item in self._running.items() if item.subscriber is not None])

    def __len__(self) -> int:
        return sum(item.subscriber is not None for item in self._running.values())

    def add(self, server: ServerRecord, queue: QueueKey) -> None:
        """Subscribe a new queue, here or at the process that owns its shard."""
        decode_address(server.address)
        if (server.server_id, 0) not in self._member.roster.shards:
            self._member.wake()
        self._poll.set()

    def resubscribe(self, server: ServerRecord, queue: QueueKey, *, was_active: bool) -> None:
        """Subscribe a queue of the store again, as a new one."""
        self.add(server, queue)

    async def run(self) -> None:
        """Take over new subscriptions until cancelled; `_sync` starts and ends subscribers."""
        self._sync()
        while True:
            self._poll.clear()
            try:
                await self._take_new()
            except DatabaseError as exc:
                logger.error("new subscriptions cannot be read, retrying: %s", exc)
            try:
                async with asyncio.timeout(POLL_SECONDS):
                    await self._poll.wait()
            except TimeoutError:
                pass

    async def hand_over(self, grace: float = HANDOVER_SECONDS) -> None:
        """Wait, for a time, until other processes have subscribed what is subscribed here."""
        member = self._member
        await member.start_leaving()
        await member.update()
        try:
            async with asyncio.timeout(grace):
                while self._is_needed():
                    await asyncio.sleep(member.interval / 4)
                    await member.update()
        except TimeoutError:
            logger.warning("other processes have not taken over all subscriptions yet")

    def _is_needed(self) -> bool:
        """Return whether others can take over what is subscribed here, and have not yet."""
        roster, me = self._member.roster, self._member.process_id
        others = [item for number, item in roster.members.items() if number != me]
        staying = any(not item.is_leaving for item in others)
        return staying and bool(roster.owned_by(me) or roster.left_by(me))

    async def close(self, grace: float) -> None:
        self._is_closing = True
        await self._tasks.close(grace)

    # Shards.

    def _ready(self) -> dict[ShardId, int]:
        return {
            key: self._running[key].generation
            for key, subscriber in self.items()
            if subscriber.is_resubscribed
        }

    def _measure(self) -> dict[ShardId, Load]:
        """Return the loads of shards that were not measured for a time."""
        now, shards = time.monotonic(), self._member.roster.shards
        measured = {}
        for key, subscriber in self.items():
            running = self._running[key]
            seconds = now - running.measured_at
            if subscriber.is_resubscribed and key in shards and seconds >= MEASURE_SECONDS:
                before = shards[key].load
                measured[key] = smoothed(before, subscriber.subscribed, running.received, seconds)
                running.received, running.measured_at = 0, now
        return measured

    def _sync(self) -> None:
        """Run a subscriber for each shard that is owned, and end those of others."""
        if self._is_closing:
            return
        if self._member.fenced.is_set():  # or they would subscribe what others own by now
            for key in list(self._running):
                self._end(key)
            return
        roster, me = self._member.roster, self._member.process_id
        self.dials.limit(self._settings.dials.shared_by(len(roster.members)))
        owned, left = roster.owned_by(me), roster.left_by(me)
        for key, running in list(self._running.items()):
            if key in left and running.subscriber is not None:
                running.subscriber.is_leaving = True
            elif key not in owned or not self._is_current(key, running):
                self._end(key)
        for key in owned - self._running.keys():
            count, generation = self._member.splits.get(key[0], 1), roster.shards[key].generation
            task = self._tasks.spawn(self._run(key, count, generation), name="subscribe a shard")
            self._running[key] = _Running(generation, count, task)

    def _is_current(self, key: ShardId, running: _Running) -> bool:
        """Return whether a subscriber runs, and has all subscriptions since it was started."""
        generation = self._member.roster.shards[key].generation
        count = self._member.splits.get(key[0], 1)
        is_same = (running.generation, running.count) == (generation, count)
        return is_same and not running.task.done()

    def _end(self, key: ShardId) -> None:
        task = self._running.pop(key).task
        task.cancel()
        self._ending[key].add(task)
        task.add_done_callback(lambda _: self._ended(key, task))

    def _ended(self, key: ShardId, task: "asyncio.Task[None]") -> None:
        self._ending[key].discard(task)
        if not self._ending[key]:
            del self._ending[key]
        self._forget_server(key[0])

    def _forget_server(self, server_id: int) -> None:
        if not any(server_id == known for known, _ in self._running):
            self._observer.server_removed(server_id)

    async def _run(self, key: ShardId, count: int, generation: int) -> None:
        server_id = key[0]
        store = ShardStore(self._member, key, count, generation)
        if key in self._ending:  # its last write marks subscriptions INACTIVE
            await asyncio.wait(self._ending[key])
        while True:
            try:
                is_proven = await store.start()
                server = await store.service(server_id)
                break
            except (DatabaseError, ValueError) as exc:
                logger.error("a messaging router cannot be read, retrying: %s", exc)
                await asyncio.sleep(1.0)
        try:
            address = decode_address(server.address)
        except WireError:
            logger.error("the address of a messaging router cannot be understood")
            await asyncio.Event().wait()
            return
        self._observer.server_added(server_id, server.address)
        running = self._running.get(key)
        if running is None or running.task is not asyncio.current_task():
            return
        subscriber = SmpSubscriber(
            server,
            address,
            store,
            self._observer,
            functools.partial(running.receive, self._receive),
            replace(self._settings, worthless_rate=self._settings.worthless_rate / count),
            self.dials,
            is_proven=is_proven,
            restrictions=self._restrictions,
            on_resubscribed=self._member.wake,
        )
        running.subscriber = subscriber
        with contextlib.suppress(DatabaseError):  # then `run` takes them
            await self._take_new()  # before the connection, on which all of the store is subscribed
        with logs.fields(smp=self._observer.server_label(server_id)):
            await subscriber.run()

    # New subscriptions.

    async def _take_new(self) -> None:
        """Subscribe what clients added, here or at another process, to shards of this one."""
        database, splits = self._member.database, self._member.splits
        found = await database.read(tables.passed_on)
        own: dict[ShardId, list[bytes]] = {}
        running = dict(self._running)
        for subscription_id, server_id in found:
            key = server_id, tables.shard_of(subscription_id, splits.get(server_id, 1))
            if key in self:
                own.setdefault(key, []).append(subscription_id)
        if not own:
            return

        def take(tx: Transaction) -> dict[bytes, QueueKey]:
            # If a shard has moved since, its new owner may have read its subscriptions before.
            ids = [
                item
                for key, some in own.items()
                if tables.is_owner(
                    tx,
                    key,
                    self._member.process_id,
                    count=running[key].count,
                    generation=running[key].generation,
                )
                for item in some
            ]
            tables.take_passed_on(tx, ids)
            return {item.subscription_id: item for item in subscriptions.keys_of(tx, ids)}

        queues = await database.write(take)
        for key, subscription_ids in own.items():
            subscriber = self._running[key].subscriber if key in self._running else None
            for subscription_id in subscription_ids:
                if subscriber is not None and subscription_id in queues:
                    subscriber.add(queues[subscription_id])
