"""The outcome of each notification: the ledger's rows, decided from merged marks.

The order and repetition of events and the time of the query make no difference: the current time
is that of the routers' last events, never this machine's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from pyspark.sql import Column, DataFrame, functions as f, types as t

from heliograph.pipeline.jobs.ledger import SETTLED
from heliograph.pipeline.jobs.routers import GRACE, RETIRE_AFTER, RouterFacts, newest_at
from heliograph.pipeline.jobs.windows import (
    ANY_ROUTER,
    BUCKET,
    Gap,
    common_horizon,
    gap_rows,
    horizon,
    kill_rows,
    ntf_of,
)
from heliograph.pipeline.spark.local import local
from heliograph.pipeline.vocabulary import (
    ACCEPTED,
    COALESCED,
    DELIVERED,
    EXPIRED,
    OUTCOMES,
    PENDING,
    REJECTED,
    REMOVED,
    SHOWN,
    UNACCOUNTED,
    UNDELIVERABLE,
    WAITING,
)

SECOND = 1_000_000
FINAL = (SHOWN, ACCEPTED, COALESCED, REJECTED, EXPIRED, REMOVED, UNDELIVERABLE)
"""Outcomes that only events arriving late can change."""
DECISIONS = tuple(f"{outcome}{how}" for outcome in OUTCOMES for how in ("", "/recovered"))
"""Decisions by the number that closed marks have."""
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
"""Microseconds between two milestones; negative if the clocks of two machines differ."""


@dataclass(frozen=True, slots=True)
class OutcomeSettings:
    """Settings in seconds. `push_ttl` is the routers' own setting; `grace` is the maximum
    difference between journals; `retire_after` is the silence after which a router is retired.
    """

    push_ttl: float = 3 * 86_400.0
    grace: float = GRACE
    retire_after: float = RETIRE_AFTER

    @property
    def grace_us(self) -> int:
        return int(self.grace * SECOND)


def decide(
    marks: DataFrame,
    settlements: DataFrame,
    routers: Sequence[RouterFacts],
    settings: OutcomeSettings | None = None,
    broadcast: bool = True,
    gaps: Sequence[Gap] = (),
) -> DataFrame:
    """Return a row for each of the merged marks. `broadcast` unless there are too many tokens."""
    return as_rows(decide_marks(marks, settlements, routers, settings, broadcast, gaps))


def as_rows(marks: DataFrame, *more: Column) -> DataFrame:
    """Return the ledger's rows of decided marks."""
    return marks.select(*_columns(), *more)


def closed_rows(marks: DataFrame, *more: Column) -> DataFrame:
    """Return the ledger's rows of closed marks, as they were decided, and columns of the marks."""
    known = {
        "decision": _as_closed(),
        "provider": f.col("closed_provider"),
        "explained": f.lit(False),
    }
    return as_rows(marks.withColumns(known), *more)


def decide_marks(
    marks: DataFrame,
    settlements: DataFrame,
    routers: Sequence[RouterFacts],
    settings: OutcomeSettings | None = None,
    broadcast: bool = True,
    gaps: Sequence[Gap] = (),
) -> DataFrame:
    """Add the columns `decision`, `explained` and `provider` to merged marks."""
    settings = settings or OutcomeSettings()
    small = f.broadcast if broadcast else _unchanged
    of_token = settlements.select(f.col("key").alias("token_key"), _packed().alias("of_token"))
    of_subscription = settlements.select(
        f.col("key").alias("subscription_key"), _packed().alias("of_subscription")
    )
    spark, newest = marks.sparkSession, newest_at(routers)
    ntf = local(spark, [_ntf_row(item, newest) for item in ntf_of(routers)], _NTF)
    smp = local(spark, [_smp_row(item) for item in routers if item.part == "smp"], _SMP)
    rows = (
        marks.withColumns(_derived_columns())
        .join(small(of_token), f.col("owner") == f.col("token_key"), "left")
        .join(small(of_subscription), f.col("subscription") == f.col("subscription_key"), "left")
        .join(f.broadcast(ntf), f.col("at_router") == f.xxhash64("ntf_text"), "left")
        .join(f.broadcast(smp), f.col("smp_router") == f.xxhash64("smp_text"), "left")
    )
    rows = _with_kills(rows, kill_rows(routers, settings.grace_us))
    # If no router is known to have received a notification, a kill is a sure explanation only if
    # there is a single router that can have received it.
    lost_for_sure = f.col("received_at").isNotNull() | f.lit(len(ntf_of(routers)) == 1)
    decision, provider = _decision(routers, settings, lost_for_sure), _settled("provider")
    if "closed_as" in marks.columns:
        decision, provider = _unless_closed(decision), f.coalesce(provider, "closed_provider")
    decided = rows.withColumns({"decision": decision, "provider": provider})
    windows = gap_rows(gaps, routers, settings.grace_us)
    return _with_gaps(decided, windows, settings)


