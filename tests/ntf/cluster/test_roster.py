"""Leases, fencing and hand-over: every pair of state and event, and a model of many processes."""

from dataclasses import dataclass, field
from itertools import product

import pytest
from hypothesis import settings as hypothesis_settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from heliograph.ntf.cluster import roster as core
from heliograph.ntf.cluster.load import Load
from heliograph.ntf.cluster.roster import LeaseClock, Member, Roster, Shard
from tests.ntf.cluster.balance import assert_even, moves, with_lease

LEASE = 5_000
ONE, TWO, THREE = 1, 2, 3
KEY = (7, 0)
IDLE_TIMEOUT = 3_000


def updated(roster: Roster, process_id: int, now: int = 1_000, **options: bool) -> Roster:
    removable = roster.members if options.get("may_remove", True) else ()
    return core.update(roster, process_id, now, removable=removable)


def members(*numbers: int, leaving: int | None = None, expired: int | None = None) -> Roster:
    return Roster(
        {
            number: Member(500 if number == expired else 9_000, number == leaving)
            for number in numbers
        }
    )


STATES = {
    "free": Shard(),
    "owned": Shard(ONE),
    "owned by another": Shard(TWO),
    "moving here": Shard(ONE, TWO),
    "moving away": Shard(TWO, ONE),
    "of a dead owner": Shard(THREE),
    "from a dead owner": Shard(ONE, THREE),
    "moving to a dead owner": Shard(THREE, ONE),
}
EVENTS = (
    *("updated", "ready", "ready too late", "measured", "other updated", "renewed"),
    *("other renewed", "left", "other left", "other expired", "leaving"),
)
EXPECTED = {
    "free": (ONE, None),
    "owned": (ONE, None),
    "owned by another": (TWO, None),
    "moving here": (ONE, TWO),
    "moving away": (TWO, ONE),
    "of a dead owner": (ONE, None),
    "from a dead owner": (ONE, None),
    "moving to a dead owner": (ONE, None),
}
"""After an update of a member."""
DIFFERENT = {
    **{
        (state, event): (shard.owner, shard.previous)
        for state, shard in STATES.items()
        for event in ("renewed", "other renewed")
    },
    ("moving here", "ready"): (ONE, None),
    **{(state, "left"): (TWO, None) for state in STATES},
    **{(state, "other left"): (ONE, None) for state in STATES},
    **{(state, "other expired"): (ONE, None) for state in STATES},
    ("free", "leaving"): (TWO, None),
    ("owned", "leaving"): (TWO, ONE),
    ("of a dead owner", "leaving"): (TWO, None),
    ("from a dead owner", "leaving"): (TWO, ONE),
    ("moving to a dead owner", "leaving"): (TWO, ONE),
}
MEASURED = {"owned", "moving here", "from a dead owner", "moving to a dead owner"}
"""States in which the member owns the shard, or has it back."""
LOAD = Load(2_000, 30)


@pytest.mark.parametrize(("state", "event"), [*product(STATES, EVENTS)])
def test_every_state_and_event(state: str, event: str) -> None:
    roster = Roster(members(ONE, TWO).members, {KEY: STATES[state]})
    match event:
        case "updated":
            roster = updated(roster, ONE)
        case "ready":
            roster = core.update(roster, ONE, 1_000, ready={KEY: 0})
        case "ready too late":
            roster = core.update(roster, ONE, 1_000, ready={KEY: -1})
        case "measured":
            roster = core.update(roster, ONE, 1_000, loads={KEY: LOAD})
        case "other updated":
            roster = updated(roster, TWO)
        case "renewed":
            roster = with_lease(roster, ONE, 1_000 + LEASE)
        case "other renewed":
            roster = with_lease(roster, TWO, 1_000 + LEASE)
        case "left":
            roster = core.leave(roster, ONE)
        case "other left":
            roster = core.leave(roster, TWO)
        case "other expired":
            expired = members(ONE, TWO, expired=TWO).members
            roster = updated(Roster(expired, roster.shards), ONE)
        case "leaving":
            leaving = members(ONE, TWO, leaving=ONE).members
            roster = updated(Roster(leaving, roster.shards), ONE)
    owner, previous = DIFFERENT.get((state, event), EXPECTED[state])
    is_measured = event == "measured" and state in MEASURED
    shard = roster.shards[KEY]
    load = LOAD if is_measured else Load()
    assert (shard.owner, shard.previous, shard.load) == (owner, previous, load)
    assert (shard.generation > 0) == (owner != STATES[state].owner)


def test_a_member_that_is_late_is_removed_only_by_one_who_may() -> None:
    roster = members(ONE, TWO, expired=TWO)
    assert updated(roster, ONE, may_remove=False).members.keys() == {ONE, TWO}
    assert updated(roster, ONE).members.keys() == {ONE}


def test_a_lease_is_renewed_and_nothing_else() -> None:
    roster = members(ONE, TWO, expired=TWO)
    renewed = with_lease(roster, ONE, 7_000 + LEASE)
    assert renewed == Roster({**roster.members, ONE: Member(12_000)})
    assert core.update(renewed, ONE, 7_000) == renewed


