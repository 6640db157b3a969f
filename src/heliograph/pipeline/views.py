"""Merged views of the tables as of one snapshot, with names for hashes."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, functions as f

from heliograph.pipeline.jobs import health, objectives as objective_job, stats
from heliograph.pipeline.jobs.completeness import first_at, incomplete_windows
from heliograph.pipeline.jobs.outcomes import closed_rows
from heliograph.pipeline.jobs.routers import router_facts, until_at
from heliograph.pipeline.objectives.budget import WINDOWS, Objectives

if TYPE_CHECKING:
    from heliograph.pipeline.runner import Pipeline


def names(pipeline: "Pipeline") -> DataFrame:
    """Return the names of providers and own messaging routers, by their hashes in the ledger."""
    counts = pipeline.read("counts")
    texts = counts.select(f.explode(f.array("provider", "smp_host")).alias("text")).distinct()
    return texts.where(f.col("text").isNotNull()).select(f.xxhash64("text").alias("key"), "text")


def counts(pipeline: "Pipeline") -> DataFrame:
    return stats.merge_counts(pipeline.read("counts"))


def outcomes(pipeline: "Pipeline") -> DataFrame:
    """Return outcomes by hour, of open notifications and of closed ones."""
    reopened = pipeline.reopened()
    live = health.summarize_outcomes(pipeline.decided(pipeline.marks(reopened)), names(pipeline))
    return live.unionByName(closed_outcomes(pipeline, reopened))


def closed_outcomes(
    pipeline: "Pipeline", reopened: DataFrame | None, first_day: str = ""
) -> DataFrame:
    """Return outcomes by hour of closed notifications, without those that were reopened.

    `first_day` is the first day of which sums are needed.
    """
    days = pipeline.snapshot.unsummed_days
    summed = [
        file
        for file in pipeline.snapshot.of("outcomes")
        if file.day not in days and (file.day or "") >= first_day
    ]
    found = pipeline.read("outcomes", summed)
    if days:
        files = [file for file in pipeline.snapshot.closed_marks if file.day in days]
        rows = closed_rows(pipeline.read("marks", files))
        found = found.unionByName(health.summarize_outcomes(rows, names(pipeline)))
    if reopened is None:
        return found
    again = health.summarize_outcomes(closed_rows(reopened), names(pipeline))
    no_sketches = {name: f.lit(None).cast("binary") for name in again.columns if "sketch" in name}
    negative = {
        "notifications": -f.col("notifications"),
        "within": f.transform("within", lambda count: -count),
    }
    return found.unionByName(again.withColumns({**negative, **no_sketches}))


def objectives(pipeline: "Pipeline", rows: DataFrame, reopened: DataFrame | None) -> Objectives:
    """Judge all objectives. `rows` are those of open and reopened notifications."""
    asked = pipeline.settings.objectives
    facts = router_facts(pipeline.offsets.routers, pipeline.settings.outcomes.retire_after)
    until = until_at(facts)
    if not asked or not until:
        return Objectives()
    # Sums are by the day of the last event, which is never before that of the first.
    oldest = datetime.fromtimestamp(until / 1e6 - max(WINDOWS.values()), UTC).date()
    sums = closed_outcomes(pipeline, reopened, oldest.isoformat())
    counts = objective_job.count_windows(rows, sums, asked, until)
    quarantined = pipeline.offsets.counts.get("quarantined", 0)
    began = first_at(pipeline.offsets.routers)
    incomplete = incomplete_windows(facts, pipeline.gaps(), quarantined, began)
    return Objectives(until / 1e6, objective_job.judge_all(counts, asked, incomplete), incomplete)
