"""The ledger: one row per notification, with its milestones and its fate.

Events become `marks` (what they say of each notification) and `settlements` (up to where they
settle each token and subscription). Both are minima and maxima, so that parts merge in any
order, and merged again change nothing: a row is the merge of all batches, read when asked for.
Texts that are not the key travel as 64-bit hashes, which Spark aggregates without sorting.
"""

from functools import cache

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

_FIRST = {
    "smp_stored_at": ("notification_stored",),
    "smp_delivered_at": ("notification_delivered",),
    "smp_gone_at": ("notification_removed", "notification_expired"),
    "received_at": ("nmsg_received",),
    "stored_at": ("nmsg_stored",),
    "repeated_at": ("nmsg_repeated",),
    "undeliverable_at": ("nmsg_unknown", "nmsg_dropped"),
    "accepted_at": ("push_accepted",),
    "decrypted_at": ("agent_decrypted",),
    "shown_at": ("device_shown",),
}
"""Milestones, each the earliest event of its kinds, in microseconds since the epoch."""

_GREATEST = (
    "smp_boot",
    "smp_router",
    "ntf_router",
    "server",
    "ntf_seq",
    "owed_through",
    "owed_token",
)
_OF_LATEST = ("token", "subscription")
"""Of the event with the greatest `ntf_seq`: one may be stored again, for another token even."""

TIMES = tuple(_FIRST)
MARKS = ("notification", *_FIRST, *_GREATEST, *_OF_LATEST)
SETTLEMENTS = (
    "key",
    "provider",
    "accepted_through",
    "expired_through",
    "invalid_through",
    "deleted_through",
    "recovered_boot",
    "recovered_through",
)


def token_key(router: Column, token: Column) -> Column:
    """One number for a token or a subscription of a router."""
    return f.xxhash64(router, token)


def marks(events: DataFrame) -> DataFrame:
    """What events say of each notification."""
    return merge_marks(slim(events))


def slim(events: DataFrame) -> DataFrame:
    """One row per event and notification, with nothing but numbers beside the key."""
    stepped, hashed, columns = _slim_columns()
    return events.select(*stepped).where("step is not null").select(*hashed).select(*columns)


_STEPS = {name: number for number, name in enumerate(sorted(_FIRST, key="accepted_at".__eq__))}
_SMP_STORED, _STORED = _STEPS["smp_stored_at"], _STEPS["stored_at"]
_ACCEPTED = _STEPS["accepted_at"]
_OWED = len(_STEPS)
"""Numbers are compared faster than texts. From `_ACCEPTED` on an event lists notifications."""


@cache
def _slim_columns() -> tuple[tuple[Column, ...], ...]:
    """Made once: they are hundreds of messages to Java, which every query would wait for.

    What is told of an event is hashed only where it is needed, before its list is opened.
    """
    step, router, token = f.col("step"), f.col("router"), f.col("token")
    kept = tuple(map(f.col, ("boot", "through", "ntf_seq", "notification", "notifications")))
    texts = (router, token, f.col("subscription"), f.col("smp_host"))
    stepped = (_step().alias("step"), f.unix_micros("at").alias("at"), *kept, *texts)
    by_ntf = step.isin(_STORED, _OWED)
    hashed = (
        step,
        f.col("at"),
        *kept,
        f.when(step == _SMP_STORED, f.xxhash64(router)).alias("smp_router"),
        f.when(by_ntf, f.xxhash64(router)).alias("ntf_router"),
        f.when(step == _STORED, f.xxhash64("smp_host")).alias("server"),
        f.when(by_ntf, token_key(router, token)).alias("token"),
        f.when(step == _STORED, token_key(router, f.col("subscription"))).alias("subscription"),
    )
    ids = f.when(step >= _ACCEPTED, f.col("notifications")).otherwise(f.array("notification"))
    columns = (
        f.explode(ids).alias("notification"),
        *(f.when(step == number, f.col("at")).alias(name) for name, number in _STEPS.items()),
        f.when(step == _SMP_STORED, f.col("boot")).alias("smp_boot"),
        *map(f.col, ("smp_router", "ntf_router", "server")),
        f.when(step == _STORED, f.col("ntf_seq")).alias("ntf_seq"),
        f.when(step == _OWED, f.col("through")).alias("owed_through"),
        f.when(step == _OWED, token).alias("owed_token"),
        f.when(step == _STORED, token).alias("token"),
        f.col("subscription"),
    )
    return stepped, hashed, columns


def _step() -> Column:
    """Which milestone an event is, by number; null if none."""
    kind = f.col("kind")
    of_message = (f.col("mode") == "message") & f.col("notifications").isNotNull()
    result = f.when((kind == "push_owed") & of_message, _OWED)
    for name, kinds in _FIRST.items():
        here = kind == kinds[0] if len(kinds) == 1 else kind.isin(*kinds)
        result = result.when(here & of_message if name == "accepted_at" else here, _STEPS[name])
    return result


def merge_marks(parts: DataFrame) -> DataFrame:
    """One row per notification."""
    return parts.groupBy("notification").agg(*_merged_marks())


@cache
def _merged_marks() -> tuple[Column, ...]:
    return (
        *(f.min(column).alias(column) for column in _FIRST),
        *(f.max(column).alias(column) for column in _GREATEST),
        *(f.max_by(column, "ntf_seq").alias(column) for column in _OF_LATEST),
    )


def settlements(events: DataFrame) -> DataFrame:
    """What events say of each token and subscription."""
    return merge_settlements(settling(events))


def settling(events: DataFrame) -> DataFrame:
    """One row per event: up to which `ntf_seq` it settles whom, and the provider."""
    condition, columns = _settling_columns()
    return events.where(condition).select(*columns)


@cache
def _settling_columns() -> tuple[Column, tuple[Column, ...]]:
    kind, through, router = f.col("kind"), f.col("through"), f.col("router")
    of_message = f.col("mode") == "message"
    owed = (kind == "push_owed") & of_message
    recovered = owed & (f.col("reason") == "recovered")
    deleted = kind.isin("token_deleted", "subscription_deleted")
    accepted = (kind == "push_accepted") & of_message
    expired = (kind == "push_expired") & of_message
    invalid = kind == "token_invalid"
    whose = f.when(kind == "subscription_deleted", f.col("subscription")).otherwise(f.col("token"))
    columns = (
        token_key(router, whose).alias("key"),
        f.when(f.col("provider").isNotNull(), f.xxhash64("provider")).alias("provider"),
        f.when(accepted, through).alias("accepted_through"),
        f.when(expired, through).alias("expired_through"),
        f.when(invalid, through).alias("invalid_through"),
        f.when(deleted, through).alias("deleted_through"),
        f.when(recovered, f.col("boot")).alias("recovered_boot"),
        f.when(recovered, through).alias("recovered_through"),
    )
    return owed | deleted | accepted | expired | invalid, columns


def merge_settlements(parts: DataFrame) -> DataFrame:
    return parts.groupBy("key").agg(*_merged_settlements())


@cache
def _merged_settlements() -> tuple[Column, ...]:
    return (
        *(f.max(name).alias(name) for name in SETTLEMENTS[1:-1]),
        f.max_by("recovered_through", "recovered_boot").alias("recovered_through"),
    )
