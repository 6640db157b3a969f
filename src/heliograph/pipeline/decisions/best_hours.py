"""Best hours: when owners of tokens that are woken about once a day use their phones.

An owner's hours are those of its commands. Every owner gets its best hour as far as the rate stays
flat: see `heliograph.pipeline.planning.phases`. Routers spread shorter intervals by themselves.
"""

from collections import Counter
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, Row, functions as f

from heliograph.actions.contract import ActionKind
from heliograph.pipeline.decisions.deciding import (
    Decisions,
    DecisionSettings,
    RepairDecision,
    incomplete,
)
from heliograph.pipeline.jobs.tokens import SEEN_KINDS
from heliograph.pipeline.planning.phases import HOURS, assign_hours, assign_phases, distance

if TYPE_CHECKING:
    from heliograph.pipeline.runner import Pipeline

__all__ = ["RULE", "decide", "decide_router", "habits"]

RULE = "best_hour/1"
LEAST_DAYS = 3
"""Days on which an owner must have been seen."""
LEAST_WAKE_UPS = 3
LEAST_INTERVAL = 20 * 3600
"""Seconds between two wake-ups, in the mean, from which a token has a best hour."""
LEAST_MOVE = 2
"""Hours below which a wake-up is left where it is."""


def decide(pipeline: "Pipeline", settings: DecisionSettings, now: float) -> Decisions:
    """Decide which wake-ups to move, those furthest from their owners' hours first."""
    result = Decisions(stopped=incomplete(pipeline))
    if result.stopped:
        return result
    rows = habits(pipeline.read("events")).orderBy("router", "token").collect()
    for router in sorted({row["router"] for row in rows}):
        decide_router(router, [row for row in rows if row["router"] == router], settings, result)
    return result


def decide_router(
    router: str, rows: list[Row], settings: DecisionSettings, result: Decisions
) -> None:
    """Decide which wake-ups of one router to move, from the rows of `habits`."""
    known = [row for row in rows if row["best"] is not None]
    fixed = Counter(row["woken"] for row in rows if row["best"] is None)
    targets = assign_hours([row["best"] for row in known], fixed)
    phases = assign_phases(targets)
    moves = [
        (distance(row["woken"], target), row, phase)
        for row, target, phase in zip(known, targets, phases, strict=True)
    ]
    far = sorted(
        (move for move in moves if move[0] >= LEAST_MOVE), key=lambda move: move[0], reverse=True
    )
    chosen = far[: settings.cap(len(rows))]
    result.found.append(
        f"{router}: far from their owners' hours {len(far)} of {len(rows)} wake-ups, {len(chosen)}"
        " are moved now"
    )
    result.decisions += [
        RepairDecision(
            router,
            ActionKind.MOVE_WAKEUP,
            row["token"],
            {"phase": phase, "best": row["best"], "woken": row["woken"], "days": row["days"]},
            RULE,
        )
        for _, row, phase in chosen
    ]


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
