"""Statistics: additive counts and mergeable sketches, and from them the reference's daily line.

`counts` and `actives` are computed from new events only and added to the tables; raw events may
then expire. A theta sketch is exact up to `2 ** EXACT_BITS` different IDs, and within one percent
beyond.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import date, timedelta

from pyspark.sql import Column, DataFrame, functions as f

from heliograph.wire.ntf.tokens import PushProvider

EXACT_BITS = 14
NULL_PROVIDER = PushProvider.APNS_NULL.text
"""The provider of tokens that only test routers."""

COUNT_KEYS = (
    "hour",
    "part",
    "router",
    "kind",
    "mode",
    "provider",
    "smp_host",
    "status",
    "reason",
    "command",
    "code",
    "own_server",
)


def counts(events: DataFrame) -> DataFrame:
    """Count the events of each kind by hour; `total` sums their `count`."""
    return events.groupBy(f.date_trunc("hour", "at").alias("hour"), *COUNT_KEYS[1:]).agg(
        f.count("*").alias("events"), f.sum("count").alias("total")
    )


def merge_counts(parts: DataFrame) -> DataFrame:
    return parts.groupBy(*COUNT_KEYS).agg(
        f.sum("events").alias("events"), f.sum("total").alias("total")
    )


def actives(events: DataFrame) -> DataFrame:
    """Sketch the tokens and subscriptions that had notifications, by day."""
    notified = events.where(
        f.col("kind").isin("nmsg_stored", "nmsg_repeated", "nmsg_dropped", "nmsg_unknown")
    )
    stored = f.col("kind") == "nmsg_stored"
    ids = f.array(
        f.struct(f.lit("tokens").alias("what"), f.when(stored, f.col("token")).alias("id")),
        f.struct(f.lit("subscriptions").alias("what"), f.col("subscription").alias("id")),
    )
    rows = notified.select(
        f.to_date("at").alias("day"), "router", "smp_host", f.explode(ids).alias("active")
    ).select("day", "router", "smp_host", "active.what", "active.id")
    return (
        rows.where(f.col("id").isNotNull())
        .groupBy("day", "router", "smp_host", "what")
        .agg(f.theta_sketch_agg("id", EXACT_BITS).alias("sketch"))
    )


def merge_actives(parts: DataFrame, *keys: str) -> DataFrame:
    """Merge sketches by the columns given, or by all."""
    chosen = keys or ("day", "router", "smp_host", "what")
    return parts.groupBy(*chosen).agg(f.theta_union_agg("sketch", EXACT_BITS).alias("sketch"))


@dataclass(frozen=True, slots=True)
class DailyLine:
    """A day in the columns of the reference's file, in its order."""

    day: str
    tkn_created: int = 0
    tkn_verified: int = 0
    tkn_deleted: int = 0
    sub_created: int = 0
    sub_deleted: int = 0
    ntf_received: int = 0
    ntf_delivered: int = 0
    tkn_day: int = 0
    tkn_week: int | None = None
    tkn_month: int | None = None
    sub_day: int = 0
    sub_week: int | None = None
    sub_month: int | None = None
    tkn_replaced: int = 0
    ntf_failed: int = 0
    ntf_cron_delivered: int = 0
    ntf_cron_failed: int = 0
    ntf_vrf_queued: int = 0
    ntf_vrf_delivered: int = 0
    ntf_vrf_failed: int = 0
    ntf_vrf_invalid_tkn: int = 0

    @property
    def text(self) -> str:
        values = (getattr(self, item.name) for item in fields(self))
        return ",".join("" if value is None else str(value) for value in values)


HEADER = tuple(item.name for item in fields(DailyLine))
ACTIVE_COLUMNS = ("tkn_day", "tkn_week", "tkn_month", "sub_day", "sub_week", "sub_month")


def parse_line(text: str) -> DailyLine:
    """Parse a line of a router's file. Raises `ValueError`."""
    values = text.strip().split(",")
    if len(values) != len(HEADER):
        raise ValueError(f"a line of statistics has {len(HEADER)} columns, not {len(values)}")
    numbers = [int(value) if value else None for value in values[1:]]
    return DailyLine(date.fromisoformat(values[0]).isoformat(), *numbers)  # type: ignore[arg-type]


def is_real_token() -> Column:
    """Return False for tokens of the null provider."""
    return f.coalesce(f.col("provider"), f.lit("")) != NULL_PROVIDER


