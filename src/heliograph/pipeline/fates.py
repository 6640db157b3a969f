"""What became of each notification: the ledger's rows, decided from merged marks.

Order of events, their number and the moment of asking make no difference: time is what routers
last said, never this machine's.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from heliograph.pipeline.local import local
from heliograph.pipeline.routers import RouterFacts
from heliograph.pipeline.vocabulary import (
    ACCEPTED,
    DELIVERED,
    EXPIRED,
    OWED,
    REJECTED,
    REMOVED,
    SHOWN,
    SUPERSEDED,
    UNACCOUNTED,
    UNDELIVERABLE,
    WAITING,
)

SECOND = 1_000_000
MILESTONES = (
    "smp_stored_at",
    "smp_delivered_at",
    "received_at",
    "stored_at",
    "accepted_at",
    "decrypted_at",
    "shown_at",
)
LATENCIES = {
    "smp_us": ("smp_stored_at", "smp_delivered_at"),
    "wire_us": ("smp_delivered_at", "received_at"),
    "store_us": ("received_at", "stored_at"),
    "push_us": ("stored_at", "accepted_at"),
    "device_us": ("accepted_at", "shown_at"),
    "total_us": ("smp_stored_at", "accepted_at"),
}
"""Microseconds between milestones; clocks of two machines may make one negative."""


@dataclass(frozen=True, slots=True)
class FateSettings:
    """`debt_ttl` is the routers' own setting; `grace` is how far journals may be apart."""

    debt_ttl: float = 3 * 86_400.0
    grace: float = 300.0


def decide(
    marks: DataFrame,
    settlements: DataFrame,
    routers: Sequence[RouterFacts],
    settings: FateSettings | None = None,
    broadcast: bool = True,
) -> DataFrame:
    """Merged marks and settlements to rows. `broadcast` unless there are too many tokens."""
    settings = settings or FateSettings()
    small = f.broadcast if broadcast else _as_is
    of_token = settlements.select(
        f.col("key").alias("token_key"),
        "provider",
        "accepted_through",
        "expired_through",
        "invalid_through",
        f.col("deleted_through").alias("token_deleted"),
        f.col("recovered_boot").alias("token_boot"),
        "recovered_through",
    )
    of_subscription = settlements.where(f.col("deleted_through").isNotNull()).select(
        f.col("key").alias("subscription_key"),
        f.col("deleted_through").alias("subscription_deleted"),
    )
    spark = marks.sparkSession
    known = local(spark, [_router_row(item) for item in routers], _ROUTER_SCHEMA)
    known = known.withColumn("router_key", f.xxhash64("router_text"))
    ntf = f.broadcast(
        known.where("part = 'ntf'").select(
            f.col("router_key").alias("ntf_key"), "boot", "through", "last_at"
        )
    )
    smp = f.broadcast(
        known.where("part = 'smp'").select(
            f.col("router_key").alias("smp_key"), f.col("boot").alias("smp_recovered_boot")
        )
    )
    rows = (
        marks.withColumn("owner", f.coalesce("token", "owed_token"))
        .withColumn("covered", f.coalesce("ntf_seq", "owed_through"))
        .join(small(of_token), f.col("owner") == f.col("token_key"), "left")
        .join(small(of_subscription), f.col("subscription") == f.col("subscription_key"), "left")
        .join(ntf, f.col("ntf_router") == f.col("ntf_key"), "left")
        .join(smp, f.col("smp_router") == f.col("smp_key"), "left")
    )
    decided = rows.select("*", _decision(routers, settings).alias("decision"))
    return decided.select(
        "notification",
        f.substring_index("decision", "/", 1).alias("fate"),
        f.col("decision").endswith("/recovered").alias("recovered"),
        *MILESTONES,
        *((f.col(end) - f.col(begin)).alias(name) for name, (begin, end) in LATENCIES.items()),
        f.least(*MILESTONES, "smp_gone_at", "undeliverable_at").alias("first_at"),
        "provider",
        "server",
    )


