import math
from collections import Counter

from hypothesis import given, strategies as st

from heliograph.pipeline.planning.phases import (
    HEADROOM,
    HOURS,
    assign_hours,
    assign_phases,
    distance,
)

hours = st.integers(0, HOURS - 1)


@given(st.lists(hours, max_size=300), st.dictionaries(hours, st.integers(0, 5)))
def test_no_hour_gets_much_more_than_the_mean(preferred: list[int], fixed: dict[int, int]) -> None:
    found = assign_hours(preferred, fixed)
    assert len(found) == len(preferred)
    total = len(preferred) + sum(fixed.values())
    most = max(math.ceil(HEADROOM * total / HOURS), *fixed.values(), 0)
    assert max((Counter(found) + Counter(fixed)).values(), default=0) <= most


@given(st.lists(hours, max_size=100))
def test_those_that_fit_get_their_hour(preferred: list[int]) -> None:
    """As many as an hour takes; the others are as near as there is room."""
    found = assign_hours(preferred, {})
    most = math.ceil(HEADROOM * len(preferred) / HOURS)
    kept = Counter(hour for hour, wanted in zip(found, preferred, strict=True) if hour == wanted)
    for hour, count in Counter(preferred).items():
        assert kept[hour] >= min(count, most)


def test_everybody_prefers_the_morning() -> None:
    """240 owners at eight: eleven an hour, around it, and nobody further away than needed."""
    found = assign_hours([8] * 240, {})
    assert Counter(found)[8] == 11
    assert max(Counter(found).values()) / 10 <= 1.2
    assert {hour for hour in found if distance(hour, 8) <= 10} == {*range(24)} - {19, 20, 21}
    assert (distance(23, 1), distance(1, 23), distance(3, 15)) == (2, 2, 12)


@given(st.lists(hours, max_size=200))
def test_phases_are_in_their_hours(chosen: list[int]) -> None:
    phases = assign_phases(chosen)
    assert [phase // 3600 for phase in phases] == chosen
    assert len(set(phases)) == len(phases)
