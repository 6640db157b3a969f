"""Ingest the journals into the tables: a batch of segments at a time, each with one commit.

The same code streams and runs once: a stream is batches until it is stopped.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from heliograph.pipeline import source
from heliograph.pipeline.ingesting import batches, reading
from heliograph.pipeline.ingesting.fairness import interleave
from heliograph.pipeline.jobs import coverage, ingest
from heliograph.pipeline.jobs.routers import with_summary
from heliograph.pipeline.source import Segment
from heliograph.pipeline.spark import partitions
from heliograph.pipeline.spark.columns import QUARANTINE
from heliograph.pipeline.spark.failures import FAILURES, cause
from heliograph.pipeline.spark.local import local
from heliograph.pipeline.tables import store
from heliograph.pipeline.tables.offsets import Offsets
from heliograph.pipeline.tables.store import Write, Written
from heliograph.pipeline.tables.tables import Tables
from heliograph.runtime.errors import StartError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

READ_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class IngestSettings:
    """Settings of ingesting. `journals` are directories, or URLs that Spark can read."""

    journals: tuple[str, ...] = ()
    batch_bytes: int = 256 << 20
    batch_files: int = 2000
    read_retry_time: float = 5.0
    """Seconds to retry an unreadable segment before it is quarantined."""


@dataclass(frozen=True, slots=True)
class BatchResult:
    """Counts and duration of one batch."""

    segments: int
    events: int
    duplicates: int
    quarantined: int
    seconds: float


class Ingester:
    """Journals that are read into the table of events."""

    def __init__(self, spark: "SparkSession", tables: Tables, settings: IngestSettings) -> None:
        self._spark = spark
        self._tables = tables
        self._settings = settings
        self._finders = [source.SegmentFinder(place, spark) for place in settings.journals]
        self._failures: dict[str, tuple[float, int]] = {}
        self._denied: set[str] = set()
        self._unreadable: set[str] = set()
        """Journals that could not be polled the last time."""

    @property
    def is_retrying(self) -> bool:
        """True if segments that could not be read will be retried."""
        return bool(self._failures)

    @property
    def _offsets(self) -> Offsets:
        return self._tables.snapshot.offsets

    def waiting(self) -> list[Segment]:
        """Return the segments of all journals that were not ingested yet, in fair order."""
        found = interleave(
            item
            for journal in self._settings.journals
            for item in source.list_segments(journal, self._spark)
            if not source.is_ingested(item, self._offsets)
        )
        there = {item.name for item in found}
        self._failures = {name: known for name, known in self._failures.items() if name in there}
        return found

    def poll(self) -> list[Segment]:
        """Return the same as `waiting`, cheaper; a new run may be noticed some seconds later.

        A journal that cannot be read delays no other. Raises an error if none can be read.
        """
        now = time.monotonic()
        found: list[Segment] = []
        problems: dict[str, Exception] = {}
        for journal, finder in zip(self._settings.journals, self._finders, strict=True):
            try:
                found += finder.new(self._offsets, now)
            except (StartError, OSError, pa.ArrowException) as exc:
                problems[journal] = exc
        if problems and len(problems) == len(self._finders):
            raise next(iter(problems.values()))
        for journal in problems.keys() - self._unreadable:
            logger.error("only the other journals are read: %s", problems[journal])
        self._unreadable = {*problems}
        return interleave(found)

    def still_waiting(self, waiting: Sequence[Segment]) -> list[Segment]:
        """Return the segments that were not ingested meanwhile."""
        return [item for item in waiting if not source.is_ingested(item, self._offsets)]

    def ingest_batch(self, waiting: Sequence[Segment] | None = None) -> BatchResult | None:
        """Read, check and commit one batch. Return None if no segment is waiting."""
        started = time.monotonic()
        batch = self._batch(self.waiting() if waiting is None else waiting)
        readable, failed, denied = reading.sort_out(batch)
        self._report_denied(denied)
        broken = self._given_up(failed)
        if not readable and not broken:
            return None
        try:
            return self._commit_batch(readable, broken, started)
        except FAILURES as exc:
            # A page cannot be read, or a file was removed: ingest the others.
            damaged, absent = reading.find_damage(self._spark, readable)
            if not damaged and not absent:
                raise
            logger.warning("%d segments cannot be read: %s", len(damaged) + len(absent), cause(exc))
            bad = {*damaged, *absent}
            readable = [item for item in readable if item.name not in bad]
            broken |= self._given_up(damaged)
        return self._commit_batch(readable, broken, started) if readable or broken else None

    def _report_denied(self, denied: Sequence[Segment]) -> None:
        """Log segments that this user may not read, each once: they are not damaged, and wait."""
        for item in denied:
            if item.name not in self._denied:
                self._denied.add(item.name)
                logger.error("%s cannot be read: let this user read it", item.url)

    def _given_up(self, failed: Mapping[str, str]) -> dict[str, str]:
        """Return the segments whose retries are exhausted, with the reason."""
        now = time.monotonic()
        given_up = {}
        for name, reason in failed.items():
            since, count = self._failures.get(name, (now, 0))
            self._failures[name] = since, count + 1
            if count + 1 >= READ_ATTEMPTS and now - since >= self._settings.read_retry_time:
                logger.error("%s is quarantined: %s", name, reason)
                given_up[name] = reason
        return given_up

    def _batch(self, waiting: Sequence[Segment]) -> list[Segment]:
        chosen: list[Segment] = []
        size = 0
        for item in waiting[: self._settings.batch_files]:
            if chosen and size + item.size > self._settings.batch_bytes:
                break
            chosen.append(item)
            size += item.size
        return chosen

    def _commit_batch(
        self, readable: Sequence[Segment], broken: dict[str, str], started: float
    ) -> BatchResult:
        summary, added = ingest.Summary(0, 0, {}, {}, {}, {}, {}), Written()
        if readable:
            partitions.set_number(self._spark, sum(item.size for item in readable))
            summary, added = batches.take(self._spark, self._tables, readable)
        if broken:
            rows = [(name, reason, None, name) for name, reason in sorted(broken.items())]
            frame = local(self._spark, rows, QUARANTINE).coalesce(1)
            files = store.write(self._tables, [Write("quarantine", frame)])["quarantine"]
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
            self._tables.commit("quarantine", added["quarantine"])

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

        self._tables.commit("events", added.get("events", ()), offsets=changed)
        for name in names:
            self._failures.pop(name, None)
        return result


def _counted(known: Mapping[str, int], result: BatchResult) -> dict[str, int]:
    new = {
        "batches": 1,
        "segments": result.segments,
        "events": result.events,
        "duplicates": result.duplicates,
        "quarantined": result.quarantined,
    }
    return {name: known.get(name, 0) + value for name, value in new.items()}
