"""When tokens are woken next: spread so that the providers' rate is flat. Pure.

The rule: never later than the interval that the client asked for; up to a quarter of it earlier, at
most `MAX_EARLY`, if more wake-ups than a tenth above the mean would fall together otherwise. Once
the fleet is spread, every wake-up is exactly one interval after the last.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping

from heliograph.ntf.store.wakeups import most_early

__all__ = ["SURGE", "WakeUpPlan", "backlog_page"]

HEADROOM = 1.1
"""How many times the mean a slot takes before others are sought."""
SURGE = 1.2
"""How many times the mean rate is sent while there is a backlog."""
LEAST_IN_SLOT = 10
SLOT_SHARE = 0.05
"""The longest slot, as a share of the shortest interval."""
LEAST_BINS = 256
"""Bins of an interval in which crowds are looked for; up to twice as many, if it has the slots."""
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
        self._mean = self.rate * self.slot / 1000
        self._most = max(1, math.ceil(self._mean), int(HEADROOM * self._mean))
        self._first = 0
        """The first slot that is kept."""
        self.load: Counter[int] = Counter()
        """Planned wake-ups by slot."""
        self._widths = {minutes: self._bin_width(minutes) for minutes in known}
        self._bins = {width: Counter[int]() for width in self._widths.values()}
        """The same in wider bins, by the slots of a bin."""
        self._alike: defaultdict[int, Counter[int]] = defaultdict(Counter)
        """The same for each interval, in its bins."""
        self._uncommitted: list[tuple[int, int, int]] = []

    def _bin_width(self, minutes: int) -> int:
        return 1 << max((minutes * 60_000 // self.slot // LEAST_BINS).bit_length() - 1, 0)

    def add(self, at: int, minutes: int, count: int = 1) -> None:
        """Record wake-ups that are planned already, at a time in milliseconds."""
        self._add(at // self.slot, minutes, count)

    def _add(self, slot: int, minutes: int, count: int) -> None:
        self.load[slot] += count
        for width, load in self._bins.items():
            load[slot // width] += count
        self._alike[minutes][slot // self._width(minutes)] += count

    def _width(self, minutes: int) -> int:
        if minutes not in self._widths:
            # An interval that nobody had when the plan was made: its bins begin empty.
            self._widths[minutes] = width = self._bin_width(minutes)
            self._bins.setdefault(width, Counter())
        return self._widths[minutes]

    def commit(self) -> None:
        """Keep what was placed since the last call: its transaction was committed."""
        self._uncommitted.clear()

    def rollback(self) -> None:
        """Remove what was placed and not committed: its transaction was rolled back."""
        for slot, minutes, count in self._uncommitted:
            self._add(slot, minutes, -count)
        self._uncommitted.clear()

    def forget(self, before: int) -> None:
        """Drop the slots before a time."""
        kept, first = self._first, before // self.slot
        self._first = first
        _drop(self.load, kept, first)
        for width, load in self._bins.items():
            _drop(load, kept // width, first // width)
        for minutes, load in self._alike.items():
            width = self._width(minutes)
            _drop(load, kept // width, first // width)

    def place(self, at: int, minutes: int, count: int) -> list[int]:
        """Return the next times of `count` tokens that are woken at `at`, all in milliseconds.

        Those of a crowd begin as early as they may, so that they take up as much time as possible;
        others are as late as they may.
        """
        latest = at + minutes * 60_000
        last = latest // self.slot - 1
        slots = range(min((latest - most_early(minutes)) // self.slot + 1, last), last + 1)
        needed = self._crowd_level(at, minutes, slots, count)
        is_crowded = needed > max(HEADROOM * self._mean, math.ceil(self._mean))
        ordered = slots if is_crowded else slots[::-1]
        level = max(self._most, math.ceil(needed)) if is_crowded else self._most
        times: list[int] = []
        while len(times) < count:
            for slot in ordered:
                free = min(level - self.load[slot], count - len(times))
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
        self._note(time // self.slot, minutes, 1)
        return time

    def _crowd_level(self, at: int, minutes: int, slots: range, count: int) -> float:
        """Return how many a slot must take so that these and all that are due soon find room.

        Those that are due within `h` from now can be placed up to `h` after the window of those
        that are woken now.
        """
        width = self._width(minutes)
        alike, load = self._alike[minutes], self._bins[width]
        now, first, last = at // self.slot // width, slots[0] // width, slots[-1] // width
        number = last + 1 - first
        together = count + sum(load[index] for index in range(first, last + 1))
        level = together / number
        for ahead in range(1, first - now):
            together += alike[now + ahead] + load[last + ahead]
            level = max(level, together / (number + ahead))
        return level / width

    def _take(self, slot: int, minutes: int, count: int) -> list[int]:
        """Return times within a slot, about evenly apart however many there will be."""
        numbers = range(self.load[slot] + 1, self.load[slot] + 1 + count)
        self._note(slot, minutes, count)
        return [int((slot + number * GOLDEN_RATIO % 1) * self.slot) for number in numbers]

    def _note(self, slot: int, minutes: int, count: int) -> None:
        self._add(slot, minutes, count)
        self._uncommitted.append((slot, minutes, count))


def _drop(load: Counter[int], kept: int, first: int) -> None:
    """Remove the keys from `kept` to `first`: without a look at all keys, if these are few."""
    few = range(kept, first) if first - kept < len(load) else [key for key in load if key < first]
    for key in few:
        load.pop(key, None)


def backlog_page(rate: float, seconds: float, new: int) -> int:
    """Return how many wake-ups to send after `seconds`, of which `new` have just become due.

    All that are new, and of a backlog so many that the rate stays within `SURGE` of the mean; but
    always some, so that a backlog ends.
    """
    most, some = math.ceil(SURGE * rate * seconds), math.ceil((SURGE - 1) * rate * seconds)
    return new + max(most - new, some, 1)
