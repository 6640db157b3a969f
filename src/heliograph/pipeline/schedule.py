"""The stream: ingests batch after batch, and runs every job when it is due, until stopped.

Batches wait for nothing. The account runs beside them, over what was committed when it began, and,
once it takes long, for at most a tenth of the time. So do the other jobs, one at a time, since
they replace files that another one of them may have read.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass

from heliograph.pipeline import upkeep
from heliograph.pipeline.account import Account
from heliograph.pipeline.runner import BatchResult, Pipeline
from heliograph.pipeline.tables.offsets import write_account

logger = logging.getLogger(__name__)

LONG_ACCOUNT = 20.0
"""Duration in seconds from which accounts are limited to a tenth of the time."""
RETRY_INTERVAL = 0.5
KEPT_HOURS = 24 * 31
"""Hours in the stored account; the tables have them all."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Intervals in seconds, and retention in days."""

    poll: float = 0.1
    stats: float = 60.0
    account: float = 60.0
    upkeep: float = 3600.0
    compact: float = 1.0
    keep_events_days: float = 14.0
    keep_ledger_days: float = 90.0


@dataclass(slots=True)
class _PeriodicJob:
    run: Callable[[], None]
    interval: float
    due_at: float = 0.0


class Stream:
    """Ingests until `stop` is set. A failed batch commits nothing and is retried."""

    def __init__(
        self,
        pipeline: Pipeline,
        schedule: Schedule,
        stop: threading.Event,
        on_batch: Callable[[BatchResult], None] | None = None,
    ) -> None:
        self.last_account: Account | None = None
        self._pipeline = pipeline
        self._schedule = schedule
        self._stop = stop
        self._on_batch = on_batch or _ignore
        self._account_at = 0.0
        self._accounted: int | None = None
        """The last batch that the last account covers."""
        self._jobs = (
            _PeriodicJob(self._fold, schedule.stats),
            _PeriodicJob(self._count, schedule.stats),
            _PeriodicJob(self._expire, schedule.upkeep),
            _PeriodicJob(self._compact, schedule.compact),
        )
        self._account: Future[tuple[Account, float]] | None = None
        self._beside = pipeline.beside()
        self._job: Future[None] | None = None

    def run(self) -> None:
        with ThreadPoolExecutor(1) as for_account, ThreadPoolExecutor(1) as for_jobs:
            delay = 1.0
            while not self._stop.is_set():
                try:
                    self._step(for_account, for_jobs)
                    delay = 1.0
                except Exception:
                    # Whatever the cause, the journal still has the events: log it and retry.
                    logger.exception("a batch failed, retrying in %.0f s", delay)
                    self._stop.wait(delay)
                    delay = min(delay * 2, 60.0)

    def _step(self, for_account: ThreadPoolExecutor, for_jobs: ThreadPoolExecutor) -> None:
        batch = self._pipeline.ingest_batch(self._pipeline.poll())
        if batch is not None:
            self._on_batch(batch)
        now = time.monotonic()
        self._watch_jobs(for_jobs, now)
        self._watch_account(for_account, now)
        if batch is None:
            self._stop.wait(self._schedule.poll)

    def _watch_jobs(self, pool: ThreadPoolExecutor, now: float) -> None:
        if self._job is not None:
            if not self._job.done():
                return
            ended, self._job = self._job, None
            failure = ended.exception()
            if failure is not None:
                logger.error("a job failed and will be run again", exc_info=failure)
        longest = min(self._jobs, key=lambda job: job.due_at)
        if now >= longest.due_at:
            longest.due_at = now + longest.interval  # also if it fails: others run first
            self._job = pool.submit(longest.run)

    def _fold(self) -> None:
        self._beside.update_ledger()

    def _count(self) -> None:
        self._beside.update_stats()

    def _expire(self) -> None:
        kept = self._schedule.keep_events_days, self._schedule.keep_ledger_days
        upkeep.expire(self._beside, time.time(), *kept)
        self._beside.tables.vacuum()

    def _compact(self) -> None:
        upkeep.compact(self._beside)

    def _watch_account(self, beside: ThreadPoolExecutor, now: float) -> None:
        if self._account is None:
            # Without new events the account is the same: the time is that of the newest event.
            batch = self._pipeline.offsets.batch
            if now >= self._account_at and batch != self._accounted:
                self._accounted = batch
                self._account = beside.submit(self._timed)
        elif self._account.done():
            ended, self._account = self._account, None
            if ended.exception() is not None:
                self._accounted = None
            self._account_at = now + self._schedule.account
            account, seconds = ended.result()
            rest = rest_after(seconds, is_first=self.last_account is None)
            self._account_at = now + max(self._schedule.account, rest)
            self.last_account = account

    def _timed(self) -> tuple[Account, float]:
        began, started = time.time(), time.monotonic()
        account = self._pipeline.pinned().account()
        store_account(self._pipeline.beside(), account, began)
        return account, time.monotonic() - started


def rest_after(seconds: float, *, is_first: bool) -> float:
    """Return the seconds without an account after one that took `seconds`.

    The first is slow because Java starts, and does not count.
    """
    return 9 * seconds if seconds > LONG_ACCOUNT and not is_first else 0.0


def store_account(pipeline: Pipeline, account: Account, at: float | None = None) -> None:
    """Store an account for `status`. `at` is when it began: it covers nothing ingested later."""
    settings = asdict(pipeline.settings.outcomes)
    stored = {
        "at": time.time() if at is None else at,
        "verdict": account.verdict.value,
        "missing_events": account.missing_events,
        "explained": account.explained,
        "quarantined": account.quarantined,
        "settings": settings,
        "outcomes": account.outcomes,
        "hours": [asdict(hour) for hour in account.hours[-KEPT_HOURS:]],
    }
    write_account(pipeline.tables.storage.url, stored)
    upkeep.store_coverage(pipeline, account.gaps)


def once(
    pipeline: Pipeline, progress: Callable[[int, int], None] | None = None
) -> list[BatchResult]:
    """Ingest all waiting segments, then update the tables. `progress` gets bytes done and total."""
    waiting = pipeline.waiting()
    total = sum(item.size for item in waiting)
    ingested: list[BatchResult] = []
    done = 0
    while waiting:
        batch = pipeline.ingest_batch(waiting)
        if batch is not None:
            ingested.append(batch)
        left = pipeline.still_waiting(waiting)
        if len(left) == len(waiting):
            if not pipeline.is_retrying:
                break  # the remaining segments were removed from the journal
            time.sleep(RETRY_INTERVAL)
        waiting = left
        done = total - sum(item.size for item in waiting)
        if progress is not None:
            progress(done, total)
    pipeline.update_ledger()
    pipeline.update_stats()
    upkeep.compact(pipeline)
    return ingested


def _ignore(_: BatchResult) -> None:
    return None
