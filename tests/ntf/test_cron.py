import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from heliograph.db.database import Database
from heliograph.db.dialects import Transaction
from heliograph.db.errors import DatabaseError
from heliograph.ntf import cron, tokens
from heliograph.ntf.cron import LEAST_PAGE, SPREAD, Cron
from heliograph.ntf.outbox import Outbox, OutboxEvents
from heliograph.ntf.records import DebtKind, Owed
from heliograph.ntf.schema import MIGRATIONS
from heliograph.wire.push import CheckMessagesPush
from heliograph.wire.tokens import PushProvider, TokenStatus
from tests.ntf.support import Recorder, a_new_token, until

NOW = time.time()


def nothing(*_: object) -> None:
    return None


class Clockwork:
    def __init__(self, database: Database) -> None:
        self.database = database
        self.recorder = Recorder()
        events = OutboxEvents(nothing, nothing, nothing, nothing)
        self.outbox = Outbox(database, {PushProvider.APNS_TEST: self.recorder}, events)
        self.cron = Cron(database, self.outbox, 60.0)

    async def tokens(
        self, count: int, minutes: int = 20, status: TokenStatus = TokenStatus.ACTIVE
    ) -> list[bytes]:
        at = int(NOW * 1000)
        ids = []

        def make(tx: Transaction) -> None:
            for _ in range(count):
                new = a_new_token()
                tokens.register(tx, new, 1, at, at + 1)
                tx.execute(
                    "UPDATE tokens SET status = ? WHERE token_id = ?",
                    (status.value, new.token_id),
                )
                tokens.request_cron(tx, new.token_id, minutes, at)
                ids.append(new.token_id)
            tx.execute("DELETE FROM debts")

        await self.database.write(make)
        return ids

    async def due_at(self, token_id: bytes) -> int:
        [[at]] = await self.database.read(
            lambda tx: tx.query("SELECT cron_due_at FROM tokens WHERE token_id = ?", (token_id,))
        )
        return int(at)


@pytest.fixture
async def clockwork(url: str) -> AsyncIterator[Clockwork]:
    database = await Database.open(url, MIGRATIONS)
    clockwork = Clockwork(database)
    yield clockwork
    await clockwork.outbox.close(0.1)
    await database.close()


async def test_a_token_that_was_never_woken_is_due(clockwork: Clockwork) -> None:
    [token_id] = await clockwork.tokens(1)
    [owed] = await clockwork.cron.wake_due(NOW)
    assert (owed.token_id, owed.kind, owed.notices) == (token_id, DebtKind.CHECK, ())
    assert await clockwork.cron.wake_due(NOW) == []
    due_at = await clockwork.due_at(token_id)
    assert NOW + 20 * 60 <= due_at / 1000 + 0.01 <= NOW + 22 * 60 + 0.02
    assert await clockwork.cron.wake_due(NOW + 20 * 60 - 1) == []
    assert len(await clockwork.cron.wake_due(NOW + 22 * 60 + 1)) == 1


@pytest.mark.parametrize("status", TokenStatus)
async def test_only_active_tokens_are_woken(clockwork: Clockwork, status: TokenStatus) -> None:
    await clockwork.tokens(1, status=status)
    woken = await clockwork.cron.wake_due(NOW)
    assert bool(woken) == (status is TokenStatus.ACTIVE)


async def test_no_interval_is_no_wake_up(clockwork: Clockwork) -> None:
    [token_id] = await clockwork.tokens(1)
    at = int(NOW * 1000)
    await clockwork.database.write(lambda tx: tokens.request_cron(tx, token_id, 0, at))
    assert await clockwork.cron.wake_due(NOW + 86_400) == []


async def test_a_backlog_is_worked_off_evenly(
    clockwork: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cron, "LEAST_PAGE", 2)
    monkeypatch.setattr(cron, "SPREAD", 10.0)
    await clockwork.tokens(100)
    sizes = []
    for _ in range(100):
        woken = await clockwork.cron.wake_due(NOW)
        if not woken:
            break
        sizes.append(len(woken))
    assert sum(sizes) == 100
    assert max(sizes) == 10
    assert LEAST_PAGE < SPREAD


async def test_tokens_that_began_together_drift_apart(clockwork: Clockwork) -> None:
    ids = await clockwork.tokens(20)
    await clockwork.cron.wake_due(NOW)
    assert len({await clockwork.due_at(token_id) for token_id in ids}) > 15


async def test_one_that_is_not_delivered_is_owed_once(clockwork: Clockwork) -> None:
    await clockwork.tokens(1)
    await clockwork.cron.wake_due(NOW)
    await clockwork.cron.wake_due(NOW + 3600)
    rows = await clockwork.database.read(lambda tx: tx.query("SELECT kind FROM debts"))
    assert rows == [("check",)]


async def test_it_runs_for_ever(
    clockwork: Clockwork, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cron, "TICK", 0.01)
    wake_due, failures = clockwork.cron.wake_due, [DatabaseError("lost"), RuntimeError("a bug")]

    async def failing(now: float) -> list[Owed]:
        if failures:
            raise failures.pop()
        return await wake_due(now)

    monkeypatch.setattr(clockwork.cron, "wake_due", failing)
    await clockwork.tokens(1)
    running = asyncio.create_task(clockwork.cron.run())
    await until(lambda: clockwork.recorder.deliveries)
    running.cancel()
    assert clockwork.recorder.deliveries[0].push == CheckMessagesPush()
    assert "periodic wake-ups cannot be read, trying again: lost" in caplog.text
