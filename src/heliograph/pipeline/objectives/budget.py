"""Error budgets, burn rates, and the alerts of two windows each. Pure.

A burn rate of 1 uses up the error budget in exactly 30 days. An alert fires if the rate is high in
a long window and still is in a short one, as in the SRE Workbook of Google, chapter 5.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from heliograph.pipeline.objectives.objective import SCALE, Objective

__all__ = [
    "ALERTS",
    "MIN_COUNTED",
    "WINDOWS",
    "BurnAlert",
    "ObjectiveResult",
    "ObjectiveState",
    "Objectives",
    "WindowCount",
    "judge",
]

WINDOWS = {"5m": 300, "30m": 1800, "1h": 3600, "6h": 21_600, "3d": 259_200, "30d": 2_592_000}
"""Seconds of each window. Those of days consist of whole hours."""
BUDGET_WINDOW = "30d"
MIN_COUNTED = 100
"""Notifications from which a state or an alert follows."""
LEAST_RATE = 10
"""Notifications from which there is a burn rate: fewer are enough for the short window of an
alert, which only tells whether its cause lasts."""


class BurnAlert(NamedTuple):
    """Fires if the burn rate exceeds `rate` in both windows."""

    name: str
    long: str
    short: str
    rate: float
    is_urgent: bool


ALERTS = (
    BurnAlert("fast", "1h", "5m", 14.4, True),
    BurnAlert("medium", "6h", "30m", 6.0, True),
    BurnAlert("slow", "3d", "6h", 1.0, False),
)


class WindowCount(NamedTuple):
    """Notifications that count, by whether they met the objective."""

    good: int = 0
    bad: int = 0

    @property
    def all(self) -> int:
        return self.good + self.bad


class ObjectiveState(StrEnum):
    MET = "met"
    MISSED = "missed"
    INCOMPLETE = "incomplete"
    """It would be met, but the window is not covered completely."""
    NO_DATA = "not enough data"


@dataclass(frozen=True, slots=True)
class ObjectiveResult:
    """An objective over 30 days, for one provider, or for all if it is None."""

    objective: str
    provider: str | None
    state: ObjectiveState
    notifications: int
    percent: float | None
    """Share of notifications that met the objective."""
    budget_left: float | None
    """Share of the error budget that is left; negative if more than all of it is used up."""
    burn: dict[str, float | None]
    """Burn rates by window; None where there is not enough data."""
    alerts: tuple[str, ...]
    """Names of the alerts that fire."""


@dataclass(frozen=True, slots=True)
class Objectives:
    """All objectives, of windows that end at `until`, in Unix time."""

    until: float = 0.0
    results: tuple[ObjectiveResult, ...] = ()
    incomplete: dict[str, str] = field(default_factory=dict)
    """Windows that are not covered completely, with the reason."""


def judge(
    objective: Objective,
    provider: str | None,
    counts: Mapping[str, WindowCount],
    incomplete: Mapping[str, str],
) -> ObjectiveResult:
    """Judge an objective from counts by window. `incomplete` has the reason of such windows.

    An alert fires from what is known, also if a window is incomplete; an objective is never met
    then.
    """
    found = {name: counts.get(name, WindowCount()) for name in WINDOWS}
    burn = {name: burn_rate(objective, count) for name, count in found.items()}
    whole = found[BUDGET_WINDOW]
    used = burn[BUDGET_WINDOW]
    return ObjectiveResult(
        objective.text,
        provider,
        _state(objective, whole, BUDGET_WINDOW in incomplete),
        whole.all,
        100 * whole.good / whole.all if whole.all else None,
        None if used is None else 1 - used,
        burn,
        tuple(
            alert.name
            for alert in ALERTS
            if found[alert.long].all >= MIN_COUNTED
            and _exceeds(burn[alert.long], alert.rate)
            and _exceeds(burn[alert.short], alert.rate)
        ),
    )


def burn_rate(objective: Objective, count: WindowCount) -> float | None:
    """Return how many times as fast as allowed the budget is used; None if that is not known."""
    if count.all < LEAST_RATE:
        return None
    return count.bad * SCALE / (count.all * objective.allowed)


def _state(objective: Objective, count: WindowCount, is_incomplete: bool) -> ObjectiveState:
    if count.all < MIN_COUNTED:
        return ObjectiveState.NO_DATA
    if count.bad * SCALE > count.all * objective.allowed:
        return ObjectiveState.MISSED
    return ObjectiveState.INCOMPLETE if is_incomplete else ObjectiveState.MET


def _exceeds(rate: float | None, limit: float) -> bool:
    return rate is not None and rate > limit
