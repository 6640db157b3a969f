"""What a part tells its journal, and the hashes that stand for IDs in it.

A part notes an event with the IDs it has at hand; they are hashed before anything is written, on
the journal's own thread. The key of the hashes never leaves the router's directory.
"""

import asyncio
import hashlib
from collections.abc import Sequence
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
    """`size` events of one kind as they were noted. `at` may be among the columns, see `many`."""

    kind: str
    at: float
    mono: int
    size: int
    columns: dict[str, Any]


def is_column(value: object) -> bool:
    """Whether it has a value for each event, or else the one value of all."""
    return isinstance(value, list | tuple)


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

    def many(self, kind: str, count: int, /, **columns: Any) -> None:
        """Note so many events of one kind: for much less than one by one.

        A list or tuple has the values of a column, one for each event; whatever else is given is
        the same for all. `at` may be a column.
        """

    def counts(self) -> JournalCounts | None:
        """None if nothing is kept."""
        return None

    @property
    def backlog(self) -> int:
        """How many events wait to be written."""
        return 0

    async def synced(self) -> None:
        """Until what was noted is on disk, and no kill takes it away; or cannot be written."""

    async def drained(self, most: int) -> None:
        """Until no more than so many wait: for whoever notes very many, and can wait."""
        while self.backlog > most:  # noqa: ASYNC110 - the writer is a thread
            await asyncio.sleep(0.05)


NO_JOURNAL = Journal()


def notification_id(nonce: bytes) -> str:
    """The same at the SMP router, the NTF router and the device.

    A nonce is 24 random bytes that only these three ever see, so its hash links nothing else.
    """
    state = _NOTIFICATION.copy()
    state.update(nonce)
    return state.hexdigest()


_NOTIFICATION = hashlib.blake2b(digest_size=HASH_SIZE, person=b"helio-ntf")


class Hashes:
    """Hashes of IDs; the most recent ones are remembered, as an ID is in many events in a row.

    `begun` is the state of the hash before any ID.
    """

    def __init__(self, begun: "hashlib.blake2b") -> None:
        self._begun = begun
        self.known: dict[bytes | None, str] = {}

    def __getitem__(self, value: bytes) -> str:
        return str(self.of([value])[0])

    def of(self, values: Sequence[bytes | None]) -> list[str | None]:
        """None has none."""
        known = self.known
        found = [*map(known.get, values)]
        if None in found:
            if len(known) > CACHED:
                known.clear()
            copy = self._begun.copy
            for index, value in enumerate(values):
                if found[index] is None and value is not None:
                    if value not in known:
                        state = copy()
                        state.update(value)
                        known[value] = state.hexdigest()
                    found[index] = known[value]
        return found


class Hasher:
    """The hashes of each column that has any."""

    def __init__(self, key: bytes) -> None:
        self._hashes = {name: Hashes(_keyed(name, key)) for name in KEYED}
        notifications = Hashes(_NOTIFICATION)
        self._hashes |= dict.fromkeys(("notification", "notifications"), notifications)

    def of(self, column: str) -> Hashes | None:
        return self._hashes.get(column)


def _keyed(column: str, key: bytes) -> "hashlib.blake2b":
    # The same for both hashes of a drift, or they could not be compared.
    person = column.removeprefix("expected_").encode()
    return hashlib.blake2b(key=key, digest_size=HASH_SIZE, person=person)
