"""Any order, repetition and loss of actions leaves the store in a state that the rules allow."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings, strategies as st

from heliograph.actions.contract import ActionKind
from heliograph.db.database import migrate
from heliograph.db.dialects import Dialect, Row, Transaction, open_dialect
from heliograph.ntf.store import owners, tokens, wakes, wakeups
from heliograph.ntf.store.actions.applying import DailyCap, apply_batch, preview_batch, undo
from heliograph.ntf.store.actions.restrictions import FLOORS, LONGEST, expire_restrictions
from heliograph.ntf.store.actions.rules import Applied, ResolvedAction
from heliograph.ntf.store.actions.tokens import MIN_UNSEEN
from heliograph.ntf.store.owners import DAY
from heliograph.ntf.store.schema import MIGRATIONS
from heliograph.ntf.store.subscriptions import subscriptions
from heliograph.ntf.store.subscriptions.subscriptions import NewSubscription
from heliograph.wire.ntf.tokens import NtfSubStatus, SubscriptionState
from tests.ntf.support import a_new_token

STATES = ("ACTIVE", "INACTIVE", "PENDING", "AUTH", "DELETED", "END")
GONE = ("AUTH", "DELETED")
ADDRESS = "smp://AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=@localhost:1"
START = 100 * DAY
TOKENS = [bytes([number]) * 24 for number in (0x11, 0x12)]
SUBSCRIPTIONS = [bytes([number]) * 24 for number in range(len(STATES))]
UNKNOWN = b"\xff" * 24
SUBJECTS: dict[str, list[bytes]] = {
    "token": [*TOKENS, UNKNOWN],
    "subscription": [*SUBSCRIPTIONS, UNKNOWN],
    "server": [b"%020d" % 1],
    "source": [bytes(32)],
    "none": [bytes(16), b"\x01" * 16],
}
EVIDENCE = {
    "unseen_since": START * 1000,
    "finding": "planted",
    "phase": 3600,
    "observed": 10_000,
    "baseline": 60.0,
    "rate": 10.0,
    "do": "pause",
    "at": 1,
}
LITTLE = EVIDENCE | {"observed": 1, "phase": -1, "rate": 0, "do": "begin", "unseen_since": 0}
"""Nothing that a rule which looks at evidence agrees with."""
CAREFUL = frozenset(ActionKind) - {
    ActionKind.RESUBSCRIBE,
    ActionKind.DELETE_ORPHAN,
    ActionKind.ALERT,
    ActionKind.REPORT,
}
ACTIONS = [
    ResolvedAction(f"{number:032x}", kind, subject, START + 10_000 * DAY, evidence)
    for number, (kind, evidence, subject) in enumerate(
        (kind, evidence, subject)
        for kind in ActionKind
        # The same decision twice, and one that no rule may agree with.
        for evidence in (EVIDENCE, EVIDENCE | {"phase": 7200, "do": "resume", "at": 2}, LITTLE)
        for subject in SUBJECTS[kind.subject]
    )
]
KINDS = {item.action_id: item.kind for item in ACTIONS}
BY_ID = {item.action_id: item for item in ACTIONS}
UNOWNED = (ActionKind.SLOW_TOKEN, ActionKind.VERIFY_TOKEN, ActionKind.REMOVE_TOKEN)
DEAD = [
    item
    for item in ACTIONS
    if item.kind in UNOWNED and item.subject == TOKENS[0] and item.evidence is EVIDENCE
]
SOME = st.one_of(st.sampled_from(ACTIONS), st.sampled_from(DEAD))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("apply"), st.lists(SOME, max_size=6)),
        st.tuples(st.just("undo"), SOME.map(lambda item: [item])),
        st.tuples(st.sampled_from(["seen", "verified", "hour", "days", "weeks"]), st.just([])),
    ),
    max_size=16,
)
Step = tuple[str, list[ResolvedAction]]


def _fill(tx: Transaction) -> None:
    for token_id in TOKENS:
        token = a_new_token(token_id=token_id)
        tokens.register(tx, token, 1, START, START + DAY)
        assert tokens.verify(tx, token.token_id, token.code)[0] is not None
        wakeups.set_cron(tx, token_id, 1440, START + DAY)
    for subject, state in zip(SUBSCRIPTIONS, STATES, strict=True):
        new = NewSubscription(subject, TOKENS[0], ADDRESS, subject, b"key")
        added = subscriptions.add(tx, new)
        assert isinstance(added, subscriptions.Added)
        status = NtfSubStatus(SubscriptionState(state))
        subscriptions.set_statuses(tx, added.server.server_id, [(subject, status, False)])


def _states(tx: Transaction) -> dict[bytes, str]:
    return dict(tx.query("SELECT subscription_id, status FROM subscriptions"))


def _tokens(tx: Transaction) -> list[Row]:
    return tx.query("SELECT token_id, device, status, code, cron_phase FROM tokens ORDER BY 1")


@pytest.fixture(scope="module")
def dialect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dialect]:
    url = f"sqlite:///{tmp_path_factory.mktemp('actions')}/ntf.db"
    migrate(url, MIGRATIONS)
    opened = open_dialect(url)
    yield opened
    opened.close()


@dataclass
class Run:
    """A store, its clock, and what was done to it."""

    tx: Transaction
    most: int
    now: int = START + 30 * DAY
    applied: list[tuple[str, int]] = field(default_factory=list)
    seen: dict[bytes, int] = field(default_factory=lambda: dict.fromkeys(TOKENS, START))

    def step(self, step: str, actions: list[ResolvedAction]) -> None:
        match step:
            case "apply":
                self.apply(actions)
            case "undo":
                undo(self.tx, actions[0].action_id, self.now)
            case "seen":
                owners.mark_seen(self.tx, TOKENS[1:], self.now)
                self.seen[TOKENS[1]] = self.now
            case "verified":
                for token_id in TOKENS:
                    owners.mark_verified(self.tx, token_id, self.now)
            case _:
                self.now += {"hour": DAY // 24, "days": 4 * DAY, "weeks": 14 * DAY}[step]
                expire_restrictions(self.tx, self.now)

    def apply(self, actions: Sequence[ResolvedAction]) -> None:
        tx, caps = self.tx, dict.fromkeys(ActionKind, DailyCap(0.0, self.most))
        expected = preview_batch(tx, actions, caps, self.now)
        results = apply_batch(tx, actions, caps, self.now)
        for item, result in zip(actions, results, strict=True):
            if isinstance(result, Applied):
                self.applied.append((item.action_id, self.now))
                assert item.subject != UNKNOWN
                assert item.evidence is not LITTLE or item.kind not in CAREFUL
                if item.kind in UNOWNED:
                    assert self.now - self.seen[item.subject] >= MIN_UNSEEN
        if len({item.subject for item in actions}) == len(actions) == 1:
            words = [type(item) if isinstance(item, Applied) else item for item in expected]
            assert words == [type(i) if isinstance(i, Applied) else i for i in results]

    def check(self) -> None:
        """Check what holds at any time."""
        tx = self.tx
        kinds = Counter(KINDS[item] for item, at in self.applied if at > self.now - DAY)
        assert all(count <= self.most for count in kinds.values())
        assert len(self.applied) == len({item for item, _ in self.applied})
        for (token_id,) in tx.query("SELECT token_id FROM slowed_tokens"):
            assert self.now - self.seen[bytes(token_id)] >= MIN_UNSEEN
        for action_id, kind, until in tx.query("SELECT action_id, kind, until FROM restrictions"):
            assert until > self.now
            assert ActionKind(kind) not in FLOORS or until <= self.now + LONGEST
            assert action_id in dict(self.applied)
        assert sum(not wake.state.is_over for wake in wakes.all_wakes(tx)) <= 1
        present = {bytes(row[0]) for row in _tokens(tx)}
        removed = {
            BY_ID[item].subject
            for item, _ in self.applied
            if KINDS[item] is ActionKind.REMOVE_TOKEN
        }
        assert set(TOKENS) - present <= removed
        if TOKENS[0] in present:
            self.check_subscriptions()

    def check_subscriptions(self) -> None:
        """A subscription that lives is never deleted, and no state is invented."""
        after = _states(self.tx)
        was_removed = any(KINDS[item] is ActionKind.REMOVE_TOKEN for item, _ in self.applied)
        for subject, state in zip(SUBSCRIPTIONS, STATES, strict=True):
            if state not in GONE:
                assert subject in after
            if subject in after and not was_removed:
                assert after[subject] in (state, "PENDING")
                assert after[subject] == state or state in (*GONE, "END")


@settings(deadline=None)
@given(steps=STEPS, most=st.integers(0, 4))
def test_any_order(dialect: Dialect, steps: list[Step], most: int) -> None:
    dialect.begin()
    try:
        _run(Transaction(dialect), steps, most)
    finally:
        dialect.rollback()


def _run(tx: Transaction, steps: list[Step], most: int) -> None:
    _fill(tx)
    run, before, known = Run(tx, most), _states(tx), _tokens(tx)
    for step, actions in steps:
        run.step(step, actions)
        run.check()
    # Undoing everything, the last one first, brings back all that was there.
    for action_id, _ in reversed(run.applied):
        undo(tx, action_id, run.now)
    assert _states(tx).keys() == before.keys()
    assert tx.query("SELECT COUNT(*) FROM restrictions") == [(0,)]
    assert tx.query("SELECT COUNT(*) FROM slowed_tokens") == [(0,)]
    assert all(wake.state.is_over for wake in wakes.all_wakes(tx))
    assert _tokens(tx) == known


def test_stages_of_a_dead_token_are_reached(dialect: Dialect) -> None:
    """The search above is not empty: tokens are removed, and restored with their time of day."""
    by_kind = {item.kind: item for item in DEAD}
    move = next(item for item in ACTIONS if item.kind is ActionKind.MOVE_WAKEUP)
    steps: list[Step] = [
        ("apply", [move, by_kind[ActionKind.SLOW_TOKEN]]),
        ("days", []),
        ("apply", [by_kind[ActionKind.VERIFY_TOKEN]]),
        ("verified", []),
        ("days", []),
        ("apply", [by_kind[ActionKind.REMOVE_TOKEN]]),
    ]
    dialect.begin()
    try:
        tx = Transaction(dialect)
        _run(tx, steps, 4)
        dialect.rollback()
        dialect.begin()
        _fill(tx)
        run = Run(tx, 4)
        for step, actions in steps:
            run.step(step, actions)
        assert [bytes(row[0]) for row in _tokens(tx)] == TOKENS[1:]
        undo(tx, by_kind[ActionKind.REMOVE_TOKEN].action_id, run.now)
        assert [row[-1] for row in _tokens(tx)] == [3600, None]
    finally:
        dialect.rollback()
