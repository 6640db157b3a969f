"""Wakes in the store: every state with every control, and any order of controls and steps."""

from collections.abc import Iterator

import pytest
from hypothesis import given, settings, strategies as st

from heliograph.actions.contract import ActionKind, Refusal
from heliograph.actions.wakes import CONTROLS, MAX_RATE
from heliograph.db.database import migrate
from heliograph.db.dialects import Dialect, Transaction, open_dialect
from heliograph.ntf.store import pending, tokens, wakes
from heliograph.ntf.store.actions.applying import DailyCap, apply_batch, undo
from heliograph.ntf.store.actions.rules import Applied, ResolvedAction
from heliograph.ntf.store.records import PushKind
from heliograph.ntf.store.schema import MIGRATIONS
from heliograph.ntf.store.wakes import WakeState
from tests.ntf.support import a_new_token, a_transaction

NOW, TTL = 1_000_000, 10_000
WAKE = bytes(16)
CAPS = {
    ActionKind.WAKE_FLEET: DailyCap(0.0, 100),
    ActionKind.CONTROL_WAKE: DailyCap(0.0, 100),
}


@pytest.fixture(params=["sqlite"])
def tx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Transaction]:
    with a_transaction(f"sqlite:///{tmp_path_factory.mktemp('wakes')}/ntf.db") as opened:
        yield opened


def fill(tx: Transaction, count: int) -> list[bytes]:
    """Active tokens, which are listed for a wake."""
    made = []
    for _ in range(count):
        new = a_new_token()
        tokens.register(tx, new, 1, NOW, NOW + TTL)
        assert tokens.verify(tx, new.token_id, new.code)[0] is not None
        made.append(new.token_id)
    tx.execute("DELETE FROM pending_pushes", ())
    wakes.add_members(tx, WAKE, 0, made)
    wakes.add_members(tx, WAKE, 0, made)  # again, after a kill
    return made


def woken(tx: Transaction, token_ids: list[bytes]) -> list[bytes]:
    found = pending.due_for(tx, token_ids, NOW, PushKind.CHECK)
    return [push.token_id for push in found]


def start(rate: object = 2.0, wake: bytes = WAKE) -> ResolvedAction:
    return ResolvedAction(f"w{wake.hex()}{rate}", ActionKind.WAKE_FLEET, wake, 0, {"rate": rate})


def controlled(word: str, at: int, wake: bytes = WAKE) -> ResolvedAction:
    evidence = {"do": word, "at": at}
    return ResolvedAction(f"{word}{at}", ActionKind.CONTROL_WAKE, wake, 0, evidence)


def apply(tx: Transaction, item: ResolvedAction) -> object:
    [result] = apply_batch(tx, [item], CAPS, NOW)
    return result


def state_of(tx: Transaction) -> WakeState | None:
    wake = wakes.find(tx, WAKE)
    return None if wake is None else wake.state


def step(tx: Transaction, limit: int) -> list[bytes]:
    wake = wakes.find(tx, WAKE)
    assert wake is not None
    return wakes.wake_next(tx, wake, limit, NOW, NOW + TTL)


def test_tokens_are_woken_in_their_order_and_each_once(tx: Transaction) -> None:
    made = fill(tx, 5)
    assert isinstance(apply(tx, start()), Applied)
    assert step(tx, 2) == made[:2]
    assert step(tx, 2) == made[2:4]
    assert state_of(tx) is WakeState.RUNNING
    assert step(tx, 2) == made[4:]
    assert state_of(tx) is WakeState.DONE
    assert sorted(woken(tx, made)) == sorted(made)
    wake = wakes.find(tx, WAKE)
    assert wake is not None
    assert (wake.total, wake.woken) == (5, 5)


def test_a_wake_is_done_with_its_last_token(tx: Transaction) -> None:
    fill(tx, 4)
    apply(tx, start())
    step(tx, 4)
    assert state_of(tx) is WakeState.DONE


def test_tokens_that_are_gone_or_not_active_are_left_out(tx: Transaction) -> None:
    made = fill(tx, 3)
    tokens.delete(tx, made[0])
    tx.execute("UPDATE tokens SET status = 'CONFIRMED' WHERE token_id = ?", (made[1],))
    apply(tx, start())
    assert step(tx, 10) == made[2:]


AFTER = {
    (WakeState.RUNNING, "pause"): WakeState.PAUSED,
    (WakeState.RUNNING, "resume"): WakeState.RUNNING,
    (WakeState.RUNNING, "abort"): WakeState.ABORTED,
    (WakeState.PAUSED, "pause"): WakeState.PAUSED,
    (WakeState.PAUSED, "resume"): WakeState.RUNNING,
    (WakeState.PAUSED, "abort"): WakeState.ABORTED,
    (WakeState.ABORTED, "abort"): WakeState.ABORTED,
}


