"""Gaps are counted exactly, whatever segments are missing and in whatever order the others come."""

from hypothesis import given, strategies as st

from heliograph.pipeline import intervals
from heliograph.pipeline.jobs import coverage
from heliograph.pipeline.jobs.reach import Heads
from heliograph.pipeline.source import merged

RUN = "r/1000"
ROUTERS = {"r": {"part": "ntf"}}
SEGMENT = 50
"""Events of a segment, each a millisecond after the one before."""


def times(first: int, last: int) -> dict[int, tuple[int, int]]:
    """As `ingest.runs` finds them: by block of sequence numbers."""
    found: dict[int, tuple[int, int]] = {}
    for number in range(first, last + 1):
        block, at = number >> coverage.BLOCK_BITS, number * 1000
        low, high = found.get(block, (at, at))
        found[block] = min(low, at), max(high, at)
    return found


@given(st.permutations(range(12)), st.integers(0, 12))
def test_gaps_are_exact(order: list[int], count: int) -> None:
    seen: dict[str, list[tuple[int, int]]] = {}
    edges: coverage.Edges = {}
    for segment in order[:count]:
        low, high = segment * SEGMENT + 1, (segment + 1) * SEGMENT
        seen = merged(seen, {RUN: [(low, high)]})
        edges = coverage.with_times(edges, seen, {RUN: times(low, high)})
    found = coverage.gaps(seen, edges, ROUTERS, Heads())
    came = sorted(order[:count])
    expected = (came[-1] + 1 - count) * SEGMENT if came else 0
    assert sum(gap.events for gap in found) == expected
    missing = {number for gap in found for number in range(gap.first_seq, gap.last_seq + 1)}
    assert missing.isdisjoint(
        number for low, high in seen.get(RUN, ()) for number in range(low, high + 1)
    )
    for gap in found:
        # The times around a gap are never narrower than the gap.
        assert gap.first_seq == 1 or gap.from_at <= (gap.first_seq - 1) * 1000
        assert gap.until_at >= (gap.last_seq + 1) * 1000
        assert (gap.router, gap.part, gap.boot) == ("r", "ntf", 1000)


def test_an_end_that_is_inside_a_block_of_another_batch() -> None:
    """Two segments of one block, the later first: the times are those of both."""
    seen = {RUN: [(1, 10), (21, 30)]}
    edges = coverage.with_times({}, seen, {RUN: times(21, 30)})
    edges = coverage.with_times(edges, seen, {RUN: times(1, 10)})
    [gap] = coverage.gaps(seen, edges, ROUTERS, Heads())
    assert (gap.first_seq, gap.last_seq, gap.events) == (11, 20, 10)
    assert gap.from_at <= 10_000
    assert gap.until_at >= 21_000


@given(st.sets(st.integers(1, 40)), st.integers(1, 40))
def test_a_number_is_taken_out(numbers: set[int], one: int) -> None:
    pairs = intervals.of_numbers(numbers)
    assert intervals.without(pairs, one) == intervals.of_numbers(numbers - {one})