def test_the_last_member_that_leaves_keeps_what_nobody_takes() -> None:
    roster = Roster(members(ONE, leaving=ONE).members, {KEY: Shard(ONE)})
    assert updated(roster, ONE).shards[KEY] == Shard(ONE)
    assert core.leave(roster, ONE).shards[KEY] == Shard(generation=1)


def test_a_lease_that_is_longer_than_can_be_is_shortened() -> None:
    """As after a fail-over to a server whose clock is late."""
    roster = Roster({ONE: Member(2_000), TWO: Member(10**12)})
    shortened = updated(roster, ONE).members[TWO]
    assert shortened == Member(1_000 + int(core.MAX_LEASE * 1000))
    assert updated(Roster({ONE: Member(2_000), TWO: shortened}), ONE).members[TWO] == shortened


def test_the_longest_lease_is_kept_whatever_the_lease_of_others() -> None:
    """A member pushes until its own lease ends, by its own clock."""
    longest = Member(1_000 + int(core.MAX_LEASE * 1000))
    roster = Roster({ONE: Member(2_000), TWO: longest})
    assert updated(roster, ONE).members[TWO] == longest


def test_shards_are_balanced_and_stay() -> None:
    roster = Roster(members(ONE).members, {(number, 0): Shard(ONE) for number in range(9)})
    roster = Roster({**roster.members, TWO: Member(9_000), THREE: Member(9_000)}, roster.shards)
    roster = updated(roster, ONE)
    assert [len(roster.owned_by(number)) for number in (ONE, TWO, THREE)] == [3, 3, 3]
    assert len(roster.left_by(ONE)) == 6
    assert updated(roster, TWO).shards == roster.shards


def test_a_lease_by_ones_own_clock() -> None:
    clock = LeaseClock(5.0)
    assert not clock.may_send(0.0)
    assert not clock.may_remove(0.0)
    for second in range(6):
        clock.renewed(float(second))
    assert clock.may_remove(5.1)
    assert clock.may_send(9.9)
    assert not clock.may_send(10.0)
    # The database was away: nobody could renew, so nobody is removed for the time of a lease.
    assert not clock.may_remove(8.0)
    clock.renewed(8.0)
    assert not clock.may_remove(8.1)
    for second in range(9, 14):
        clock.renewed(float(second))
    assert clock.may_remove(13.1)


@dataclass
class _Node:
    """A process: what it knows, which may be old."""

    clock: LeaseClock
    seen: Roster
    is_stopped: bool = False
    open_since: int | None = None
    """When its transaction began, if it has one; it holds the row of the process."""
    listening: dict[core.ShardId, int] = field(default_factory=dict)
    """Shards it has subscribed, with their generation."""


LOADS = st.dictionaries(
    st.tuples(st.integers(0, 5), st.just(0)),
    st.builds(Load, st.integers(0, 20_000), st.integers(0, 5_000)),
    max_size=2,
)


