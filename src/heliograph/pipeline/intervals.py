"""Sets of whole numbers as a few intervals, for the events and segments already ingested.

Sequence numbers have no gaps unless something was lost, so a set of millions is one pair.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence

Pair = tuple[int, int]
"""The first and the last number of an interval."""

IntervalsByRun = Mapping[str, Sequence[Pair]]
"""Intervals of numbers by ``ROUTER/BOOT``."""


def merge(pairs: Iterable[Pair]) -> list[Pair]:
    """Return the intervals sorted, disjoint and not adjacent."""
    merged: list[Pair] = []
    for low, high in sorted(pairs):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(merged[-1][1], high)
        else:
            merged.append((low, high))
    return merged


def of_numbers(numbers: Iterable[int]) -> list[Pair]:
    return merge((number, number) for number in set(numbers))


def without(pairs: Iterable[Pair], number: int) -> list[Pair]:
    """Return the set without a number."""
    found: list[Pair] = []
    for low, high in pairs:
        if low <= number <= high:
            found += [
                pair for pair in ((low, number - 1), (number + 1, high)) if pair[0] <= pair[1]
            ]
        else:
            found.append((low, high))
    return found


def contains(pairs: Sequence[Pair], number: int) -> bool:
    """Return True if the set has the number. `pairs` must be merged."""
    index = bisect_right(pairs, number, key=lambda pair: pair[0]) - 1
    return index >= 0 and pairs[index][1] >= number


def missing(pairs: Iterable[Pair], first: int, last: int) -> list[Pair]:
    """Return the numbers from `first` to `last` that the set lacks. `pairs` must be merged."""
    found: list[Pair] = []
    for low, high in (*pairs, (last + 1, last + 1)):
        end = min(low - 1, last)
        if first <= end:
            found.append((first, end))
        first = max(first, high + 1)
    return found


def overlap(left: Sequence[Pair], right: Sequence[Pair]) -> list[Pair]:
    """Return the intersection. Both sets must be merged."""
    return list(_overlap(left, right))


def _overlap(left: Sequence[Pair], right: Sequence[Pair]) -> Iterator[Pair]:
    for low, high in left:
        index = bisect_left(right, low, key=lambda pair: pair[1])
        while index < len(right) and right[index][0] <= high:
            yield max(low, right[index][0]), min(high, right[index][1])
            index += 1


def count(pairs: Iterable[Pair]) -> int:
    return sum(high - low + 1 for low, high in pairs)


def of_bitmap(bitmap: bytes, first: int) -> list[Pair]:
    """Return the numbers of the set bits; the lowest bit of the first byte stands for `first`."""
    bits = int.from_bytes(bitmap, "little")
    pairs: list[Pair] = []
    position = 0
    while bits:
        zeros = (bits & -bits).bit_length() - 1
        bits >>= zeros
        position += zeros
        ones = (~bits & (bits + 1)).bit_length() - 1
        pairs.append((first + position, first + position + ones - 1))
        bits >>= ones
        position += ones
    return pairs
