"""A robust trend of daily values: the Theil-Sen line with an interval for its slope. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

__all__ = ["LEAST_DAYS", "Exhaustion", "Trend", "fit_trend", "when_exhausted"]

LEAST_DAYS = 14
"""Days of history from which a trend is known."""
Z90 = 1.645
"""Standard deviations on both sides that contain 90 percent."""
MAX_PAIRS = 20_000


@dataclass(frozen=True, slots=True)
class Trend:
    """A line through daily values: `level` on the last day, and `slope` a day.

    Between `low` and `high` the slope lies with a probability of 90 percent.
    """

    level: float
    slope: float
    low: float
    high: float
    days: int


@dataclass(frozen=True, slots=True)
class Exhaustion:
    """Days until a limit is reached, None if it is not; `soonest` and `latest` likewise."""

    days: float | None
    soonest: float | None
    latest: float | None


def fit_trend(values: Sequence[tuple[int, float]]) -> Trend | None:
    """Fit a line to pairs of day and value, some of which may be wild; None if they are too few.

    The slope is the median of the slopes between all pairs of days, and its interval is that of
    Sen (1968), from the distribution of Kendall's tau.
    """
    known = sorted(dict(values).items())
    count = len(known)
    if count < LEAST_DAYS:
        return None
    if count * (count - 1) // 2 > MAX_PAIRS:
        known = known[-int(math.sqrt(2 * MAX_PAIRS)) :]
        count = len(known)
    slopes = sorted(
        (later - earlier) / (there - here)
        for number, (here, earlier) in enumerate(known)
        for there, later in known[number + 1 :]
    )
    spread = Z90 * math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    lower = max(int((len(slopes) - spread) / 2), 0)
    upper = min(math.ceil((len(slopes) + spread) / 2), len(slopes) - 1)
    slope = median(slopes)
    last = known[-1][0]
    level = median(value + slope * (last - day) for day, value in known)
    return Trend(level, slope, slopes[lower], slopes[upper], count)


def when_exhausted(trend: Trend, limit: float) -> Exhaustion:
    """Return when the line reaches a limit, after the last day of the trend."""
    left = limit - trend.level

    def days(slope: float) -> float | None:
        if left <= 0:
            return 0.0
        return left / slope if slope > 0 else None

    return Exhaustion(days(trend.slope), days(trend.high), days(trend.low))
