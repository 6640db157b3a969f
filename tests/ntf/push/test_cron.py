import asyncio
import math
import threading
import time
from collections.abc import AsyncIterator
from functools import partial

import pytest

from heliograph.db.database import Database
from heliograph.db.dialects import Transaction
from heliograph.db.errors import DatabaseError
from heliograph.journal.journal import NO_JOURNAL
from heliograph.ntf.observing.observer import NtfObserver
from heliograph.ntf.push import cron, plan_reader
from heliograph.ntf.push.cron import Cron
from heliograph.ntf.push.outbox import Outbox
from heliograph.ntf.push.wakeups import WakeUpPlan
from heliograph.ntf.store import pending, tokens, wakeups
from heliograph.ntf.store.records import PendingPush, PushKind
from heliograph.ntf.store.schema import MIGRATIONS
from heliograph.ntf.store.store import NtfStore
from heliograph.wire.ntf.push import CheckMessagesPush
from heliograph.wire.ntf.tokens import PushProvider, TokenStatus
from tests.ntf.support import Recorder, a_new_token
from tests.waiting import until

NOW = time.time()


class CronRig:
    def __init__(self, database: Database) -> None:
        self.database = database
        self.recorder = Recorder()
        store, observer = NtfStore(database, 60.0), NtfObserver(NO_JOURNAL)
        self.outbox = Outbox(store, {PushProvider.APNS_TEST: self.recorder}, observer)
        self.cron = Cron(database, self.outbox, 60.0)

    async def tokens(
        self, count: int, minutes: int = 20, status: TokenStatus = TokenStatus.ACTIVE
    ) -> list[bytes]:
        """Make tokens that are due now."""
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
                wakeups.set_cron(tx, new.token_id, minutes, at)
                ids.append(new.token_id)
            tx.execute("DELETE FROM pending_pushes")

        await self.database.write(make)
        return ids

    async def due_at(self, token_id: bytes) -> int:
        [[at]] = await self.database.read(
            lambda tx: tx.query("SELECT cron_due_at FROM tokens WHERE token_id = ?", (token_id,))
        )
        return int(at)


@pytest.fixture
async def rig(url: str) -> AsyncIterator[CronRig]:
    database = await Database.open(url, MIGRATIONS)
    rig = CronRig(database)
    yield rig
    await rig.outbox.close(0.1)
    await database.close()


async def test_a_due_token_is_woken_and_due_again_one_interval_later(rig: CronRig) -> None:
    [token_id] = await rig.tokens(1)
    [push] = await rig.cron.wake_due(NOW)
    assert (push.token_id, push.kind, push.notices) == (token_id, PushKind.CHECK, ())
    assert await rig.cron.wake_due(NOW) == []
    due_at = await rig.due_at(token_id)
    # A slot of a fleet of one is 60 seconds.
    assert NOW + 18 * 60 <= due_at / 1000 <= NOW + 20 * 60
    assert await rig.cron.wake_due(NOW + 18 * 60 - 1) == []
    assert len(await rig.cron.wake_due(NOW + 20 * 60)) == 1


async def test_the_first_wake_up_is_due_one_interval_after_the_request(
    rig: CronRig,
) -> None:
    [token_id] = await rig.tokens(1, minutes=0)
    at = int(NOW * 1000)
    await rig.database.write(lambda tx: wakeups.set_cron(tx, token_id, 0, None))
    await rig.database.write(lambda tx: wakeups.request_cron(tx, token_id, 20, at))
    assert await rig.cron.wake_due(NOW + 20 * 60 - 1) == []
    assert len(await rig.cron.wake_due(NOW + 20 * 60 + 1)) == 1


@pytest.mark.parametrize("status", TokenStatus)
async def test_only_active_tokens_are_woken(rig: CronRig, status: TokenStatus) -> None:
    await rig.tokens(1, status=status)
    woken = await rig.cron.wake_due(NOW)
    assert bool(woken) == (status is TokenStatus.ACTIVE)


async def test_no_interval_is_no_wake_up(rig: CronRig) -> None:
    [token_id] = await rig.tokens(1)
    at = int(NOW * 1000)
    await rig.database.write(lambda tx: wakeups.request_cron(tx, token_id, 0, at))
    assert await rig.cron.wake_due(NOW + 86_400) == []


