"""Recognize notifications that a messaging router sends again.

It repeats what was not confirmed when a connection ended. The store has the last notification of a
subscription only, so of several it would not recognize the earlier ones.
"""

from collections import deque

MAX_NONCES = 10_000


class RecentNonces:
    """The nonces of a messaging router's last notifications."""

    def __init__(self) -> None:
        self._order: deque[bytes] = deque()
        self._known: set[bytes] = set()

    def is_repeat(self, nonce: bytes) -> bool:
        """Remember a nonce, and return whether it was known."""
        if nonce in self._known:
            return True
        self._known.add(nonce)
        self._order.append(nonce)
        if len(self._order) > MAX_NONCES:
            self._known.discard(self._order.popleft())
        return False
