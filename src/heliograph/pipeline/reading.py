"""What reports and `status` read: all tables as of one manifest, merged, with names for hashes."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from heliograph.pipeline import health, stats
from heliograph.pipeline.runner import Pipeline


def names(pipeline: Pipeline) -> DataFrame:
    """The texts of providers and own messaging routers, by the hashes that the ledger has."""
    counts = pipeline.read("counts")
    texts = counts.select(f.explode(f.array("provider", "smp_host")).alias("text")).distinct()
    return texts.where(f.col("text").isNotNull()).select(f.xxhash64("text").alias("key"), "text")


def counts(pipeline: Pipeline) -> DataFrame:
    return stats.merge_counts(pipeline.read("counts"))


def fates(pipeline: Pipeline) -> DataFrame:
    """By hour: of the rows of the ledger, and of those that were archived."""
    live = health.summarize_fates(pipeline.ledger(), names(pipeline))
    return live.unionByName(pipeline.read("fates"))
