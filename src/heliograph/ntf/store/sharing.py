"""How a store is used: by one process, or by several that share its work.

`Alone` is the whole answer for one process: it numbers in memory, and every push is its own.
`heliograph.ntf.cluster.member` has the other one.
"""

from collections.abc import Sequence
from typing import Protocol

from heliograph.db.dialects import Transaction
from heliograph.ntf.store.records import PendingPush
from heliograph.ntf.store.subscriptions import Added

__all__ = ["Alone", "Sharing"]


class Sharing(Protocol):
    """What the store, the outbox and the commands ask about other processes."""

    @property
    def owner(self) -> int | None:
        """Return the ID under which pushes are claimed; None if nobody else could."""

    @property
    def is_leader(self) -> bool:
        """Return whether this process does what is done once: cron, expiry, collection."""

    @property
    def may_send(self) -> bool:
        """Return whether this process may still push, by its own clock."""

    @property
    def last_seq(self) -> int:
        """Return the greatest `seq` that was taken so far."""

    def take(self, tx: Transaction, count: int) -> int:
        """Reserve `count` numbers, greater than all before, and return the first."""

    def claim(self, tx: Transaction, pushes: list[PendingPush]) -> list[PendingPush]:
        """Return those of the pushes that this process is to send."""

    def added(self, tx: Transaction, new: Sequence[Added]) -> None:
        """Pass new subscriptions on to those who own them."""

    def share_of(self, window: int) -> int:
        """Return this process's share of a provider's window."""

    async def may_register(self, address: str) -> bool:
        """Count a registration from an address; False if the router had too many of it."""


class Alone:
    """One process: the store belongs to it."""

    owner: int | None = None
    is_leader = True
    may_send = True

    def __init__(self, last_seq: int = 0) -> None:
        self.last_seq = last_seq

    def take(self, tx: Transaction, count: int) -> int:
        first = self.last_seq + 1
        self.last_seq += count
        return first

    def claim(self, tx: Transaction, pushes: list[PendingPush]) -> list[PendingPush]:
        return pushes

    def added(self, tx: Transaction, new: Sequence[Added]) -> None:
        """Do nothing: the subscriber of this process gets them."""

    def share_of(self, window: int) -> int:
        return window

    async def may_register(self, address: str) -> bool:
        return True
