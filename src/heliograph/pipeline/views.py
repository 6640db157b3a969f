"""Merged views of the tables as of one snapshot, with names for hashes."""

from pyspark.sql import DataFrame, functions as f

from heliograph.pipeline.jobs import health, stats
from heliograph.pipeline.jobs.outcomes import closed_rows
from heliograph.pipeline.runner import Pipeline


def names(pipeline: Pipeline) -> DataFrame:
    """Return the names of providers and own messaging routers, by their hashes in the ledger."""
    counts = pipeline.read("counts")
    texts = counts.select(f.explode(f.array("provider", "smp_host")).alias("text")).distinct()
    return texts.where(f.col("text").isNotNull()).select(f.xxhash64("text").alias("key"), "text")


def counts(pipeline: Pipeline) -> DataFrame:
    return stats.merge_counts(pipeline.read("counts"))


def outcomes(pipeline: Pipeline) -> DataFrame:
    """Return outcomes by hour, of open notifications and of closed ones."""
    reopened = pipeline.reopened()
    live = health.summarize_outcomes(pipeline.decided(pipeline.marks(reopened)), names(pipeline))
    upto = pipeline.snapshot.progress.get("outcomes", 0)
    days = {file.day for file in pipeline.snapshot.closed_marks if file.batch > upto}
    summed = [file for file in pipeline.snapshot.of("outcomes") if file.day not in days]
    found = live.unionByName(pipeline.read("outcomes", summed))
    if days:  # a closing was interrupted before its sums were stored
        files = [file for file in pipeline.snapshot.closed_marks if file.day in days]
        rows = closed_rows(pipeline.read("marks", files))
        found = found.unionByName(health.summarize_outcomes(rows, names(pipeline)))
    if reopened is None:
        return found
    again = health.summarize_outcomes(closed_rows(reopened), names(pipeline))
    no_sketches = {name: f.lit(None).cast("binary") for name in again.columns if "sketch" in name}
    less = again.withColumns({"notifications": -f.col("notifications"), **no_sketches})
    return found.unionByName(less)
