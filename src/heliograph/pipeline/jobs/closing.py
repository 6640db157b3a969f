"""Open and closed notifications: which are final, and which closed ones late events belong to.

A notification is closed when its outcome is final and its last event is older than a watermark: a
day before the time that all routers have passed. Closed rows are stored by the day of their last
event, with the decision. An event that comes later is found to belong to one of them by its age, or
because it continues something that did not begin among the open ones.
"""

from collections.abc import Sequence
from datetime import date

from pyspark.sql import Column, DataFrame, functions as f, types as t

from heliograph.pipeline.jobs.ledger import MARKS, STORED, TIMES
from heliograph.pipeline.jobs.outcomes import DECISIONS, FINAL
from heliograph.pipeline.spark.local import local

DAY = 86_400_000_000
"""Microseconds."""
FEW_KEYS = 50
"""Number of keys up to which Parquet's own index of a sorted column finds them."""


def cutoff(watermark: int) -> int:
    """Return the time before which notifications are closed: whole days, in microseconds."""
    return watermark // DAY * DAY - DAY


def end_of(day: str) -> int:
    """Return the time at which a day ends."""
    return (date.fromisoformat(day).toordinal() - date(1970, 1, 1).toordinal() + 1) * DAY


def last_at() -> Column:
    return f.greatest(*TIMES)


def last_day() -> Column:
    return f.to_date(f.timestamp_micros(last_at()))


def late(parts: DataFrame, closed_until: int) -> DataFrame:
    """Return the IDs of open notifications that may have a closed row."""
    begun = f.col("smp_stored_at").isNotNull() | f.col("stored_at").isNotNull()
    facts = parts.groupBy("notification").agg(
        f.max("checked").alias("checked"),
        f.max(begun).alias("begun"),
        f.max(f.col("repeated_at").isNotNull()).alias("repeated"),
        f.min(f.least(*TIMES)).alias("first"),
    )
    suspicious = ~f.col("begun") | f.col("repeated") | (f.col("first") < closed_until)
    return facts.where(f.col("checked").isNull() & suspicious).select("notification")


def with_ids(marks: DataFrame, ids: Sequence[str]) -> DataFrame:
    """Return the marks with one of these IDs."""
    if len(ids) <= FEW_KEYS:
        return marks.where(f.col("notification").isin(*ids))
    return marks.join(_ids(marks, ids), "notification", "left_semi")


def without_ids(marks: DataFrame, ids: Sequence[str]) -> DataFrame:
    return marks.join(_ids(marks, ids), "notification", "left_anti")


def _ids(marks: DataFrame, ids: Sequence[str]) -> DataFrame:
    schema = t.StructType([t.StructField("notification", t.StringType())])
    return f.broadcast(local(marks.sparkSession, [(key,) for key in ids], schema))


def split(decided: DataFrame, final_before: int, all_before: int) -> DataFrame:
    """Return the rows to store; `day` is null for those that stay open.

    Rows older than `all_before` are closed whatever their outcome.
    """
    last, outcome = last_at(), f.substring_index("decision", "/", 1)
    closes = (last < all_before) | (outcome.isin(*FINAL) & (last < final_before))
    codes = f.create_map(*(f.lit(x) for pair in enumerate(DECISIONS) for x in pair[::-1]))
    before = f.col("closed_as") if "closed_as" in decided.columns else f.lit(None).cast("long")
    return decided.select(
        *MARKS,
        f.when(closes, codes[f.col("decision")].cast("long")).otherwise(before).alias("closed_as"),
        f.when(closes, f.col("provider")).alias("closed_provider"),
        f.lit(1).cast("long").alias("checked"),
        f.when(closes, last_day()).alias("day"),
    )


def as_stored(marks: DataFrame) -> DataFrame:
    """Return closed rows unchanged, with their day."""
    return marks.select(*MARKS, *STORED, last_day().alias("day"))
