"""When tokens are woken next: spread so that the providers' rate is flat. Pure.

The rule: never later than the interval that the client asked for; up to a quarter of it earlier, at
most `MAX_EARLY`, if more wake-ups than a tenth above the mean would fall together otherwise. Once
the fleet is spread, every wake-up is exactly one interval after the last.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping

__all__ = ["SURGE", "WakeUpPlan", "backlog_page"]

EARLY_SHARE = 0.25
MAX_EARLY = 6 * 3_600_000
"""Milliseconds that a wake-up may be early, however long the interval is."""
HEADROOM = 1.1
"""How many times the mean a slot takes before others are sought."""
SURGE = 1.2
"""How many times the mean rate is sent while there is a backlog."""
LEAST_IN_SLOT = 10
SLOT_SHARE = 0.05
"""The longest slot, as a share of the shortest interval."""
GOLDEN_RATIO = 0.6180339887
DAY = 86_400_000


class WakeUpPlan:
    """How many wake-ups are planned in each slot of time, and the mean rate of the fleet.

    Slots are so long that about `LEAST_IN_SLOT` wake-ups fall into one, and at least a second.
    """

    def __init__(self, intervals: Mapping[int, int] | None = None) -> None:
        """Begin a plan for a number of tokens by interval in minutes."""
        known = intervals or {}
        self.rate = sum(count / (60 * minutes) for minutes, count in known.items())
        """Wake-ups a second, in the mean."""
        enough = math.ceil(LEAST_IN_SLOT / self.rate) if self.rate else 1
        longest = int(60 * min(known, default=1) * SLOT_SHARE)
        self.slot = 1000 * max(1, min(enough, longest))
        """Milliseconds."""
        self._most = max(1, int(HEADROOM * self.rate * self.slot / 1000))
        self._load: Counter[int] = Counter()
        self._load_at: defaultdict[int, Counter[int]] = defaultdict(Counter)
        """The same for each interval."""

    def add(self, slot: int, minutes: int, count: int) -> None:
        """Note wake-ups that are planned already: `slot` is their time divided by `self.slot`."""
        self._load[slot] += count
        self._load_at[minutes][slot] += count

    def forget(self, before: int) -> None:
        """Drop the slots before a time."""
        first = before // self.slot
        for loads in (self._load, *self._load_at.values()):
            for slot in [slot for slot in loads if slot < first]:
                del loads[slot]

    def is_crowded(self, count: int, seconds: float) -> bool:
        """Return True if so many wake-ups in so many seconds are more than a flat rate has."""
        return count > HEADROOM * self.rate * seconds + 1

    def place(self, at: int, minutes: int, count: int, *, is_crowded: bool = False) -> list[int]:
        """Return the next times of `count` tokens that are woken at `at`, all in milliseconds.

        Those of a crowd begin as early as they may, so that they take up as much time as possible;
        others are as late as they may.
        """
        latest = at + minutes * 60_000
        early = min(int(minutes * 60_000 * EARLY_SHARE), MAX_EARLY)
        last = latest // self.slot - 1
        slots = range(min((latest - early) // self.slot + 1, last), last + 1)
        ordered = slots if is_crowded else slots[::-1]
        times: list[int] = []
        level = max(self._most, self._crowd_level(at, minutes, slots, count) if is_crowded else 0)
        while len(times) < count:
            for slot in ordered:
                free = min(level - self._load[slot], count - len(times))
                if free > 0:
                    times += self._take(slot, minutes, free)
                    if len(times) == count:
                        break
            level += max(1, (count - len(times)) // len(slots))
        return times

    def at_phase(self, at: int, minutes: int, phase: int) -> int:
        """Return the last time of day `phase`, in milliseconds, that is within the interval.

        The interval is a day or longer, so that there is one.
        """
        latest = at + minutes * 60_000
        time = latest - (latest - phase) % DAY
        self.add(time // self.slot, minutes, 1)
        return time

    def _crowd_level(self, at: int, minutes: int, slots: range, count: int) -> int:
        """Return how many a slot must take so that the rest of a crowd finds room, too.

        Those that are due within `h` from now can be placed up to `h` after the window of those
        that are woken now.
        """
        alike = self._load_at[minutes]
        coming, placed, number = count, sum(self._load[slot] for slot in slots), len(slots)
        level = (coming + placed) / number
        now = at // self.slot
        for ahead in range(1, slots[0] - now):
            coming += alike[now + ahead]
            placed += self._load[slots[-1] + ahead]
            level = max(level, (coming + placed) / (number + ahead))
        return math.ceil(level)

    def _take(self, slot: int, minutes: int, count: int) -> list[int]:
        """Return times within a slot, about evenly apart however many there will be."""
        numbers = range(self._load[slot], self._load[slot] + count)
        self.add(slot, minutes, count)
        return [int((slot + number * GOLDEN_RATIO % 1) * self.slot) for number in numbers]


def backlog_page(rate: float, seconds: float, new: int) -> int:
    """Return how many wake-ups to send after `seconds`, of which `new` have just become due.

    All that are new, and of a backlog so many that the rate stays within `SURGE` of the mean; but
    always some, so that a backlog ends.
    """
    most, some = math.ceil(SURGE * rate * seconds), math.ceil((SURGE - 1) * rate * seconds)
    return new + max(most - new, some, 1)
