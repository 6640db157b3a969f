"""What routers did in each hour, for forecasts: a few sums from the statistics."""

from pyspark.sql import DataFrame, functions as f

from heliograph.pipeline.planning.history import HourSums

_MESSAGE, _PERIODIC = "mode = 'message'", "mode = 'periodic'"
_SUMS = {
    "tokens_added": "kind = 'token_active' and coalesce(reason, '') <> 'repeated'",
    "tokens_removed": "kind in ('token_deleted', 'token_invalid')",
    "subscriptions_added": "kind = 'subscription_created'",
    "subscriptions_removed": "kind = 'subscription_deleted'",
    "notifications": "kind = 'nmsg_stored'",
    "pushes": f"kind = 'push_accepted' and {_MESSAGE}",
    "wake_ups": f"kind = 'push_accepted' and {_PERIODIC}",
    "events": "true",
}


def hourly(counts: DataFrame) -> DataFrame:
    """Return a row for each hour that has events."""
    sums = (
        f.coalesce(f.sum(f.when(f.expr(condition), f.col("events"))), f.lit(0)).alias(name)
        for name, condition in _SUMS.items()
    )
    return counts.groupBy(f.unix_seconds("hour").alias("at")).agg(*sums)


def collect_hours(counts: DataFrame) -> list[HourSums]:
    rows = hourly(counts).orderBy("at").collect()
    return [HourSums(row["at"], *(row[name] for name in _SUMS)) for row in rows]
