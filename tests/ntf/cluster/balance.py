"""What an even distribution of shards is, for tests of rosters."""

from dataclasses import replace

from heliograph.ntf.cluster.roster import UNEVEN, Member, Roster


def with_lease(roster: Roster, process_id: int, expires_at: int) -> Roster:
    """Return the roster after a process joined or renewed its lease, as the tables store it."""
    member = replace(roster.members.get(process_id, Member(0)), expires_at=expires_at)
    return replace(roster, members={**roster.members, process_id: member})


def load_of(roster: Roster, process_id: int) -> int:
    return sum(roster.shards[key].load.weight for key in roster.owned_by(process_id))


def unevenness(roster: Roster) -> int:
    """The sum of the squares of the loads."""
    return sum(load_of(roster, number) ** 2 for number in roster.members)


def moves(before: Roster, after: Roster) -> int:
    """How many shards got another owner."""
    return sum(shard.owner != after.shards[key].owner for key, shard in before.shards.items())


def assert_even(roster: Roster) -> None:
    """Every shard has a live owner, and no member could give one to the idlest and gain much."""
    assert {shard.owner for shard in roster.shards.values()} <= roster.members.keys()
    least = min(load_of(roster, number) for number in roster.members)
    for number in roster.members:
        load = load_of(roster, number)
        weights = [roster.shards[key].load.weight for key in roster.owned_by(number)]
        gap = load - least
        assert gap <= UNEVEN * load or all(4 * weight > 3 * gap for weight in weights)