def _as_is(frame: DataFrame) -> DataFrame:
    return frame


_ROUTER_SCHEMA = t.StructType(
    [
        t.StructField("router_text", t.StringType()),
        t.StructField("part", t.StringType()),
        *(t.StructField(name, t.LongType()) for name in ("last_at", "boot", "through")),
    ]
)


def _router_row(item: RouterFacts) -> tuple[str, str, int, int | None, int | None]:
    return (
        item.router,
        item.part,
        item.last_at,
        item.recovered_boot,
        item.recovered_through,
    )


def _decision(routers: Sequence[RouterFacts], settings: FateSettings) -> Column:
    """A fate; with `/recovered` if it was inferred."""
    return (
        f.when(f.col("shown_at").isNotNull(), SHOWN)
        .when(f.col("accepted_at").isNotNull(), ACCEPTED)
        .when(f.col("decrypted_at").isNotNull(), f"{ACCEPTED}/recovered")
        .when(f.col("covered").isNotNull(), _of_stored(routers, settings))
        .when(f.col("undeliverable_at").isNotNull(), UNDELIVERABLE)
        .when(f.col("repeated_at").isNotNull(), f"{ACCEPTED}/recovered")
        .when(f.col("received_at").isNotNull(), _in_flight("received_at", OWED, routers, settings))
        .when(f.col("smp_gone_at").isNotNull(), REMOVED)
        .when(
            f.col("smp_delivered_at").isNotNull(),
            _in_flight("smp_delivered_at", DELIVERED, routers, settings),
        )
        .when(f.col("smp_boot") < f.col("smp_recovered_boot"), f"{REMOVED}/recovered")
        .otherwise(WAITING)
    )


def _of_stored(routers: Sequence[RouterFacts], settings: FateSettings) -> Column:
    """What a notification router stored is settled by its token, or owed."""
    covered = f.col("covered")
    still_owed = (f.col("token_boot") == f.col("boot")) & (covered <= f.col("recovered_through"))
    lost_tail = (covered <= f.col("through")) & ~f.coalesce(still_owed, f.lit(False))
    too_old = f.col("stored_at") + int((settings.debt_ttl + settings.grace) * SECOND)
    last_at = f.coalesce(f.col("last_at"), f.lit(_least_last_at(routers)))
    return (
        f.when(covered <= f.col("accepted_through"), SUPERSEDED)
        .when(covered <= f.col("invalid_through"), REJECTED)
        .when(covered <= f.col("token_deleted"), UNDELIVERABLE)
        .when(covered <= f.col("subscription_deleted"), UNDELIVERABLE)
        .when(covered <= f.col("expired_through"), EXPIRED)
        .when(lost_tail, f"{ACCEPTED}/recovered")
        .when(last_at > too_old, UNACCOUNTED)
        .otherwise(OWED)
    )


def _in_flight(
    since: str, fate: str, routers: Sequence[RouterFacts], settings: FateSettings
) -> Column:
    """Nothing is known of it after `since`: a kill explains that, or it is under way still.

    A kill takes what was journaled last, so it explains nothing that is older than that.
    """
    grace = int(settings.grace * SECOND)
    lost = f.lit(False)
    for item in _of_ntf(routers):
        for last_at, started_at in item.kills:
            lost = lost | f.col(since).between(last_at - grace, started_at)
    overdue = f.col(since) + grace < f.lit(_least_last_at(routers))
    return f.when(lost, f"{ACCEPTED}/recovered").when(overdue, UNACCOUNTED).otherwise(fate)


def _of_ntf(routers: Sequence[RouterFacts]) -> list[RouterFacts]:
    return [item for item in routers if item.part == "ntf"]


def _least_last_at(routers: Sequence[RouterFacts]) -> int:
    """Up to when every notification router that runs has told; 0 if none has."""
    ntf = _of_ntf(routers)
    running = [item for item in ntf if not item.stopped] or ntf
    return min((item.last_at for item in running), default=0)
