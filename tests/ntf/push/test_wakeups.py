"""The plan of wake-ups: never later than asked for, a little earlier at most, and flat."""

import math
import random

import pytest
from hypothesis import given, strategies as st

from heliograph.ntf.push.wakeups import DAY, SURGE, WakeUpPlan, backlog_page
from heliograph.ntf.store.wakeups import most_early
from tests.ntf.push.wake_up_fleet import WakeUpFleet

CYCLE = 1200
others = st.tuples(st.integers(1, 10**8), st.integers(1, 999))
fleets = st.dictionaries(st.integers(1, 3000), st.integers(1, 10_000), min_size=1, max_size=3)


@given(fleets, st.integers(0, 10**12), st.data())
def test_never_late_and_at_most_a_quarter_early(
    fleet: dict[int, int], at: int, data: st.DataObject
) -> None:
    plan = WakeUpPlan(fleet)
    for _ in range(3):
        minutes = data.draw(st.sampled_from(sorted(fleet)))
        count = data.draw(st.integers(0, 300))
        for due, alike in data.draw(st.lists(others)):
            plan.add(at + due, minutes, alike)
        times = plan.place(at, minutes, count)
        interval = minutes * 60_000
        early = most_early(minutes)
        assert len(times) == count
        assert all(at + interval - early - 2 * plan.slot <= time <= at + interval for time in times)
        assert all(time > at for time in times)


@given(st.floats(0, 1e5), st.floats(1, 30), st.integers(0, 10**6))
def test_a_page_has_all_that_is_new_and_some_backlog(rate: float, seconds: float, new: int) -> None:
    page = backlog_page(rate, seconds, new)
    assert page > new
    assert page <= max(SURGE * rate * seconds, new + (SURGE - 1) * rate * seconds) + 1


@given(st.integers(0, 10**12), st.integers(1440, 65_535), st.integers(0, DAY - 1))
def test_a_time_of_day_is_within_the_interval(at: int, minutes: int, phase: int) -> None:
    time = WakeUpPlan({minutes: 1}).at_phase(at, minutes, phase)
    assert time % DAY == phase
    assert at + minutes * 60_000 - DAY < time <= at + minutes * 60_000


def test_a_lone_token_is_woken_about_when_it_asked_for() -> None:
    plan = WakeUpPlan({20: 1})
    [time] = plan.place(0, 20, 1)
    assert 18 * 60_000 <= time <= 20 * 60_000


def wave(count: int, minutes: int = 20) -> WakeUpFleet:
    """Tokens that all registered in the same minute."""
    draw = random.Random(1)
    return WakeUpFleet([(draw.randrange(60_000), minutes) for _ in range(count)], at=0)


@pytest.mark.parametrize("count", [100, 200, 400, 1_600, 3_000, 6_000, 24_000])
def test_a_wave_is_flat_from_the_sixth_wake_up_on(count: int) -> None:
    """A quarter wider each time, as the rule allows: about 20, 3.3, 1.8 and 1.25 times the mean."""
    fleet = wave(count)
    fleet.run(range(1, 9 * CYCLE))
    for cycle in range(5, 9):
        seconds = cycle * CYCLE, (cycle + 1) * CYCLE
        assert fleet.peak(*seconds) <= 1.2 + 1e-9
        assert fleet.busiest_second(*seconds) <= math.ceil(1.2 * fleet.plan.rate)
    late = sorted(fleet.late)
    assert late[int(0.99 * len(late))] <= 1000


def test_every_second_of_a_large_wave_becomes_flat() -> None:
    """With 20 in a second; with 5, one more or less already makes a fifth."""
    fleet = wave(24_000)
    fleet.run(range(1, 8 * CYCLE))
    assert fleet.peak(0, CYCLE) > 10
    for cycle in range(5, 8):
        seconds = cycle * CYCLE, (cycle + 1) * CYCLE
        mean = sum(fleet.sent[second] for second in range(*seconds)) / CYCLE
        assert fleet.busiest_second(*seconds) <= 1.2 * mean


def test_a_wave_among_daily_wake_ups_becomes_flat() -> None:
    draw = random.Random(1)
    daily = [(draw.randrange(86_400_000), 1440) for _ in range(40_000)]
    fleet = WakeUpFleet([*wave(6_000).due, *daily], at=0)
    fleet.run(range(1, 8 * CYCLE))
    for cycle in range(5, 8):
        assert fleet.peak(cycle * CYCLE, (cycle + 1) * CYCLE) <= 1.2 + 1e-9


def test_what_was_rolled_back_takes_up_no_room() -> None:
    plan = WakeUpPlan({20: 6_000})
    first = plan.place(0, 20, 500)
    plan.rollback()
    assert plan.place(0, 20, 500) == first
    plan.commit()
    plan.rollback()
    assert plan.place(0, 20, 500) != first


def test_a_flat_fleet_stays_flat_and_is_not_woken_early() -> None:
    fleet = WakeUpFleet([(number * 100, 20) for number in range(12_000)])
    fleet.run(range(1, 3 * CYCLE))
    assert fleet.peak(CYCLE, 3 * CYCLE) <= 1.2
    assert sum(fleet.early) / len(fleet.early) < 0.01


def test_the_wave_after_an_outage_is_flat() -> None:
    """Two hours: everybody is overdue, and is woken within one interval."""
    fleet = WakeUpFleet([(number * 100, 20) for number in range(12_000)])
    fleet.run(range(1, CYCLE))
    start = CYCLE + 7200
    fleet.at = None
    fleet.run(range(start, start + 4 * CYCLE))
    assert sum(fleet.sent[second] for second in range(start, start + CYCLE)) >= 12_000
    most = max(fleet.sent[second] for second in range(start, start + 4 * CYCLE))
    assert most <= 1.2 * fleet.plan.rate
