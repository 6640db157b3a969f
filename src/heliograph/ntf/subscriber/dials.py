"""Admission of connections to messaging routers, whose addresses any client may name.

Dials are bounded in all and per host, whatever identities, other hosts and names the addresses
have; connections, too.
Routers that worked before have slots of their own. Among the others, those that failed least often
come first, and of those that were never dialed the newest, so that a new router does not wait
behind any number of silent ones. While a router that worked reconnects, others leave a place for
it.
"""

import asyncio
import heapq
import itertools
import resource
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace

from heliograph.transport.errors import ConnectFailed

__all__ = ["DialLimits", "Dials", "Slot"]


def _default_connections() -> int:
    """Return three quarters of the descriptors that the process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(soft * 3 // 4, 16)


@dataclass(frozen=True, slots=True)
class DialLimits:
    """`proven` and `unproven` bound concurrent dials; times in seconds."""

    proven: int = 100
    unproven: int = 100
    per_host: int = 8
    """Concurrent dials of one host, of either kind."""
    host_interval: float = 0.5
    """Between dials of unproven routers of one host."""
    connections: int | None = None
    """None is three quarters of the descriptors that the process may have."""
    connections_per_host: int = 100
    """Beyond this, only proven routers of a host are dialed."""

    def shared_by(self, processes: int) -> "DialLimits":
        """Return the limits of each of several processes, so that together they keep these."""

        def share(limit: int) -> int:
            return max(limit // processes, 1)

        return replace(
            self,
            proven=share(self.proven),
            unproven=share(self.unproven),
            per_host=share(self.per_host),
            host_interval=self.host_interval * processes,
            connections=None if self.connections is None else share(self.connections),
            connections_per_host=share(self.connections_per_host),
        )


class Place:
    """The place of one router among the connections; `is_kept` while it reconnects."""

    is_kept = False


class Slot:
    """An admitted dial, which becomes a connection.

    Set `keeps_place` if the router is to find a place when it reconnects.
    """

    keeps_place = False

    def __init__(self, dials: "Dials", host: str, *, is_proven: bool) -> None:
        self.host = host
        self.is_proven = is_proven
        self.ip = ""
        self._dials = dials
        self._is_dialing = True

    def connected(self, ip: str = "") -> None:
        """Release what a dial occupies, and keep what a connection to `ip` does."""
        if self._is_dialing:
            self._is_dialing = False
            self.ip = "" if ip == self.host else ip
            self._dials.end_dial(self)


_Waiting = tuple[int, int, asyncio.Future[None]]


class _Pool:
    """Dials of proven or of unproven routers: those in flight, and those that wait."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.dialing: Counter[str] = Counter()
        self.limit = 0
        self.interval = 0.0
        self.waiting: dict[str, list[_Waiting]] = {}
        self.cooling: set[str] = set()
        self.hosts: list[tuple[int, int, str]] = []
        """The waiting hosts by failures of the first in line, as a heap; entries may be stale."""

    def push(self, host: str, failures: int, order: int) -> "asyncio.Future[None]":
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self.waiting.setdefault(host, []), (failures, order, future))
        self.offer(host)
        return future

    def offer(self, host: str) -> None:
        """Push a host that has waiters onto the heap."""
        if line := self.waiting.get(host):
            heapq.heappush(self.hosts, (*line[0][:2], host))

    def pop(self, host: str) -> "asyncio.Future[None]":
        line = self.waiting[host]
        _, _, future = heapq.heappop(line)
        if not line:
            del self.waiting[host]
        return future


