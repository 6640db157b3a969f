"""Tokens whose owners are gone: providers accept pushes for weeks, and nobody acts on them.

A token is alive when its owner sends the notification router a command, or a device of ours reports
that it decrypted or showed a notification. Stages follow each other only while it is not:
`slow_token`, then `verify_token`, then `remove_token`. Time is that of the router's own events.
"""

from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, functions as f

from heliograph.actions.contract import ActionKind
from heliograph.pipeline.decisions.deciding import (
    Decisions,
    DecisionSettings,
    collect,
    incomplete,
)
from heliograph.pipeline.jobs.ledger import token_key

if TYPE_CHECKING:
    from heliograph.pipeline.runner import Pipeline

RULE = "dead_tokens/1"
FINDINGS = {
    "dead": ActionKind.SLOW_TOKEN,
    "dead_slowed": ActionKind.VERIFY_TOKEN,
    "dead_unanswered": ActionKind.REMOVE_TOKEN,
}


def decide(pipeline: "Pipeline", settings: DecisionSettings, now: float) -> Decisions:
    """Decide on the next stage of each token without an owner, in events' own time, not `now`."""
    result = Decisions(stopped=incomplete(pipeline))
    if result.stopped:
        return result
    found = dead(pipeline.tokens(), pipeline.receipts(), settings).cache()
    try:
        for finding, kind in FINDINGS.items():
            rows = found.where(f.col("finding") == finding).drop("finding")
            evidence = {"dead": (), "dead_slowed": ("slowed_at",)}.get(
                finding, ("slowed_at", "asked_at")
            )
            chosen = rows.select("router", "population", "token", "unseen_since", *evidence)
            collect(finding, chosen, kind, RULE, settings, result)
    finally:
        found.unpersist()
    return result


def dead(tokens: DataFrame, receipts: DataFrame, settings: DecisionSettings) -> DataFrame:
    """Return the tokens without an owner, and what was found of each.

    `receipts` has the last time at which a device reported a notification, by the ledger's key.
    """
    columns = (f.unix_micros(name).alias(name) for name in _TIMES)
    known = tokens.select("router", "token", *columns).withColumn(
        "key", token_key(f.col("router"), f.col("token"))
    )
    newest = known.groupBy("router").agg(f.max("last_at").alias("newest"))
    rows = known.join(receipts, "key", "left").join(newest, "router", "inner")
    alive = f.greatest("first_at", "seen_at", "received_at")
    active = rows.withColumn("unseen_since", alive).where(
        f.col("gone_at").isNull() | (f.col("gone_at") < f.col("unseen_since"))
    )
    population = active.groupBy("router").agg(f.count(f.lit(1)).alias("population"))
    return (
        active.join(population, "router", "inner")
        .where(f.col("accepted_at") - f.col("unseen_since") >= _micros(settings.dead_after))
        .withColumn("finding", _finding(settings))
        .where(f.col("finding").isNotNull())
    )


_TIMES = (
    *("first_at", "last_at", "seen_at", "accepted_at", "gone_at"),
    *("slowed_at", "asked_at", "undone_at"),
)


def _finding(settings: DecisionSettings) -> Column:
    """Return the stage that a token has reached, null if it must wait for the next."""
    began = f.greatest("unseen_since", "undone_at")
    newest, slowed, asked = f.col("newest"), f.col("slowed_at"), f.col("asked_at")
    is_slowed = f.coalesce(slowed > began, f.lit(False))
    is_asked = is_slowed & f.coalesce(asked > slowed, f.lit(False))
    is_over = newest - asked >= _micros(settings.remove_after)
    return (
        f.when(is_asked & is_over, "dead_unanswered")
        .when(is_asked, f.lit(None))
        .when(is_slowed & (newest - slowed >= _micros(settings.verify_after)), "dead_slowed")
        .when(is_slowed, f.lit(None))
        .otherwise("dead")
    )


def _micros(seconds: float) -> int:
    return int(seconds * 1e6)
