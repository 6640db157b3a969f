"""Recognize notifications that were received before, by another process perhaps: pure.

A messaging router that waits for confirmations sends what was not confirmed to the next subscriber,
in order, and everything newer after it. So what one subscriber receives of a queue, its *stream*,
is in order, and numbered. Two streams overlap when a shard moves: to compare them, look up the
nonces of the last notifications.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from heliograph.ntf.store.records import Incoming

__all__ = ["STREAM_SIZE", "History", "add", "mark_repeats"]

MAX_KNOWN = 64
STREAM_SIZE, ORDER_SIZE, TAIL_SIZE = 8, 8, 6
_HEAD = STREAM_SIZE + ORDER_SIZE


class History(NamedTuple):
    """The last notifications of a subscription, and where the newest came from."""

    stream: bytes = b""
    order: int = 0
    """The number of the newest in its stream."""
    known: tuple[bytes, ...] = ()
    """Ends of their nonces, the newest first."""

    @classmethod
    def decode(cls, stored: bytes | None, last: bytes | None) -> "History":
        """Decode a stored history; one process alone stores only the last nonce."""
        if not stored:
            return cls(known=() if last is None else (last[-TAIL_SIZE:],))
        starts = range(_HEAD, len(stored), TAIL_SIZE)
        return cls(
            stored[:STREAM_SIZE],
            int.from_bytes(stored[STREAM_SIZE:_HEAD]),
            tuple(stored[at : at + TAIL_SIZE] for at in starts),
        )

    def encode(self) -> bytes:
        head = self.stream.ljust(STREAM_SIZE, b"\0") + self.order.to_bytes(ORDER_SIZE)
        return head + b"".join(self.known)

    def has(self, item: Incoming) -> bool:
        """Return whether an item of another stream is known."""
        return item.nonce[-TAIL_SIZE:] in self.known


def mark_repeats(
    incoming: Sequence[Incoming], histories: Mapping[bytes, History]
) -> list[Incoming]:
    """Mark what is not newer than the newest stored notification of its queue.

    Of the same stream, that is what has no greater number: a batch that failed is stored again
    after others. Of another, all up to the last known one.
    """
    marked = list(incoming)
    is_known: set[bytes] = set()
    for index in reversed(range(len(marked))):
        item = marked[index]
        history = histories.get(item.notifier_id)
        if history is None:
            continue
        if item.stream and item.stream == history.stream:
            is_old = item.order <= history.order
        elif is_old := item.notifier_id in is_known or history.has(item):
            is_known.add(item.notifier_id)
        if is_old:
            marked[index] = item._replace(is_repeat=True)
    return marked


def add(
    histories: dict[bytes, History], incoming: Sequence[Incoming], limit: int = MAX_KNOWN
) -> None:
    """Add what is no repeat to the histories of known notifiers, which keep `limit` nonces."""
    for item in incoming:
        if not item.is_repeat and item.notifier_id in histories:
            before = histories[item.notifier_id].known
            known = (item.nonce[-TAIL_SIZE:], *before)[:limit]
            histories[item.notifier_id] = History(item.stream, item.order, known)
