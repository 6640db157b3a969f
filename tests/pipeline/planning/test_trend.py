import pytest
from hypothesis import given, strategies as st

from heliograph.pipeline.planning.trend import LEAST_DAYS, Trend, fit_trend, when_exhausted

DAYS = range(100, 160)
slopes = st.floats(-1e3, 1e3)


@given(slopes, st.floats(-1e6, 1e6))
def test_a_line_is_found_exactly(slope: float, start: float) -> None:
    trend = fit_trend([(day, start + slope * (day - 100)) for day in DAYS])
    assert trend is not None
    for found in (trend.slope, trend.low, trend.high):
        assert found == pytest.approx(slope, abs=1e-6, rel=1e-6)
    assert trend.level == pytest.approx(start + slope * 59, abs=1e-4, rel=1e-6)


@given(st.lists(st.tuples(st.integers(0, 59), st.floats(-1e9, 1e9)), max_size=15))
def test_a_quarter_of_wild_values_changes_little(wild: list[tuple[int, float]]) -> None:
    values = {day: 1000.0 + 10 * (day - 100) for day in DAYS}
    values |= {100 + day: value for day, value in wild}
    trend = fit_trend(list(values.items()))
    assert trend is not None
    assert trend.low <= 10.0 <= trend.high
    assert trend.slope == pytest.approx(10.0, abs=1e-6)


@given(st.lists(st.tuples(st.integers(0, 400), st.floats(-1e6, 1e6)), max_size=60))
def test_the_interval_contains_the_slope(values: list[tuple[int, float]]) -> None:
    trend = fit_trend(values)
    if len(dict(values)) < LEAST_DAYS:
        assert trend is None
    else:
        assert trend is not None
        assert trend.low <= trend.slope <= trend.high


def test_years_of_days_are_cut() -> None:
    trend = fit_trend([(day, float(day)) for day in range(2000)])
    assert trend is not None
    assert (trend.days, trend.slope) == (200, 1.0)


def test_when_a_limit_is_reached() -> None:
    growing = Trend(level=50.0, slope=5.0, low=2.0, high=10.0, days=30)
    found = when_exhausted(growing, 100.0)
    assert (found.days, found.soonest, found.latest) == (10.0, 5.0, 25.0)
    perhaps = when_exhausted(Trend(50.0, 1.0, -1.0, 2.0, 30), 100.0)
    assert (perhaps.days, perhaps.soonest, perhaps.latest) == (50.0, 25.0, None)
    assert when_exhausted(Trend(50.0, -2.0, -3.0, -1.0, 30), 100.0).soonest is None
    assert when_exhausted(growing, 40.0).days == 0.0
