"""Health: throughput, latencies, coalescing, retries, failures, churn, and time to subscribe again.

Latencies are quantile sketches by hour, provider and own messaging router, which merge to any
longer span; they outlive the rows that they were made from.
"""

from pyspark.sql import DataFrame, Window, functions as f

from heliograph.pipeline.jobs.objectives import accepted_after, within
from heliograph.pipeline.jobs.outcomes import LATENCIES

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
SKETCH_SIZE = 2000
"""Size of a KLL sketch whose ranks are within about 0.2 percent, enough for p99.9."""


def summarize_outcomes(ledger: DataFrame, names: DataFrame, *more: str) -> DataFrame:
    """Sum up the ledger by hour, provider and own messaging router. `names` has texts by hash."""
    providers = f.broadcast(names.select(f.col("key").alias("p"), f.col("text").alias("pt")))
    servers = f.broadcast(names.select(f.col("key").alias("s"), f.col("text").alias("st")))
    hour = f.timestamp_micros((f.col("first_at") / 3_600_000_000).cast("long") * 3_600_000_000)
    named = (
        ledger.join(providers, f.col("provider") == f.col("p"), "left")
        .join(servers, f.col("server") == f.col("s"), "left")
        .select(
            hour.alias("hour"),
            f.col("pt").alias("provider"),
            f.col("st").alias("smp_host"),
            "outcome",
            "recovered",
            accepted_after().alias("accepted_after"),
            *LATENCIES,
            *more,
        )
    )
    return named.groupBy("hour", "provider", "smp_host", "outcome", "recovered", *more).agg(
        f.count("*").alias("notifications"),
        within(f.col("accepted_after")).alias("within"),
        *(f.kll_sketch_agg_bigint(name, SKETCH_SIZE).alias(f"{name}_sketch") for name in LATENCIES),
    )


def merge_outcomes(parts: DataFrame, *keys: str) -> DataFrame:
    return parts.groupBy(*keys).agg(
        f.sum("notifications").alias("notifications"),
        *(
            f.kll_merge_agg_bigint(f"{name}_sketch", SKETCH_SIZE).alias(f"{name}_sketch")
            for name in LATENCIES
        ),
    )


def latencies(parts: DataFrame, *keys: str) -> DataFrame:
    """Return quantiles, in microseconds, of each latency that has a value."""
    merged = merge_outcomes(parts, *keys)
    columns = [f.col(key) for key in keys]
    for name in LATENCIES:
        sketch = f.col(f"{name}_sketch")
        has = f.kll_sketch_get_n_bigint(sketch) > 0
        columns.append(f.kll_sketch_get_n_bigint(sketch).alias(f"{name}_n"))
        columns += [
            f.when(has, f.kll_sketch_get_quantile_bigint(sketch, f.lit(rank))).alias(
                f"{name}_{label}"
            )
            for label, rank in QUANTILES.items()
        ]
    return merged.select(*columns)


def providers(counts: DataFrame) -> DataFrame:
    """Return pushes, retries and rejections of messages, by provider and hour."""
    kind = f.col("kind")
    pushes = counts.where(f.col("mode") == "message")
    return pushes.groupBy("hour", "provider").agg(
        *(
            f.coalesce(f.sum(f.when(kind == name, f.col("events"))), f.lit(0)).alias(column)
            for column, name in {
                "attempts": "push_attempted",
                "accepted": "push_accepted",
                "retried": "push_retried",
                "rejected": "push_rejected",
                "expired": "push_expired",
            }.items()
        )
    )


def failures(counts: DataFrame) -> DataFrame:
    """Count the reasons for which providers did not accept pushes."""
    failed = counts.where(f.col("kind").isin("push_rejected", "push_retried", "push_expired"))
    return failed.groupBy("provider", "kind", "code", "reason").agg(f.sum("events").alias("events"))


def funnel(counts: DataFrame) -> DataFrame:
    """Count tokens by lifecycle stage, from registered to deleted, and by provider."""
    steps = (
        "token_registered",
        "token_confirmed",
        "token_active",
        "token_replaced",
        "token_invalid",
        "token_deleted",
    )
    kind = f.col("kind")
    return (
        counts.where(kind.isin(*steps) & ~f.col("reason").eqNullSafe("repeated"))
        .groupBy("provider")
        .agg(
            *(
                f.coalesce(f.sum(f.when(kind == step, f.col("events"))), f.lit(0)).alias(
                    step.removeprefix("token_")
                )
                for step in steps
            )
        )
    )


def connections(events: DataFrame) -> DataFrame:
    """Return each connection to a messaging router: time to subscribe everything, and drift.

    Routers are identified by keyed hash, since only our own have a name.
    """
    kind = f.col("kind")
    ours = events.where(kind.isin("smp_up", "smp_down", "smp_subscribed", "smp_drift"))
    order = Window.partitionBy("router", "server").orderBy("boot", "seq")
    at = f.unix_micros("at")
    before = order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    rows = ours.select(
        "router",
        "server",
        "smp_host",
        "kind",
        "at",
        f.last(f.when(kind == "smp_up", at), ignorenulls=True).over(before).alias("up_at"),
        f.last(f.when(kind == "smp_down", at), ignorenulls=True).over(before).alias("down_at"),
        at.alias("now"),
        (f.col("count") - f.col("expected_count")).alias("difference"),
    )
    subscribed = rows.where(kind == "smp_subscribed").select(
        f.date_trunc("hour", "at").alias("hour"),
        "router",
        "server",
        "smp_host",
        (f.col("now") - f.col("up_at")).alias("subscribe_us"),
        f.when(f.col("down_at") < f.col("up_at"), f.col("now") - f.col("down_at")).alias("gap_us"),
        "difference",
        f.lit(0).alias("drift"),
    )
    drift = rows.where(kind == "smp_drift").select(
        f.date_trunc("hour", "at").alias("hour"),
        "router",
        "server",
        "smp_host",
        f.lit(None).cast("long").alias("subscribe_us"),
        f.lit(None).cast("long").alias("gap_us"),
        "difference",
        f.lit(1).alias("drift"),
    )
    return subscribed.unionByName(drift)
