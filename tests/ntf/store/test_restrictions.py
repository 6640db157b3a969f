"""Throttles and pauses: nothing is lost, neighbours are not affected, everything expires."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from heliograph.actions.contract import EVERYTHING, FLOOD_SECONDS, ActionKind, Refusal
from heliograph.db.database import migrate
from heliograph.db.dialects import Dialect, Transaction, open_dialect
from heliograph.ntf.store import pending, receiving, tokens
from heliograph.ntf.store.actions.applying import DailyCap, apply_batch, undo
from heliograph.ntf.store.actions.records import ActionState, latest
from heliograph.ntf.store.actions.restrictions import FLOORS, LONGEST, MIN_RATE, expire_restrictions
from heliograph.ntf.store.actions.rules import Applied, ResolvedAction
from heliograph.ntf.store.records import Incoming, PendingPush, PushKind
from heliograph.ntf.store.restrictions import (
    PUSH_INTERVAL,
    Restriction,
    Restrictions,
    read_restrictions,
)
from heliograph.ntf.store.schema import MIGRATIONS
from heliograph.ntf.store.subscriptions import subscriptions
from heliograph.ntf.store.subscriptions.subscriptions import NewSubscription
from tests.ntf.support import a_new_token

ADDRESS = "smp://AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=@localhost:1"
NOW = 1_800_000_000_000
TTL = 86_400_000
SUBSCRIPTIONS = [bytes([number]) * 24 for number in range(1, 5)]
"""Two of the abused token, two of its neighbour."""
CAPS = dict.fromkeys(ActionKind, DailyCap(100.0, 100))
TEMPORARY = (*FLOORS, ActionKind.ALERT, ActionKind.REPORT)


class StoreRig:
    """A store with two tokens, two subscriptions each, and time that only tests move."""

    def __init__(self, tx: Transaction) -> None:
        self.tx, self.now, self.seq = tx, NOW, 0
        self.restrictions = Restrictions()
        self.tokens = []
        for number in range(2):
            token = a_new_token(token_id=bytes([number + 1]) * 24)  # fixes its slots in time
            tokens.register(tx, token, self.next_seq(), NOW, NOW + TTL)
            assert tokens.verify(tx, token.token_id, token.code)[0] is not None
            self.tokens.append(token.token_id)
            for subject in SUBSCRIPTIONS[2 * number : 2 * number + 2]:
                new = NewSubscription(subject, token.token_id, ADDRESS, subject, b"key")
                added = subscriptions.add(tx, new)
                assert isinstance(added, subscriptions.Added)
                self.server = added.server.server_id

    def next_seq(self) -> int:
        self.seq += 1
        return self.seq

    def subject(self, kind: ActionKind, token: int = 0) -> bytes:
        match kind.subject:
            case "token":
                return self.tokens[token]
            case "subscription":
                return SUBSCRIPTIONS[2 * token]
            case "server":
                return b"%020d" % self.server
            case _:
                return bytes.fromhex(EVERYTHING)

    def action(self, kind: ActionKind, name: int = 1, **changes: Any) -> ResolvedAction:
        evidence = {"finding": "flood", "observed": 100_000, "baseline": 60}
        item = ResolvedAction(
            f"{name:032x}", kind, self.subject(kind), self.now + 3_600_000, evidence
        )
        return item._replace(**changes)

    def apply(self, *items: ResolvedAction) -> list[Any]:
        results = apply_batch(self.tx, items, CAPS, self.now)
        self.restrictions.replace(read_restrictions(self.tx))
        return results

    def undo(self, action_id: str) -> Any:
        result = undo(self.tx, action_id, self.now)
        self.restrictions.replace(read_restrictions(self.tx))
        return result

    def receive(self, *numbers: int) -> set[bytes]:
        """Notify of subscriptions; return the tokens that are to be pushed to at once."""
        incoming = [
            Incoming(SUBSCRIPTIONS[number], self.next_seq().to_bytes(24), b"meta", self.now)
            for number in numbers
        ]
        seqs = range(self.seq + 1, self.seq + 1 + len(incoming))
        self.seq += len(incoming)
        stored = receiving.receive(
            self.tx,
            self.server,
            incoming,
            seqs,
            self.now,
            self.now + TTL,
            restrictions=self.restrictions,
        )
        return {push.token_id for push in stored.pushes}

    def due(self) -> list[PendingPush]:
        return pending.due_for(self.tx, self.tokens, self.now, PushKind.MESSAGE)

    def accept(self) -> int:
        """Push what is due; return to how many tokens."""
        due = self.due()
        marks = [pending.MarkAccepted(push.token_id, push.kind, push.seq) for push in due]
        pending.apply(self.tx, marks, self.restrictions, self.now)
        return len(due)

    def waiting(self) -> int:
        rows = self.tx.query("SELECT 1 FROM pending_pushes WHERE kind = 'message'")
        return len(rows)


@pytest.fixture(scope="module")
def dialect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dialect]:
    url = f"sqlite:///{tmp_path_factory.mktemp('restrictions')}/ntf.db"
    migrate(url, MIGRATIONS)
    opened = open_dialect(url)
    yield opened
    opened.close()


@pytest.fixture
def rig(dialect: Dialect) -> Iterator[StoreRig]:
    dialect.begin()
    yield StoreRig(Transaction(dialect))
    dialect.rollback()


def flood(rig: StoreRig, number: int, seconds: int) -> int:
    """Notify of a subscription every 100 ms; return the pushes."""
    pushes = 0
    for _ in range(seconds * 10):
        rig.receive(number)
        pushes += rig.accept()
        rig.now += 100
    return pushes


def test_a_throttled_token_is_pushed_to_once_in_an_interval_and_loses_nothing(
    rig: StoreRig,
) -> None:
    assert flood(rig, 0, 10) == 100
    [result] = rig.apply(rig.action(ActionKind.THROTTLE_TOKEN))
    assert isinstance(result, Applied)
    minutes = 5
    assert flood(rig, 0, minutes * 60) in (minutes, minutes + 1)
    rig.receive(0)
    last = rig.seq
    rig.now += PUSH_INTERVAL
    [push] = rig.due()
    assert push.seq == last  # the newest notification is in it
    assert rig.accept() == 1
    assert rig.waiting() == 0


def test_the_neighbour_of_a_throttled_token_is_pushed_to_at_once(rig: StoreRig) -> None:
    rig.apply(rig.action(ActionKind.THROTTLE_TOKEN))
    for _ in range(50):
        assert rig.receive(0, 2) == {rig.tokens[1]}
        assert rig.accept() == 1
        rig.now += 100


def test_other_subscriptions_of_a_token_are_pushed_for_at_once(rig: StoreRig) -> None:
    rig.apply(rig.action(ActionKind.THROTTLE_SUBSCRIPTION))
    rig.now = rig.now // PUSH_INTERVAL * PUSH_INTERVAL
    assert rig.receive(0) == set()
    assert rig.receive(1) == {rig.tokens[0]}  # also if a push waits already
    [push] = rig.due()
    assert len(push.notices) == 2
    assert rig.accept() == 1
    assert rig.receive(0) == set()


def test_what_arrives_while_a_push_is_in_flight_waits_if_it_is_throttled(rig: StoreRig) -> None:
    rig.receive(0)
    [push] = rig.due()
    rig.apply(rig.action(ActionKind.THROTTLE_SUBSCRIPTION))
    rig.receive(0)
    accepted = [pending.MarkAccepted(push.token_id, push.kind, push.seq)]
    pending.apply(rig.tx, accepted, rig.restrictions, rig.now)
    assert (rig.waiting(), rig.due()) == (1, [])
    rig.now += PUSH_INTERVAL
    [push] = rig.due()
    rig.receive(1)
    accepted = [pending.MarkAccepted(push.token_id, push.kind, push.seq)]
    pending.apply(rig.tx, accepted, rig.restrictions, rig.now)
    assert len(rig.due()) == 1  # for the other subscription


@pytest.mark.parametrize("kind", [ActionKind.THROTTLE_TOKEN, ActionKind.THROTTLE_SUBSCRIPTION])
def test_undo_lifts_a_throttle_at_once(rig: StoreRig, kind: ActionKind) -> None:
    rig.apply(rig.action(kind))
    rig.receive(0)
    assert rig.due() == []
    assert isinstance(rig.undo(f"{1:032x}"), Applied)
    assert len(rig.due()) == 1
    assert rig.undo(f"{1:032x}") is None


def test_a_throttle_ends_at_its_time_without_anyone_doing_anything(rig: StoreRig) -> None:
    rig.apply(rig.action(ActionKind.THROTTLE_TOKEN, valid_until=NOW + 1500))
    rig.receive(0)
    rig.now += 1500
    assert len(rig.due()) == 1
    assert rig.receive(0) == {rig.tokens[0]}


def test_a_messaging_router_keeps_its_usual_rate_and_a_floor(rig: StoreRig) -> None:
    until = NOW + 1000
    first = rig.action(ActionKind.THROTTLE_SERVER, valid_until=until)
    usual = {"observed": 90_000, "baseline": 100 * FLOOD_SECONDS}
    rig.apply(first)
    assert rig.restrictions.rate_of(rig.server, rig.now) == MIN_RATE
    rig.apply(rig.action(ActionKind.THROTTLE_SERVER, 2, evidence=usual, valid_until=until + 1))
    assert rig.restrictions.rate_of(rig.server, rig.now) == MIN_RATE  # the lower one
    rig.undo(first.action_id)
    assert rig.restrictions.rate_of(rig.server, rig.now) == 400
    assert rig.restrictions.rate_of(rig.server, until + 1) is None
    assert rig.restrictions.rate_of(rig.server + 1, rig.now) is None


def test_registrations_are_paused_of_a_network_or_of_all(rig: StoreRig) -> None:
    pause, busy, other = ActionKind.PAUSE_REGISTRATIONS, "ab" * 16, "cd" * 16
    rig.apply(rig.action(pause, subject=bytes.fromhex(busy), valid_until=NOW + 1000))
    assert rig.restrictions.is_paused([busy, other], NOW)
    assert not rig.restrictions.is_paused([other, None], NOW)
    assert not rig.restrictions.is_paused([busy], NOW + 1000)
    rig.apply(rig.action(pause, 2))
    assert rig.restrictions.is_paused([other], NOW)


@pytest.mark.parametrize("kind", FLOORS)
@pytest.mark.parametrize("observed", [FLOORS, None, "300000", True, -1])
def test_less_than_a_floor_is_never_throttled(
    rig: StoreRig, kind: ActionKind, observed: Any
) -> None:
    value = FLOORS[kind] - 1 if observed is FLOORS else observed
    [result] = rig.apply(rig.action(kind, evidence={"observed": value}))
    assert result is Refusal.DISAGREED
    assert list(rig.restrictions) == []


def test_a_throttle_is_not_longer_than_allowed(rig: StoreRig) -> None:
    rig.apply(rig.action(ActionKind.THROTTLE_TOKEN, valid_until=NOW + 7 * 86_400_000))
    [restriction] = rig.restrictions
    assert restriction.until == NOW + LONGEST


def test_unknown_tokens_and_findings(rig: StoreRig) -> None:
    [result] = rig.apply(rig.action(ActionKind.THROTTLE_TOKEN, subject=b"?" * 24))
    assert result is Refusal.UNKNOWN_SUBJECT
    rig.apply(rig.action(ActionKind.ALERT, 2, evidence={"finding": 'x"} 1'}))
    assert [item.finding for item in rig.restrictions.in_force(NOW)] == ["other"]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("apply"), st.integers(0, 11)),
        st.tuples(st.just("undo"), st.integers(0, 11)),
        st.tuples(st.just("receive"), st.integers(0, 3)),
        st.tuples(st.just("push"), st.just(0)),
        st.tuples(st.just("expire"), st.just(0)),
        st.tuples(st.just("wait"), st.sampled_from([1, 1000, 20_000, 400_000])),
        st.tuples(st.just("restart"), st.just(0)),
    ),
    max_size=40,
)


@settings(deadline=None)
@given(steps=STEPS)
def test_any_order(dialect: Dialect, steps: list[tuple[str, int]]) -> None:
    dialect.begin()
    try:
        _run(StoreRig(Transaction(dialect)), steps)
    finally:
        dialect.rollback()


def _run(rig: StoreRig, steps: list[tuple[str, int]]) -> None:
    """Two actions of each kind, about both tokens, in any order, repeated, lost or undone."""
    actions = [
        rig.action(kind, 2 * number + token + 1)._replace(
            subject=rig.subject(kind, token), valid_until=NOW + 300_000 * (number + token + 1)
        )
        for number, kind in enumerate(TEMPORARY)
        for token in range(2)
    ]
    newest: dict[bytes, int] = {}
    carried: dict[bytes, int] = {}
    for step, value in steps:
        match step:
            case "apply":
                item = actions[value]
                if item.valid_until > rig.now:
                    rig.apply(item)
            case "undo":
                rig.undo(actions[value].action_id)
            case "receive":
                rig.receive(value)
                newest[rig.tokens[value // 2]] = rig.seq
            case "push":
                carried |= {push.token_id: push.seq for push in rig.due()}
                rig.accept()
            case "expire":
                expire_restrictions(rig.tx, rig.now)
                rig.restrictions.replace(read_restrictions(rig.tx))
            case "restart":
                rig.restrictions = Restrictions()
                rig.restrictions.replace(read_restrictions(rig.tx))
            case "wait":
                rig.now += value
        for restriction in rig.restrictions.in_force(rig.now):
            assert restriction.until <= rig.now + LONGEST
        # A token without a throttle never waits.
        for token_id in rig.tokens:
            if not _is_throttled(rig.restrictions.in_force(rig.now), token_id):
                rows = rig.tx.query(
                    "SELECT 1 FROM pending_pushes WHERE token_id = ? AND next_at > ?",
                    (token_id, rig.now),
                )
                assert rows == []
    rig.now += LONGEST
    carried |= {push.token_id: push.seq for push in rig.due()}
    rig.accept()
    assert carried == newest  # nothing was lost
    assert rig.restrictions.in_force(rig.now) == []
    expire_restrictions(rig.tx, rig.now)
    assert read_restrictions(rig.tx) == []
    for known in latest(rig.tx, 100):
        assert known.state is not ActionState.APPLIED


def _is_throttled(restrictions: list[Restriction], token_id: bytes) -> bool:
    return any(token_id in (item.subject, item.token_id) for item in restrictions)
