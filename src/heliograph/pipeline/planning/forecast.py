"""When a resource of this installation runs out, from the growth of its days. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from heliograph.pipeline.planning.history import DaySums
from heliograph.pipeline.planning.sizing import UTILISATION, Habits, usage
from heliograph.pipeline.planning.trend import (
    LEAST_DAYS,
    Exhaustion,
    Trend,
    fit_trend,
    when_exhausted,
)

__all__ = ["Forecast", "ResourceLimits", "describe_forecast", "forecast"]

HORIZON = 3 * 365
"""Days beyond which a forecast says nothing."""


@dataclass(frozen=True, slots=True)
class ResourceLimits:
    """The capacity of each resource, None if not known. Only a part of each core is planned for."""

    cores: float | None = None
    store_gb: float | None = None
    requests: float | None = None
    journal_gb: float | None = None


@dataclass(frozen=True, slots=True)
class Forecast:
    resource: str
    unit: str
    limit: float
    trend: Trend
    exhaustion: Exhaustion


_RESOURCES = (
    ("CPU", "cores", "cores"),
    ("store", "GB", "store"),
    ("provider quota", "requests/s", "requests"),
    ("journal disk", "GB a day", "journal"),
)


def forecast(
    days: Sequence[DaySums], costs: Mapping[str, float], limits: ResourceLimits
) -> list[Forecast] | None:
    """Return a forecast for each limit that is known; None if the growth is not."""
    if len(days) < LEAST_DAYS:
        return None
    used = [(day.day, _of_day(day, costs)) for day in days]
    known = {
        "cores": limits.cores and limits.cores * UTILISATION,
        "store": limits.store_gb,
        "requests": limits.requests,
        "journal": limits.journal_gb,
    }
    found = []
    for resource, unit, name in _RESOURCES:
        limit = known[name]
        trend = fit_trend([(day, values[name]) for day, values in used])
        if limit is not None and trend is not None:
            found.append(Forecast(resource, unit, limit, trend, when_exhausted(trend, limit)))
    return found


def _of_day(day: DaySums, costs: Mapping[str, float]) -> dict[str, float]:
    """Return what a day used; as one device with the habits of all, but for the store."""
    pushes = day.pushes / day.notifications if day.notifications else 1.0
    used = usage(1, Habits(day.notifications, 0.0, day.wake_ups, pushes, day.peak), costs)
    store = day.tokens * costs["token_bytes"] + day.subscriptions * costs["subscription_bytes"]
    journal = day.events * costs["event_bytes"]
    return {**used, "store": store / 1e9, "journal": journal / 1e9}


def describe_forecast(found: Sequence[Forecast] | None, days: int) -> Iterator[str]:
    """Yield lines of text."""
    if found is None:
        yield (f"growth          unknown: {days} complete days of history, {LEAST_DAYS} are needed")
        return
    for item in found:
        trend = item.trend
        yield (
            f"{item.resource:<15} {_number(trend.level)} of {_number(item.limit)} {item.unit},"
            f" {_number(trend.slope, '+')} a day ({_number(trend.low, '+')} to"
            f" {_number(trend.high, '+')}, 90 %), {_when(item.exhaustion)}"
        )


def _when(found: Exhaustion) -> str:
    if found.days == 0:
        return "used up now"
    if found.soonest is None or found.soonest > HORIZON:
        return "not used up within three years"
    middle, latest = (
        f"{days:.0f}" if days is not None and days <= HORIZON else "never"
        for days in (found.days, found.latest)
    )
    return f"used up in {middle} days ({found.soonest:.0f} to {latest})"


def _number(value: float, sign: str = "") -> str:
    return f"{value:{sign}.3g}"
