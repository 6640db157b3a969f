"""Who is a member of the router, and who owns which shard: pure, the time is an argument.

The roster is stored in the database. Transactions that change it come one after another. Every
transaction of a member holds the member's own row until it ends, and fails without it. A member is
removed only while nobody holds its row, so what was removed cannot write afterwards. Its lease is
another row, so that it is renewed whatever the member's transactions wait for. Members join and
renew by statements of `heliograph.ntf.cluster.tables`.

    joined ──renewed──> member ──leave──> leaving ──left──> gone
                          └──lease ended, and another member noticed──> gone (fenced)

A shard moves without a gap: its new owner subscribes while the previous one still listens.
"""

import math
from bisect import bisect
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from heliograph.ntf.cluster.load import NO_LOAD, Load

__all__ = [
    "LEASE",
    "MAX_LEASE",
    "LeaseClock",
    "Member",
    "Roster",
    "Shard",
    "ShardId",
    "leave",
    "update",
]

LEASE = 5.0
"""Seconds after its last renewal from which others may remove a member."""

MAX_LEASE = 60.0
"""The longest lease, in seconds: more is an edited table, or a clock that was set back."""

UNEVEN, EVEN = 0.3, 0.1
"""Parts of its load by which a member may exceed another: from the first on shards move, until the
second is reached, so that loads that change a little move nothing."""

ShardId = tuple[int, int]
"""The ID of a messaging router in the store, and the number of the shard."""


@dataclass(frozen=True, slots=True)
class Member:
    """A process; `expires_at` in milliseconds of the database's clock."""

    expires_at: int
    is_leaving: bool = False


@dataclass(frozen=True, slots=True)
class Shard:
    """A part of the subscriptions at a messaging router.

    Its owner subscribes. `previous` keeps listening until the owner has subscribed everything.
    """

    owner: int | None = None
    previous: int | None = None
    load: Load = NO_LOAD
    generation: int = 0
    """Grows with each change of the owner: who gets a shard back has to subscribe it again, because
    the messaging router ended the subscriptions that another had begun to take over."""

    def given_to(self, owner: int | None, previous: int | None) -> "Shard":
        changes = owner != self.owner
        return Shard(owner, previous, self.load, self.generation + changes)


@dataclass(frozen=True, slots=True)
class Roster:
    """Members by their ID, which is never used again, and shards."""

    members: Mapping[int, Member] = field(default_factory=dict)
    shards: Mapping[ShardId, Shard] = field(default_factory=dict)

    @property
    def leader(self) -> int | None:
        """Return the member that joined first: it does the work that only one may do."""
        return min(self.members, default=None)

    def owned_by(self, process_id: int) -> set[ShardId]:
        return {key for key, shard in self.shards.items() if shard.owner == process_id}

    def left_by(self, process_id: int) -> set[ShardId]:
        """Return the shards that have another owner, which has not subscribed them yet."""
        return {key for key, shard in self.shards.items() if shard.previous == process_id}


def update(
    roster: Roster,
    process_id: int,
    now: int,
    *,
    removable: Collection[int] = (),
    ready: Mapping[ShardId, int] = MappingProxyType({}),
    loads: Mapping[ShardId, Load] = MappingProxyType({}),
) -> Roster:
    """Remove ended members, record what this one reports, and rebalance shards.

    It removes those of the `removable` whose lease has ended, reports shards it has subscribed as
    `ready`, with the generation that it subscribed, and the `loads` of its shards. It gives shards
    without an owner, or of one that has too much to do, to others. Leases that are longer than can
    be are shortened.
    """
    latest = now + int(MAX_LEASE * 1000)
    members = {
        number: replace(member, expires_at=min(member.expires_at, latest))
        for number, member in roster.members.items()
        if number == process_id or number not in removable or member.expires_at > now
    }
    shards = {key: _cleaned(shard, members) for key, shard in roster.shards.items()}
    for key, shard in shards.items():
        if shard.owner == process_id:
            is_ready = ready.get(key) == shard.generation
            previous = None if is_ready else shard.previous
            load = loads.get(key, shard.load)
            shards[key] = replace(shard, previous=previous, load=load)
    return Roster(members, _balanced(shards, members))


