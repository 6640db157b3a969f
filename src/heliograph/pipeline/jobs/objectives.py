"""Count the notifications that met an objective, by provider and window.

Open notifications are counted one by one, closed ones from their sums by hour. A notification
belongs to the time of its first event.
"""

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame, functions as f, types as t

from heliograph.pipeline.objectives.budget import WINDOWS, ObjectiveResult, WindowCount, judge
from heliograph.pipeline.objectives.objective import LIMITS, Objective
from heliograph.pipeline.spark.local import local
from heliograph.pipeline.vocabulary import (
    ACCEPTED,
    COALESCED,
    EXPIRED,
    SHOWN,
    UNACCOUNTED,
    UNFINISHED,
)
from heliograph.wire.ntf.tokens import PushProvider

SECOND = 1_000_000
SETTLED = (SHOWN, ACCEPTED, COALESCED)
Counts = Mapping[tuple[Objective, str | None], Mapping[str, WindowCount]]
"""Counts by window, of each objective and provider; None is a provider that is not known."""


def accepted_after() -> Column:
    """Return microseconds until a push was accepted, since the first router stored it."""
    return f.col("accepted_at") - _began_at()


def _began_at() -> Column:
    return f.coalesce("smp_stored_at", "received_at", "stored_at")


def within(after: Column) -> Column:
    """Count the notifications that were accepted within each of `LIMITS`, and at any time."""
    return f.array(*(f.count_if(after <= limit * SECOND) for limit in LIMITS), f.count(after))


def count_windows(
    rows: DataFrame, sums: DataFrame, objectives: Sequence[Objective], until: int
) -> Counts:
    """Count by window. `rows` are open notifications of the ledger, `sums` closed ones by hour.

    Tokens that only test routers do not count.
    """
    counted = _of_rows(rows, objectives, until).unionByName(_of_sums(sums, objectives))
    real = ~f.col("provider").eqNullSafe(PushProvider.APNS_NULL.text)
    columns = [
        f.coalesce(f.sum(f.when(_is_in(seconds, until), f.col(name))), f.lit(0)).alias(
            f"{name}_{window}"
        )
        for number in range(len(objectives))
        for name in (f"good{number}", f"bad{number}")
        for window, seconds in WINDOWS.items()
    ]
    found = counted.where(real).groupBy("provider").agg(*columns).collect()
    return {
        (objective, row["provider"]): {
            window: WindowCount(row[f"good{number}_{window}"], row[f"bad{number}_{window}"])
            for window in WINDOWS
        }
        for row in found
        for number, objective in enumerate(objectives)
    }


def _is_in(seconds: int, until: int) -> Column:
    return f.col("at") >= until - seconds * SECOND


def _of_rows(rows: DataFrame, objectives: Sequence[Objective], until: int) -> DataFrame:
    schema = t.StructType([t.StructField("name", t.StringType())])
    names = local(rows.sparkSession, [(item.text,) for item in PushProvider], schema)
    named = rows.join(f.broadcast(names), f.col("provider") == f.xxhash64("name"), "left")
    recent = named.where(f.col("first_at") >= until - max(WINDOWS.values()) * SECOND)
    return recent.select(
        f.col("first_at").alias("at"),
        f.col("name").alias("provider"),
        *(
            condition.cast("long").alias(f"{name}{number}")
            for number, objective in enumerate(objectives)
            for name, condition in zip(("good", "bad"), _judged(objective, until), strict=True)
        ),
    )


def _judged(objective: Objective, until: int) -> tuple[Column, Column]:
    """Return whether a row met the objective, and whether it failed; it may do neither.

    A loss that a gap may explain is none. What is not accepted yet fails when its time is over.
    """
    outcome = f.col("outcome")
    lost = (outcome == EXPIRED) | ((outcome == UNACCOUNTED) & ~f.col("explained"))
    if objective.seconds is None:
        return outcome.isin(*SETTLED), lost
    limit, after = objective.seconds * SECOND, accepted_after()
    late = outcome.isin(*UNFINISHED) & (f.lit(until) - _began_at() > limit)
    good = f.coalesce(after <= limit, f.lit(False))
    return good, lost | f.coalesce(late, f.lit(False)) | f.coalesce(after > limit, f.lit(False))


def _of_sums(sums: DataFrame, objectives: Sequence[Objective]) -> DataFrame:
    outcome, number = f.col("outcome"), f.col("notifications")
    lost = f.when(outcome == EXPIRED, number).otherwise(0)
    columns = []
    for index, objective in enumerate(objectives):
        if objective.seconds is None:
            good, bad = f.when(outcome.isin(*SETTLED), number).otherwise(0), lost
        else:
            good = f.get("within", f.lit(LIMITS.index(objective.seconds)))
            bad = lost + f.get("within", f.lit(len(LIMITS))) - good
        columns += [good.alias(f"good{index}"), bad.alias(f"bad{index}")]
    return sums.select(f.unix_micros("hour").alias("at"), "provider", *columns)


def judge_all(
    counts: Counts, objectives: Sequence[Objective], incomplete: Mapping[str, str]
) -> tuple[ObjectiveResult, ...]:
    """Judge each objective for all providers together, and for each that is known."""
    return tuple(
        judge(objective, provider, found, incomplete)
        for objective in objectives
        for provider, found in _by_provider(counts, objective)
    )


def _by_provider(
    counts: Counts, objective: Objective
) -> list[tuple[str | None, Mapping[str, WindowCount]]]:
    found = {
        provider: windows for (asked, provider), windows in counts.items() if asked == objective
    }
    total = {
        name: WindowCount(
            sum(windows[name].good for windows in found.values()),
            sum(windows[name].bad for windows in found.values()),
        )
        for name in WINDOWS
    }
    named = [(provider, found[provider]) for provider in sorted(filter(None, found))]
    return [(None, total), *named]
