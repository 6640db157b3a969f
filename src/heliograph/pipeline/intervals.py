"""Sets of whole numbers as a few intervals: which events and which segments were taken already.

Sequence numbers have no gaps unless something was lost, so a set of millions is one pair.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

Pair = tuple[int, int]
"""The first and the last number of an interval."""


def merge(pairs: Iterable[Pair]) -> list[Pair]:
    """Sorted, disjoint and not adjacent."""
    merged: list[Pair] = []
    for low, high in sorted(pairs):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(merged[-1][1], high)
        else:
            merged.append((low, high))
    return merged


def of_numbers(numbers: Iterable[int]) -> list[Pair]:
    return merge((number, number) for number in set(numbers))


def contains(pairs: Sequence[Pair], number: int) -> bool:
    """`pairs` as `merge` makes them."""
    index = bisect_right(pairs, number, key=lambda pair: pair[0]) - 1
    return index >= 0 and pairs[index][1] >= number


def overlap(left: Sequence[Pair], right: Sequence[Pair]) -> list[Pair]:
    """What is in both; each as `merge` makes them."""
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
    """The numbers of the bits that are set; bit 0, the lowest of the first byte, is `first`."""
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
