"""The days that a pipeline knows completely: how many of what there were. Pure."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from heliograph.pipeline.planning.sizing import Habits

__all__ = ["DaySums", "HourSums", "complete_days", "habits_of"]

DAY = 86_400
LEAST_TOKENS = 100
"""Tokens from which their habits are known."""


class HourSums(NamedTuple):
    """What all routers did in an hour that begins at `at`, in Unix time."""

    at: int
    tokens_added: int = 0
    tokens_removed: int = 0
    subscriptions_added: int = 0
    subscriptions_removed: int = 0
    notifications: int = 0
    pushes: int = 0
    wake_ups: int = 0
    events: int = 0


@dataclass(frozen=True, slots=True)
class DaySums:
    """A complete day. `tokens` and `subscriptions` are those at its end, since journals began."""

    day: int
    tokens: int
    subscriptions: int
    notifications: int
    pushes: int
    wake_ups: int
    events: int
    busiest: int
    """Notifications of the busiest hour."""

    @property
    def peak(self) -> float:
        """The busiest hour in units of the mean; 1 if there was nothing."""
        return max(24 * self.busiest / self.notifications, 1.0) if self.notifications else 1.0


def complete_days(hours: Iterable[HourSums], until: int, missing: Collection[int]) -> list[DaySums]:
    """Return the days that ended before `until`, but for the first one and those of `missing`.

    The first day of a journal is part of a day; days are numbers since the epoch.
    """
    by_day: dict[int, list[HourSums]] = {}
    for hour in hours:
        by_day.setdefault(hour.at // DAY, []).append(hour)
    if not by_day:
        return []
    tokens = subscriptions = 0
    first = min(by_day)
    found = []
    for day in range(first, until // DAY):
        sums = by_day.get(day, [])
        tokens += sum(hour.tokens_added - hour.tokens_removed for hour in sums)
        subscriptions += sum(hour.subscriptions_added - hour.subscriptions_removed for hour in sums)
        if day == first or day in missing:
            continue
        found.append(
            DaySums(
                day,
                max(tokens, 0),
                max(subscriptions, 0),
                sum(hour.notifications for hour in sums),
                sum(hour.pushes for hour in sums),
                sum(hour.wake_ups for hour in sums),
                sum(hour.events for hour in sums),
                max((hour.notifications for hour in sums), default=0),
            )
        )
    return found


def habits_of(days: Sequence[DaySums]) -> Habits | None:
    """Return what a device does, from the last week; None if too few are known."""
    week = days[-7:]
    if not week or week[-1].tokens < LEAST_TOKENS:
        return None
    devices = sum(day.tokens for day in week)
    notifications = sum(day.notifications for day in week)
    return Habits(
        notifications / devices,
        week[-1].subscriptions / week[-1].tokens,
        sum(day.wake_ups for day in week) / devices,
        sum(day.pushes for day in week) / notifications if notifications else 1.0,
        max(day.peak for day in week),
    )
