"""Runs the jobs over the tables: a batch of segments at a time, each with one commit.

The same code streams and runs once: a stream is batches for as long as nobody stops it.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as f

from heliograph.journal.arrow import SCHEMA
from heliograph.pipeline import ingest, ledger, source, stats, store
from heliograph.pipeline.columns import EVENTS, QUARANTINE
from heliograph.pipeline.fates import FateSettings, decide
from heliograph.pipeline.local import local
from heliograph.pipeline.routers import router_facts, with_summary
from heliograph.pipeline.source import Segment
from heliograph.pipeline.tables import DataFile, Manifest, Tables
from heliograph.pipeline.vocabulary import FATES, UNACCOUNTED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

FAILURES = (PySparkException, Py4JJavaError)
"""What a job raises; some of it is not translated."""
SMALL = 4 << 20
"""Bytes up to which a batch is one task: more would wait for each other longer than they work."""
PER_PARTITION = 8 << 20
BROADCAST = 64 << 20
SHOWN_ROWS = 20


@dataclass(frozen=True, slots=True)
class RunSettings:
    """`journals` are directories, or URLs that Spark can read."""

    journals: tuple[str, ...] = ()
    batch_bytes: int = 256 << 20
    batch_files: int = 2000
    fates: FateSettings = field(default_factory=FateSettings)


@dataclass(frozen=True, slots=True)
class Taken:
    """What a batch was."""

    segments: int
    events: int
    duplicates: int
    quarantined: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Hour:
    """Notifications that began in an hour; microseconds until their pushes were accepted."""

    at: int
    fates: dict[str, int]
    p50_us: int | None
    p99_us: int | None


@dataclass(frozen=True, slots=True)
class Account:
    """How many notifications had which fate; the first rows of those that nothing accounts for."""

    fates: dict[str, int]
    unaccounted: tuple[dict[str, Any], ...]
    hours: tuple[Hour, ...] = ()

    @property
    def is_complete(self) -> bool:
        return not self.fates.get(UNACCOUNTED)


class Pipeline:
    """All jobs, over tables that this process alone writes."""

    def __init__(self, spark: "SparkSession", tables: Tables, settings: RunSettings) -> None:
        self.spark = spark
        self.tables = tables
        self.settings = settings

    @property
    def manifest(self) -> Manifest:
        return self.tables.manifest

    def frozen(self) -> "Pipeline":
        """To read what is committed now, whatever is committed meanwhile."""
        tables = Tables(self.tables.directory, self.manifest)
        return Pipeline(self.spark.newSession(), tables, self.settings)

    # Ingest.

    def waiting(self) -> list[Segment]:
        """Segments that were not taken yet, oldest first."""
        return [
            item
            for journal in self.settings.journals
            for item in source.list_segments(journal, self.spark)
            if not source.is_taken(item, self.manifest)
        ]

    def still_waiting(self, waiting: Sequence[Segment]) -> list[Segment]:
        """Without those that were taken since."""
        return [item for item in waiting if not source.is_taken(item, self.manifest)]

    def take(self, waiting: Sequence[Segment] | None = None) -> Taken | None:
        """One batch, from reading to commit. None if nothing waits."""
        started = time.monotonic()
        batch = self._batch(self.waiting() if waiting is None else waiting)
        readable, broken = _sorted_out(batch)
        if not readable and not broken:
            return None
        try:
            taken = self._take(readable, broken, started)
        except FAILURES as exc:
            # A page somewhere cannot be read: find the segment, and take the others.
            damaged = {item.name: reason for item in readable if (reason := self._try(item))}
            if not damaged:
                raise
            logger.error("%d segments cannot be read and are quarantined: %s", len(damaged), exc)
            broken = {**broken, **damaged}
            readable = [item for item in readable if item.name not in damaged]
            taken = self._take(readable, broken, started)
        return taken

    def _batch(self, waiting: Sequence[Segment]) -> list[Segment]:
        chosen: list[Segment] = []
        size = 0
        for item in waiting[: self.settings.batch_files]:
            if chosen and size + item.size > self.settings.batch_bytes:
                break
            chosen.append(item)
            size += item.size
        return chosen

    def _take(self, readable: Sequence[Segment], broken: dict[str, str], started: float) -> Taken:
        manifest = self.manifest
        summary, added = ingest.Summary(0, 0, {}, {}, {}, {}), store.Written()
        if readable:
            summary, added = self._ingest(self._read(readable))
        if broken:
            rows = [(name, reason, None) for name, reason in sorted(broken.items())]
            frame = local(self.spark, rows, QUARANTINE).coalesce(1)
            files = store.write(self.tables, [("quarantine", frame, False)])["quarantine"]
            added["quarantine"] = (*added.get("quarantine", ()), *files)
        taken = Taken(
            len(readable) + len(broken),
            summary.new,
            summary.rows - summary.wrong - summary.new,
            summary.wrong + len(broken),
            time.monotonic() - started,
        )
        names = {item.name for item in readable} | set(broken)
        regular = [source.segment(name, "", 0, 0.0) for name in sorted(names)]
        self.tables.commit(
            added,
            seen=source.merged(manifest.seen, summary.numbers),
            counts=_counted(manifest.counts, taken),
            notes={
                **manifest.notes,
                "routers": with_summary(manifest.notes.get("routers", {}), summary),
            },
            **source.with_taken(manifest, regular),
        )
        return taken

    def _ingest(self, read: DataFrame) -> tuple[ingest.Summary, store.Written]:
        """A batch is written as it is while it is looked at: most have nothing wrong or twice."""

        def write(*writes: store.Write) -> store.Written:
            return store.write(self.tables, writes)

        def by_day(events: DataFrame) -> store.Write:
            return "events", events.withColumn("day", f.to_date("at")), True

        rows, added = store.both(
            lambda: ingest.runs(ingest.checked(read)).collect(), lambda: write(by_day(read))
        )
        summary = ingest.summarize(rows, self.manifest.seen)
        if not summary.wrong and not summary.has_duplicates:
            return summary, added
        self.tables.discard(added["events"])
        writes = [by_day(ingest.clean(read, summary))] if summary.new else []
        if summary.wrong:
            writes.append(("quarantine", ingest.quarantined(ingest.checked(read)), False))
        return summary, write(*writes)

    def _read(self, segments: Sequence[Segment]) -> DataFrame:
        size = sum(item.size for item in segments)
        self.partition(size)
        frame = self.spark.read.schema(EVENTS).parquet(*(item.url for item in segments))
        return frame.coalesce(1) if size < SMALL else frame

    def partition(self, size: int) -> None:
        """So many parts that one fits into memory."""
        cores = self.spark.sparkContext.defaultParallelism
        number = 1 if size < SMALL else max(cores, min(size // PER_PARTITION, 2000))
        self.spark.conf.set("spark.sql.shuffle.partitions", str(number))

    def _try(self, item: Segment) -> str | None:
        """Why a segment cannot be read; None if it can."""
        frame = self.spark.read.schema(EVENTS).parquet(item.url)
        try:
            frame.write.format("noop").mode("overwrite").save()
        except FAILURES as exc:
            return f"the segment cannot be read: {type(exc).__name__}"
        return None

    # The ledger.

    def marks(self) -> DataFrame:
        """One row per notification: what was folded, and what came since."""
        folded, tail = self.read("marks"), self._since("ledger")
        if not tail:
            return ledger.merge_marks(folded)
        return ledger.merge_marks(folded.unionByName(ledger.slim(self._events(tail))))

    def settlements(self) -> DataFrame:
        folded, tail = self.read("settlements"), self._since("ledger")
        if not tail:
            return ledger.merge_settlements(folded)
        return ledger.merge_settlements(folded.unionByName(ledger.settling(self._events(tail))))

    def update_ledger(self) -> int:
        """Fold what was added since the last time; how many files that were.

        The ledger says the same before and after: only then it takes less to read.
        """

        def writes(events: DataFrame) -> list[store.Write]:
            return [
                ("marks", ledger.marks(events), False),
                ("settlements", ledger.settlements(events), False),
            ]

        return self._update("ledger", writes)

    def ledger(self) -> DataFrame:
        """One row per notification, as of the last commit."""
        return self.decided(self.marks())

    def decided(self, marks: DataFrame) -> DataFrame:
        """Rows for some of the marks."""
        files = (*self.manifest.of("marks"), *self._since("ledger"))
        self.partition(sum(file.size for file in files))
        tokens = sum(file.size for file in self.manifest.of("settlements"))
        routers = router_facts(self.manifest.notes.get("routers", {}))
        return decide(marks, self.settlements(), routers, self.settings.fates, tokens < BROADCAST)

    def account(self) -> Account:
        """Count fates. What nothing accounts for is said loudly, row by row."""
        rows = self.ledger()
        hours = [_hour(row) for row in _by_hour(rows).collect()]
        found = {fate: sum(item.fates.get(fate, 0) for item in hours) for fate in FATES}
        fates = {fate: count for fate, count in found.items() if count}
        missing: tuple[dict[str, Any], ...] = ()
        if UNACCOUNTED in fates:
            chosen = rows.where(f.col("fate") == UNACCOUNTED).orderBy("first_at", "notification")
            missing = tuple(row.asDict() for row in chosen.limit(SHOWN_ROWS).collect())
            logger.error("%d notifications are unaccounted for", fates[UNACCOUNTED])
            for row in missing:
                logger.error("unaccounted: %s", _described(row))
        return Account(fates, missing, tuple(hours))

    # Statistics.

    def update_stats(self) -> int:
        """Count what was added since the last time; how many files that were."""

        def writes(events: DataFrame) -> list[store.Write]:
            return [
                ("counts", stats.counts(events).coalesce(1), False),
                ("actives", stats.actives(events).coalesce(1), False),
            ]

        return self._update("stats", writes)

    def _update(self, job: str, writes: Callable[[DataFrame], list[store.Write]]) -> int:
        """What a job makes of new events is committed with how far it is."""
        new = self._since(job)
        if not new:
            return 0
        self.partition(sum(file.size for file in new))
        added = store.write(self.tables, writes(self._events(new)))
        newest = max(file.batch for file in new)
        self.tables.commit(added, notes={**self.manifest.notes, job: newest})
        return len(new)

    def _since(self, job: str) -> list[DataFile]:
        """Files of events that a job has not seen."""
        upto = self.manifest.notes.get(job, 0)
        return [file for file in self.manifest.of("events") if file.batch > upto]

    def _events(self, files: Sequence[DataFile]) -> DataFrame:
        events = self.read("events", files)
        small = sum(file.size for file in files) < SMALL
        return events.coalesce(1) if small else events

    def read(self, table: str, files: Iterable[Any] | None = None) -> DataFrame:
        return store.read(self.spark, self.tables.directory, self.manifest, table, files)


def _by_hour(rows: DataFrame) -> DataFrame:
    hour = f.floor(f.col("first_at") / 3_600_000_000) * 3600
    return (
        rows.groupBy(hour.alias("hour"))
        .agg(
            *(f.count_if(f.col("fate") == fate).alias(fate) for fate in FATES),
            f.percentile_approx("total_us", [0.5, 0.99], 1000).alias("quantiles"),
        )
        .orderBy("hour")
    )


def _hour(row: Row) -> Hour:
    fates = {fate: row[fate] for fate in FATES if row[fate]}
    p50, p99 = row["quantiles"] or (None, None)
    return Hour(row["hour"], fates, p50, p99)


def _sorted_out(batch: Sequence[Segment]) -> tuple[list[Segment], dict[str, str]]:
    """Segments to read, and those whose schema is not ours with the reason."""
    readable, broken = [], {}
    for item in batch:
        if "://" in item.url:
            readable.append(item)  # Spark will tell
            continue
        try:
            found = pq.read_schema(item.url)
        except FileNotFoundError:
            continue  # its router has removed it
        except (OSError, pa.ArrowException) as exc:
            broken[item.name] = f"the segment is not Parquet: {type(exc).__name__}"
            continue
        wrong = [
            f"{name}: {found.field(name).type} instead of {SCHEMA.field(name).type}"
            for name in SCHEMA.names
            if name in found.names and not _alike(found.field(name).type, SCHEMA.field(name).type)
        ]
        if wrong:
            broken[item.name] = "the segment has another schema: " + "; ".join(wrong)
        else:
            readable.append(item)
    return readable, broken


def _alike(found: pa.DataType, expected: pa.DataType) -> bool:
    """As Spark sees it: a dictionary is its values, the name of a list's item says nothing."""
    if pa.types.is_dictionary(found):
        found = found.value_type
    if pa.types.is_list(expected):
        return bool(pa.types.is_list(found)) and _alike(found.value_type, expected.value_type)
    if pa.types.is_string(expected):
        return bool(pa.types.is_string(found) or pa.types.is_large_string(found))
    return bool(found == expected)


def _counted(known: Any, taken: Taken) -> dict[str, int]:
    new = {
        "batches": 1,
        "segments": taken.segments,
        "events": taken.events,
        "duplicates": taken.duplicates,
        "quarantined": taken.quarantined,
    }
    return {name: known.get(name, 0) + value for name, value in new.items()}


def _described(row: dict[str, Any]) -> str:
    times = ((name, value) for name, value in row.items() if name.endswith("_at") and value)
    told = ", ".join(f"{name} {_utc(value)}" for name, value in times if name != "first_at")
    return f"{row['notification']}: {told}"


def _utc(microseconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(microseconds / 1e6)) + " UTC"


Progress = Callable[[str, int, int], None]
"""Of what, how much is done, of how much."""

__all__ = ["Account", "Pipeline", "Progress", "RunSettings", "Taken"]
