"""Which hour of the day each daily wake-up gets: its owner's best one, as far as all fit. Pure."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

__all__ = ["HOURS", "HourMove", "assign_hours", "assign_phases", "distance", "plan_moves"]

HOURS = 24
HEADROOM = 1.1
"""How many times the mean an hour takes."""
GOLDEN_RATIO = 0.6180339887


class HourMove(NamedTuple):
    """So many wake-ups of owners with the same best hour move from one hour to another."""

    best: int
    woken: int
    target: int
    number: int

    @property
    def distance(self) -> int:
        return distance(self.woken, self.target)


def distance(left: int, right: int) -> int:
    """Return how many hours two hours of the day are apart."""
    apart = abs(left - right) % HOURS
    return min(apart, HOURS - apart)


def assign_hours(
    preferred: Mapping[int, int], fixed: Mapping[int, int]
) -> dict[tuple[int, int], int]:
    """Return how many of those who prefer an hour get which, as near to it as possible.

    Arguments are numbers of wake-ups by hour. No hour gets more than a tenth above the mean, with
    those of `fixed`, which cannot be moved.
    """
    total = sum(preferred.values()) + sum(fixed.values())
    most = math.ceil(HEADROOM * total / HOURS)
    room = {hour: max(0, most - fixed.get(hour, 0)) for hour in range(HOURS)}
    left = dict(preferred)
    found: dict[tuple[int, int], int] = {}
    for away in range(HOURS // 2 + 1):
        for best in sorted(left):
            for hour in dict.fromkeys(((best - away) % HOURS, (best + away) % HOURS)):
                if number := min(room[hour], left[best]):
                    room[hour] -= number
                    left[best] -= number
                    found[best, hour] = number
    return found


def plan_moves(known: Mapping[tuple[int, int], int], fixed: Mapping[int, int]) -> list[HourMove]:
    """Return who is woken at which hour, those nearest to their own first.

    `known` are numbers of wake-ups by best hour and by hour of the last one.
    """
    preferred: Counter[int] = Counter()
    for (best, _), number in known.items():
        preferred[best] += number
    targets, left, found = assign_hours(preferred, fixed), dict(known), []
    pairs = [
        (distance(woken, target), best, woken, target)
        for best, woken in known
        for target in range(HOURS)
        if (best, target) in targets
    ]
    for _, best, woken, target in sorted(pairs):
        if number := min(left[best, woken], targets[best, target]):
            left[best, woken] -= number
            targets[best, target] -= number
            found.append(HourMove(best, woken, target, number))
    return found


def assign_phases(hours: Iterable[int], taken: Mapping[int, int]) -> list[int]:
    """Return a second of the day within each hour; those of the same hour are evenly apart.

    `taken` says how many there are in each hour already.
    """
    used = Counter(taken)
    found = []
    for hour in hours:
        found.append(hour * 3600 + int(3600 * (used[hour] * GOLDEN_RATIO % 1)))
        used[hour] += 1
    return found
