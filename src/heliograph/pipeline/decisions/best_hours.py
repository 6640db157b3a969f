"""Best hours: when owners of tokens that are woken about once a day use their phones.

An owner's hours are those of its commands. Every owner gets its best hour as far as the rate stays
flat: see `heliograph.pipeline.planning.phases`. Routers spread shorter intervals by themselves.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, Row, Window, functions as f, types as t

from heliograph.actions.contract import ActionKind
from heliograph.pipeline.decisions.deciding import (
    Decisions,
    DecisionSettings,
    RepairDecision,
    incomplete,
)
from heliograph.pipeline.jobs.tokens import SEEN_KINDS
from heliograph.pipeline.planning.phases import HOURS, assign_phases, plan_moves
from heliograph.pipeline.spark.local import local

if TYPE_CHECKING:
    from heliograph.pipeline.runner import Pipeline

__all__ = ["RULE", "decide", "decision", "habits"]

RULE = "best_hour/1"
LEAST_DAYS = 3
"""Days on which an owner must have been seen."""
LEAST_WAKE_UPS = 3
LEAST_INTERVAL = 20 * 3600
"""Seconds between two wake-ups, in the mean, from which a token has a best hour."""
LEAST_MOVE = 2
"""Hours below which a wake-up is left where it is."""

HourCounts = dict[tuple[int | None, int], int]
"""Numbers of wake-ups by best hour, if it is known, and by hour of the last one."""
_Cell = tuple[str, int, int, int, int, int]
_CELLS = t.StructType(
    [
        t.StructField("router", t.StringType()),
        *(
            t.StructField(name, t.IntegerType())
            for name in ("best", "woken", "target", "first", "last")
        ),
    ]
)


def decide(pipeline: "Pipeline", settings: DecisionSettings, now: float) -> Decisions:
    """Decide which wake-ups to move, those furthest from their owners' hours first.

    Of all tokens only numbers by hours are collected, and of those that are moved their rows.
    """
    result = Decisions(stopped=incomplete(pipeline))
    if result.stopped:
        return result
    rows = habits(pipeline.read("events")).cache()
    try:
        by_router: dict[str, HourCounts] = {}
        for router, best, woken, number in (
            rows.groupBy("router", "best", "woken").count().collect()
        ):
            by_router.setdefault(router, {})[best, woken] = number
        cells = [
            cell
            for router, counts in sorted(by_router.items())
            for cell in _cells(router, counts, settings, result)
        ]
        chosen = _chosen(rows, cells).collect() if cells else []
    finally:
        rows.unpersist()
    for router, counts in sorted(by_router.items()):
        mine = sorted(
            (row for row in chosen if row["router"] == router), key=lambda row: str(row["token"])
        )
        phases = assign_phases((row["target"] for row in mine), _woken(counts))
        result.decisions += [decision(row, phase) for row, phase in zip(mine, phases, strict=True)]
    return result


def decision(row: Row, phase: int) -> RepairDecision:
    """Return the decision to move a wake-up to a second of the day."""
    evidence = {"phase": phase, "best": row["best"], "woken": row["woken"], "days": row["days"]}
    return RepairDecision(row["router"], ActionKind.MOVE_WAKEUP, row["token"], evidence, RULE)


def _woken(counts: HourCounts) -> Counter[int]:
    """Return how many are woken in each hour."""
    found: Counter[int] = Counter()
    for (_, woken), number in counts.items():
        found[woken] += number
    return found


def _cells(
    router: str, counts: HourCounts, settings: DecisionSettings, result: Decisions
) -> Iterator[_Cell]:
    """Yield how many wake-ups of one router to move between which hours, as the cap allows."""
    known = {(best, woken): n for (best, woken), n in counts.items() if best is not None}
    fixed = {woken: number for (best, woken), number in counts.items() if best is None}
    far = [move for move in plan_moves(known, fixed) if move.distance >= LEAST_MOVE]
    total = sum(counts.values())
    number = sum(move.number for move in far)
    left = min(settings.cap(total), number)
    result.found.append(
        f"{router}: far from their owners' hours {number} of {total} wake-ups, {left} are moved now"
    )
    taken: Counter[tuple[int, int]] = Counter()
    for move in sorted(far, key=lambda move: -move.distance):
        if count := min(move.number, left):
            left -= count
            first = taken[move.best, move.woken]
            taken[move.best, move.woken] += count
            yield router, move.best, move.woken, move.target, first, first + count


def _chosen(rows: DataFrame, cells: Sequence[_Cell]) -> DataFrame:
    """Return as many rows as each cell says, with their new hours."""
    keys = ["router", "best", "woken"]
    number = f.row_number().over(Window.partitionBy(*keys).orderBy("token")) - 1
    moves = local(rows.sparkSession, cells, _CELLS)
    return (
        rows.join(f.broadcast(moves.select(*keys).distinct()), keys, "left_semi")
        .withColumn("number", number)
        .join(f.broadcast(moves), keys)
        .where((f.col("number") >= f.col("first")) & (f.col("number") < f.col("last")))
        .select("router", "token", "woken", "best", "days", "target")
    )


def habits(events: DataFrame) -> DataFrame:
    """Return the tokens that are woken about daily: hour of the last wake-up, and the best one.

    `best` is null if the owner was seen on too few days.
    """
    kind, hour = f.col("kind"), f.hour("at")
    woken = events.where((kind == "push_accepted") & (f.col("mode") == "periodic"))
    span = f.max(f.unix_seconds("at")) - f.min(f.unix_seconds("at"))
    daily = (
        woken.groupBy("router", "token")
        .agg(
            f.count(f.lit(1)).alias("number"),
            span.alias("span"),
            f.max_by(hour, "at").alias("woken"),
        )
        .where(f.col("number") >= LEAST_WAKE_UPS)
        .where(f.col("span") >= LEAST_INTERVAL * (f.col("number") - 1))
    )
    seen = events.where(kind.isin(*SEEN_KINDS) & f.col("token").isNotNull())
    hours = seen.groupBy("router", "token").agg(
        f.count_distinct(f.to_date("at")).alias("days"),
        *(f.count_if(hour == number).alias(f"hour{number}") for number in range(HOURS)),
    )
    best = f.when(f.col("days") >= LEAST_DAYS, _best())
    chosen = hours.select("router", "token", "days", best.alias("best"))
    return daily.join(chosen, ["router", "token"], "left").select(
        "router", "token", "woken", "best", "days"
    )


def _best() -> Column:
    """Return the hour with most commands in it and, half as important, in the hours beside it."""
    scores = f.array(
        *(
            2 * f.col(f"hour{number}")
            + f.col(f"hour{(number - 1) % HOURS}")
            + f.col(f"hour{(number + 1) % HOURS}")
            for number in range(HOURS)
        )
    )
    return (f.array_position(scores, f.array_max(scores)) - 1).cast("int")