@pytest.mark.parametrize("word", CONTROLS)
@pytest.mark.parametrize("state", [*WakeState, None])
def test_every_state_and_control(tx: Transaction, state: WakeState | None, word: str) -> None:
    fill(tx, 3)
    if state is not None:
        apply(tx, start())
    match state:
        case WakeState.PAUSED:
            apply(tx, controlled("pause", 1))
        case WakeState.ABORTED:
            apply(tx, controlled("abort", 1))
        case WakeState.DONE:
            step(tx, 10)
    assert state_of(tx) is state
    result = apply(tx, controlled(word, 2))
    if state is None or (state, word) not in AFTER:
        assert result is Refusal.DISAGREED
        assert state_of(tx) is state
    else:
        assert isinstance(result, Applied)
        assert state_of(tx) is AFTER[state, word]


@pytest.mark.parametrize("rate", [0, -1, MAX_RATE + 1, "fast", None, True])
def test_a_rate_that_is_none_is_refused(tx: Transaction, rate: object) -> None:
    fill(tx, 1)
    assert apply(tx, start(rate)) is Refusal.DISAGREED


@pytest.mark.parametrize("evidence", [{}, {"do": "stop", "at": 2}, {"do": "pause"}])
def test_a_control_that_is_none_is_refused(tx: Transaction, evidence: dict[str, object]) -> None:
    fill(tx, 1)
    apply(tx, start())
    item = controlled("pause", 2)._replace(evidence=evidence)
    assert apply(tx, item) is Refusal.DISAGREED


def test_one_wake_at_a_time(tx: Transaction) -> None:
    fill(tx, 2)
    other = b"\x01" * 16
    wakes.add_members(tx, other, 0, [b"x"])
    apply(tx, start())
    assert apply(tx, start(wake=other)) is Refusal.DISAGREED
    apply(tx, controlled("pause", 1))
    assert apply(tx, start(wake=other)) is Refusal.DISAGREED
    apply(tx, controlled("abort", 2))
    assert isinstance(apply(tx, start(wake=other)), Applied)
    # The same wake does not begin twice, also not by another action.
    assert apply(tx, start(3.0)) is Refusal.DISAGREED


def test_undo_aborts_whatever_was_decided_later(tx: Transaction) -> None:
    made = fill(tx, 5)
    item = start()
    apply(tx, item)
    step(tx, 2)
    assert isinstance(undo(tx, item.action_id, NOW), Applied)
    assert state_of(tx) is WakeState.ABORTED
    assert apply(tx, controlled("resume", NOW * 1000)) is Refusal.DISAGREED
    assert len(woken(tx, made)) == 2
    assert wakes.count_members(tx, WAKE) == 0


def test_what_is_over_is_forgotten_and_lists_of_no_wake_too(tx: Transaction) -> None:
    fill(tx, 2)
    wakes.forget(tx, NOW)
    assert wakes.count_members(tx, WAKE) == 0
    wakes.add_members(tx, WAKE, 0, [b"x", b"y"])
    apply(tx, start())
    wakes.forget(tx, NOW)
    assert state_of(tx) is WakeState.RUNNING
    assert wakes.count_members(tx, WAKE) == 2
    apply(tx, controlled("abort", 1))
    wakes.forget(tx, NOW)
    assert state_of(tx) is None


@pytest.fixture(scope="module")
def dialect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dialect]:
    url = f"sqlite:///{tmp_path_factory.mktemp('wakes')}/ntf.db"
    migrate(url, MIGRATIONS)
    opened = open_dialect(url)
    yield opened
    opened.close()


CONTROLLED = [controlled(word, at) for at in (1, 2, 3, 4) for word in CONTROLS]
STEPS = st.lists(
    st.one_of(st.sampled_from(CONTROLLED), st.just(start()), st.integers(1, 3)), max_size=20
)


@settings(deadline=None, max_examples=200)
@given(steps=STEPS)
def test_any_order(dialect: Dialect, steps: list[ResolvedAction | int]) -> None:
    """The latest control that was not refused counts, and nobody is woken twice or when paused."""
    dialect.begin()
    try:
        tx = Transaction(dialect)
        made = fill(tx, 6)
        done: list[bytes] = []
        latest, is_paused, is_aborted = 0, False, False
        for item in steps:
            if isinstance(item, int):
                if state_of(tx) is WakeState.RUNNING:
                    assert not is_paused
                    assert not is_aborted
                    done += step(tx, item)
                continue
            result = apply(tx, item)
            if isinstance(result, Applied) and item.kind is ActionKind.CONTROL_WAKE:
                at, word = item.evidence["at"], item.evidence["do"]
                assert isinstance(at, int)
                assert at > latest
                latest, is_paused = at, word == "pause"
                is_aborted = is_aborted or word == "abort"
        assert done == made[: len(done)]
        assert (state_of(tx) is WakeState.DONE) == (len(done) == len(made))
    finally:
        dialect.rollback()