async def test_a_backlog_is_worked_off_evenly(rig: CronRig) -> None:
    """600 tokens, 10 a second in the mean: 12 a second until all were woken."""
    await rig.tokens(600, minutes=1)
    sizes = [len(await rig.cron.wake_due(NOW + second)) for second in range(44)]
    assert sizes == [12] * 44


async def test_a_small_backlog_ends(rig: CronRig) -> None:
    await rig.tokens(5)
    sizes = [len(await rig.cron.wake_due(NOW + second)) for second in range(7)]
    assert sizes == [1] * 5 + [0] * 2


async def test_a_wave_becomes_flat(rig: CronRig) -> None:
    """600 tokens that are due in the same second are woken at an even rate five minutes later."""
    ids = await rig.tokens(600, minutes=1)
    rows = [(1, int((NOW + 10) * 1000), token_id) for token_id in ids]
    await rig.database.write(partial(wakeups.set_crons, rows=rows))
    await rig.cron.wake_due(NOW - 1)
    sent = []
    woken: dict[bytes, float] = {}
    longest = 0.0
    for second in range(420):
        page = await rig.cron.wake_due(NOW + second)
        sent.append(len(page))
        for push in page:
            longest = max(longest, second - woken.get(push.token_id, second))
            woken[push.token_id] = second
    assert sent[10] == 600
    last = sent[-60:]
    assert max(last) <= 1.2 * sum(last) / len(last)
    assert 600 <= sum(last) <= 620
    assert longest <= 61


async def test_the_steady_rate_is_served_in_full(rig: CronRig) -> None:
    """200 due a second, six times the mean of so many tokens, for 100 seconds: none is late."""
    count, seconds = 2_000, 100
    ids = await rig.tokens(count, minutes=1)
    times = [(1, int((NOW + 10 * number / count) * 1000), ids[number]) for number in range(count)]
    await rig.cron.wake_due(NOW - 1)
    lateness = []
    for second in range(seconds):
        if second % 10 == 0:  # the same tokens again, as if there were many more
            moved = [(minutes, at + second * 1000, token_id) for minutes, at, token_id in times]
            await rig.database.write(partial(wakeups.set_crons, rows=moved))
        due = {token_id: at / 1000 for _, at, token_id in moved}
        now = NOW + second + 1
        lateness += [now - due[push.token_id] for push in await rig.cron.wake_due(now)]
    assert len(lateness) == seconds // 10 * count
    assert max(lateness) < 2.5


async def test_new_wake_ups_do_not_slow_down_a_backlog(rig: CronRig) -> None:
    """Of 600 tokens 500 are overdue, and the others become due at 5 a second."""
    ids = await rig.tokens(600, minutes=1)
    later = [
        (1, int((NOW + 0.5 + number / 5) * 1000), token_id)
        for number, token_id in enumerate(ids[500:])
    ]
    await rig.database.write(lambda tx: wakeups.set_crons(tx, later))
    sizes = [len(await rig.cron.wake_due(NOW + second)) for second in range(44)]
    assert sizes == [12] * 44


async def test_a_service_that_stood_still_has_a_backlog(rig: CronRig) -> None:
    """Also if it is the clock that jumped: nobody is woken in a burst."""
    ids = await rig.tokens(100, minutes=1)
    times = [(1, int((NOW + 600 + number) * 1000), token_id) for number, token_id in enumerate(ids)]
    await rig.database.write(lambda tx: wakeups.set_crons(tx, times))
    assert await rig.cron.wake_due(NOW) == []
    sizes = [len(await rig.cron.wake_due(NOW + 3600 + second)) for second in range(30)]
    assert sizes[0] == math.ceil(1.2 * 100 / 60 * 30)  # as many as in the longest step
    assert max(sizes[1:]) == 2
    assert sum(sizes) == 100


async def test_a_clock_that_was_ahead_postpones_nothing(rig: CronRig) -> None:
    [token_id] = await rig.tokens(1)
    assert await rig.cron.wake_due(NOW + 86_400)
    await rig.cron.wake_due(NOW)
    assert await rig.due_at(token_id) <= int((NOW + 20 * 60) * 1000)


