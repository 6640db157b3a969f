"""The account: notifications by outcome, and the verdict whether any is unaccounted for."""

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from pyspark.sql import DataFrame, Row, functions as f

from heliograph.documents import JsonObject
from heliograph.pipeline.jobs.reach import Lag, utc
from heliograph.pipeline.jobs.windows import Gap
from heliograph.pipeline.objectives.budget import Objectives
from heliograph.pipeline.vocabulary import OUTCOMES, UNACCOUNTED

logger = logging.getLogger(__name__)

SHOWN_ROWS = 20


@dataclass(frozen=True, slots=True)
class Hour:
    """Notifications that began in an hour, and microseconds until their pushes were accepted."""

    at: int
    outcomes: dict[str, int]
    p50_us: int | None
    p99_us: int | None


class Verdict(Enum):
    """The result of an account: are all notifications and events accounted for?"""

    COMPLETE = "complete"
    """Every notification has an outcome, and no event is missing."""
    LAGGING = "lagging"
    """The same as far as the journals reach, but a router lags: it is not known what is missing."""
    GAPS = "gaps"
    """Events are known to be missing, and explain every notification without an outcome."""
    MISSING = "missing"
    """A notification has no outcome, and no known gap explains it."""


def verdict(unaccounted: int, explained: int, missing_events: int, lags: int) -> Verdict:
    """Judge the numbers of notifications without outcome, those that gaps explain, of missing
    events, and of routers that lag."""
    if unaccounted > explained:
        return Verdict.MISSING
    if missing_events or unaccounted:
        return Verdict.GAPS
    return Verdict.LAGGING if lags else Verdict.COMPLETE


@dataclass(frozen=True, slots=True)
class Account:
    """Number of notifications by outcome, and the first unaccounted rows."""

    outcomes: dict[str, int]
    unaccounted: tuple[JsonObject, ...]
    hours: tuple[Hour, ...] = ()
    gaps: tuple[Gap, ...] = ()
    explained: int = 0
    """Number of unaccounted notifications that a known gap may explain."""
    quarantined: int = 0
    """Segments and events in quarantine: what they contain is missing."""
    objectives: Objectives = field(default_factory=Objectives)
    lags: tuple[Lag, ...] = ()
    """Routers and journals whose missing events are not known."""
    until: int = 0
    """The time until which all routers that run are known, in microseconds; 0 if none is."""

    @property
    def missing_events(self) -> int:
        return sum(gap.events for gap in self.gaps)

    @property
    def verdict(self) -> Verdict:
        missing = self.missing_events + self.quarantined
        unaccounted = self.outcomes.get(UNACCOUNTED, 0)
        return verdict(unaccounted, self.explained, missing, len(self.lags))

    @property
    def is_complete(self) -> bool:
        return self.verdict is Verdict.COMPLETE


def count_outcomes(
    ledger: DataFrame,
    gaps: Sequence[Gap],
    closed: Iterable[Hour] = (),
    reopened: Iterable[Hour] = (),
) -> Account:
    """Count the ledger's rows by outcome. Log the first unaccounted rows as errors.

    `closed` are sums of rows that are not in it; `reopened` those of rows that are in both.
    """
    found_hours = _by_hour(ledger).collect()
    hours = merge_hours([*map(_hour, found_hours), *closed], reopened)
    found = {outcome: sum(item.outcomes.get(outcome, 0) for item in hours) for outcome in OUTCOMES}
    outcomes = {outcome: count for outcome, count in found.items() if count}
    missing: tuple[JsonObject, ...] = ()
    if UNACCOUNTED in outcomes:
        chosen = ledger.where(f.col("outcome") == UNACCOUNTED).orderBy("first_at", "notification")
        missing = tuple(row.asDict() for row in chosen.limit(SHOWN_ROWS).collect())
        logger.error("%d notifications are unaccounted for", outcomes[UNACCOUNTED])
        for row in missing:
            logger.error("unaccounted: %s", _described(row))
    explained = sum(row["explained"] for row in found_hours)
    return Account(outcomes, missing, tuple(hours), tuple(gaps), explained)


def hours_of(ledger: DataFrame) -> list[Hour]:
    """Count the ledger's rows by hour."""
    return [_hour(row) for row in _by_hour(ledger).collect()]


def merge_hours(parts: Iterable[Hour], without: Iterable[Hour] = ()) -> list[Hour]:
    """Add the counts of each hour, and subtract others; quantiles are those of the larger part."""
    merged: dict[int, Hour] = {}
    for part in sorted(parts, key=_size, reverse=True):
        known = merged.get(part.at)
        if known is None:
            merged[part.at] = part
            continue
        outcomes = Counter(known.outcomes)
        outcomes.update(part.outcomes)
        p50 = part.p50_us if known.p50_us is None else known.p50_us
        p99 = part.p99_us if known.p99_us is None else known.p99_us
        merged[part.at] = Hour(part.at, dict(outcomes), p50, p99)
    for part in without:
        known = merged[part.at]
        outcomes = Counter(known.outcomes)
        outcomes.subtract(part.outcomes)
        merged[part.at] = replace(known, outcomes={k: v for k, v in outcomes.items() if v})
    return [merged[at] for at in sorted(merged)]


def _size(hour: Hour) -> int:
    return sum(hour.outcomes.values())


def _by_hour(rows: DataFrame) -> DataFrame:
    hour = f.floor(f.col("first_at") / 3_600_000_000) * 3600
    return (
        rows.groupBy(hour.alias("hour"))
        .agg(
            *(f.count_if(f.col("outcome") == outcome).alias(outcome) for outcome in OUTCOMES),
            f.count_if("explained").alias("explained"),
            f.percentile_approx("total_us", [0.5, 0.99], 1000).alias("quantiles"),
        )
        .orderBy("hour")
    )


def _hour(row: Row) -> Hour:
    outcomes = {outcome: row[outcome] for outcome in OUTCOMES if row[outcome]}
    p50, p99 = row["quantiles"] or (None, None)
    return Hour(row["hour"], outcomes, p50, p99)


def _described(row: JsonObject) -> str:
    times = ((name, value) for name, value in row.items() if name.endswith("_at") and value)
    text = ", ".join(f"{name} {utc(value)}" for name, value in times if name != "first_at")
    return f"{row['notification']}: {text}"
