"""Run the jobs over the tables: a batch of segments at a time, each with one commit.

The same code streams and runs once: a stream is batches until it is stopped.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

from heliograph.pipeline import source
from heliograph.pipeline.account import Account, Hour, count_outcomes, hours_of
from heliograph.pipeline.ingesting import batches, reading
from heliograph.pipeline.ingesting.batches import SINGLE_TASK_BYTES
from heliograph.pipeline.ingesting.fairness import interleave
from heliograph.pipeline.jobs import closing, coverage, ingest, ledger, outcomes, stats
from heliograph.pipeline.jobs.outcomes import OutcomeSettings
from heliograph.pipeline.jobs.routers import router_facts, with_summary
from heliograph.pipeline.jobs.windows import Gap
from heliograph.pipeline.source import Segment
from heliograph.pipeline.spark.columns import QUARANTINE
from heliograph.pipeline.spark.failures import FAILURES, cause
from heliograph.pipeline.spark.local import local
from heliograph.pipeline.sums import closed_hours
from heliograph.pipeline.tables import store
from heliograph.pipeline.tables.offsets import Offsets
from heliograph.pipeline.tables.store import Write, Written
from heliograph.pipeline.tables.tables import DataFile, Snapshot, Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

READ_ATTEMPTS = 3
PER_PARTITION = 8 << 20
BROADCAST = 64 << 20


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Settings of a run. `journals` are directories, or URLs that Spark can read."""

    journals: tuple[str, ...] = ()
    batch_bytes: int = 256 << 20
    batch_files: int = 2000
    read_retry_time: float = 5.0
    """Seconds to retry an unreadable segment before it is quarantined."""
    outcomes: OutcomeSettings = field(default_factory=OutcomeSettings)


@dataclass(frozen=True, slots=True)
class BatchResult:
    """Counts and duration of one batch."""

    segments: int
    events: int
    duplicates: int
    quarantined: int
    seconds: float


