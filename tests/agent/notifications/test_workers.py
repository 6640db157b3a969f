import asyncio
import logging

import pytest
from hypothesis import given, strategies as st

from heliograph.agent.notifications.pace import Pace
from heliograph.agent.notifications.workers import BatchReport, Worker
from heliograph.runtime.backoff import Backoff
from tests.waiting import until

FAST = Backoff(first=0.001, last=0.01)


def test_a_pace_shrinks_and_grows() -> None:
    pace = Pace.start(150)
    sizes, delays = [], []
    for _ in range(10):
        pace = pace.failed()
        sizes.append(pace.size)
        delays.append(pace.delay(Backoff(first=2, last=180), 0.0))
    assert sizes == [75, 37, 18, 9, 4, 2, 1, 1, 1, 1]
    assert delays == [2, 4, 8, 16, 32, 64, 128, 180, 180, 180]
    pace = pace.succeeded()
    assert (pace.size, pace.delay(FAST, 0.0)) == (2, 0.0)


@given(st.integers(1, 1000), st.lists(st.booleans()))
def test_a_pace_stays_in_bounds(full: int, results: list[bool]) -> None:
    pace = Pace.start(full)
    for result in results:
        pace = pace.succeeded() if result else pace.failed()
        assert 1 <= pace.size <= full


class Work:
    """Returns the given reports, then that there is no work."""

    def __init__(self, *reports: BatchReport | Exception) -> None:
        self.reports = list(reports)
        self.sizes: list[int] = []
        self.idle = 0

    async def perform(self, size: int) -> BatchReport:
        if not self.reports:
            self.idle += 1
            return BatchReport()
        self.sizes.append(size)
        report = self.reports.pop(0)
        if isinstance(report, Exception):
            raise report
        return report


async def test_a_worker_works_until_nothing_is_left_and_again_when_kicked() -> None:
    work = Work(BatchReport(8), BatchReport(8))
    worker = Worker("test", work.perform, 8, FAST)
    try:
        await until(lambda: work.idle == 1)
        assert work.sizes == [8, 8]
        work.reports.append(BatchReport(1))
        worker.wake()
        await until(lambda: work.idle == 2)
        assert work.sizes == [8, 8, 8]
    finally:
        await worker.stop()


async def test_a_failing_router_is_asked_for_less() -> None:
    gone = BatchReport(8, unreachable=True)
    work = Work(
        gone, gone, gone, gone, gone, BatchReport(1), BatchReport(2), BatchReport(4), BatchReport(8)
    )
    worker = Worker("test", work.perform, 8, FAST)
    try:
        await until(lambda: work.idle)
        assert work.sizes == [8, 4, 2, 1, 1, 1, 2, 4, 8]
        assert worker.pace == Pace.start(8)
    finally:
        await worker.stop()


async def test_a_fault_ends_no_worker(caplog: pytest.LogCaptureFixture) -> None:
    work = Work(ValueError("a fault"), BatchReport(1))
    worker = Worker("test", work.perform, 8, FAST)
    try:
        with caplog.at_level(logging.ERROR):
            await until(lambda: work.idle)
        assert work.sizes == [8, 4]
        assert "a fault" in caplog.text
    finally:
        await worker.stop()


async def test_work_that_is_due_later_is_done_then() -> None:
    work = Work(BatchReport(next_in=0.02), BatchReport(1))
    worker = Worker("test", work.perform, 8, FAST)
    try:
        await until(lambda: work.idle)
        assert len(work.sizes) == 2
    finally:
        await worker.stop()


async def test_an_interval_ends_when_the_network_is_back() -> None:
    work = Work(BatchReport(1, unreachable=True), BatchReport(1))
    worker = Worker("test", work.perform, 8, Backoff(first=3600, last=3600))
    try:
        await until(lambda: worker.pace.failures)
        worker.wake()
        await asyncio.sleep(0.02)
        assert len(work.sizes) == 1
        worker.retry_now()
        await until(lambda: work.idle)
        assert len(work.sizes) == 2
    finally:
        await worker.stop()


async def test_a_kick_while_it_works_is_not_lost() -> None:
    asked = asyncio.Event()
    go_on = asyncio.Event()
    rounds = []

    async def perform(size: int) -> BatchReport:
        rounds.append(size)
        if len(rounds) == 1:
            asked.set()
            await go_on.wait()
        return BatchReport()

    worker = Worker("test", perform, 8, FAST)
    try:
        await asked.wait()
        worker.wake()
        go_on.set()
        await until(lambda: len(rounds) == 2)
    finally:
        await worker.stop()
