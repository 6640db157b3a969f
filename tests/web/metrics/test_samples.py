"""What metrics say at one moment and between two."""

import math

import pytest
from hypothesis import given, strategies as st

from heliograph.web.metrics.samples import Sample, parse, quantile

TEXT = """\
# TYPE plain counter
plain 3
# TYPE ours_total counter
ours_total{reason="a"} 4
ours_total{reason="b"} 5
# TYPE gauge gauge
gauge{status="ACTIVE"} 7
# TYPE took histogram
took_bucket{le="0.1"} 3
took_bucket{le="1"} 5
took_bucket{le="+Inf"} 6
took_sum 3
took_count 6
"""


def test_a_scrape() -> None:
    sample = parse(TEXT, 12.0)
    assert sample.at == 12.0
    assert sample.get("plain") == 3
    assert sample.get("ours_total") == 9
    assert sample.by("ours_total", "reason") == {"a": 4, "b": 5}
    assert sample.by("ours_total", "status") == {}
    assert sample.get("gauge") == 7
    assert sample.get("missing") == 0
    assert sample.buckets("took") == [(0.1, 3), (1, 5), (math.inf, 6)]


def test_not_metrics() -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse("<html>", 0.0)


def sample(at: float, value: float) -> Sample:
    return Sample(at, {"x": {frozenset(): value}})


def test_quantiles() -> None:
    later = [(0.1, 50.0), (1.0, 100.0), (math.inf, 100.0)]
    assert quantile(0.5, later, []) == pytest.approx(0.1)
    assert quantile(0.75, later, []) == pytest.approx(0.55)
    assert quantile(0.99, [(0.1, 0.0), (math.inf, 4.0)], []) == 0.1
    assert quantile(0.5, later, later) is None
    assert quantile(0.5, [], []) is None
    assert quantile(0.5, [(0.1, 1.0), (math.inf, 1.0)], later) == pytest.approx(0.05)


@given(
    counts=st.lists(st.integers(0, 50), min_size=4, max_size=4),
    before=st.lists(st.integers(0, 50), min_size=4, max_size=4),
    part=st.floats(0.01, 0.99),
)
def test_a_quantile_is_within_its_bucket(counts: list[int], before: list[int], part: float) -> None:
    bounds = [0.01, 0.1, 1.0, math.inf]

    def cumulative(numbers: list[int]) -> list[tuple[float, float]]:
        return [(bound, float(sum(numbers[: i + 1]))) for i, bound in enumerate(bounds)]

    grown = [a + b for a, b in zip(counts, before, strict=True)]
    found = quantile(part, cumulative(grown), cumulative(before))
    if sum(counts) == 0:
        assert found is None
    else:
        assert found is not None
        assert 0 <= found <= 1.0
