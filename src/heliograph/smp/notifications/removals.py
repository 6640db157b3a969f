"""Which notifications are leaving the store, so that no reader delivers them again. Pure."""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class Removals:
    """The `seq` of notifications that are being removed, or were removed while a read ran.

    A read that began before the removal was committed may return them after it.
    """

    def __init__(self) -> None:
        self._seqs: set[int] = set()
        self._reads: dict[int, None] = {}
        """The numbers of the reads that run, the oldest first."""
        self._last_read = 0
        self._removed: deque[tuple[int, Sequence[int]]] = deque()
        """What was removed, with the number of the last read that had begun by then."""

    def __contains__(self, seq: int) -> bool:
        return seq in self._seqs

    def __len__(self) -> int:
        return len(self._seqs)

    def begin(self, seqs: Sequence[int]) -> None:
        self._seqs.update(seqs)

    def failed(self, seqs: Sequence[int]) -> None:
        self._seqs.difference_update(seqs)

    def removed(self, seqs: Sequence[int]) -> None:
        self._removed.append((self._last_read, seqs))
        self._forget()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Remember what is removed from here until the end of the block."""
        self._last_read += 1
        number = self._last_read
        self._reads[number] = None
        try:
            yield
        finally:
            del self._reads[number]
            self._forget()

    def _forget(self) -> None:
        oldest = next(iter(self._reads), self._last_read + 1)
        while self._removed and self._removed[0][0] < oldest:
            _, seqs = self._removed.popleft()
            self._seqs.difference_update(seqs)
