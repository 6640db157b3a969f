"""Shards are balanced by load: any loads, joins and leaves converge, and then nothing moves."""

from dataclasses import replace

from hypothesis import given, strategies as st

from heliograph.ntf.cluster import roster as core
from heliograph.ntf.cluster.load import Load, smoothed
from heliograph.ntf.cluster.roster import Member, Roster, Shard, ShardId
from tests.ntf.cluster.balance import assert_even, load_of, moves, unevenness, with_lease

LEASE = 5_000
ONE, TWO, THREE = 1, 2, 3

a_load = st.builds(
    Load, st.sampled_from((0, 10, 2_000)) | st.integers(0, 10**6), st.integers(0, 10**5)
)
an_event = st.sampled_from(("join", "leave")) | st.tuples(st.integers(0, 29), a_load)


def a_roster(*loads: Load, members: int = 1) -> Roster:
    return Roster(
        {number + 1: Member(9_000) for number in range(members)},
        {(number, 0): Shard(ONE, None, load) for number, load in enumerate(loads)},
    )


def joined(roster: Roster, number: int) -> Roster:
    return with_lease(roster, number, LEASE)


def settled(roster: Roster) -> tuple[Roster, int]:
    """The roster after members have updated it until nothing changes, and the moves it took."""
    count = 0
    for _ in range(len(roster.shards) + 2):
        before = roster
        for number in roster.members:
            ready = {key: roster.shards[key].generation for key in roster.owned_by(number)}
            after = core.update(roster, number, 0, ready=ready)
            count += (moved := moves(roster, after))
            assert not moved or unevenness(after) < unevenness(roster)
            roster = after
        if roster == before:
            return roster, count
    raise AssertionError("it does not settle")


@given(st.lists(a_load, max_size=30), st.lists(an_event, max_size=8))
def test_any_loads_joins_and_leaves_settle(
    loads: list[Load], events: list[str | tuple[int, Load]]
) -> None:
    """Unevenness falls with each move, so no distribution comes again."""
    roster, last = a_roster(*loads), ONE
    for event in events:
        if event == "join":
            last += 1
            roster = joined(roster, last)
        elif event == "leave" and len(roster.members) > 1:
            roster = core.leave(roster, max(roster.members))
        elif isinstance(event, tuple) and (event[0], 0) in roster.shards:
            key: ShardId = event[0], 0
            measured = {**roster.shards, key: replace(roster.shards[key], load=event[1])}
            roster = replace(roster, shards=measured)
        roster, count = settled(roster)
        assert count <= 2 * len(roster.shards)
        assert_even(roster)


@given(st.lists(st.floats(0.87, 1.13), min_size=4, max_size=4))
def test_loads_that_change_a_little_move_nothing(factors: list[float]) -> None:
    """The subscriptions of each of four members get more or fewer notifications."""
    roster, _ = settled(a_roster(*[Load(0, 50)] * 100, members=4))
    changed = {
        key: replace(shard, load=Load(0, round(50 * factors[(shard.owner or 0) - 1])))
        for key, shard in roster.shards.items()
    }
    assert settled(replace(roster, shards=changed))[1] == 0


def test_the_busiest_shard_is_left_alone() -> None:
    """It would only make another member the busiest one; others are moved away from it."""
    roster, _ = settled(a_roster(Load(50_000), *[Load(1_000)] * 10, members=2))
    assert roster.owned_by(ONE) == {(0, 0)}
    roster, count = settled(joined(roster, THREE))
    assert [len(roster.owned_by(number)) for number in (ONE, TWO, THREE)] == [1, 5, 5]
    assert count == 5


def test_a_shard_that_becomes_busy_is_relieved_of_others() -> None:
    roster, _ = settled(a_roster(*[Load(1_000)] * 8, members=2))
    [busy, *_] = sorted(roster.owned_by(TWO))
    shards = {**roster.shards, busy: replace(roster.shards[busy], load=Load(1_000, 300))}
    after, count = settled(replace(roster, shards=shards))
    assert after.shards[busy].owner == TWO
    assert 0 < count <= 3
    assert abs(load_of(after, ONE) - load_of(after, TWO)) < 0.3 * load_of(after, ONE)


def test_free_shards_go_to_the_idlest_the_largest_first() -> None:
    roster = a_roster(Load(3_000), *[Load(1_000)] * 3, members=2)
    free = {key: replace(shard, owner=None) for key, shard in roster.shards.items()}
    after = core.update(replace(roster, shards=free), TWO, 0)
    assert after.owned_by(ONE) == {(0, 0)}
    assert after.left_by(ONE) == after.left_by(TWO) == set()


def test_a_rate_is_smoothed() -> None:
    load = Load(7, 0)
    for _ in range(3):
        load = smoothed(load, 10, 50, 30.0)
    assert load == Load(10, 87)
    assert smoothed(load, 10, 0, 30.0).rate == 43
    assert load.weight == 100 + 10 + 15 * 87
