"""`move_wakeup`: only daily wake-ups of active tokens are moved, never to later, and back."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from heliograph.actions.contract import ActionKind, Refusal
from heliograph.db.database import migrate
from heliograph.db.dialects import Transaction, open_dialect
from heliograph.ntf.store import tokens, wakeups
from heliograph.ntf.store.actions.applying import DailyCap, apply_batch, undo
from heliograph.ntf.store.actions.rules import Applied, ResolvedAction
from heliograph.ntf.store.schema import MIGRATIONS
from heliograph.wire.ntf.tokens import TokenStatus
from tests.ntf.support import a_new_token

DAY = 86_400_000
NOW = int(time.time()) * 1000
CAPS = {ActionKind.MOVE_WAKEUP: DailyCap(100.0, 10)}


@pytest.fixture
def tx(tmp_path: Path) -> Iterator[Transaction]:
    url = f"sqlite:///{tmp_path}/ntf.db"
    migrate(url, MIGRATIONS)
    dialect = open_dialect(url)
    yield Transaction(dialect)
    dialect.close()


def a_token(
    tx: Transaction, minutes: int = 1440, status: TokenStatus = TokenStatus.ACTIVE
) -> bytes:
    new = a_new_token()
    tokens.register(tx, new, 1, NOW, NOW + 1)
    tx.execute("UPDATE tokens SET status = ? WHERE token_id = ?", (status.value, new.token_id))
    wakeups.set_cron(tx, new.token_id, minutes, NOW + minutes * 60_000 if minutes else None)
    return new.token_id


def move(tx: Transaction, token_id: bytes, phase: object = 3600, number: int = 1) -> object:
    item = ResolvedAction(
        f"{number:032x}", ActionKind.MOVE_WAKEUP, token_id, NOW + DAY, {"phase": phase}
    )
    [result] = apply_batch(tx, [item], CAPS, NOW)
    return result


def due_and_phase(tx: Transaction, token_id: bytes) -> tuple[int, int | None]:
    [row] = tx.query("SELECT cron_due_at, cron_phase FROM tokens WHERE token_id = ?", (token_id,))
    return row[0], row[1]


@pytest.mark.parametrize("minutes", [1440, 1500, 10_080])
@pytest.mark.parametrize("phase", [0, 3600, 86_399])
def test_a_wake_up_is_moved_and_never_to_later(tx: Transaction, minutes: int, phase: int) -> None:
    token_id = a_token(tx, minutes)
    assert isinstance(move(tx, token_id, phase), Applied)
    due_at, found = due_and_phase(tx, token_id)
    assert found == phase
    assert due_at % DAY == phase * 1000 or due_at == NOW + minutes * 60_000
    assert NOW < due_at <= NOW + minutes * 60_000
    [due] = wakeups.cron_due(tx, due_at, 10)
    assert due.phase == phase


@pytest.mark.parametrize("status", TokenStatus)
@pytest.mark.parametrize("minutes", [0, 20, 1439, 1440])
def test_every_state(tx: Transaction, status: TokenStatus, minutes: int) -> None:
    token_id = a_token(tx, minutes, status)
    agrees = status is TokenStatus.ACTIVE and minutes >= 1440
    result = move(tx, token_id)
    assert isinstance(result, Applied) if agrees else result is Refusal.DISAGREED


@pytest.mark.parametrize("phase", [None, "3600", -1, 86_400, 1.5, True])
def test_a_phase_that_is_none(tx: Transaction, phase: object) -> None:
    assert move(tx, a_token(tx), phase) is Refusal.DISAGREED
    assert move(tx, b"nobody") is Refusal.UNKNOWN_SUBJECT


def test_undo_restores_the_phase_before(tx: Transaction) -> None:
    token_id = a_token(tx)
    move(tx, token_id, 3600, 1)
    move(tx, token_id, 7200, 2)
    assert isinstance(undo(tx, f"{2:032x}", NOW), Applied)
    assert due_and_phase(tx, token_id)[1] == 3600
    assert isinstance(undo(tx, f"{1:032x}", NOW), Applied)
    assert due_and_phase(tx, token_id)[1] is None
    assert undo(tx, f"{1:032x}", NOW) is None


def test_an_interval_that_became_short_has_no_phase(tx: Transaction) -> None:
    token_id = a_token(tx)
    move(tx, token_id)
    wakeups.request_cron(tx, token_id, 20, NOW)
    [due] = wakeups.cron_due(tx, NOW + 2 * DAY, 10)
    assert due.phase is None
