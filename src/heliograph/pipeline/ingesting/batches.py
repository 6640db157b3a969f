"""Take a batch of segments into the table of events, uncommitted, and check it at the same time.

Most batches have no wrong or repeated events. If one has, what was taken is removed, and the clean
events and the quarantined ones are written instead.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, functions as f

from heliograph.pipeline.ingesting import copying
from heliograph.pipeline.jobs import ingest
from heliograph.pipeline.source import Segment
from heliograph.pipeline.spark.columns import EVENTS
from heliograph.pipeline.spark.failures import FAILURES, cause
from heliograph.pipeline.tables import store
from heliograph.pipeline.tables.store import Write, Written
from heliograph.pipeline.tables.tables import SAME_STORAGE, RowsMissing, Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SINGLE_TASK_BYTES = 4 << 20
"""Size up to which a batch is one task: more tasks would cost more than they save."""

Taken = tuple[ingest.Summary, Written]


def take(spark: "SparkSession", tables: Tables, segments: Sequence[Segment]) -> Taken:
    """Return what a batch contains, and the files to commit. Raises `RowsMissing`."""
    size = sum(item.size for item in segments)
    read = _read(spark, [item.url for item in segments], size)
    staging = tables.staging("events")
    copies = copying.copy(tables.storage, staging, segments)
    if copies is None:
        summary, added = _write(tables, read)
    else:
        summary, added = _check(tables, staging, copies, _read(spark, copies, size))
    if not summary.wrong and not summary.has_duplicates:
        return summary, added
    tables.discard("events", added["events"])
    clean = ingest.clean(read, summary)
    writes = [_by_day(clean, lambda: summary.new)] if summary.new else []
    if summary.wrong:
        wrong = ingest.quarantined(ingest.checked(read))
        writes.append(Write("quarantine", wrong, rows=lambda: summary.wrong))
    return summary, store.write(tables, writes)


def _check(tables: Tables, staging: str, copies: Sequence[str], read: DataFrame) -> Taken:
    """Check the copies, not the segments: what is committed is what was checked."""
    try:
        rows = ingest.runs(ingest.checked(read)).collect()
    except FAILURES as exc:
        copying.remove(tables.storage, staging)
        if "FileNotFound" in cause(exc) or "does not exist" in cause(exc):
            raise RowsMissing(f"{copies[0]} cannot be read: {SAME_STORAGE}") from exc
        raise
    files = tables.written(staging, sum(row["rows"] for row in rows))
    return ingest.summarize(rows, tables.snapshot.offsets.seen), {"events": files}


def _write(tables: Tables, read: DataFrame) -> Taken:
    """Write a batch while checking it."""
    with ThreadPoolExecutor(1) as pool:
        checking = pool.submit(lambda: ingest.runs(ingest.checked(read)).collect())
        whole = _by_day(read, lambda: sum(row["rows"] for row in checking.result()))
        added = store.write(tables, [whole])
        return ingest.summarize(checking.result(), tables.snapshot.offsets.seen), added


def _read(spark: "SparkSession", urls: Sequence[str], size: int) -> DataFrame:
    frame = spark.read.schema(EVENTS).parquet(*urls)
    return frame.coalesce(1) if size < SINGLE_TASK_BYTES else frame


def _by_day(events: DataFrame, rows: Callable[[], int]) -> Write:
    return Write("events", events.withColumn("day", f.to_date("at")), True, rows)
