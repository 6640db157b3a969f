"""The ledger: one row per notification, with its milestones and its outcome.

Events become `marks` (the milestones of each notification) and `settlements` (the `ntf_seq` up to
which each token and subscription is settled). Both are minima and maxima, so that parts merge in
any order, and merging one twice changes nothing. The runner stores them (`update_ledger`); when the
ledger is read, `heliograph.pipeline.jobs.outcomes` decides each row from their merge.
Texts that are not the key travel as 64-bit hashes, which Spark aggregates without sorting.
"""

from functools import cache

from pyspark.sql import Column, DataFrame, functions as f

_FIRST = {
    "smp_stored_at": ("notification_stored",),
    "smp_delivered_at": ("notification_delivered",),
    "smp_gone_at": ("notification_removed", "notification_expired"),
    "received_at": ("nmsg_received",),
    "stored_at": ("nmsg_stored",),
    "repeated_at": ("nmsg_repeated",),
    "undeliverable_at": ("nmsg_unknown", "nmsg_dropped"),
    "pending_at": ("push_pending",),
    "accepted_at": ("push_accepted",),
    "decrypted_at": ("agent_decrypted",),
    "shown_at": ("device_shown",),
}
"""Milestones, each the earliest event of its kinds, in microseconds since the epoch."""

_GREATEST = (
    "smp_boot",
    "smp_router",
    "ntf_router",
    "received_router",
    "server",
    "ntf_seq",
    "pending_through",
    "pending_token",
)
_OF_LATEST = ("token", "subscription")
"""Columns of the event with the greatest `ntf_seq`: it may be stored again for another token."""

TIMES = tuple(_FIRST)
MARKS = ("notification", *_FIRST, *_GREATEST, *_OF_LATEST)
STORED = ("closed_as", "closed_provider", "checked")
"""Columns of stored marks: the decision and provider of a closed notification, as numbers, and 1 if
no closed notification had this ID when the row was stored."""
SETTLED = (
    "provider",
    "accepted_through",
    "expired_through",
    "invalid_through",
    "deleted_through",
    "recovered_boot",
    "recovered_through",
)
SETTLEMENTS = ("key", *SETTLED, "last_at")


def token_key(router: Column, token: Column) -> Column:
    """Return one number for a token or a subscription of a router."""
    return f.xxhash64(router, token)


def marks(events: DataFrame) -> DataFrame:
    """Extract the milestones of each notification from events."""
    return merge_marks(milestones(events))


def milestones(events: DataFrame) -> DataFrame:
    """Return one row per event and notification, with only numbers beside the key."""
    stepped, hashed, columns = _milestone_columns()
    return events.select(*stepped).where("step is not null").select(*hashed).select(*columns)


_OF_LISTS = ("accepted_at", "pending_at")
"""Milestones of events that list their notifications, and that concern only messages."""
_STEPS = {name: number for number, name in enumerate(sorted(_FIRST, key=_OF_LISTS.__contains__))}
"""A number for each milestone: numbers are compared faster than texts."""
_SMP_STORED, _STORED = _STEPS["smp_stored_at"], _STEPS["stored_at"]
_RECEIVED, _PENDING = _STEPS["received_at"], _STEPS["pending_at"]
_FIRST_OF_LISTS = min(_STEPS[name] for name in _OF_LISTS)


