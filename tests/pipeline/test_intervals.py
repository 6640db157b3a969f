import itertools

from hypothesis import given, strategies as st

from heliograph.pipeline import intervals

numbers = st.sets(st.integers(1, 60))


@given(numbers)
def test_of_numbers_says_the_same_set(chosen: set[int]) -> None:
    pairs = intervals.of_numbers(chosen)
    assert {n for low, high in pairs for n in range(low, high + 1)} == chosen
    assert all(a[1] + 1 < b[0] for a, b in itertools.pairwise(pairs))
    assert intervals.count(pairs) == len(chosen)
    assert all(intervals.contains(pairs, n) == (n in chosen) for n in range(62))


@given(numbers, numbers)
def test_overlap_is_the_intersection(left: set[int], right: set[int]) -> None:
    common = intervals.overlap(intervals.of_numbers(left), intervals.of_numbers(right))
    assert {n for low, high in common for n in range(low, high + 1)} == left & right


@given(numbers, st.integers(1, 60), st.integers(0, 70))
def test_missing_is_the_rest_of_a_range(chosen: set[int], first: int, last: int) -> None:
    rest = intervals.missing(intervals.of_numbers(chosen), first, last)
    assert rest == intervals.of_numbers(set(range(first, last + 1)) - chosen)


@given(st.sets(st.integers(0, 4095)), st.integers(1, 10**12))
def test_bitmap_to_intervals(bits: set[int], first: int) -> None:
    bitmap = sum(1 << bit for bit in bits).to_bytes(512, "little")
    assert intervals.of_bitmap(bitmap, first) == intervals.of_numbers(first + bit for bit in bits)
