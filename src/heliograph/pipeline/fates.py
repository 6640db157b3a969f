"""What became of each notification: the ledger's rows, decided from merged marks.

Order of events, their number and the moment of asking make no difference: time is what routers
last said, never this machine's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from heliograph.pipeline.ledger import SETTLEMENTS
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
    of_token = settlements.select(f.col("key").alias("token_key"), _packed().alias("of_token"))
    of_subscription = settlements.select(
        f.col("key").alias("subscription_key"), _packed().alias("of_subscription")
    )
    spark = marks.sparkSession
    ntf = local(spark, [_ntf_row(item) for item in routers if item.part == "ntf"], _NTF)
    smp = local(spark, [_smp_row(item) for item in routers if item.part == "smp"], _SMP)
    rows = (
        marks.withColumns(_whose())
        .join(small(of_token), f.col("owner") == f.col("token_key"), "left")
        .join(small(of_subscription), f.col("subscription") == f.col("subscription_key"), "left")
        .join(f.broadcast(ntf), f.col("ntf_router") == f.xxhash64("ntf_text"), "left")
        .join(f.broadcast(smp), f.col("smp_router") == f.xxhash64("smp_text"), "left")
    )
    decided = rows.withColumn("decision", _decision(routers, settings))
    return decided.select(*_columns())


@cache
def _packed() -> Column:
    """One column of a settlement's numbers. Else two queries would be made of the two joins, as
    one of them needs less: they are one when both need the same."""
    return f.array(*_SETTLED)


_SETTLED = SETTLEMENTS[1:]


def _settled(name: str, of: str = "of_token") -> Column:
    return f.get(of, f.lit(_SETTLED.index(name)))


@cache
def _whose() -> dict[str, Column]:
    return {
        "owner": f.coalesce("token", "owed_token"),
        "covered": f.coalesce("ntf_seq", "owed_through"),
    }


@cache
def _columns() -> tuple[Column, ...]:
    """Made once: each is several messages to Java, which every query would wait for."""
    return (
        f.col("notification"),
        f.substring_index("decision", "/", 1).alias("fate"),
        f.col("decision").endswith("/recovered").alias("recovered"),
        *map(f.col, MILESTONES),
        *((f.col(end) - f.col(begin)).alias(name) for name, (begin, end) in LATENCIES.items()),
        f.least(*MILESTONES, "smp_gone_at", "undeliverable_at").alias("first_at"),
        _settled("provider").alias("provider"),
        f.col("server"),
    )


def _as_is(frame: DataFrame) -> DataFrame:
    return frame


_NTF = t.StructType(
    [
        t.StructField("ntf_text", t.StringType()),
        *(t.StructField(name, t.LongType()) for name in ("boot", "through", "last_at")),
    ]
)
_SMP = t.StructType(
    [
        t.StructField("smp_text", t.StringType()),
        t.StructField("smp_recovered_boot", t.LongType()),
    ]
)


def _ntf_row(item: RouterFacts) -> tuple[str, int | None, int | None, int]:
    return item.router, item.recovered_boot, item.recovered_through, item.last_at


def _smp_row(item: RouterFacts) -> tuple[str, int | None]:
    return item.router, item.recovered_boot


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
    still_owed = (_settled("recovered_boot") == f.col("boot")) & (
        covered <= _settled("recovered_through")
    )
    lost_tail = (covered <= f.col("through")) & ~f.coalesce(still_owed, f.lit(False))
    too_old = f.col("stored_at") + int((settings.debt_ttl + settings.grace) * SECOND)
    last_at = f.coalesce(f.col("last_at"), f.lit(_least_last_at(routers)))
    return (
        f.when(covered <= _settled("accepted_through"), SUPERSEDED)
        .when(covered <= _settled("invalid_through"), REJECTED)
        .when(covered <= _settled("deleted_through"), UNDELIVERABLE)
        .when(covered <= _settled("deleted_through", "of_subscription"), UNDELIVERABLE)
        .when(covered <= _settled("expired_through"), EXPIRED)
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
