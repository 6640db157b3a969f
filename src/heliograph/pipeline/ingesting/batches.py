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
from heliograph.pipeline.spark.files import read_parquet
from heliograph.pipeline.spark.partitions import SINGLE_TASK_BYTES
from heliograph.pipeline.tables import store
from heliograph.pipeline.tables.snapshot import DataFile
from heliograph.pipeline.tables.store import Write, Written
from heliograph.pipeline.tables.tables import SAME_STORAGE, RowsMissing, Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Taken = tuple[ingest.Summary, Written]


def take(spark: "SparkSession", tables: Tables, segments: Sequence[Segment]) -> Taken:
    """Return what a batch contains, and the files to commit. Raises `RowsMissing`."""
    staging = tables.staging("events")
    copies: list[str] = []
    try:
        copies, rest = copying.copy(tables.storage, staging, segments)
        is_small = sum(item.size for item in segments) < SINGLE_TASK_BYTES
        read = read_parquet(spark, EVENTS, [*copies, *(item.url for item in rest)])
        read = read.coalesce(1) if is_small else read
        summary, files = _check(tables, staging, read, _read(spark, rest) if rest else None)
    except Exception as exc:
        copying.remove(tables.storage, staging)  # at once: the disk may be full
        if not isinstance(exc, FAILURES):
            raise
        if copies and ("FileNotFound" in cause(exc) or "does not exist" in cause(exc)):
            raise RowsMissing(f"{copies[0]} cannot be read: {SAME_STORAGE}") from exc
        raise
    if not summary.wrong and not summary.has_duplicates:
        return summary, {"events": files}
    tables.discard("events", files)
    read = _read(spark, segments)
    clean = ingest.clean(read, summary)
    writes = [_by_day(clean, lambda: summary.new)] if summary.new else []
    if summary.wrong:
        wrong = ingest.quarantined(ingest.checked(read))
        writes.append(Write("quarantine", wrong, rows=lambda: summary.wrong))
    return summary, store.write(tables, writes)


def _check(
    tables: Tables, staging: str, read: DataFrame, rest: DataFrame | None
) -> tuple[ingest.Summary, tuple[DataFile, ...]]:
    """Check copies and the rest, while the rest is written: copies are committed as they are."""
    with ThreadPoolExecutor(1) as pool:
        checking = pool.submit(lambda: ingest.runs(ingest.checked(read)).collect())
        written: tuple[DataFile, ...] = ()
        if rest is not None:
            written = store.write(tables, [Write("events", _with_day(rest), True)])["events"]
        rows = checking.result()
    left = sum(row["rows"] for row in rows) - sum(file.rows for file in written)
    files = (*tables.written(staging, left), *written)
    return ingest.summarize(rows, tables.snapshot.offsets.seen), files


def _read(spark: "SparkSession", segments: Sequence[Segment]) -> DataFrame:
    frame = read_parquet(spark, EVENTS, (item.url for item in segments))
    size = sum(item.size for item in segments)
    return frame.coalesce(1) if size < SINGLE_TASK_BYTES else frame


def _with_day(events: DataFrame) -> DataFrame:
    return events.withColumn("day", f.to_date("at"))


def _by_day(events: DataFrame, rows: Callable[[], int]) -> Write:
    return Write("events", _with_day(events), True, rows)
