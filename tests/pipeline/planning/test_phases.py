import math
from collections import Counter

from hypothesis import given, strategies as st

from heliograph.pipeline.planning.phases import (
    HEADROOM,
    HOURS,
    assign_hours,
    assign_phases,
    distance,
    plan_moves,
)

hours = st.integers(0, HOURS - 1)
some = st.dictionaries(hours, st.integers(0, 300))


def by_target(found: dict[tuple[int, int], int]) -> Counter[int]:
    counts: Counter[int] = Counter()
    for (_, hour), number in found.items():
        counts[hour] += number
    return counts


@given(some, st.dictionaries(hours, st.integers(0, 5)))
def test_no_hour_gets_much_more_than_the_mean(
    preferred: dict[int, int], fixed: dict[int, int]
) -> None:
    found = assign_hours(preferred, fixed)
    for best, number in preferred.items():
        assert sum(found.get((best, hour), 0) for hour in range(HOURS)) == number
    total = sum(preferred.values()) + sum(fixed.values())
    most = max(math.ceil(HEADROOM * total / HOURS), *fixed.values(), 0)
    assert max((by_target(found) + Counter(fixed)).values(), default=0) <= most


@given(some)
def test_those_that_fit_get_their_hour(preferred: dict[int, int]) -> None:
    """As many as an hour takes; the others are as near as there is room."""
    found = assign_hours(preferred, {})
    most = math.ceil(HEADROOM * sum(preferred.values()) / HOURS)
    for hour, count in preferred.items():
        assert found.get((hour, hour), 0) >= min(count, most)


def test_everybody_prefers_the_morning() -> None:
    """240 owners at eight: eleven an hour, around it, and nobody further away than needed."""
    found = by_target(assign_hours({8: 240}, {}))
    assert found[8] == 11
    assert max(found.values()) / 10 <= 1.2
    assert {hour for hour in found if distance(hour, 8) <= 10} == {*range(24)} - {19, 20, 21}
    assert (distance(23, 1), distance(1, 23), distance(3, 15)) == (2, 2, 12)


@given(st.dictionaries(st.tuples(hours, hours), st.integers(1, 10**8)))
def test_everybody_has_one_place_in_the_plan(known: dict[tuple[int, int], int]) -> None:
    """The plan is as long for a hundred million tokens as for a few."""
    plan = plan_moves(known, {})
    assert len(plan) <= HOURS**3
    found: Counter[tuple[int, int]] = Counter()
    targets: Counter[int] = Counter()
    for move in plan:
        found[move.best, move.woken] += move.number
        targets[move.target] += move.number
    assert found == known
    assert max(targets.values(), default=0) <= math.ceil(HEADROOM * sum(known.values()) / HOURS)


def test_those_stay_who_are_woken_at_an_hour_that_is_theirs() -> None:
    everywhere = {(hour, hour): 10 for hour in range(HOURS)}
    assert {move.distance for move in plan_moves(everywhere, {})} == {0}
    plan = plan_moves({(8, 8): 2, (8, 20): 22}, {hour: 9 for hour in range(HOURS) if hour != 8})
    assert next((move.woken, move.number) for move in plan if move.target == 8) == (8, 2)


@given(st.lists(hours, max_size=200), some)
def test_phases_are_in_their_hours(chosen: list[int], taken: dict[int, int]) -> None:
    phases = assign_phases(chosen, taken)
    assert [phase // 3600 for phase in phases] == chosen
    assert len(set(phases)) == len(phases)
