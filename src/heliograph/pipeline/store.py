"""Reads and writes the tables with Spark: the files that the manifest lists, and no others."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pyspark.sql import DataFrame
from pyspark.sql import types as t

from heliograph.pipeline.columns import EVENTS, QUARANTINE
from heliograph.pipeline.fates import LATENCIES
from heliograph.pipeline.ledger import MARKS, SETTLEMENTS
from heliograph.pipeline.local import local
from heliograph.pipeline.tables import DataFile, Manifest, Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COUNTED = ("part", "router", "kind", "mode", "provider", "smp_host", "status", "reason", "command")

SCHEMAS = {
    "events": EVENTS,
    "quarantine": QUARANTINE,
    "marks": t.StructType(
        [
            t.StructField(name, t.StringType() if name == "notification" else t.LongType())
            for name in MARKS
        ]
    ),
    "settlements": t.StructType([t.StructField(name, t.LongType()) for name in SETTLEMENTS]),
    "counts": t.StructType(
        [
            t.StructField("hour", t.TimestampType()),
            *(t.StructField(name, t.StringType()) for name in _COUNTED),
            t.StructField("code", t.IntegerType()),
            t.StructField("own_server", t.BooleanType()),
            t.StructField("events", t.LongType()),
            t.StructField("total", t.LongType()),
        ]
    ),
    "actives": t.StructType(
        [
            t.StructField("day", t.DateType()),
            t.StructField("router", t.StringType()),
            t.StructField("smp_host", t.StringType()),
            t.StructField("what", t.StringType()),
            t.StructField("sketch", t.BinaryType()),
        ]
    ),
    "fates": t.StructType(
        [
            t.StructField("hour", t.TimestampType()),
            t.StructField("provider", t.StringType()),
            t.StructField("smp_host", t.StringType()),
            t.StructField("fate", t.StringType()),
            t.StructField("recovered", t.BooleanType()),
            t.StructField("notifications", t.LongType()),
            *(t.StructField(f"{name}_sketch", t.BinaryType()) for name in LATENCIES),
        ]
    ),
}


def read(
    spark: "SparkSession",
    directory: Path,
    manifest: Manifest,
    table: str,
    files: Iterable[DataFile] | None = None,
) -> DataFrame:
    """All of a table, or some of its files."""
    chosen = manifest.of(table) if files is None else tuple(files)
    schema = SCHEMAS[table]
    if not chosen:
        return local(spark, (), schema)
    return spark.read.schema(schema).parquet(*(str(directory / file.path) for file in chosen))


T = TypeVar("T")
U = TypeVar("U")

Write = tuple[str, DataFrame, bool]
"""A table, what to add to it, and whether its files are by day (of the column `day`)."""


Written = dict[str, tuple[DataFile, ...]]
"""Files that do not count yet, by table."""


def write(tables: Tables, writes: Iterable[Write]) -> Written:
    """Write files that do not count yet, all tables at the same time."""

    def one(item: Write) -> tuple[str, tuple[DataFile, ...]]:
        table, frame, by_day = item
        staging = tables.staging(table)
        writer = frame.write
        (writer.partitionBy("day") if by_day else writer).parquet(str(staging))
        return table, tables.written(staging)

    return dict(at_once([lambda item=item: one(item) for item in writes]))  # type: ignore[misc]


def both(left: Callable[[], T], right: Callable[[], U]) -> tuple[T, U]:
    """At the same time."""
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(left)
        result = right()
        return beside.result(), result


def at_once(work: list[Callable[[], T]]) -> list[T]:
    """Spark's jobs wait for cores, not for each other."""
    if len(work) < 2:
        return [item() for item in work]
    with ThreadPoolExecutor(len(work)) as pool:
        return [future.result() for future in [pool.submit(item) for item in work]]
