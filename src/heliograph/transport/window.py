"""The requests of a connection, handed over so that few answers of a whole block are outstanding.

A command of a few bytes may have an answer that fills a block. A client that sends many of them and
does not read would make a router queue megabytes for it.
"""

from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

from heliograph.wire.requests import Request

C = TypeVar("C")

MAX_BULKY = 16
"""Commands with bulky answers in flight on a connection: 256 KiB of answers."""


class RequestWindow(Generic[C]):
    """Requests that wait, in order. `bulky` are the commands whose answer may fill a block."""

    def __init__(self, bulky: frozenset[type], limit: int = MAX_BULKY) -> None:
        self._bulky = bulky
        self._limit = limit
        self._outstanding = 0
        self.waiting: deque[Request[C]] = deque()

    def admits(self, requests: list[Request[C]]) -> bool:
        """Return whether requests may be served at once: none waits, and none is bulky."""
        if self.waiting:
            return False
        return not self._bulky or self._bulky.isdisjoint([type(item.command) for item in requests])

    def add(self, requests: Iterable[Request[C]]) -> None:
        self.waiting.extend(requests)

    def release(self, unanswered: int) -> list[Request[C]]:
        """Return the requests to serve now, when `unanswered` of those released have no answer.

        Which ones were answered is not known, so the window opens again when all are.
        """
        if not unanswered:
            self._outstanding = 0
        released: list[Request[C]] = []
        while self.waiting:
            if type(self.waiting[0].command) in self._bulky:
                if self._outstanding == self._limit:
                    break
                self._outstanding += 1
            released.append(self.waiting.popleft())
        return released

    def clear(self) -> None:
        self.waiting.clear()
