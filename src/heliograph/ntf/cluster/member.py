"""This process as a member of the router: its lease, its numbers, its claims."""

import asyncio
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from heliograph.db.database import Database, Migration
from heliograph.db.dialects import Transaction
from heliograph.db.errors import DatabaseError, DatabaseFenced
from heliograph.ntf.cluster import roster, tables
from heliograph.ntf.cluster.load import Load
from heliograph.ntf.cluster.roster import LeaseClock, Roster, ShardId
from heliograph.ntf.cluster.tables import Process
from heliograph.ntf.store import pending
from heliograph.ntf.store.records import PendingPush
from heliograph.ntf.store.schema import MIGRATIONS
from heliograph.ntf.store.subscriptions.subscriptions import Added
from heliograph.runtime.limits import RateLimit, network_of

__all__ = ["ClusterMember"]

logger = logging.getLogger(__name__)

RENEWALS = 5
"""Renewals in the time of a lease."""
UPKEEP_SECONDS = 5.0
MAX_SKEW_MS = 10_000
SKEW_LOG_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Fence:
    """A `heliograph.db.sql.Guard`: the row without which this process cannot write."""

    process_id: int
    mark = "UPDATE processes SET marker = ? WHERE process_id = ?"
    marker = "SELECT marker FROM processes WHERE process_id = ? FOR UPDATE"

    @property
    def parameters(self) -> Sequence[object]:
        return (self.process_id,)


class _Update(NamedTuple):
    before: Roster
    after: Roster
    splits: dict[int, int]
    names: dict[int, tuple[str, int]]


