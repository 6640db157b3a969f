"""Merged views of the tables as of one snapshot, with names for hashes."""

from pyspark.sql import DataFrame, functions as f

from heliograph.pipeline.jobs import health, stats
from heliograph.pipeline.runner import Pipeline


def names(pipeline: Pipeline) -> DataFrame:
    """Return the names of providers and own messaging routers, by their hashes in the ledger."""
    counts = pipeline.read("counts")
    texts = counts.select(f.explode(f.array("provider", "smp_host")).alias("text")).distinct()
    return texts.where(f.col("text").isNotNull()).select(f.xxhash64("text").alias("key"), "text")


def counts(pipeline: Pipeline) -> DataFrame:
    return stats.merge_counts(pipeline.read("counts"))


def outcomes(pipeline: Pipeline) -> DataFrame:
    """Return outcomes by hour, of the ledger's rows and of the archived ones."""
    live = health.summarize_outcomes(pipeline.ledger(), names(pipeline))
    return live.unionByName(pipeline.read("outcomes"))