def _unless_closed(decision: Column) -> Column:
    """Keep the decision of a closed row, unless events that came late make it final again.

    What it was decided from may have expired.
    """
    is_final = f.substring_index(decision, "/", 1).isin(*FINAL)
    return f.when(is_final | f.col("closed_as").isNull(), decision).otherwise(_as_closed())


def _as_closed() -> Column:
    return f.element_at(f.array(*map(f.lit, DECISIONS)), f.col("closed_as").cast("int") + 1)


def _with_kills(rows: DataFrame, windows: Sequence[tuple[str, int, int, int]]) -> DataFrame:
    """Add `killed`: True if the router was killed soon after the last known event of a row."""
    if not windows:
        return rows.withColumn("killed", f.lit(False))
    kills = local(rows.sparkSession, windows, _KILLS)
    inside = (
        (f.col("in_flight_at") == f.xxhash64("kill_text"))
        & (f.floor(f.col("since") / BUCKET) == f.col("kill_bucket"))
        & f.col("since").between(f.col("kill_low"), f.col("kill_high"))
    )
    joined = rows.join(f.broadcast(kills), inside, "left")
    return joined.withColumn("killed", f.col("kill_low").isNotNull())


def _with_gaps(
    rows: DataFrame,
    windows: Sequence[tuple[str, list[int], list[int]]],
    settings: OutcomeSettings,
) -> DataFrame:
    """Add `explained`: True if events known to be missing can be those of a row."""
    if not windows:
        return rows.withColumn("explained", f.col("killed"))
    gaps = local(rows.sparkSession, windows, _GAPS)
    key = f.coalesce(f.col("at_router"), f.xxhash64(f.lit(ANY_ROUTER)))
    stored = f.col("covered").isNotNull()
    since = f.coalesce("stored_at", "pending_at", "since")
    wait = f.when(stored, int(settings.push_ttl * SECOND)).otherwise(0) + settings.grace_us
    overlaps = f.exists(
        f.arrays_zip("gap_lows", "gap_highs"),
        lambda gap: (gap["gap_lows"] <= since + wait) & (gap["gap_highs"] >= since),
    )
    joined = rows.join(f.broadcast(gaps), key == f.xxhash64("gap_text"), "left")
    lost = f.col("decision").startswith(UNACCOUNTED)
    near = f.when(lost, f.coalesce(overlaps, f.lit(False))).otherwise(f.lit(False))
    return joined.withColumn("explained", f.col("killed") | near)


@cache
def _packed() -> Column:
    """Pack the settlement columns into one array, so that both joins read the same columns and
    Spark scans the table once."""
    return f.array(*SETTLED)


def _settled(name: str, of: str = "of_token") -> Column:
    return f.get(of, f.lit(SETTLED.index(name)))


@cache
def _derived_columns() -> dict[str, Column]:
    return {
        "owner": f.coalesce("token", "pending_token"),
        "covered": f.coalesce("ntf_seq", "pending_through"),
        "at_router": f.coalesce("ntf_router", "received_router"),
        "since": f.coalesce("received_at", "smp_delivered_at"),
        "in_flight_at": f.coalesce("received_router", f.xxhash64(f.lit(ANY_ROUTER))),
    }


