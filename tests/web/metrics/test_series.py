"""Rows of the charts: rates, latency and gaps."""

from heliograph.web.metrics.samples import Sample, parse
from heliograph.web.metrics.series import COLUMNS, Series
from tests.web.test_live import EARLIER, LATER

FIRST, SECOND = parse(EARLIER, 10.0), parse(LATER, 12.0)


def test_rates_and_latency_between_samples() -> None:
    series = Series(2.0, 10)
    series.add(10.0, {"ntf": FIRST, "smp": None})
    assert series.after(0)["at"] == []
    series.add(12.0, {"ntf": SECOND, "smp": None})
    found = series.after(0)
    assert found["at"] == [12.0]
    assert set(found) == {"step", "at", *COLUMNS}
    assert (found["notifications"], found["accepted"]) == ([20.0], [10.5])
    assert found["p50"] == [55.0]
    assert found["pending"] == [2.0]
    assert found["messages"] == [None]


def test_a_router_that_does_not_answer_is_a_gap() -> None:
    series = Series(2.0, 10)
    for at, sample in ((10.0, FIRST), (12.0, None), (14.0, SECOND), (16.0, Sample(16.0))):
        series.add(at, {"ntf": sample, "smp": None})
    assert series.after(0)["notifications"][:2] == [None, None]
    assert series.after(0)["pending"] == [None, 2.0, 0]


def test_only_what_is_newer_and_as_many_as_fit() -> None:
    series = Series(2.0, 3)
    for place in range(10):
        series.add(place * 2.0, {"ntf": None, "smp": None})
    assert series.after(0)["at"] == [14.0, 16.0, 18.0]
    assert series.after(16.0)["at"] == [18.0]


def test_a_larger_step() -> None:
    series = Series(60.0, 10)
    for place in range(61):
        series.add(place * 2.0, {"ntf": None, "smp": None})
    assert len(series.after(0)["at"]) == 2


def test_a_counter_that_began_again() -> None:
    series = Series(2.0, 3)
    series.add(10.0, {"ntf": parse(LATER, 10.0), "smp": None})
    series.add(12.0, {"ntf": parse(EARLIER, 12.0), "smp": None})
    assert series.after(0)["notifications"] == [50.0]
