"""The stream: ingests batch after batch, and runs every job when it is due, until stopped.

Batches wait for nothing. The account runs beside them, over what was committed when it began, and,
once it takes long, for at most a tenth of the time. So do the other jobs, one at a time, since
they replace files that another one of them may have read. Rates, from which abuse is found, wait
for none of them.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial

from heliograph.pipeline import upkeep
from heliograph.pipeline.account import Account
from heliograph.pipeline.ingesting.heads import encode_heads
from heliograph.pipeline.ingesting.ingester import BatchResult
from heliograph.pipeline.runner import Pipeline
from heliograph.pipeline.spark.failures import has_ended
from heliograph.pipeline.tables.offsets import write_account
from heliograph.pipeline.tables.tables import SecondWriter
from heliograph.pipeline.vocabulary import ACCOUNT_AGAIN, OVERDUE
from heliograph.runtime.errors import StartError

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
    decide: float = 10.0
    """Of jobs that look at the newest rates."""
    decide_slowly: float = 3600.0
    """Of jobs that look at days, or at snapshots."""
    keep_events_days: float = 14.0
    keep_ledger_days: float = 90.0


@dataclass(slots=True)
class _PeriodicJob:
    run: Callable[[], None]
    interval: float
    due_at: float = 0.0


class Stream:
    """Ingests until `stop` is set. A failed batch commits nothing and is retried.

    Without Spark, or beside another pipeline, no retry can succeed: `run` raises, so that a
    supervisor starts it again.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        schedule: Schedule,
        stop: threading.Event,
        on_batch: Callable[[BatchResult], None] | None = None,
        decide: Callable[[Pipeline], None] | None = None,
        decide_slowly: Callable[[Pipeline], None] | None = None,
    ) -> None:
        """`decide` looks at new rates; `decide_slowly` has the jobs that take longer."""
        self.last_account: Account | None = None
        self._pipeline = pipeline
        self._schedule = schedule
        self._stop = stop
        self._on_batch = on_batch or _ignore
        self._account_at = 0.0
        self._again_at = math.inf
        self._accounted: int | None = None
        """The last batch that the last account covers."""
        self._jobs: tuple[_PeriodicJob, ...] = (
            _PeriodicJob(self._fold, schedule.stats),
            _PeriodicJob(self._count, schedule.stats),
            _PeriodicJob(self._expire, schedule.upkeep),
            _PeriodicJob(self._compact, schedule.compact),
        )
        self._account: Future[tuple[Account, float]] | None = None
        self._jobs_pipeline = pipeline.for_another_thread()
        self._job: Future[None] | None = None
        if decide_slowly is not None:
            slow = _PeriodicJob(partial(decide_slowly, self._jobs_pipeline), schedule.decide_slowly)
            self._jobs = (*self._jobs, slow)
        self._decide = decide
        self._rates_pipeline = pipeline.for_another_thread()
        self._rating = (_PeriodicJob(self._rate, schedule.decide),)
        self._rate_job: Future[None] | None = None

    def run(self) -> None:
        with (
            ThreadPoolExecutor(1) as for_account,
            ThreadPoolExecutor(1) as for_jobs,
            ThreadPoolExecutor(1) as for_rates,
        ):
            delay = 1.0
            while not self._stop.is_set():
                try:
                    self._step(for_account, for_jobs, for_rates)
                    delay = 1.0
                except Exception as exc:
                    if isinstance(exc, SecondWriter) or has_ended(self._pipeline.spark):
                        raise
                    # Whatever the cause, the journal still has the events: log it and retry.
                    if isinstance(exc, (StartError, OSError)):
                        logger.error("a batch failed, retrying in %.0f s: %s", delay, exc)
                    else:
                        logger.exception("a batch failed, retrying in %.0f s", delay)
                    with suppress(StartError):
                        self._pipeline.tables.follow()
                    self._stop.wait(delay)
                    delay = min(delay * 2, 60.0)

    def _step(
        self,
        for_account: ThreadPoolExecutor,
        for_jobs: ThreadPoolExecutor,
        for_rates: ThreadPoolExecutor,
    ) -> None:
        batch = self._pipeline.ingester.ingest_batch(self._pipeline.ingester.poll())
        if batch is not None:
            self._on_batch(batch)
        now = time.monotonic()
        self._job = _next_job(self._jobs, self._job, for_jobs, now)
        self._rate_job = _next_job(self._rating, self._rate_job, for_rates, now)
        self._watch_account(for_account, now)
        if batch is None:
            self._stop.wait(self._schedule.poll)

    def _fold(self) -> None:
        self._jobs_pipeline.update_ledger()

    def _count(self) -> None:
        self._jobs_pipeline.update_stats()

    def _rate(self) -> None:
        """Count rates, and decide if there are new ones."""
        if self._rates_pipeline.update_rates() and self._decide is not None:
            self._decide(self._rates_pipeline)

    def _expire(self) -> None:
        kept = self._schedule.keep_events_days, self._schedule.keep_ledger_days
        upkeep.expire(self._jobs_pipeline, time.time(), *kept)
        self._jobs_pipeline.tables.vacuum()

    def _compact(self) -> None:
        upkeep.compact(self._jobs_pipeline)

    def _watch_account(self, executor: ThreadPoolExecutor, now: float) -> None:
        if self._account is None:
            # Without new events the account is the same, unless something may become overdue.
            batch = self._pipeline.offsets.batch
            if now >= self._account_at and (batch != self._accounted or now >= self._again_at):
                self._accounted = batch
                self._account = executor.submit(self._timed)
        elif self._account.done():
            ended, self._account = self._account, None
            if ended.exception() is not None:
                self._accounted = None
            self._account_at = now + self._schedule.account
            account, seconds = ended.result()
            rest = rest_after(seconds, is_first=self.last_account is None)
            self._account_at = now + max(self._schedule.account, rest)
            self.last_account = account
            may_change = any(account.outcomes.get(outcome) for outcome in OVERDUE)
            self._again_at = now + ACCOUNT_AGAIN if may_change else math.inf

    def _timed(self) -> tuple[Account, float]:
        began, started = time.time(), time.monotonic()
        account = self._pipeline.pinned().account(began)
        store_account(self._pipeline.for_another_thread(), account, began)
        return account, time.monotonic() - started