class Dials:
    def __init__(self, limits: DialLimits | None = None) -> None:
        self._pools = {True: _Pool(), False: _Pool()}
        self._files = _default_connections()
        self._set_limits(limits or DialLimits())
        self._connections: Counter[str] = Counter()
        """How many there are, by host and by IP address."""
        self._total = 0
        self._kept = 0
        """Places of routers that reconnect."""
        self._order = itertools.count()
        self._named: Counter[str] = Counter()
        """How many addresses name a host."""
        self._dialed: set[str] = set()
        """IP addresses that unproven routers were dialed at a moment ago."""

    def _set_limits(self, limits: DialLimits) -> None:
        self._limits = limits
        self._max_connections = limits.connections or self._files
        proven, unproven = self._pools[True], self._pools[False]
        proven.limit, unproven.limit = limits.proven, limits.unproven
        unproven.interval = limits.host_interval

    def limit(self, limits: DialLimits) -> None:
        """Use other limits from now on; connections that exceed them stay."""
        if limits != self._limits:
            self._set_limits(limits)
            for host in {host for pool in self._pools.values() for host in pool.waiting}:
                self._offer(host)

    @property
    def in_flight(self) -> int:
        return sum(pool.in_flight for pool in self._pools.values())

    @property
    def waiting(self) -> int:
        return sum(len(line) for pool in self._pools.values() for line in pool.waiting.values())

    @contextmanager
    def named(self, hosts: Sequence[str]) -> Iterator[Place]:
        """Count the hosts of a router's address, for as long as it has a subscriber."""
        place = Place()
        self._named.update(hosts)
        try:
            yield place
        finally:
            self.keep(place, is_kept=False)
            self._named.subtract(hosts)
            for host in hosts:
                if not self._named[host]:
                    del self._named[host]

    def keep(self, place: Place, *, is_kept: bool) -> None:
        """Keep a place from now on, or no more."""
        self._kept += is_kept - place.is_kept
        place.is_kept = is_kept
        self._admit(self._pools[False])

    def busiest(self, hosts: Sequence[str]) -> str:
        """Return the host that most addresses name: the bounds of `slot` must hold for that one."""
        return max(hosts, key=lambda host: self._named[host])

    def pace(self, ip: str) -> None:
        """Raise `ConnectFailed` for an unproven router if others there had their share.

        Any number of names may stand for one IP address.
        """
        if ip in self._dialed:
            raise ConnectFailed("other routers at this address were dialed a moment ago")
        if self._connections[ip] >= self._limits.connections_per_host:
            raise ConnectFailed("there are many connections to this address")
        if self._limits.host_interval:
            self._dialed.add(ip)
            # Less than between dials of one host, which begin with the name.
            delay = self._limits.host_interval / 2
            asyncio.get_running_loop().call_later(delay, self._dialed.discard, ip)

    @asynccontextmanager
    async def slot(
        self, host: str, *, is_proven: bool, failures: int, place: Place | None = None
    ) -> AsyncIterator[Slot]:
        """Wait until a dial of `host` is admitted; the slot lasts until the connection ended."""
        place = place or Place()
        pool = self._pools[is_proven]
        order = next(self._order)
        future = pool.push(host, failures, order if failures or is_proven else -order)
        self._admit(pool)
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self._release(Slot(self, host, is_proven=is_proven))
            raise
        self.keep(place, is_kept=False)
        slot = Slot(self, host, is_proven=is_proven)
        try:
            yield slot
        finally:
            self.keep(place, is_kept=slot.keeps_place)
            self._release(slot)

    def end_dial(self, slot: Slot) -> None:
        pool = self._pools[slot.is_proven]
        if slot.ip:
            self._connections[slot.ip] += 1
        pool.in_flight -= 1
        pool.dialing[slot.host] -= 1
        if not pool.dialing[slot.host]:
            del pool.dialing[slot.host]
        self._offer(slot.host)

    def _release(self, slot: Slot) -> None:
        slot.connected()
        self._total -= 1
        for where in filter(None, (slot.host, slot.ip)):
            self._connections[where] -= 1
            if not self._connections[where]:
                del self._connections[where]
        self._offer(slot.host)

    def _offer(self, host: str) -> None:
        for pool in self._pools.values():
            pool.offer(host)
            self._admit(pool)

    def _admit(self, pool: _Pool) -> None:
        kept = 0 if pool is self._pools[True] else self._kept
        while (
            pool.hosts
            and pool.in_flight < pool.limit
            and self._total + kept < self._max_connections
        ):
            *_, host = heapq.heappop(pool.hosts)
            if host not in pool.waiting or not self._may_dial(pool, host):
                continue  # offered again once it may
            future = pool.pop(host)
            if future.done():  # cancelled
                pool.offer(host)
                continue
            pool.in_flight += 1
            self._total += 1
            pool.dialing[host] += 1
            self._connections[host] += 1
            if pool.interval:
                pool.cooling.add(host)
                asyncio.get_running_loop().call_later(pool.interval, self._cool, pool, host)
            else:
                pool.offer(host)
            future.set_result(None)

    def _may_dial(self, pool: _Pool, host: str) -> bool:
        limits = self._limits
        return (
            host not in pool.cooling
            and pool.dialing[host] < limits.per_host
            and (pool is self._pools[True] or self._connections[host] < limits.connections_per_host)
        )

    def _cool(self, pool: _Pool, host: str) -> None:
        pool.cooling.discard(host)
        pool.offer(host)
        self._admit(pool)
