"""Notifications that two processes receive: the newest stays the last, whatever comes first."""

import itertools

from hypothesis import example, given, strategies as st

from heliograph.ntf.store.records import Incoming
from heliograph.ntf.store.repeats import (
    MAX_KNOWN,
    STREAM_SIZE,
    History,
    add,
    mark_repeats,
)

QUEUE = b"queue"
OLD, NEW = b"old owner"[:STREAM_SIZE], b"new owner"[:STREAM_SIZE]


def nonce(number: int) -> bytes:
    return number.to_bytes(24)


class Store:
    """The last notification of one queue, as `receiving.receive` stores it."""

    def __init__(self) -> None:
        self.histories = {QUEUE: History()}
        self.last: int | None = None
        self.stored: list[int] = []

    def receive(self, stream: bytes, numbers: range) -> None:
        """Numbers of messages are those of their order in both streams."""
        items = [
            Incoming(QUEUE, nonce(number), b"", 0.0, stream=stream, order=number + 1)
            for number in numbers
        ]
        marked = mark_repeats(items, self.histories)
        add(self.histories, marked)
        encoded = self.histories[QUEUE].encode()
        self.histories[QUEUE] = History.decode(encoded, None)
        new = [number for number, item in zip(numbers, marked, strict=True) if not item.is_repeat]
        self.stored += new
        self.last = new[-1] if new else self.last


def batches(numbers: range, cuts: list[int]) -> list[range]:
    """Cut numbers into pieces."""
    places = sorted({min(cut, len(numbers)) for cut in cuts} | {0, len(numbers)})
    return [numbers[start:end] for start, end in itertools.pairwise(places)]


@given(
    received=st.integers(0, 200),
    confirmed=st.integers(0, 200),
    newer=st.integers(0, 50),
    late=st.integers(0, 3),
    cuts=st.lists(st.integers(1, 200), max_size=6),
    order=st.lists(st.booleans(), max_size=12),
)
@example(received=25, confirmed=0, newer=0, late=0, cuts=[], order=[])  # more than a short history
@example(received=200, confirmed=0, newer=0, late=0, cuts=[50, 100], order=[])  # than any
def test_the_newest_stays_the_last(
    received: int, confirmed: int, newer: int, late: int, cuts: list[int], order: list[bool]
) -> None:
    """The old owner stores some batches late, beside those of the new one."""
    confirmed = min(confirmed, received)
    if late:
        confirmed = max(confirmed, received - MAX_KNOWN // 2)
        newer = min(newer, MAX_KNOWN // 2)
    old = batches(range(received), cuts)
    new = batches(range(confirmed, received + newer), cuts)
    early = [batch for batch in old if batch.stop <= confirmed]
    kept = [batch for batch in old if batch.stop > confirmed]
    early += kept[: max(len(kept) - late, 0)]
    waiting = kept[max(len(kept) - late, 0) :]
    store = Store()
    for batch in early:
        store.receive(OLD, batch)
    for is_old in [*order, *[False] * len(new), *[True] * len(waiting)]:
        stream, source = (OLD, waiting) if is_old else (NEW, new)
        if source:
            store.receive(stream, source.pop(0))
    assert store.last == (received + newer - 1 if received + newer else None)


@given(st.integers(0, MAX_KNOWN), st.integers(0, 20))
def test_what_is_resent_is_stored_once(resent: int, newer: int) -> None:
    store = Store()
    store.receive(OLD, range(100))
    store.receive(NEW, range(100 - resent, 100 + newer))
    assert store.stored == [*range(100 + newer)]


@given(st.permutations([range(3), range(3, 10), range(10, 110), range(110, 111)]))
def test_batches_of_one_stream_that_fail_and_are_stored_later(order: list[range]) -> None:
    store = Store()
    for batch in order:
        store.receive(OLD, batch)
        store.receive(OLD, batch)  # it was stored, and reported as lost
    assert store.last == 110
    assert len({*store.stored}) == len(store.stored)


def test_one_process_alone_stores_only_the_last() -> None:
    history = History.decode(None, nonce(7))
    [item] = mark_repeats([Incoming(QUEUE, nonce(7), b"", 0.0, stream=NEW)], {QUEUE: history})
    assert item.is_repeat
    assert History.decode(None, None) == History()