@cache
def _milestone_columns() -> tuple[tuple[Column, ...], ...]:
    """Build the columns once: they cost hundreds of calls to the JVM.

    Texts are hashed only where they are needed, before the list of an event is opened.
    """
    step, router, token = f.col("step"), f.col("router"), f.col("token")
    kept = tuple(map(f.col, ("boot", "through", "ntf_seq", "notification", "notifications")))
    texts = (router, token, f.col("subscription"), f.col("smp_host"))
    stepped = (_step().alias("step"), f.unix_micros("at").alias("at"), *kept, *texts)
    by_ntf = step.isin(_STORED, _PENDING)
    hashed = (
        step,
        f.col("at"),
        *kept,
        f.when(step == _SMP_STORED, f.xxhash64(router)).alias("smp_router"),
        f.when(by_ntf, f.xxhash64(router)).alias("ntf_router"),
        f.when(step == _RECEIVED, f.xxhash64(router)).alias("received_router"),
        f.when(step == _STORED, f.xxhash64("smp_host")).alias("server"),
        f.when(by_ntf, token_key(router, token)).alias("token"),
        f.when(step == _STORED, token_key(router, f.col("subscription"))).alias("subscription"),
    )
    ids = f.when(step >= _FIRST_OF_LISTS, f.col("notifications")).otherwise(f.array("notification"))
    columns = (
        f.explode(ids).alias("notification"),
        *(f.when(step == number, f.col("at")).alias(name) for name, number in _STEPS.items()),
        f.when(step == _SMP_STORED, f.col("boot")).alias("smp_boot"),
        *map(f.col, ("smp_router", "ntf_router", "received_router", "server")),
        f.when(step == _STORED, f.col("ntf_seq")).alias("ntf_seq"),
        f.when(step == _PENDING, f.col("through")).alias("pending_through"),
        f.when(step == _PENDING, token).alias("pending_token"),
        f.when(step == _STORED, token).alias("token"),
        f.col("subscription"),
    )
    return stepped, hashed, columns


def _step() -> Column:
    """Return the number of the milestone that an event is; null if none."""
    kind = f.col("kind")
    of_message = (f.col("mode") == "message") & f.col("notifications").isNotNull()
    result = f.when(f.lit(False), 0)
    for name, kinds in _FIRST.items():
        here = kind == kinds[0] if len(kinds) == 1 else kind.isin(*kinds)
        result = result.when(here & of_message if name in _OF_LISTS else here, _STEPS[name])
    return result


def merge_marks(parts: DataFrame) -> DataFrame:
    """Merge marks to one row per notification."""
    return parts.groupBy("notification").agg(*_merged_marks())


def merge_stored(parts: DataFrame) -> DataFrame:
    """Merge marks, some of which may be of closed notifications."""
    stored = (f.max(name).alias(name) for name in STORED)
    return parts.groupBy("notification").agg(*_merged_marks(), *stored)


@cache
def _merged_marks() -> tuple[Column, ...]:
    return (
        *(f.min(column).alias(column) for column in _FIRST),
        *(f.max(column).alias(column) for column in _GREATEST),
        *(f.max_by(column, "ntf_seq").alias(column) for column in _OF_LATEST),
    )


def receipts(parts: DataFrame) -> DataFrame:
    """Return when a device last decrypted or showed a notification, by the key of its token."""
    reported = f.greatest("decrypted_at", "shown_at")
    notifications = parts.groupBy("notification").agg(
        f.max_by("token", "ntf_seq").alias("key"), f.max(reported).alias("received_at")
    )
    known = notifications.where("key is not null and received_at is not null")
    return known.groupBy("key").agg(f.max("received_at").alias("received_at"))


def settlements(events: DataFrame) -> DataFrame:
    """Extract the settlements of each token and subscription from events."""
    return merge_settlements(settling(events))


def settling(events: DataFrame) -> DataFrame:
    """Return a row per settling event: token or subscription, last `ntf_seq`, and provider."""
    condition, columns = _settling_columns()
    return events.where(condition).select(*columns)


@cache
def _settling_columns() -> tuple[Column, tuple[Column, ...]]:
    kind, through, router = f.col("kind"), f.col("through"), f.col("router")
    of_message = f.col("mode") == "message"
    pending = (kind == "push_pending") & of_message
    recovered = pending & (f.col("reason") == "recovered")
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
        f.unix_micros("at").alias("last_at"),
    )
    return pending | deleted | accepted | expired | invalid, columns


def merge_settlements(parts: DataFrame) -> DataFrame:
    return parts.groupBy("key").agg(*_merged_settlements())


@cache
def _merged_settlements() -> tuple[Column, ...]:
    return (
        *(f.max(name).alias(name) for name in SETTLED[:-1]),
        f.max_by("recovered_through", "recovered_boot").alias("recovered_through"),
        f.max("last_at").alias("last_at"),
    )
