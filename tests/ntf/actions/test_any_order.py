"""Any order, repetition and loss of actions leaves the store in a state that the rules allow."""

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given, settings, strategies as st

from heliograph.actions.contract import ActionKind
from heliograph.db.database import migrate
from heliograph.db.dialects import Dialect, Transaction, open_dialect
from heliograph.ntf.store import actions as stored, subscriptions, tokens
from heliograph.ntf.store.actions import Applied, DailyCap, ResolvedAction
from heliograph.ntf.store.schema import MIGRATIONS
from heliograph.ntf.store.subscriptions import NewSubscription
from heliograph.wire.ntf.tokens import NtfSubStatus, SubscriptionState
from tests.ntf.support import a_new_token

STATES = ("ACTIVE", "INACTIVE", "PENDING", "AUTH", "DELETED", "END")
GONE = ("AUTH", "DELETED")
ADDRESS = "smp://AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=@localhost:1"
KINDS = (ActionKind.RESUBSCRIBE, ActionKind.DELETE_ORPHAN)
SUBJECTS = [bytes([number]) * 24 for number in range(len(STATES))]
ACTIONS = [
    ResolvedAction(f"{number:032x}", kind, subject)
    for number, (kind, subject) in enumerate(itertools.product(KINDS, [*SUBJECTS, b"\xff" * 24]))
]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("apply"), st.lists(st.sampled_from(ACTIONS), max_size=6)),
        st.tuples(st.just("undo"), st.sampled_from(ACTIONS).map(lambda item: [item])),
    ),
    max_size=12,
)


def _fill(tx: Transaction) -> None:
    token = a_new_token()
    tokens.register(tx, token, 1, 0, 10)
    assert tokens.verify(tx, token.token_id, token.code)[0] is not None
    for subject, state in zip(SUBJECTS, STATES, strict=True):
        new = NewSubscription(subject, token.token_id, ADDRESS, subject, b"key")
        added = subscriptions.add(tx, new)
        assert isinstance(added, subscriptions.Added)
        status = NtfSubStatus(SubscriptionState(state))
        subscriptions.set_statuses(tx, added.server.server_id, [(subject, status, False)])


def _states(tx: Transaction) -> dict[bytes, str]:
    return dict(tx.query("SELECT subscription_id, status FROM subscriptions"))


@pytest.fixture(scope="module")
def dialect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dialect]:
    url = f"sqlite:///{tmp_path_factory.mktemp('actions')}/ntf.db"
    migrate(url, MIGRATIONS)
    opened = open_dialect(url)
    yield opened
    opened.close()


@settings(deadline=None)
@given(steps=STEPS, most=st.integers(0, 4))
def test_any_order(
    dialect: Dialect, steps: list[tuple[str, list[ResolvedAction]]], most: int
) -> None:
    dialect.begin()
    try:
        _run(Transaction(dialect), steps, most)
    finally:
        dialect.rollback()


def _run(tx: Transaction, steps: list[tuple[str, list[ResolvedAction]]], most: int) -> None:
    _fill(tx)
    caps = dict.fromkeys(KINDS, DailyCap(0.0, most))
    before = _states(tx)
    applied: list[str] = []
    for step, actions in steps:
        if step == "undo":
            stored.undo(tx, actions[0].action_id)
            continue
        expected = stored.preview_batch(tx, actions, caps, 1)
        results = stored.apply_batch(tx, actions, caps, 1)
        for item, result in zip(actions, results, strict=True):
            if isinstance(result, Applied):
                applied.append(item.action_id)
        if len({item.subject for item in actions}) == len(actions):
            words = [type(item) if isinstance(item, Applied) else item for item in expected]
            assert words == [type(i) if isinstance(i, Applied) else i for i in results]
    after = _states(tx)
    kinds = {item.action_id: item.kind for item in ACTIONS}
    # Each at most once, and no kind beyond its cap.
    assert len(applied) == len({*applied})
    assert all(sum(kinds[item] is kind for item in applied) <= most for kind in KINDS)
    for subject, state in before.items():
        # A subscription that lives is never deleted, and no state is invented.
        if state not in GONE:
            assert subject in after
        if subject in after:
            assert after[subject] in (state, "PENDING")
            assert after[subject] == state or state in (*GONE, "END")
    assert after.keys() <= before.keys()
    # Undoing everything brings every deleted subscription back.
    for item in ACTIONS:
        stored.undo(tx, item.action_id)
    assert _states(tx).keys() == before.keys()
