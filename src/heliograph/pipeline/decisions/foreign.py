"""Losses at messaging routers that export no snapshots: their counts, and silence.

Each subscription is compared with its own past, so that a quiet one is not taken for a lost one.
"""

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, Window, functions as f

from heliograph.actions.contract import ActionKind
from heliograph.pipeline.decisions.deciding import (
    Decisions,
    DecisionSettings,
    collect,
    incomplete,
)

if TYPE_CHECKING:
    from heliograph.pipeline.runner import Pipeline

SILENCE_RULE = "silence/1"
SHORT_RULE = "counts/1"
LEAST_NOTIFICATIONS = 20
"""Notifications of a subscription from which its pauses are known."""
TIMES_LONGEST = 3
"""How many times its longest pause a subscription must be silent."""
LEAST_SILENCE = 86_400 * 1_000_000
"""Microseconds of silence that are never taken for a loss."""


def decide(pipeline: "Pipeline", settings: DecisionSettings, now: float) -> Decisions:
    """Look for losses in the journal's events. Silence is measured in their own time, not `now`.

    Nothing is decided unless the verdict is complete: what looks like silence may be missing.
    """
    result = Decisions(stopped=incomplete(pipeline))
    if result.stopped:
        return result
    events = pipeline.read("events")
    for name, frame, kind, rule in (
        ("silent", silent(events), ActionKind.RESUBSCRIBE, SILENCE_RULE),
        ("short", short(events), ActionKind.REPORT, SHORT_RULE),
    ):
        collect(name, frame, kind, rule, settings, result)
    return result


def silent(events: DataFrame) -> DataFrame:
    """Return subscriptions at foreign routers that are silent far longer than ever before.

    Silence is measured up to the router's newest event.
    """
    newest = events.groupBy("router").agg(f.max(f.unix_micros("at")).alias("newest"))
    stored = events.where((f.col("kind") == "nmsg_stored") & ~f.col("own_server"))
    at = stored.select("router", "subscription", f.unix_micros("at").alias("at"))
    order = Window.partitionBy("router", "subscription").orderBy("at")
    pauses = at.withColumn("pause", f.col("at") - f.lag("at").over(order))
    history = pauses.groupBy("router", "subscription").agg(
        f.count(f.lit(1)).alias("notifications"),
        f.max("pause").alias("longest_pause"),
        f.max("at").alias("last_at"),
    )
    deleted = events.where("kind = 'subscription_deleted'").select("router", "subscription")
    ours = history.join(deleted.distinct(), ["router", "subscription"], "left_anti")
    population = ours.groupBy("router").agg(f.count(f.lit(1)).alias("population"))
    silence = f.col("newest") - f.col("last_at")
    return (
        ours.join(newest, "router", "inner")
        .join(population, "router", "inner")
        .where(f.col("notifications") >= LEAST_NOTIFICATIONS)
        .where(silence > f.col("longest_pause") * TIMES_LONGEST)
        .where(silence > LEAST_SILENCE)
        .select("router", "subscription", "population", "notifications", "longest_pause", "last_at")
    )


def short(events: DataFrame) -> DataFrame:
    """Return messaging routers that last confirmed fewer subscriptions than were requested."""
    confirmed = events.where((f.col("kind") == "smp_subscribed") & ~f.col("own_server"))
    last = confirmed.groupBy("router", "server").agg(
        f.max_by(f.struct("count", "expected_count"), f.struct("boot", "seq")).alias("last"),
        f.unix_micros(f.max("at")).alias("at"),
    )
    population = last.groupBy("router").agg(f.count(f.lit(1)).alias("population"))
    return (
        last.join(population, "router", "inner")
        .select(
            "router",
            "server",
            "population",
            f.col("last.count").alias("confirmed"),
            f.col("last.expected_count").alias("expected"),
            "at",
        )
        .where(f.col("confirmed") < f.col("expected"))
    )