class ClusterMember:
    """A `heliograph.ntf.store.coordination.Coordinator`. Create it with `ClusterMember.join`.

    It has the lease and what the last update found; `changed` is called after each.
    """

    def __init__(
        self,
        database: Database,
        process: Process,
        process_id: int,
        clock: LeaseClock,
        registrations: RateLimit | None,
    ) -> None:
        self.database = database
        self.process = process
        self.process_id = process_id
        self.roster = Roster()
        self.splits: dict[int, int] = {}
        self.fenced = asyncio.Event()
        self.ready: Callable[[], dict[ShardId, int]] = dict
        """Returns the shards that are subscribed here, with their generation."""
        self.measure: Callable[[], dict[ShardId, Load]] = dict
        """Returns the loads of shards that were measured since it was last called."""
        self.changed: Callable[[], None] = lambda: None
        self.resumed: Callable[[], None] = lambda: None
        """Called when this process may push again."""
        self.may_split = True
        self._clock = clock
        self._registrations = registrations
        self.last_seq = 0
        self._is_leaving = False
        self._wake = asyncio.Event()
        self._upkeep_at = 0.0
        self._migrations: Sequence[Migration] = ()
        """Empty once none of them waits for processes of earlier versions to end."""
        self._skew_logged_at = 0.0
        database.set_guard(Fence(process_id))

    @classmethod
    async def join(
        cls,
        url: str,
        process: Process,
        *,
        lease: float = roster.LEASE,
        registrations: RateLimit | None = None,
        migrations: Sequence[Migration] = MIGRATIONS,
    ) -> "ClusterMember":
        """Join the processes that use a store. Raises `DatabaseError` if they are another router.

        The caller closes `database`.
        """
        database = await Database.join(url, migrations, lambda tx: tables.check(tx, process))
        try:
            began = time.monotonic()
            first = int(time.time() * 1e6)
            process_id = await database.write(
                lambda tx: tables.join(tx, process, int(lease * 1000), first, migrations)
            )
            member = cls(database, process, process_id, LeaseClock(lease), registrations)
            member._migrations = migrations
            member._clock.renewed(began)
            await member.update()
        except BaseException:
            await database.close()
            raise
        logger.info("process %d of the router: %s", process_id, process.name)
        return member

    # heliograph.ntf.store.coordination.Coordinator

    @property
    def owner(self) -> int | None:
        return self.process_id

    @property
    def is_leader(self) -> bool:
        return self.roster.leader == self.process_id and self.may_send

    @property
    def may_send(self) -> bool:
        return self._clock.may_send(time.monotonic())

    async def start(self, newest: int) -> None:
        def wait(tx: Transaction) -> None:
            self.take(tx, 1)
            tables.wait_for_others(tx)

        await self.database.write(wait)

    def take(self, tx: Transaction, count: int) -> Sequence[int]:
        taken = tables.take_numbers(tx, count)
        self.last_seq = max(taken, default=self.last_seq)
        return taken

    def take_deleted(self, tx: Transaction) -> None:
        self.take(tx, 1)

    def lock_tokens(self, tx: Transaction, queues: Sequence[tuple[int, bytes]]) -> None:
        tables.lock_tokens(tx, queues)

    def claim(self, tx: Transaction, pushes: list[PendingPush]) -> list[PendingPush]:
        return pending.claim(tx, pushes, self.process_id) if pushes else pushes

    def added(self, tx: Transaction, new: Sequence[Added]) -> None:
        """Leave new subscriptions to the owners of their shards, which take them at once."""
        if not new:
            return
        tables.pass_on(
            tx, [(item.subscription.subscription_id, item.server.server_id) for item in new]
        )
        tx.many(
            "INSERT INTO shards (server_id, shard, owner) VALUES (?, 0, ?)"
            " ON CONFLICT (server_id, shard) DO NOTHING",
            sorted({(item.server.server_id, self.process_id) for item in new}),
        )

    def share_of(self, window: int) -> int:
        return max(window // max(len(self.roster.members), 1), 1)

    async def may_register(self, address: str) -> bool:
        limit = self._registrations
        if limit is None or not limit.applies_to(address):
            return True
        key = self.process.fingerprint
        network = hashlib.blake2b(network_of(address).encode(), key=key, digest_size=16).digest()
        rate = limit.rate
        return await self.database.write(lambda tx: tables.count_registration(tx, network, rate))

    # The lease.

    @property
    def interval(self) -> float:
        """Return the seconds between two renewals, and between two updates of the roster."""
        return self._clock.lease / RENEWALS

    def wake(self) -> None:
        """Update the roster now: something is to be reported or taken over."""
        self._wake.set()

    async def run(self) -> None:
        """Renew the lease and update the roster until the lease is lost.

        An update waits for other writes, of this process and others; a renewal must not.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._repeat(self.renew, asyncio.Event()))
            tasks.create_task(self._repeat(self.update, self._wake))

    async def _repeat(self, step: Callable[[], Awaitable[None]], wake: asyncio.Event) -> None:
        while not self.fenced.is_set():
            wake.clear()
            try:
                async with asyncio.timeout(self.interval):
                    await wake.wait()
            except TimeoutError:
                pass
            try:
                await step()
            except DatabaseFenced:
                self._lost()
            except DatabaseError as exc:
                logger.error("the lease or the shards cannot be renewed, retrying: %s", exc)
            except Exception:
                logger.exception("the lease or the shards cannot be renewed, retrying")

    def _lost(self) -> None:
        if self.fenced.is_set():
            return
        logger.error(
            "process %d (%s) lost its lease: others have taken its work over",
            self.process_id,
            self.process.name,
        )
        self.fenced.set()
        self.changed()

    async def renew(self) -> None:
        """Renew the lease."""
        lease = int(self._clock.lease * 1000)

        def renew(tx: Transaction) -> float:
            sent = time.monotonic()
            tables.renew(tx, self.process_id, lease, round(time.time() * 1000))
            return sent

        sent = await self.database.write_urgent(renew)
        was_paused = not self.may_send
        if was_paused:
            self._warn_of_pause(self._clock.age(time.monotonic()))
        self._clock.renewed(sent)
        if was_paused and self.may_send:
            self.resumed()

    async def update(self) -> None:
        """Update the roster, and learn what this process owns."""
        ready, loads = self.ready(), self.measure()

        def update(tx: Transaction) -> _Update:
            splits = tables.splits(tx)  # waits until those before in order have ended
            now = tables.now(tx)
            tables.add_missing_shards(tx)
            may_remove = self._clock.may_remove(time.monotonic())
            removable = tables.removable(tx, now) if may_remove else ()
            before = tables.load(tx)
            if before.members[self.process_id].is_leaving != self._is_leaving:  # edited by hand
                tables.set_leaving(tx, self.process_id, self._is_leaving)
                before = tables.load(tx)
            after = roster.update(
                before,
                self.process_id,
                now,
                removable=removable,
                ready=ready,
                loads=loads,
            )
            names = tables.names(tx)
            tables.store(tx, before, after)
            return _Update(before, after, splits, names)

        found = await self.database.write(update)
        self.roster, self.splits = found.after, found.splits
        for process_id in found.before.members.keys() - self.roster.members.keys():
            logger.warning(
                "process %d (%s) did not renew its lease: its work is taken over",
                process_id,
                found.names[process_id][0],
            )
        now = time.monotonic()
        self._warn_of_skew(found.names, now)
        self.changed()
        if self.is_leader and now >= self._upkeep_at:
            self._upkeep_at = now + UPKEEP_SECONDS
            await self._maintain()

    async def _maintain(self) -> None:
        """Remove what is not used any more, and split what has grown."""

        def keep_up(tx: Transaction) -> None:
            tables.remove_unused(tx)
            tables.forget_registrations(tx)
            if self.may_split:
                tables.split_large(tx)

        await self.database.write(keep_up)
        if migrations := self._migrations:
            is_done = await self.database.write(lambda tx: tables.contract(tx, migrations))
            self._migrations = () if is_done else migrations

    def _warn_of_pause(self, seconds: float) -> None:
        logger.warning(
            "the lease was renewed after %.1f s and lasts %g s, so this process paused its pushes:"
            " the store or this machine is too slow; if it stays so, raise [processes]"
            " lease_seconds",
            seconds,
            self._clock.lease,
        )

    def _warn_of_skew(self, names: dict[int, tuple[str, int]], now: float) -> None:
        skewed = [
            f"{name} by {skew / 1000:.0f} s"
            for name, skew in names.values()
            if abs(skew) > MAX_SKEW_MS
        ]
        if skewed and self.is_leader and now >= self._skew_logged_at:
            self._skew_logged_at = now + SKEW_LOG_SECONDS
            logger.warning(
                "clocks differ from the database's (%s): times of retries and expiry do, too",
                ", ".join(sorted(skewed)),
            )

    async def start_leaving(self) -> None:
        """Let others take the shards of this process."""
        self._is_leaving = True
        await self.database.write(lambda tx: tables.set_leaving(tx, self.process_id, True))

    async def leave(self) -> None:
        """Leave the router; others take over at once what was not handed over."""

        def leave(tx: Transaction) -> None:
            before = tables.load(tx)
            tables.store(tx, before, roster.leave(before, self.process_id))

        await self.database.write(leave)