@cache
def _columns() -> tuple[Column, ...]:
    """Build the columns once: each costs several messages to Java, too many for each query."""
    return (
        f.col("notification"),
        f.substring_index("decision", "/", 1).alias("outcome"),
        f.col("decision").endswith("/recovered").alias("recovered"),
        ((f.col("decision") == UNACCOUNTED) & f.col("explained")).alias("explained"),
        *map(f.col, MILESTONES),
        *((f.col(end) - f.col(begin)).alias(name) for name, (begin, end) in LATENCIES.items()),
        f.least(*MILESTONES, "smp_gone_at", "undeliverable_at", "pending_at", "repeated_at").alias(
            "first_at"
        ),
        f.col("provider"),
        f.col("server"),
    )


def _unchanged(frame: DataFrame) -> DataFrame:
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


_KILLS = t.StructType(
    [
        t.StructField("kill_text", t.StringType()),
        *(t.StructField(name, t.LongType()) for name in ("kill_bucket", "kill_low", "kill_high")),
    ]
)
_GAPS = t.StructType(
    [
        t.StructField("gap_text", t.StringType()),
        *(t.StructField(name, t.ArrayType(t.LongType())) for name in ("gap_lows", "gap_highs")),
    ]
)


def _ntf_row(item: RouterFacts, newest: int) -> tuple[str, int | None, int | None, int]:
    return item.router, item.recovered_boot, item.recovered_through, horizon(item, newest)


def _smp_row(item: RouterFacts) -> tuple[str, int | None]:
    return item.router, item.recovered_boot


def _decision(
    routers: Sequence[RouterFacts], settings: OutcomeSettings, lost_for_sure: Column
) -> Column:
    """Return an outcome; with `/recovered` if it was inferred."""
    everywhere = f.lit(common_horizon(routers))
    known_until = f.coalesce(f.col("last_at"), everywhere)

    def in_flight(outcome: str, until: Column) -> Column:
        """Decide a row without events after `since`: explained by a kill, or not yet due."""
        overdue = f.col("since") + settings.grace_us < until
        return (
            f.when(f.col("killed") & lost_for_sure, f"{ACCEPTED}/recovered")
            .when(overdue, UNACCOUNTED)
            .otherwise(outcome)
        )

    return (
        f.when(f.col("shown_at").isNotNull(), SHOWN)
        .when(f.col("accepted_at").isNotNull(), ACCEPTED)
        .when(f.col("decrypted_at").isNotNull(), f"{ACCEPTED}/recovered")
        .when(f.col("covered").isNotNull(), _of_stored(known_until, settings))
        .when(f.col("undeliverable_at").isNotNull(), UNDELIVERABLE)
        .when(f.col("repeated_at").isNotNull(), f"{ACCEPTED}/recovered")
        .when(f.col("received_at").isNotNull(), in_flight(PENDING, known_until))
        .when(f.col("smp_gone_at").isNotNull(), REMOVED)
        .when(f.col("smp_delivered_at").isNotNull(), in_flight(DELIVERED, everywhere))
        .when(f.col("smp_boot") < f.col("smp_recovered_boot"), f"{REMOVED}/recovered")
        .otherwise(WAITING)
    )


def _of_stored(known_until: Column, settings: OutcomeSettings) -> Column:
    """Return the outcome of a stored notification: settled by its token, or pending."""
    covered = f.col("covered")
    still_pending = (_settled("recovered_boot") == f.col("boot")) & (
        covered <= _settled("recovered_through")
    )
    lost_tail = (covered <= f.col("through")) & ~f.coalesce(still_pending, f.lit(False))
    since = f.coalesce("stored_at", "pending_at")
    too_old = since + int((settings.push_ttl + settings.grace) * SECOND)
    return (
        f.when(covered <= _settled("accepted_through"), COALESCED)
        .when(covered <= _settled("invalid_through"), REJECTED)
        .when(covered <= _settled("deleted_through"), UNDELIVERABLE)
        .when(covered <= _settled("deleted_through", "of_subscription"), UNDELIVERABLE)
        .when(covered <= _settled("expired_through"), EXPIRED)
        .when(lost_tail, f"{ACCEPTED}/recovered")
        .when(known_until > too_old, UNACCOUNTED)
        .otherwise(PENDING)
    )