def _next_job(
    jobs: Sequence[_PeriodicJob],
    running: "Future[None] | None",
    pool: ThreadPoolExecutor,
    now: float,
) -> "Future[None] | None":
    """Start the job that is due for longest, unless one is running; return what runs."""
    if running is not None:
        if not running.done():
            return running
        failure = running.exception()
        if failure is not None:
            logger.error("a job failed and will be run again", exc_info=failure)
    longest = min(jobs, key=lambda job: job.due_at, default=None)
    if longest is None or now < longest.due_at:
        return None
    longest.due_at = now + longest.interval  # also if it fails: others run first
    return pool.submit(longest.run)


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
        "until": account.until,
        "lags": [asdict(lag) for lag in account.lags],
        "heads": encode_heads(pipeline.heads),
        "settings": settings,
        "outcomes": account.outcomes,
        "asked_objectives": [item.text for item in pipeline.settings.objectives],
        "objectives": asdict(account.objectives),
        "hours": [asdict(hour) for hour in account.hours[-KEPT_HOURS:]],
    }
    write_account(pipeline.tables.storage.url, stored)
    upkeep.store_coverage(pipeline, account.gaps)


def once(
    pipeline: Pipeline, progress: Callable[[int, int], None] | None = None
) -> list[BatchResult]:
    """Ingest all waiting segments, then update the tables. `progress` gets bytes done and total.

    Raises `StartError` if some could not be read, though they are not damaged.
    """
    waiting = pipeline.ingester.waiting()
    total = sum(item.size for item in waiting)
    ingested: list[BatchResult] = []
    done = 0
    while waiting:
        batch = pipeline.ingester.ingest_batch(waiting)
        if batch is not None:
            ingested.append(batch)
        left = pipeline.ingester.still_waiting(waiting)
        if len(left) == len(waiting):
            there = {item.name for item in pipeline.ingester.waiting()}
            left = [item for item in left if item.name in there]  # others were removed meanwhile
        if len(left) == len(waiting):
            if not pipeline.ingester.is_retrying:
                break
            time.sleep(RETRY_INTERVAL)
        waiting = left
        done = total - sum(item.size for item in waiting)
        if progress is not None:
            progress(done, total)
    if waiting:
        raise StartError(
            f"{waiting[0].url} cannot be read: let this user read it. All others were ingested, but"
            f" for {len(waiting) - 1} like it"
        )
    pipeline.update_ledger()
    pipeline.update_stats()
    pipeline.update_rates()
    upkeep.compact(pipeline)
    return ingested


def _ignore(_: BatchResult) -> None:
    return None
