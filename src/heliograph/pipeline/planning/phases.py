"""Which hour of the day each daily wake-up gets: its owner's best one, as far as all fit. Pure."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

__all__ = ["HOURS", "assign_hours", "assign_phases", "distance"]

HOURS = 24
HEADROOM = 1.1
"""How many times the mean an hour takes."""
GOLDEN_RATIO = 0.6180339887


def distance(left: int, right: int) -> int:
    """Return how many hours two hours of the day are apart."""
    apart = abs(left - right) % HOURS
    return min(apart, HOURS - apart)


def assign_hours(preferred: Sequence[int], fixed: Mapping[int, int]) -> list[int]:
    """Return an hour for each preferred hour, as near to it as possible.

    No hour gets more than a tenth above the mean, with those of `fixed`, which cannot be moved.
    """
    total = len(preferred) + sum(fixed.values())
    most = math.ceil(HEADROOM * total / HOURS)
    room = {hour: max(0, most - fixed.get(hour, 0)) for hour in range(HOURS)}
    found: list[int | None] = [None] * len(preferred)
    left = list(range(len(preferred)))
    for away in range(HOURS // 2 + 1):
        rest = []
        for index in left:
            for hour in dict.fromkeys(
                ((preferred[index] - away) % HOURS, (preferred[index] + away) % HOURS)
            ):
                if room[hour]:
                    room[hour] -= 1
                    found[index] = hour
                    break
            else:
                rest.append(index)
        left = rest
    return [preferred[index] if hour is None else hour for index, hour in enumerate(found)]


def assign_phases(hours: Iterable[int]) -> list[int]:
    """Return a second of the day within each hour; those of the same hour are evenly apart."""
    used: Counter[int] = Counter()
    found = []
    for hour in hours:
        found.append(hour * 3600 + int(3600 * (used[hour] * GOLDEN_RATIO % 1)))
        used[hour] += 1
    return found
