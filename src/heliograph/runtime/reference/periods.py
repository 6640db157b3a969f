"""Distinct IDs that were active in a period."""

import time
from array import array
from base64 import b64decode, b64encode

from heliograph.documents import JsonObject

DAY = 86_400
PERIODS = ("day", "week", "month")


class ActiveIds:
    """Distinct IDs in a day, a week from Monday and a month, all of UTC.

    Stores the first eight bytes of each ID: random, enough to count, and not the ID.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, set[int]]] = {}
        self._ended: dict[str, tuple[int, array[int]]] = {}
        """The period before, with its IDs: other processes may have seen some of them."""

    def add(self, ids: set[bytes], now: float) -> None:
        numbers = {int.from_bytes(item[:8]) for item in ids}
        for period in PERIODS:
            number = _number(period, now)
            current, seen = self._seen.get(period, (number, set()))
            if current != number:
                self._ended[period] = current, array("Q", seen)
                seen = set()
            seen |= numbers
            self._seen[period] = number, seen

    def count(self, period: str, now: float) -> int:
        """Return the number of IDs in the current period."""
        number, seen = self._seen.get(period, (-1, set()))
        return len(seen) if number == _number(period, now) else 0

    def ended(self, period: str, now: float) -> int:
        """Return the number of IDs in the whole period before the current one."""
        before = _number(period, now) - 1
        number, seen = self._seen.get(period, (-1, set()))
        if number == before:
            return len(seen)
        number, ids = self._ended.get(period, (-1, array("Q")))
        return len(ids) if number == before else 0

    def columns(self, now: float) -> list[str]:
        """Return the columns of a daily line; weeks and months appear where they ended."""
        date = time.gmtime(now)
        return [
            str(self.ended("day", now)),
            str(self.ended("week", now)) if date.tm_wday == 0 else "",
            str(self.ended("month", now)) if date.tm_mday == 1 else "",
        ]

    def dump(self) -> JsonObject:
        return {
            period: {
                "seen": (number, _text(array("Q", seen))),
                "ended": (number - 1, "") if ended is None else (ended[0], _text(ended[1])),
            }
            for period, (number, seen) in self._seen.items()
            for ended in (self._ended.get(period),)
        }

    def restore(self, saved: JsonObject) -> None:
        """Add what an earlier run, or another process, has saved."""
        for period in PERIODS:
            for key in ("ended", "seen") if period in saved else ():
                number, text = saved[period][key]
                self._join(period, int(number), array("Q", b64decode(text)))

    def _join(self, period: str, number: int, ids: "array[int]") -> None:
        current, seen = self._seen.get(period, (-1, set()))
        if number > current:
            if current >= 0:
                self._ended[period] = current, array("Q", seen)
            self._seen[period] = number, set(ids)
        elif number == current:
            seen.update(ids)
        else:
            last, before = self._ended.get(period, (-1, array("Q")))
            if number >= last:
                both = {*ids, *before} if number == last else {*ids}
                self._ended[period] = number, array("Q", both)


def _text(ids: "array[int]") -> str:
    return b64encode(ids.tobytes()).decode()


def _number(period: str, now: float) -> int:
    """Return the number of the day, week or month; the next one has the next number."""
    if period == "month":
        date = time.gmtime(now)
        return date.tm_year * 12 + date.tm_mon
    day = int(now // DAY)
    return day if period == "day" else (day + 3) // 7  # the epoch was a Thursday
