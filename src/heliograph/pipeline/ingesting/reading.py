"""Find the readable segments of a batch; distinguish damage from absence and other failures."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from heliograph.journal.storage.arrow import SCHEMA
from heliograph.pipeline import source
from heliograph.pipeline.source import Segment
from heliograph.pipeline.spark.columns import EVENTS
from heliograph.pipeline.spark.failures import FAILURES, cause
from heliograph.pipeline.spark.files import read_parquet
from heliograph.pipeline.tables.tables import SAME_STORAGE, RowsMissing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def sort_out(
    batch: Sequence[Segment],
) -> tuple[list[Segment], dict[str, str], list[Segment]]:
    """Return the readable segments, the reason for each damaged one by name, and those that this
    user may not read. Removed ones are in none of these.
    """
    readable, broken, denied = [], {}, []
    for item in batch:
        if "://" in item.url:
            readable.append(item)  # Spark finds out
            continue
        try:
            found = pq.read_schema(item.url)
        except FileNotFoundError:
            continue  # its router has removed it
        except PermissionError:
            denied.append(item)
            continue
        except (OSError, pa.ArrowException) as exc:
            broken[item.name] = f"the segment is not Parquet: {type(exc).__name__}"
            continue
        wrong = [
            f"{name}: {found.field(name).type} instead of {SCHEMA.field(name).type}"
            for name in SCHEMA.names
            if name in found.names and not alike(found.field(name).type, SCHEMA.field(name).type)
        ]
        if wrong:
            broken[item.name] = "the segment has another schema: " + "; ".join(wrong)
        else:
            readable.append(item)
    return readable, broken, denied


def alike(found: pa.DataType, expected: pa.DataType) -> bool:
    """Compare types as Spark does: dictionaries by their values, lists by their items."""
    if pa.types.is_dictionary(found):
        found = found.value_type
    if pa.types.is_list(expected):
        return bool(pa.types.is_list(found)) and alike(found.value_type, expected.value_type)
    if pa.types.is_string(expected):
        return bool(pa.types.is_string(found) or pa.types.is_large_string(found))
    return bool(found == expected)


def find_damage(
    spark: "SparkSession", segments: Sequence[Segment]
) -> tuple[dict[str, str], set[str]]:
    """Return the reason for each unreadable segment by name, and the names of removed ones.

    Raises `RowsMissing` if a segment is there and Spark's workers do not see it.
    """
    damaged: dict[str, str] = {}
    absent: set[str] = set()
    for item in segments:
        if "://" in item.url:
            continue
        try:
            pq.ParquetFile(item.url, page_checksum_verification=True).read()
        except FileNotFoundError:
            absent.add(item.name)
        except (OSError, pa.ArrowException) as exc:
            damaged[item.name] = f"the segment cannot be read: {type(exc).__name__}"
    # Spark verifies more: checksums of dictionaries, which Arrow does not.
    others = [item for item in segments if item.name not in damaged and item.name not in absent]
    found: dict[str, str] = {}
    _bisect(spark, others, found, absent)
    if len(found) == len(segments) > 1:
        # Unless Parquet says so, the segments are not the cause.
        found = {name: reason for name, reason in found.items() if "parquet" in reason.lower()}
    return damaged | found, absent


def _bisect(
    spark: "SparkSession", segments: Sequence[Segment], damaged: dict[str, str], absent: set[str]
) -> None:
    """Read ever smaller parts: a few bad segments among many cost a few jobs."""
    if not segments:
        return
    try:
        frame = read_parquet(spark, EVENTS, (item.url for item in segments))
        frame.write.format("noop").mode("overwrite").save()
    except FAILURES as exc:
        if len(segments) > 1:
            middle = len(segments) // 2
            _bisect(spark, segments[:middle], damaged, absent)
            _bisect(spark, segments[middle:], damaged, absent)
        elif "FileNotFound" in cause(exc) or "does not exist" in cause(exc):
            if source.exists(segments[0].url, spark):
                raise RowsMissing(f"{segments[0].url} cannot be read: {SAME_STORAGE}") from exc
            absent.add(segments[0].name)
        else:
            damaged[segments[0].name] = f"the segment cannot be read: {cause(exc)}"
