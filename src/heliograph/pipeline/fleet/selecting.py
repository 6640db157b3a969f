"""Select tokens by an operator's condition, a boolean expression of SQL over a few columns."""

import logging

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, functions as f

from heliograph.pipeline.spark.local import local
from heliograph.runtime.errors import StartError

__all__ = ["COLUMNS", "describe_columns", "known_hosts", "select_tokens"]

COLUMNS = {
    "router": ("router", "the notification router's ID in the journal"),
    "provider": ("provider", "as apns_prod"),
    "smp_host": ("smp_host", "host of an own messaging router with subscriptions of the token"),
    "first_event": ("first_at", "time of the token's first known event"),
    "last_seen": ("seen_at", "when its owner last sent a command, to the day"),
    "last_notified": ("notified_at", "when a notification for it was last stored"),
    "last_accepted": ("accepted_at", "when the provider last accepted a push"),
    "last_woken": ("woken_at", "when the provider last accepted a wake-up"),
}
"""Columns that a condition may use, with those of the table, and what they say."""


def describe_columns() -> str:
    return "\n".join(f"  {name:14} {text}" for name, (_, text) in COLUMNS.items())


def known_hosts(tokens: DataFrame, limit: int = 20) -> list[str]:
    """Return hosts that a condition may name, not more than some."""
    hosts = tokens.select(f.explode("smp_hosts").alias("host")).distinct().orderBy("host")
    return [row["host"] for row in hosts.limit(limit).collect()]


def select_tokens(tokens: DataFrame, where: str) -> tuple[DataFrame, DataFrame]:
    """Return `router` and `token` of those that meet a condition, and of all that are active.

    Raises `StartError` for a condition that Spark does not understand.
    """
    sign = f.greatest("first_at", "seen_at")
    active = tokens.where(f.col("gone_at").isNull() | (f.col("gone_at") < sign))
    rows = active.withColumn("smp_host", f.explode_outer("smp_hosts")).select(
        "token", *(f.col(source).alias(name) for name, (source, _) in COLUMNS.items())
    )
    # Spark finds columns that were left out, too: so check it with a table that never had them.
    logging.getLogger("SQLQueryContextLogger").disabled = True  # a page of JSON for a typing error
    allowed = local(tokens.sparkSession, (), rows.select(*COLUMNS).schema)
    try:
        allowed.where(where)
        chosen = rows.where(where)
    except (AnalysisException, ParseException) as exc:
        reason = str(exc).strip().splitlines()[0].partition(" SQLSTATE")[0]
        raise StartError(
            f"--where {where}: {reason}\nIt must be a condition over these columns:\n"
            f"{describe_columns()}"
        ) from exc
    return chosen.select("router", "token").distinct(), active.select("router", "token")
