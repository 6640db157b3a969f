"""What a part tells its journal, and the hashes that stand for IDs in it.

A part notes an event with the IDs it has at hand; they are hashed before anything is written, on
the journal's own thread. The key of the hashes never leaves the router's directory.
"""

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

__all__ = ["NO_JOURNAL", "Event", "Hasher", "Journal", "JournalCounts", "notification_id"]

HASH_SIZE = 16
CACHED = 20_000

KEYED = ("server", "token", "subscription", "push", "hash", "expected_hash")
"""Columns whose values are keyed hashes."""


Event = tuple[str, float, int, dict[str, Any]]
"""As it was noted: kind, Unix seconds, nanoseconds, columns. IDs are not hashed yet."""


class Many(NamedTuple):
    """Events of one kind as they were noted: `rows` of the columns `names`, perhaps with `at`."""

    kind: str
    at: float
    mono: int
    names: tuple[str, ...]
    rows: list[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class JournalCounts:
    """Events in sealed segments, lost, and removed with old segments; and what these take."""

    written: int
    lost: int
    removed: int
    bytes: int
    failing: bool


class Journal:
    """One that keeps nothing; see `heliograph.journal.writer` for one that does."""

    def __call__(self, kind: str, /, at: float | None = None, **columns: Any) -> None:
        """Note an event. Never waits, never fails. `at` is now unless it is given."""

    def many(self, kind: str, names: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
        """Note events of one kind: for much less than one by one. `at` may be a column."""

    def counts(self) -> JournalCounts | None:
        """None if nothing is kept."""
        return None

    @property
    def backlog(self) -> int:
        """How many events wait to be written."""
        return 0

    async def drained(self, most: int) -> None:
        """Until no more than so many wait: for whoever notes very many, and can wait."""
        while self.backlog > most:  # noqa: ASYNC110 - the writer is a thread
            await asyncio.sleep(0.05)


NO_JOURNAL = Journal()


def notification_id(nonce: bytes) -> str:
    """The same at the SMP router, the NTF router and the device.

    A nonce is 24 random bytes that only these three ever see, so its hash links nothing else.
    """
    return hashlib.blake2b(nonce, digest_size=HASH_SIZE, person=b"helio-ntf").hexdigest()


class Hashes(dict[bytes | None, str | None]):
    """Hashes by ID, made when they are asked for; the most recent ones are remembered.

    An ID is in many events in a row. None has none.
    """

    def __init__(self, function: Callable[[bytes], str]) -> None:
        super().__init__({None: None})
        self._function = function

    def __missing__(self, value: bytes | None) -> str | None:
        assert value is not None  # noqa: S101
        if len(self) > CACHED:
            self.clear()
            self[None] = None
        found = self[value] = self._function(value)
        return found


class Hasher:
    """The hashes of each column that has any."""

    def __init__(self, key: bytes) -> None:
        self._hashes = {name: Hashes(_keyed(name, key)) for name in KEYED}
        notifications = Hashes(notification_id)
        self._hashes |= dict.fromkeys(("notification", "notifications"), notifications)

    def of(self, column: str) -> Hashes | None:
        return self._hashes.get(column)


def _keyed(column: str, key: bytes) -> Callable[[bytes], str]:
    # The same for both hashes of a drift, or they could not be compared.
    person = column.removeprefix("expected_").encode()
    begun = hashlib.blake2b(key=key, digest_size=HASH_SIZE, person=person)

    def keyed(value: bytes) -> str:
        state = begun.copy()
        state.update(value)
        return state.hexdigest()

    return keyed
