"""Read and write the tables with Spark: the files that a snapshot lists, and no others."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from pyspark.sql import DataFrame, Observation, functions as f

from heliograph.pipeline.spark.files import read_parquet
from heliograph.pipeline.spark.local import local
from heliograph.pipeline.tables.schemas import SCHEMAS
from heliograph.pipeline.tables.snapshot import DataFile
from heliograph.pipeline.tables.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def read(
    spark: "SparkSession", tables: Tables, table: str, files: Iterable[DataFile] | None = None
) -> DataFrame:
    """Return all of a table, or some of its files."""
    chosen = tables.snapshot.of(table) if files is None else tuple(files)
    schema = SCHEMAS[table]
    if not chosen:
        return local(spark, (), schema)
    urls = (tables.storage.below(table, file.path) for file in chosen)
    return read_parquet(spark, schema, urls)


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Write:
    """Rows to add to a table. `by_day` partitions them by their column `day`.

    `rows` is how many there must be; without it they are counted as they are written. `batch` is
    that of merged files, by default the next.
    """

    table: str
    frame: DataFrame
    by_day: bool = False
    rows: Callable[[], int] | None = None
    batch: int | None = None


Written = dict[str, tuple[DataFile, ...]]
"""Uncommitted files, by table."""


def write(tables: Tables, writes: Iterable[Write]) -> Written:
    """Write uncommitted files, all tables concurrently. Raises `RowsMissing`."""

    def one(item: Write) -> tuple[str, tuple[DataFile, ...]]:
        staging = tables.staging(item.table, item.batch)
        frame, expected = item.frame, item.rows
        if expected is None:
            counted = Observation()
            frame = frame.observe(counted, f.count(f.lit(1)).alias("rows"))
            expected = lambda: int(counted.get["rows"])  # noqa: E731
        writer = frame.write.partitionBy("day") if item.by_day else frame.write
        writer.parquet(tables.storage.below(staging))
        return item.table, tables.written(staging, expected())

    written: Written = {}
    for table, files in run_concurrently([partial(one, item) for item in writes]):
        written[table] = (*written.get(table, ()), *files)
    return written


def run_concurrently(work: Sequence[Callable[[], T]]) -> list[T]:
    """Run functions concurrently: Spark's jobs wait for cores, not for each other."""
    if len(work) < 2:
        return [item() for item in work]
    with ThreadPoolExecutor(len(work)) as pool:
        return [future.result() for future in [pool.submit(item) for item in work]]
