"""How a store is used: by one process, or by several that share its work.

With `SingleProcess`, numbers are taken in memory, and every push is its own.
`heliograph.ntf.cluster.member` coordinates several.
"""

import time
from collections.abc import Sequence
from typing import Protocol

from heliograph.db.dialects import Transaction
from heliograph.ntf.store.records import PendingPush
from heliograph.ntf.store.subscriptions.subscriptions import Added

__all__ = ["Coordinator", "SingleProcess"]


class Coordinator(Protocol):
    """What the store, the outbox and the commands ask, so that processes share their work."""

    @property
    def owner(self) -> int | None:
        """Return the ID under which pushes are claimed; None if nobody else could."""

    @property
    def is_leader(self) -> bool:
        """Return whether this process does the work of a leader: cron, expiry, collection."""

    @property
    def may_send(self) -> bool:
        """Return whether this process may still push, by its own clock."""

    @property
    def last_seq(self) -> int:
        """Return the greatest `seq` that this process has taken."""

    async def start(self, newest: int) -> None:
        """Begin to take numbers, greater than `newest`.

        What was stored with a number up to `last_seq` can be read afterwards.
        """

    def take(self, tx: Transaction, count: int) -> Sequence[int]:
        """Take numbers, ascending and greater than all that anybody took before."""

    def take_deleted(self, tx: Transaction) -> None:
        """Make `last_seq` greater than the numbers of what this transaction deletes."""

    def lock_tokens(self, tx: Transaction, queues: Sequence[tuple[int, bytes]]) -> None:
        """Lock the tokens of queues, by ID of the messaging router and notifier ID."""

    def claim(self, tx: Transaction, pushes: list[PendingPush]) -> list[PendingPush]:
        """Return those of the pushes that this process is to send."""

    def added(self, tx: Transaction, new: Sequence[Added]) -> None:
        """Pass new subscriptions on to the processes that own them."""

    def share_of(self, window: int) -> int:
        """Return this process's share of a provider's window."""

    async def may_register(self, address: str) -> bool:
        """Count a registration from an address; return False if there were too many from it."""


class SingleProcess:
    """One process: the store belongs to it."""

    owner: int | None = None
    is_leader = True
    may_send = True

    def __init__(self, last_seq: int = 0) -> None:
        self.last_seq = last_seq

    async def start(self, newest: int) -> None:
        # Never a number that was used and deleted: the journal compares them over many runs.
        self.last_seq = max(newest, int(time.time() * 1e6) - 1)

    def take(self, tx: Transaction, count: int) -> Sequence[int]:
        first = self.last_seq + 1
        self.last_seq += count
        return range(first, first + count)

    def take_deleted(self, tx: Transaction) -> None:
        """Do nothing: all numbers were taken here."""

    def lock_tokens(self, tx: Transaction, queues: Sequence[tuple[int, bytes]]) -> None:
        """Do nothing: no other process writes."""

    def claim(self, tx: Transaction, pushes: list[PendingPush]) -> list[PendingPush]:
        return pushes

    def added(self, tx: Transaction, new: Sequence[Added]) -> None:
        """Do nothing: the subscriber of this process gets them."""

    def share_of(self, window: int) -> int:
        return window

    async def may_register(self, address: str) -> bool:
        return True
