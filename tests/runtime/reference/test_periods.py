import calendar
import time

from heliograph.runtime.reference.periods import ActiveIds


def at(text: str) -> float:
    return calendar.timegm(time.strptime(text, "%Y-%m-%d %H:%M"))


def ids(*numbers: int) -> set[bytes]:
    return {number.to_bytes(8) + bytes(16) for number in numbers}


def test_periods_begin_with_the_day_monday_and_the_first() -> None:
    active = ActiveIds()
    active.add(ids(1, 2), at("2026-05-31 23:59"))  # a Sunday
    assert [active.count(p, at("2026-05-31 23:59")) for p in ("day", "week", "month")] == [2, 2, 2]
    midnight = at("2026-06-01 00:00")
    for period in ("day", "week", "month"):
        assert active.count(period, midnight) == 0
        assert active.ended(period, midnight) == 2  # nothing was added since
    active.add(ids(3), midnight)
    for period in ("day", "week", "month"):
        assert active.count(period, midnight) == 1
        assert active.ended(period, midnight) == 2
    tuesday = at("2026-06-02 12:00")
    active.add(ids(4), tuesday)
    assert [active.ended(p, tuesday) for p in ("day", "week", "month")] == [1, 2, 2]
    assert [active.count(p, tuesday) for p in ("day", "week", "month")] == [1, 2, 2]


def test_a_period_with_nobody() -> None:
    active = ActiveIds()
    assert active.ended("day", at("2026-06-01 00:00")) == 0
    active.add(ids(1), at("2026-06-01 00:00"))
    assert active.ended("day", at("2026-06-05 00:00")) == 0