def leave(roster: Roster, process_id: int) -> Roster:
    """Return the roster without a member."""
    members = {number: item for number, item in roster.members.items() if number != process_id}
    shards = {key: _cleaned(shard, members) for key, shard in roster.shards.items()}
    return Roster(members, _balanced(shards, members))


def _cleaned(shard: Shard, members: Mapping[int, Member]) -> Shard:
    owner = shard.owner if shard.owner in members else None
    previous = shard.previous if shard.previous in members else None
    if owner is None:
        owner, previous = previous, None
    return shard.given_to(owner, previous)


def _balanced(shards: dict[ShardId, Shard], members: Mapping[int, Member]) -> dict[ShardId, Shard]:
    """Give every shard an owner that stays, and move few to make loads even."""
    staying = sorted(number for number, member in members.items() if not member.is_leaving)
    if not staying:
        return shards
    loads = dict.fromkeys(staying, 0)
    free: list[tuple[int, ShardId]] = []
    movable: dict[int, list[tuple[int, ShardId]]] = {number: [] for number in staying}
    for key, shard in sorted(shards.items()):
        weight = shard.load.weight
        if shard.owner in loads:
            loads[shard.owner] += weight
            if shard.previous is None:
                movable[shard.owner].append((weight, key))
        elif shard.owner is None or shard.previous is None:
            free.append((-weight, key))

    def move(key: ShardId, target: int) -> None:
        shard = shards[key]
        shards[key] = shard.given_to(target, shard.owner)
        if shard.owner in loads:
            loads[shard.owner] -= shard.load.weight
        loads[target] += shard.load.weight

    for _, key in sorted(free):
        move(key, min(loads, key=lambda number: (loads[number], number)))
    for key, target in _even_out(loads, movable):
        move(key, target)
    return shards


def _even_out(
    loads: Mapping[int, int], movable: Mapping[int, list[tuple[int, ShardId]]]
) -> Iterator[tuple[ShardId, int]]:
    """Yield moves while loads, which the caller updates, are uneven and a move helps.

    A shard that moves weighs at most three quarters of the difference. So the sum of the squares of
    loads falls: while shards weigh the same, moves come to an end, and none is undone.
    """
    for items in movable.values():
        items.sort()
    tolerance = UNEVEN
    while move := _best_move(loads, movable, tolerance):
        yield move
        tolerance = EVEN


def _best_move(
    loads: Mapping[int, int], movable: Mapping[int, list[tuple[int, ShardId]]], tolerance: float
) -> tuple[ShardId, int] | None:
    """Return the best move from the busiest member that can spare a shard, to the idlest."""
    target = min(loads, key=lambda number: (loads[number], number))
    for source in sorted(loads, key=lambda number: (-loads[number], number)):
        gap = loads[source] - loads[target]
        if gap <= tolerance * loads[source]:
            return None
        items = movable[source]
        place = bisect(items, (gap // 2, (0, 0)))
        nearest = [item for item in items[max(place - 1, 0) : place + 1] if 4 * item[0] <= 3 * gap]
        if nearest:
            best = min(nearest, key=lambda item: abs(2 * item[0] - gap))
            items.remove(best)
            return best[1], target
    return None


class LeaseClock:
    """What a member knows of leases by its own monotonic clock, in seconds.

    After an outage of the database no lease is renewed. So a member removes others only if it has
    renewed its own lease, without a pause, for as long as a lease lasts.
    """

    def __init__(self, lease: float = LEASE) -> None:
        self.lease = lease
        self._renewed_at = -math.inf
        self._steady_since = 0.0

    def renewed(self, granted: float) -> None:
        """Record a renewal that the database granted at `granted` or later."""
        if self.age(granted) > self.lease / 2:
            self._steady_since = granted
        self._renewed_at = granted

    def age(self, now: float) -> float:
        """Return the seconds since the last renewal."""
        return now - self._renewed_at

    def may_send(self, now: float) -> bool:
        """Return whether no other member can have removed this one yet."""
        return self.age(now) < self.lease

    def may_remove(self, now: float) -> bool:
        """Return whether to remove others in an update that runs now."""
        return self.age(now) <= self.lease / 2 and now - self._steady_since >= self.lease
