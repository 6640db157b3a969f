"""Who is a member of the router, and who owns which shard: pure, the time is an argument.

The roster is stored in the database. Transactions that change it come one after another. Every
transaction of a member holds the member's own row until it ends, and fails without it. A member is
removed only while nobody holds its row, so what was removed cannot write afterwards.

    joined ──renewed──> member ──leave──> leaving ──left──> gone
                          └──lease ended, and another member noticed──> gone (fenced)

A shard moves without a gap: its new owner subscribes while the previous one still listens.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

__all__ = ["LEASE", "LeaseClock", "Member", "Roster", "Shard", "ShardId", "join", "leave", "renew"]

LEASE = 5.0
"""Seconds after its last renewal from which others may remove a member."""

MAX_LEASES = 10
"""Leases that a member may be ahead: more is an edited table, or a clock that was set back."""

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


@dataclass(frozen=True, slots=True)
class Roster:
    """Members by their ID, which is never used again, and shards."""

    members: Mapping[int, Member] = field(default_factory=dict)
    shards: Mapping[ShardId, Shard] = field(default_factory=dict)

    @property
    def leader(self) -> int | None:
        """Return the member that does what is done once: the one that is here for longest."""
        return min(self.members, default=None)

    def owned_by(self, process_id: int) -> set[ShardId]:
        return {key for key, shard in self.shards.items() if shard.owner == process_id}

    def left_by(self, process_id: int) -> set[ShardId]:
        """Return the shards that have another owner, which has not subscribed them yet."""
        return {key for key, shard in self.shards.items() if shard.previous == process_id}


def join(roster: Roster, process_id: int, now: int, lease: int) -> Roster:
    """Add a member with a lease of this many milliseconds."""
    return replace(roster, members={**roster.members, process_id: Member(now + lease)})


def renew(
    roster: Roster,
    process_id: int,
    now: int,
    lease: int,
    *,
    removable: Collection[int] = (),
    ready: Collection[ShardId] = (),
) -> Roster:
    """Return the roster after a member renewed its lease.

    It removes those of the `removable` whose lease has ended, reports shards it has subscribed as
    `ready`, and gives shards without an owner, or too many of one owner, to others. Leases that
    are longer than can be are shortened.
    """
    latest = now + MAX_LEASES * lease
    members = {
        number: replace(member, expires_at=min(member.expires_at, latest))
        for number, member in roster.members.items()
        if number == process_id or number not in removable or member.expires_at > now
    }
    members[process_id] = replace(roster.members[process_id], expires_at=now + lease)
    shards = {key: _cleaned(shard, members) for key, shard in roster.shards.items()}
    for key in ready:
        if key in shards and shards[key].owner == process_id:
            shards[key] = Shard(process_id)
    return Roster(members, _balanced(shards, members))


def leave(roster: Roster, process_id: int) -> Roster:
    """Return the roster without a member."""
    members = {number: item for number, item in roster.members.items() if number != process_id}
    shards = {key: _cleaned(shard, members) for key, shard in roster.shards.items()}
    return Roster(members, _balanced(shards, members))


def _cleaned(shard: Shard, members: Mapping[int, Member]) -> Shard:
    owner = shard.owner if shard.owner in members else None
    previous = shard.previous if shard.previous in members else None
    return (
        Shard(previous, None) if owner is None and previous is not None else Shard(owner, previous)
    )


def _balanced(shards: dict[ShardId, Shard], members: Mapping[int, Member]) -> dict[ShardId, Shard]:
    """Give every shard an owner that stays; move as few as possible."""
    staying = [number for number, member in sorted(members.items()) if not member.is_leaving]
    if not staying:
        return shards
    loads: Counter[int | None] = Counter(dict.fromkeys(staying, 0))
    loads.update(shard.owner for shard in shards.values() if shard.owner in loads)

    def move(key: ShardId, source: int | None) -> None:
        target = min(staying, key=lambda number: (loads[number], number))
        shards[key] = Shard(target, source)
        loads[target] += 1

    for key in sorted(shards):
        owner = shards[key].owner
        if owner is None or (owner not in loads and shards[key].previous is None):
            move(key, owner)
    for key in sorted(shards):
        owner, previous = shards[key].owner, shards[key].previous
        if owner in loads and previous is None and loads[owner] > min(loads.values()) + 1:
            loads[owner] -= 1
            move(key, owner)
    return shards


class LeaseClock:
    """What a member knows of leases by its own monotonic clock, in seconds.

    After a time without the database nobody could renew. So a member removes others only if it has
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
        """Return whether nobody can have removed this member yet."""
        return self.age(now) < self.lease

    def may_remove(self, now: float) -> bool:
        """Return whether to remove others in a renewal that is granted now."""
        return self.age(now) <= self.lease / 2 and now - self._steady_since >= self.lease