async def test_a_daily_wake_up_keeps_its_time_of_day(rig: CronRig) -> None:
    """Every 25 hours, but at three o'clock: so every 24."""
    [token_id] = await rig.tokens(1, minutes=25 * 60)
    phase = 3 * 3600
    await rig.database.write(lambda tx: wakeups.set_phase(tx, token_id, phase, int(NOW * 1000)))
    now = NOW
    for _ in range(4):
        [push] = await rig.cron.wake_due(now)
        assert push.token_id == token_id
        later = await rig.due_at(token_id) / 1000
        assert later % 86_400 == phase
        assert 0 < later - now <= 25 * 3600
        now = later
    assert now - NOW > 3 * 86_400 - 3600


async def test_a_plan_is_made_anew_after_a_failure(
    rig: CronRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a transaction planned that was rolled back takes up no room."""
    await rig.tokens(600, minutes=1)

    def fail(*_: object) -> list[PendingPush]:
        raise DatabaseError("lost")

    with monkeypatch.context() as patch:
        patch.setattr(pending, "due_for", fail)
        with pytest.raises(DatabaseError):
            await rig.cron.wake_due(NOW)
    sizes = [len(await rig.cron.wake_due(NOW + second)) for second in range(110)]
    assert max(sizes) <= 12


async def test_a_plan_is_read_in_pages_while_tokens_are_woken(
    rig: CronRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wake-ups that move between two pages are counted once, and new tokens are found."""
    monkeypatch.setattr(plan_reader, "PAGE", 7)
    monkeypatch.setattr(cron, "RELOAD_MS", 5_000)
    first = await rig.tokens(60, minutes=1)
    rows = [(1, int((NOW + number) * 1000), token_id) for number, token_id in enumerate(first)]
    await rig.database.write(lambda tx: wakeups.set_crons(tx, rows))
    await rig.cron.wake_due(NOW)
    assert rig.cron.plan.rate == pytest.approx(1)
    found: list[WakeUpPlan] = []
    for second in range(1, 200):
        if second == 60:
            await rig.tokens(60, minutes=2)
        await rig.cron.wake_due(NOW + second)
        plan = rig.cron.plan
        if not any(plan is other for other in found):
            found.append(plan)
            planned = await rig.database.read(lambda tx: wakeups.wake_up_loads(tx, -1, 1000))
            exact = WakeUpPlan({1: 60, 2: 60})
            for at, minutes, count in planned[0]:
                exact.add(at * 1000, minutes, count)
            if second > 120:
                assert plan.rate == pytest.approx(1.5)
                for some in (plan, exact):
                    some.forget(int((NOW + second) * 1000) + plan.slot)
                assert +plan.load == +exact.load
    assert len(found) > 5


async def test_the_plan_is_read_outside_of_transactions_that_write(
    rig: CronRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wake-ups of all tokens are counted in pages by the connection that reads."""
    threads = []
    loads = wakeups.wake_up_loads

    def recorded(tx: Transaction, after: int, limit: int) -> object:
        threads.append((threading.current_thread().name, limit))
        return loads(tx, after, limit)

    monkeypatch.setattr(wakeups, "wake_up_loads", recorded)
    await rig.tokens(3)
    await rig.cron.wake_due(NOW)
    assert threads == [("database-reader", plan_reader.PAGE)]


async def test_one_that_is_not_delivered_is_pending_once(rig: CronRig) -> None:
    await rig.tokens(1)
    await rig.cron.wake_due(NOW)
    await rig.cron.wake_due(NOW + 3600)
    rows = await rig.database.read(lambda tx: tx.query("SELECT kind FROM pending_pushes"))
    assert rows == [("check",)]


async def test_it_runs_for_ever(
    rig: CronRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cron, "TICK", 0.01)
    wake_due, failures = rig.cron.wake_due, [DatabaseError("lost"), RuntimeError("a bug")]

    async def failing(now: float) -> list[PendingPush]:
        if failures:
            raise failures.pop()
        return await wake_due(now)

    monkeypatch.setattr(rig.cron, "wake_due", failing)
    await rig.tokens(1)
    running = asyncio.create_task(rig.cron.run())
    await until(lambda: rig.recorder.deliveries)
    running.cancel()
    assert rig.recorder.deliveries[0].push == CheckMessagesPush()
    assert "periodic wake-ups cannot be read, retrying: lost" in caplog.text