def _columns() -> dict[str, Column]:
    """Return a column for each of the router's counters."""
    kind, mode, reason = f.col("kind"), f.col("mode"), f.col("reason")
    real = is_real_token()
    failed = kind.isin("push_rejected", "push_retried")

    def push(kinds: Column, of: str) -> Column:
        return kinds & (mode == of) & real

    accepted = kind == "push_accepted"
    by_owner = reason.isNull()
    return {
        "tkn_created": (kind == "token_registered") & real,
        "tkn_verified": (kind == "token_active") & real,
        "tkn_deleted": (kind == "token_deleted") & real & by_owner,
        "sub_created": kind == "subscription_created",
        "sub_deleted": kind == "subscription_deleted",
        "ntf_received": kind.isin("nmsg_stored", "nmsg_repeated"),
        "ntf_delivered": push(accepted, "message"),
        "tkn_replaced": (kind == "token_replaced") & real,
        "ntf_failed": push(failed, "message"),
        "ntf_cron_delivered": push(accepted, "periodic"),
        "ntf_cron_failed": push(failed, "periodic"),
        "ntf_vrf_queued": (kind == "token_verification_queued") & real,
        "ntf_vrf_delivered": push(accepted, "verification"),
        "ntf_vrf_failed": push(kind == "push_retried", "verification"),
        "ntf_vrf_invalid_tkn": push(kind == "push_rejected", "verification"),
    }


def daily_counts(merged: DataFrame, *keys: str) -> DataFrame:
    """Return the counters of the daily line, by day and `keys`."""
    ntf = merged.where("part = 'ntf'").withColumn("day", f.to_date("hour"))
    return ntf.groupBy("day", *keys).agg(
        *(
            f.coalesce(f.sum(f.when(condition, f.col("events"))), f.lit(0)).alias(name)
            for name, condition in _columns().items()
        )
    )


def daily_lines(merged: DataFrame, sketches: DataFrame, first: date, last: date) -> list[DailyLine]:
    """Return a line for each day that has events. Weeks and months are on their last day."""
    rows = daily_counts(merged).where(f.col("day").between(first, last)).orderBy("day").collect()
    active = _active_counts(sketches, first, last)
    lines = []
    for row in rows:
        day: date = row["day"]
        counted = {name: row[name] for name in _columns()}
        numbers = {
            f"{short}_{period}": active_on(active, what, period, day)
            for short, what in (("tkn", "tokens"), ("sub", "subscriptions"))
            for period in ("day", "week", "month")
        }
        lines.append(DailyLine(day.isoformat(), **counted, **numbers))  # type: ignore[arg-type]
    return lines


PERIOD_START: Mapping[str, Callable[[Column], Column]] = {
    "day": lambda day: day,
    "week": lambda day: f.to_date(f.date_trunc("week", day)),
    "month": lambda day: f.to_date(f.date_trunc("month", day)),
}
Active = dict[tuple[str, str, date], int]
"""Numbers of active IDs by column, period and first day of the period."""


def _active_counts(sketches: DataFrame, first: date, last: date) -> Active:
    begin = min(first - timedelta(days=first.weekday()), first.replace(day=1))
    near = sketches.where(f.col("day").between(begin, last + timedelta(days=1)))
    spans = f.explode(
        f.array(
            *(
                f.struct(f.lit(period).alias("period"), start(f.col("day")).alias("start"))
                for period, start in PERIOD_START.items()
            )
        )
    )
    rows = near.select("what", "sketch", spans.alias("span")).select(
        "what", "sketch", "span.period", "span.start"
    )
    number = f.theta_sketch_estimate("sketch").alias("number")
    merged = merge_actives(rows, "what", "period", "start")
    return {
        (row["what"], row["period"], row["start"]): row["number"]
        for row in merged.select("what", "period", "start", number).collect()
    }


def active_on(active: Active, what: str, period: str, day: date) -> int | None:
    """Return the number of the period that ends on a day; None if none of its kind does."""
    after = day + timedelta(days=1)
    if period == "day":
        return active.get((what, "day", day), 0)
    if period == "week":
        start = day - timedelta(days=6)
        return active.get((what, "week", start), 0) if after.weekday() == 0 else None
    start = day.replace(day=1)
    return active.get((what, "month", start), 0) if after.day == 1 else None


@dataclass(frozen=True, slots=True)
class Difference:
    """A value in which the pipeline and a router's own file differ."""

    day: str
    column: str
    pipeline: int | None
    router: int | None


def reconcile(ours: Iterable[DailyLine], theirs: Iterable[DailyLine]) -> list[Difference]:
    """Compare the days that both have, by column; a router may write several lines for one day."""
    of_day = {line.day: line for line in ours}
    summed: dict[str, DailyLine] = {}
    for line in theirs:
        known = summed.get(line.day)
        summed[line.day] = line if known is None else _sum(known, line)
    return [
        Difference(day, name, getattr(of_day[day], name), getattr(line, name))
        for day, line in sorted(summed.items())
        if day in of_day
        for name in HEADER[1:]
        if getattr(of_day[day], name) != getattr(line, name)
    ]


def _sum(left: DailyLine, right: DailyLine) -> DailyLine:
    """Add up two lines of one day, as after a restart. Active numbers are those of the last."""
    values = {
        name: getattr(right, name)
        if name in ACTIVE_COLUMNS
        else getattr(left, name) + getattr(right, name)
        for name in HEADER[1:]
    }
    return DailyLine(left.day, **values)
