"""Rates: what each token, subscription, messaging router, provider and network did, by ten seconds.

Computed from new events only, and additive: parts of the same bucket are summed. Baselines need a
few hours of them, so that the table stays small.
"""

from collections.abc import Iterable, Mapping
from itertools import chain

from pyspark.sql import Column, DataFrame, functions as f

from heliograph.pipeline.jobs.routers import RouterFacts

BUCKET = 10 * 1_000_000
"""Microseconds."""
RATES_KEPT = 4 * 3600 * 1_000_000
"""Microseconds that rates are kept before a router's newest event: longer than a baseline."""
KEYS = ("bucket", "router", "metric", "subject", "parent")

TOKEN, SUBSCRIPTION, SERVER, SOURCE = "token", "subscription", "server", "source"
"""Counts: NMSG of tokens, subscriptions and messaging routers; registrations of networks."""
REGISTERED, VERIFIED = "registered", "verified"
"""Counts of all tokens."""
SERVER_DELAY, PROVIDER_DELAY = "server_delay", "provider_delay"
"""Numbers of answers, and their microseconds in `total`."""
PROVIDER, VERIFICATION = "provider", "verification"
"""Numbers of pushes, and of failures in `total`: of messages, and rejected verifications."""

_NMSG = ("nmsg_stored", "nmsg_repeated", "nmsg_dropped")
_ANSWERS = ("push_accepted", "push_rejected", "push_retried")


def since_by_router(routers: Iterable[RouterFacts]) -> dict[str, int]:
    """Return from when on rates are needed, by each notification router that is not retired.

    That depends on its own newest event: another clock, or a journal that is behind, changes
    nothing.
    """
    return {
        item.router: item.last_at - RATES_KEPT
        for item in routers
        if item.part == "ntf" and not item.retired
    }


def is_needed(at: Column, since: Mapping[str, int]) -> Column:
    """Return whether a row of `router` at the time `at` is needed; False for other routers."""
    if not since:
        return f.lit(False)
    pairs = ((f.lit(name), f.lit(time).cast("long")) for name, time in since.items())
    first = f.create_map(*chain.from_iterable(pairs))[f.col("router")]
    return f.coalesce(at >= first, f.lit(False))


def rates(events: DataFrame, since: Mapping[str, int] | None = None) -> DataFrame:
    """Count events of notification routers by bucket, metric and subject.

    With `since`, only those that `is_needed` selects.
    """
    kind, mode = f.col("kind"), f.col("mode")
    is_nmsg = kind.isin(*_NMSG)
    is_answer = kind.isin(*_ANSWERS)
    is_message, is_verification = is_answer & (mode == "message"), mode == "verification"
    is_settled = kind.isin("push_accepted", "push_rejected") & is_verification
    is_counted = kind == "smp_counted"
    is_timed = kind == "pushes_timed"
    is_verified = (kind == "token_active") & f.col("reason").isNull()
    one, zero, number = f.lit(1).cast("long"), f.lit(0).cast("long"), f.col("count")
    nothing, everyone = f.lit(None).cast("string"), f.lit("")
    failed = f.when(kind == "push_retried", one).otherwise(zero)
    rejected = f.when(kind == "push_rejected", one).otherwise(zero)
    provider, server, token = f.col("provider"), f.col("server"), f.col("token")
    rows = f.array(
        f.when(is_nmsg, _row(TOKEN, token, nothing, one, zero)),
        f.when(is_nmsg, _row(SUBSCRIPTION, f.col("subscription"), token, one, zero)),
        f.when(is_counted, _row(SERVER, server, nothing, number, zero)),
        f.when(
            is_counted & f.col("delay").isNotNull(),
            _row(SERVER_DELAY, server, nothing, one, f.col("delay")),
        ),
        f.when(is_timed, _row(PROVIDER_DELAY, provider, nothing, number, number * f.col("delay"))),
        f.when(is_message, _row(PROVIDER, provider, nothing, one, failed)),
        f.when(is_settled, _row(VERIFICATION, provider, nothing, one, rejected)),
        f.when(kind == "token_registered", _row(REGISTERED, everyone, nothing, one, zero)),
        f.when(is_verified, _row(VERIFIED, everyone, nothing, one, zero)),
        f.when(
            kind == "registrations_counted",
            _row(SOURCE, f.col("source"), nothing, number, zero),
        ),
    )
    counted = is_nmsg | is_answer | is_counted | is_timed | is_verified
    counted = counted | kind.isin("token_registered", "registrations_counted")
    at = f.unix_micros("at")
    is_recent = (f.col("part") == "ntf") & (f.lit(True) if since is None else is_needed(at, since))
    chosen = events.where(is_recent & counted).select(
        (at - f.pmod(at, f.lit(BUCKET))).alias("bucket"),
        "router",
        f.explode(f.array_compact(rows)).alias("row"),
    )
    return merge_rates(chosen.select("bucket", "router", "row.*"))


def _row(metric: str, subject: Column, parent: Column, count: Column, total: Column) -> Column:
    return f.struct(
        f.lit(metric).alias("metric"),
        subject.alias("subject"),
        parent.alias("parent"),
        count.alias("count"),
        total.alias("total"),
    )


def merge_rates(parts: DataFrame) -> DataFrame:
    return parts.groupBy(*KEYS).agg(f.sum("count").alias("count"), f.sum("total").alias("total"))