class Pipeline:
    """All jobs, over tables that only this process writes: one method for each."""

    def __init__(self, spark: "SparkSession", tables: Tables, settings: RunSettings) -> None:
        self.spark = spark
        self.tables = tables
        self.settings = settings
        self._finders = [source.SegmentFinder(place, spark) for place in settings.journals]
        self._failures: dict[str, tuple[float, int]] = {}
        self.known_hours: dict[str, list[Hour]] = {}
        """Sums of closed notifications, by file."""

    @property
    def is_retrying(self) -> bool:
        """True if segments that could not be read will be retried."""
        return bool(self._failures)

    @property
    def snapshot(self) -> Snapshot:
        return self.tables.snapshot

    @property
    def offsets(self) -> Offsets:
        return self.tables.snapshot.offsets

    def pinned(self) -> "Pipeline":
        """Return a reader of the current snapshot, unaffected by later commits."""
        return self._with(self.tables.pinned())

    def beside(self) -> "Pipeline":
        """Return a pipeline over the same tables, for another thread."""
        return self._with(self.tables)

    def _with(self, tables: Tables) -> "Pipeline":
        made = Pipeline(self.spark.newSession(), tables, self.settings)
        made.known_hours = self.known_hours
        return made

    # Ingest.

    def waiting(self) -> list[Segment]:
        """Return the segments of all journals that were not ingested yet, in fair order."""
        return interleave(
            item
            for journal in self.settings.journals
            for item in source.list_segments(journal, self.spark)
            if not source.is_ingested(item, self.offsets)
        )

    def poll(self) -> list[Segment]:
        """Return the same as `waiting`, cheaper; a new run may be noticed some seconds later."""
        now = time.monotonic()
        return interleave(
            item for finder in self._finders for item in finder.new(self.offsets, now)
        )

    def still_waiting(self, waiting: Sequence[Segment]) -> list[Segment]:
        """Return the segments that were not ingested meanwhile."""
        return [item for item in waiting if not source.is_ingested(item, self.offsets)]

    def ingest_batch(self, waiting: Sequence[Segment] | None = None) -> BatchResult | None:
        """Read, check and commit one batch. Return None if no segment is waiting."""
        started = time.monotonic()
        batch = self._batch(self.waiting() if waiting is None else waiting)
        readable, failed = reading.sort_out(batch)
        broken = self._given_up(failed)
        if not readable and not broken:
            return None
        try:
            return self._commit_batch(readable, broken, started)
        except FAILURES as exc:
            # A page cannot be read, or a file was removed: ingest the others.
            damaged, absent = reading.find_damage(self.spark, readable)
            if not damaged and not absent:
                raise
            logger.warning("%d segments cannot be read: %s", len(damaged) + len(absent), cause(exc))
            bad = {*damaged, *absent}
            readable = [item for item in readable if item.name not in bad]
            broken |= self._given_up(damaged)
        return self._commit_batch(readable, broken, started) if readable or broken else None

    def _given_up(self, failed: Mapping[str, str]) -> dict[str, str]:
        """Return the segments whose retries are exhausted, with the reason."""
        now = time.monotonic()
        given_up = {}
        for name, reason in failed.items():
            since, count = self._failures.get(name, (now, 0))
            self._failures[name] = since, count + 1
            if count + 1 >= READ_ATTEMPTS and now - since >= self.settings.read_retry_time:
                logger.error("%s is quarantined: %s", name, reason)
                given_up[name] = reason
        return given_up

    def _batch(self, waiting: Sequence[Segment]) -> list[Segment]:
        chosen: list[Segment] = []
        size = 0
        for item in waiting[: self.settings.batch_files]:
            if chosen and size + item.size > self.settings.batch_bytes:
                break
            chosen.append(item)
            size += item.size
        return chosen

    def _commit_batch(
        self, readable: Sequence[Segment], broken: dict[str, str], started: float
    ) -> BatchResult:
        summary, added = ingest.Summary(0, 0, {}, {}, {}, {}, {}), Written()
        if readable:
            self.partition(sum(item.size for item in readable))
            summary, added = batches.take(self.spark, self.tables, readable)
        if broken:
            rows = [(name, reason, None) for name, reason in sorted(broken.items())]
            frame = local(self.spark, rows, QUARANTINE).coalesce(1)
            files = store.write(self.tables, [Write("quarantine", frame)])["quarantine"]
            added["quarantine"] = (*added.get("quarantine", ()), *files)
        result = BatchResult(
            len(readable) + len(broken),
            summary.new,
            summary.rows - summary.wrong - summary.new,
            summary.wrong + len(broken),
            time.monotonic() - started,
        )
        names = {item.name for item in readable} | set(broken)
        regular = [source.segment(name, "", 0, 0.0) for name in sorted(names)]
        if added.get("quarantine"):
            # First: if the next commit fails, the rows are written again, but count once.
            self.tables.commit("quarantine", added["quarantine"])

        def changed(offsets: Offsets) -> Offsets:
            seen = source.merged(offsets.seen, summary.numbers)
            return replace(
                offsets,
                seen=seen,
                edges=coverage.with_times(offsets.edges, seen, summary.times),
                counts=_counted(offsets.counts, result),
                routers=with_summary(offsets.routers, summary),
                **source.with_ingested(offsets, regular),
            )

        self.tables.commit("events", added.get("events", ()), offsets=changed)
        for name in names:
            self._failures.pop(name, None)
        return result

    def partition(self, size: int) -> None:
        """Set the number of partitions so that each fits into memory."""
        number = 1 if size < SINGLE_TASK_BYTES else max(2, min(size // PER_PARTITION, 2000))
        self.spark.conf.set("spark.sql.shuffle.partitions", str(number))

    # The ledger.

    @property
    def closed_until(self) -> int:
        """Return the end of the last day that has closed notifications, in microseconds."""
        return max(
            (closing.end_of(file.day or "") for file in self.snapshot.closed_marks), default=0
        )

    def reopened(self) -> DataFrame | None:
        """Return the closed marks that later events belong to; None if there are none."""
        if not self.snapshot.closed_marks:
            return None
        late = closing.late(self._open_parts(), self.closed_until).collect()
        if not late:
            return None
        closed = self.read("marks", self.snapshot.closed_marks)
        found = closing.with_ids(closed, [row["notification"] for row in late])
        ids = [row["notification"] for row in found.select("notification").collect()]
        return closing.with_ids(closed, ids) if ids else None

    def marks(self, reopened: DataFrame | None = None) -> DataFrame:
        """Return one row per open or reopened notification, also from events not folded yet."""
        parts = self._open_parts()
        if reopened is None:
            return ledger.merge_marks(parts)
        return ledger.merge_stored(parts.unionByName(reopened))

    def _open_parts(self) -> DataFrame:
        folded, tail = self.read("marks", self.snapshot.open_marks), self._since("marks")
        if not tail:
            return folded
        new = ledger.slim(self._events(tail))
        return folded.unionByName(new, allowMissingColumns=True)

    def settlements(self) -> DataFrame:
        folded, tail = self.read("settlements"), self._since("settlements")
        if not tail:
            return ledger.merge_settlements(folded)
        return ledger.merge_settlements(folded.unionByName(ledger.settling(self._events(tail))))

    def update_ledger(self) -> int:
        """Merge new events into the ledger's tables; return the number of files.

        The ledger has the same content before and after, but is cheaper to read.
        """
        return self._update({"marks": ledger.marks, "settlements": ledger.settlements})

    def ledger(self) -> DataFrame:
        """Return one row per notification, open or closed, as of the last commit."""
        closed = (
            self.read("marks", self.snapshot.closed_marks) if self.snapshot.closed_marks else None
        )
        return self.decided(self.marks(closed))

    def open_ledger(self) -> DataFrame:
        """Return the rows of open and reopened notifications."""
        return self.decided(self.marks(self.reopened()))

    def decided(
        self, marks: DataFrame, decide: Callable[..., DataFrame] = outcomes.decide
    ) -> DataFrame:
        """Return the ledger's rows for some of the marks."""
        files = (*self.snapshot.of("marks"), *self._since("marks"))
        self.partition(sum(file.size for file in files))
        tokens = sum(file.size for file in self.snapshot.of("settlements"))
        settings = self.settings.outcomes
        routers = router_facts(self.offsets.routers, settings.retire_after)
        return decide(marks, self.settlements(), routers, settings, tokens < BROADCAST, self.gaps())

    def gaps(self) -> list[Gap]:
        """Return the sequence numbers known to be missing."""
        return coverage.gaps(self.offsets.seen, self.offsets.edges, self.offsets.routers)

    def account(self) -> Account:
        """Count outcomes. Log the first unaccounted rows as errors.

        Reads what is open and what is new; of closed notifications there are sums.
        """
        reopened = self.reopened()
        changed = () if reopened is None else hours_of(outcomes.closed_rows(reopened))
        rows = self.decided(self.marks(reopened))
        closed = closed_hours(self.snapshot, self.read, self.known_hours)
        account = count_outcomes(rows, self.gaps(), closed, changed)
        return replace(account, quarantined=self.offsets.counts.get("quarantined", 0))

    # Statistics.

    def update_stats(self) -> int:
        """Count the events added since the last time; return the number of files."""
        return self._update(
            {
                "counts": lambda events: stats.counts(events).coalesce(1),
                "actives": lambda events: stats.actives(events).coalesce(1),
            }
        )

    def _update(self, jobs: Mapping[str, Callable[[DataFrame], DataFrame]]) -> int:
        """Run jobs over new events; commit each result with the last batch that it covers."""
        new = {table: files for table in jobs if (files := self._since(table))}
        if not new:
            return 0
        self.partition(max(sum(file.size for file in files) for files in new.values()))
        added = store.write(
            self.tables,
            [Write(table, jobs[table](self._events(files))) for table, files in new.items()],
        )
        for table, files in new.items():
            newest = max(file.batch for file in files)
            self.tables.commit(table, added[table], progress=newest)
        return max(map(len, new.values()))

    def _since(self, table: str) -> list[DataFile]:
        """Return the files of events that a derived table does not have yet."""
        upto = self.snapshot.progress.get(table, 0)
        return [file for file in self.snapshot.of("events") if file.batch > upto]

    def _events(self, files: Sequence[DataFile]) -> DataFrame:
        events = self.read("events", files)
        small = sum(file.size for file in files) < SINGLE_TASK_BYTES
        return events.coalesce(1) if small else events

    def read(self, table: str, files: Iterable[DataFile] | None = None) -> DataFrame:
        return store.read(self.spark, self.tables, table, files)


def _counted(known: Mapping[str, int], result: BatchResult) -> dict[str, int]:
    new = {
        "batches": 1,
        "segments": result.segments,
        "events": result.events,
        "duplicates": result.duplicates,
        "quarantined": result.quarantined,
    }
    return {name: known.get(name, 0) + value for name, value in new.items()}
