"""Streams: batch after batch, and every job when it is due, until told to stop.

The ledger's account reads everything, so it runs beside the batches, over what was committed when
it began, and, once it takes long, for at most a tenth of the time. Of the other jobs one runs
between two batches, so that a batch waits for one of them at most.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass

from heliograph.pipeline import upkeep
from heliograph.pipeline.runner import Account, Pipeline, Taken

logger = logging.getLogger(__name__)

LONG_ACCOUNT = 20.0
"""Seconds from which an account takes at most a tenth of the time."""
KEPT_HOURS = 24 * 31
"""How far back `notes` tells of hours; the tables have them all."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Seconds, and days of what is kept."""

    poll: float = 0.1
    stats: float = 60.0
    account: float = 60.0
    upkeep: float = 3600.0
    compact: float = 1.0
    keep_events_days: float = 14.0
    keep_ledger_days: float = 90.0


@dataclass(slots=True)
class _Job:
    run: Callable[[], None]
    interval: float
    due_at: float = 0.0


class Stream:
    """`run` returns when `stop` is set. A failed batch is tried again: nothing of it counts."""

    def __init__(
        self,
        pipeline: Pipeline,
        schedule: Schedule,
        stop: threading.Event,
        took: Callable[[Taken], None] | None = None,
    ) -> None:
        self.last_account: Account | None = None
        self._pipeline = pipeline
        self._schedule = schedule
        self._stop = stop
        self._took = took or _ignore
        self._account_at = 0.0
        self._jobs = (
            _Job(self._fold, schedule.stats),
            _Job(self._count, schedule.stats),
            _Job(self._expire, schedule.upkeep),
            _Job(self._compact, schedule.compact),
        )
        self._account: Future[tuple[Account, float, float]] | None = None

    def run(self) -> None:
        with ThreadPoolExecutor(1) as beside:
            delay = 1.0
            while not self._stop.is_set():
                try:
                    self._step(beside)
                    delay = 1.0
                except Exception:
                    # Whatever it was, the journal is still there: say it, and try again.
                    logger.exception("a batch failed, trying again in %.0f s", delay)
                    self._stop.wait(delay)
                    delay = min(delay * 2, 60.0)

    def _step(self, beside: ThreadPoolExecutor) -> None:
        pipeline, schedule = self._pipeline, self._schedule
        taken = pipeline.take()
        if taken is not None:
            self._took(taken)
        now = time.monotonic()
        longest = min(self._jobs, key=lambda job: job.due_at)
        if now >= longest.due_at:
            longest.due_at = now + longest.interval  # also if it fails: then others have their turn
            longest.run()
        self._watch_account(beside, now)
        if taken is None:
            self._stop.wait(schedule.poll)

    def _fold(self) -> None:
        self._pipeline.update_ledger()

    def _count(self) -> None:
        self._pipeline.update_stats()
        self._pipeline.tables.vacuum(time.time())

    def _expire(self) -> None:
        kept = self._schedule.keep_events_days, self._schedule.keep_ledger_days
        upkeep.expire(self._pipeline, time.time(), *kept)

    def _compact(self) -> None:
        upkeep.compact(self._pipeline)

    def _watch_account(self, beside: ThreadPoolExecutor, now: float) -> None:
        if self._account is None:
            if now >= self._account_at:
                self._account = beside.submit(self._timed)
        elif self._account.done():
            ended, self._account = self._account, None
            self._account_at = now + self._schedule.account
            account, seconds, began = ended.result()
            rest = rest_after(seconds, is_first=self.last_account is None)
            self._account_at = now + max(self._schedule.account, rest)
            self.last_account = account
            note_account(self._pipeline, account, began)

    def _timed(self) -> tuple[Account, float, float]:
        began, started = time.time(), time.monotonic()
        return self._pipeline.frozen().account(), time.monotonic() - started, began


def rest_after(seconds: float, *, is_first: bool) -> float:
    """How long no account begins after one that took so long. The first waits for Java to start,
    and says nothing of the next."""
    return 9 * seconds if seconds > LONG_ACCOUNT and not is_first else 0.0


def note_account(pipeline: Pipeline, account: Account, at: float | None = None) -> None:
    """Keep it, for `status`. `at` is when it began: it knows nothing that was taken later."""
    told = {
        "at": time.time() if at is None else at,
        "fates": account.fates,
        "hours": [asdict(hour) for hour in account.hours[-KEPT_HOURS:]],
    }
    pipeline.tables.commit(notes={**pipeline.manifest.notes, "account": told})


def once(pipeline: Pipeline, progress: Callable[[int, int], None] | None = None) -> list[Taken]:
    """Everything that waits now, then statistics. Tells the bytes done and of how many."""
    waiting = pipeline.waiting()
    total = sum(item.size for item in waiting)
    taken: list[Taken] = []
    done = 0
    while waiting:
        batch = pipeline.take(waiting)
        if batch is not None:
            taken.append(batch)
        left = pipeline.still_waiting(waiting)
        if len(left) == len(waiting):
            break  # what is left has gone from the journal
        waiting = left
        done = total - sum(item.size for item in waiting)
        if progress is not None:
            progress(done, total)
    pipeline.update_ledger()
    pipeline.update_stats()
    upkeep.compact(pipeline)
    return taken


def _ignore(_: Taken) -> None:
    return None