class Cluster(RuleBasedStateMachine):
    """Processes that start, stop, continue, die and leave, with any delays between.

    The database is one value. A change of the roster is one step; other transactions begin and end
    in different steps, beside each other, and hold the row of their process meanwhile.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.stored = Roster()
        self.nodes: dict[int, _Node] = {}
        self.fenced: set[int] = set()
        self.next = 1
        self.commits: list[tuple[int, core.ShardId]] = []
        self.subscriber: dict[core.ShardId, int | None] = {}
        """Who gets the notifications of a shard: the messaging router has one subscriber."""

    @initialize(count=st.integers(1, 6))
    def begin(self, count: int) -> None:
        self.stored = Roster({}, {(number, 0): Shard() for number in range(count)})
        self.start()

    @precondition(lambda self: len(self.nodes) < 5)
    @rule()
    def start(self) -> None:
        number, self.next = self.next, self.next + 1
        self.stored = with_lease(self.stored, number, self.now + LEASE)
        self.nodes[number] = _Node(LeaseClock(LEASE / 1000), self.stored)
        self.nodes[number].clock.renewed(self.now / 1000)

    def _some(self, index: int) -> int | None:
        running = [number for number, node in self.nodes.items() if not node.is_stopped]
        return running[index % len(running)] if running else None

    def _is_fenced(self, number: int) -> bool:
        """Its row is gone: the process ends."""
        if number in self.stored.members:
            return False
        self.fenced.add(number)
        del self.nodes[number]
        self._disconnect(number)
        return True

    @rule(index=st.integers(0, 9))
    def renew(self, index: int) -> None:
        """Renew a lease, also in the middle of a transaction."""
        number = self._some(index)
        if number is not None and not self._is_fenced(number):
            self.stored = with_lease(self.stored, number, self.now + LEASE)
            self.nodes[number].clock.renewed(self.now / 1000)

    @rule(index=st.integers(0, 9), is_ready=st.booleans(), loads=LOADS)
    def update(self, index: int, is_ready: bool, loads: dict[core.ShardId, Load]) -> None:
        number = self._some(index)
        if number is None or self._is_fenced(number):
            return
        node, before = self.nodes[number], self.stored
        self.end_transaction(index)
        self._subscribe(number, node)
        self.stored = node.seen = core.update(
            self.stored,
            number,
            self.now,
            removable=self._unlocked() if node.clock.may_remove(self.now / 1000) else (),
            ready=node.listening if is_ready else {},
            loads=loads,
        )
        for removed in before.members.keys() - self.stored.members.keys():
            assert before.members[removed].expires_at <= self.now
        for key in before.owned_by(number) & self.stored.owned_by(number):
            if before.shards[key].previous in self.stored.members:
                is_handed_over = self.stored.shards[key].previous is None
                assert not is_handed_over or self.subscriber[key] == number

    def _subscribe(self, number: int, node: _Node) -> None:
        """Subscribe what it owns by what it knows, and unsubscribe what it has left."""
        owned = node.seen.owned_by(number)
        for key in node.listening.keys() - owned - node.seen.left_by(number):
            del node.listening[key]
            self._disconnect(number, key)
        for key in owned:
            generation = node.seen.shards[key].generation
            if node.listening.get(key) != generation:
                node.listening[key] = generation
                holder = self.subscriber.get(key)
                if holder is None or self.stored.shards[key].owner != holder:  # else it reclaims
                    self.subscriber[key] = number

    def _disconnect(self, number: int, *keys: core.ShardId) -> None:
        for key in keys or tuple(self.subscriber):
            if self.subscriber.get(key) == number:
                self.subscriber[key] = None

    def _unlocked(self) -> set[int]:
        """Members in no transaction, as those are that died."""
        locked = {number for number, node in self.nodes.items() if node.open_since is not None}
        return {*self.stored.members} - locked

    @rule(index=st.integers(0, 9))
    def begin_transaction(self, index: int) -> None:
        number = self._some(index)
        if number is not None and number in self.stored.members:
            self.nodes[number].open_since = self.now

    @rule(index=st.integers(0, 9))
    def end_transaction(self, index: int) -> None:
        """A process writes what it believes to own; the transaction checks, and locks the shard."""
        number = self._some(index)
        if number is None or self.nodes[number].open_since is None:
            return
        self.nodes[number].open_since = None
        assert number in self.stored.members
        for key in self.nodes[number].seen.owned_by(number):
            if self.stored.shards[key].owner == number:
                self.commits.append((number, key))

    @rule(seconds=st.integers(1, 8))
    def wait(self, seconds: int) -> None:
        """The server ends transactions of processes that stopped."""
        self.now += seconds * 1000
        for node in self.nodes.values():
            began = self.now if node.open_since is None else node.open_since
            if node.is_stopped and self.now - began > IDLE_TIMEOUT:
                node.open_since = None

    @rule(index=st.integers(0, 9))
    def kill(self, index: int) -> None:
        number = self._some(index)
        if number is not None:
            del self.nodes[number]
            self._disconnect(number)

    @rule(index=st.integers(0, 9))
    def stop(self, index: int) -> None:
        number = self._some(index)
        if number is not None:
            self.nodes[number].is_stopped = True

    @rule()
    def resume_all(self) -> None:
        for node in self.nodes.values():
            node.is_stopped = False

    @rule(index=st.integers(0, 9))
    def leave(self, index: int) -> None:
        number = self._some(index)
        if number is not None and number in self.stored.members:
            self.stored = core.leave(self.stored, number)
            del self.nodes[number]
            self._disconnect(number)

    @invariant()
    def owners_are_members(self) -> None:
        for shard in self.stored.shards.values():
            assert shard.owner is None or shard.owner in self.stored.members
            assert shard.previous is None or shard.previous in self.stored.members
            assert shard.owner is None or shard.owner != shard.previous

    @invariant()
    def nobody_sends_who_was_removed(self) -> None:
        for number, node in self.nodes.items():
            if number not in self.stored.members:
                assert not node.clock.may_send(self.now / 1000)

    @invariant()
    def a_number_is_used_once(self) -> None:
        assert not self.fenced & self.stored.members.keys()

    def teardown(self) -> None:
        """In the end those that are left own everything, evenly, and nothing moves any more."""
        self.resume_all()
        for index in range(len(self.nodes)):
            self.end_transaction(index)
        self.start()
        self._live(20)
        settled = self.stored
        self._live(10)
        assert moves(settled, self.stored) == 0
        assert self.stored.members.keys() == self.nodes.keys()
        assert_even(self.stored)
        for key, shard in self.stored.shards.items():
            assert shard.previous is None
            assert self.subscriber[key] == shard.owner
            listening = [number for number, node in self.nodes.items() if key in node.listening]
            assert listening == [shard.owner]

    def _live(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now += 1000
            for index in range(len(self.nodes)):
                self.renew(index)
                self.update(index, is_ready=True, loads={})


Cluster.TestCase.settings = hypothesis_settings(
    max_examples=100, stateful_step_count=40, deadline=None
)
TestCluster = Cluster.TestCase
