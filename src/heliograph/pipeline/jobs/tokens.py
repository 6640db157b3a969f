"""Tokens: one row for each, with the times that tell whether its owner is still there.

Rows are minima, maxima and sets, so that parts merge in any order and merging one twice changes
nothing. Raw events expire before an owner counts as gone, so the rows are a table of their own.
"""

from functools import cache

from pyspark.sql import Column, DataFrame, functions as f

__all__ = ["STAGES", "TIMES", "merge_tokens", "tokens"]

KEY = ("router", "token")
SEEN_KINDS = (
    "owner_seen",
    "token_registered",
    "token_verification_queued",
    "token_active",
    "token_replaced",
    "token_periodic",
    "subscription_created",
)
"""Events that only a command of the owner causes."""
STAGES = {"slowed_at": "slow_token", "asked_at": "verify_token"}
"""Actions about a token without an owner, and when each was last applied."""
TIMES = ("seen_at", "notified_at", "accepted_at", "woken_at", "gone_at", *STAGES, "undone_at")
"""Times of the last event of each kind."""


def tokens(events: DataFrame) -> DataFrame:
    """Extract what is known of each token from events."""
    condition, columns = _columns()
    return merge_tokens(events.where(condition).select(*columns))


@cache
def _columns() -> tuple[Column, tuple[Column, ...]]:
    """Build the columns once: they cost many calls to the JVM."""
    kind, at, action = f.col("kind"), f.col("at"), f.col("action_kind")
    notified, accepted = kind == "nmsg_stored", kind == "push_accepted"
    gone = kind.isin("token_deleted", "token_invalid")
    actions = action.isin(*STAGES.values())
    applied, undone = (kind == "action_applied") & actions, (kind == "action_undone") & actions
    seen = kind.isin(*SEEN_KINDS)
    when = {
        "seen_at": seen,
        "notified_at": notified,
        "accepted_at": accepted,
        "woken_at": accepted & (f.col("mode") == "periodic"),
        "gone_at": gone,
        **{name: applied & (action == value) for name, value in STAGES.items()},
        "undone_at": undone,
    }
    host = f.col("smp_host")
    columns = (
        *map(f.col, KEY),
        f.col("provider"),
        at.alias("first_at"),
        at.alias("last_at"),
        *(f.when(when[name], at).alias(name) for name in TIMES),
        f.when(host.isNotNull(), f.array(host)).alias("smp_hosts"),
    )
    wanted = seen | notified | accepted | gone | applied | undone
    return f.col("token").isNotNull() & wanted, columns


def merge_tokens(parts: DataFrame) -> DataFrame:
    """Merge rows to one per token."""
    return parts.groupBy(*KEY).agg(*_merged())


@cache
def _merged() -> tuple[Column, ...]:
    hosts = f.array_sort(f.array_distinct(f.flatten(f.collect_set("smp_hosts"))))
    has_provider = f.when(f.col("provider").isNotNull(), f.col("last_at"))
    return (
        f.max_by("provider", has_provider).alias("provider"),
        f.min("first_at").alias("first_at"),
        f.max("last_at").alias("last_at"),
        *(f.max(name).alias(name) for name in TIMES),
        hosts.alias("smp_hosts"),
    )
