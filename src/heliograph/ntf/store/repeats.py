"""Recognize notifications that another process has received before: pure.

A messaging router sends what was not confirmed to the next subscriber, in order, and everything
newer after it. So what one subscriber receives of a queue, its *stream*, is in order; of two
streams, which overlap when a shard moves, the nonces of the last notifications tell.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from heliograph.ntf.store.records import Incoming

__all__ = ["STREAM_SIZE", "History", "add", "mark_repeats"]

MAX_KNOWN = 64
STREAM_SIZE, PREFIX_SIZE = 8, 6


class History(NamedTuple):
    """The last notifications of a subscription, and the stream that the newest came from."""

    stream: bytes = b""
    known: tuple[bytes, ...] = ()
    """Beginnings of their nonces, the newest first."""

    @classmethod
    def decode(cls, stored: bytes | None, last: bytes | None) -> "History":
        """Decode a stored history; one process alone stores only the last nonce."""
        if not stored:
            return cls(known=() if last is None else (last[:PREFIX_SIZE],))
        starts = range(STREAM_SIZE, len(stored), PREFIX_SIZE)
        return cls(stored[:STREAM_SIZE], tuple(stored[at : at + PREFIX_SIZE] for at in starts))

    def encode(self) -> bytes:
        return self.stream.ljust(STREAM_SIZE, b"\0") + b"".join(self.known)

    def has(self, item: Incoming) -> bool:
        return item.nonce[:PREFIX_SIZE] in self.known


def mark_repeats(
    incoming: Sequence[Incoming], histories: Mapping[bytes, History]
) -> list[Incoming]:
    """Mark what another stream brought before: all up to the last known one of each queue.

    What comes from the stream of the newest notification is newer.
    """
    marked = list(incoming)
    is_known: set[bytes] = set()
    for index in reversed(range(len(marked))):
        item = marked[index]
        history = histories.get(item.notifier_id)
        if history is None or (item.stream and item.stream == history.stream):
            continue
        if item.notifier_id in is_known or history.has(item):
            is_known.add(item.notifier_id)
            marked[index] = item._replace(is_repeat=True)
    return marked


def add(histories: dict[bytes, History], incoming: Sequence[Incoming]) -> None:
    """Add what is no repeat to the histories of known notifiers."""
    for item in incoming:
        if not item.is_repeat and item.notifier_id in histories:
            before = histories[item.notifier_id].known
            known = (item.nonce[:PREFIX_SIZE], *before)[:MAX_KNOWN]
            histories[item.notifier_id] = History(item.stream, known)
