"""The hashes that stand for IDs in the journal. Their key never leaves the router's directory."""

import hashlib
from collections.abc import Sequence

__all__ = ["HASH_SIZE", "KEYED", "Hasher", "Hashes", "notification_id"]

HASH_SIZE = 16
MAX_CACHED_HASHES = 20_000

KEYED = ("server", "token", "subscription", "push", "hash", "expected_hash", "source")
"""Columns whose values are keyed hashes."""


def notification_id(nonce: bytes) -> str:
    """Return the hash that is the same at the SMP router, the NTF router and the device.

    A nonce is 24 random bytes that only these three ever see, so its hash links nothing else.
    """
    state = _NOTIFICATION.copy()
    state.update(nonce)
    return state.hexdigest()


_NOTIFICATION = hashlib.blake2b(digest_size=HASH_SIZE, person=b"helio-ntf")


class Hashes:
    """Hashes of IDs, with a cache: an ID is in many events in a row.

    `begun` is the state of the hash before any ID.
    """

    def __init__(self, begun: "hashlib.blake2b") -> None:
        self._begun = begun
        self.known: dict[bytes | None, str] = {}

    def __getitem__(self, value: bytes) -> str:
        return str(self.of([value])[0])

    def of(self, values: Sequence[bytes | None]) -> list[str | None]:
        """Return the hash of each ID, None for None."""
        known = self.known
        found = [*map(known.get, values)]
        if None in found:
            if len(known) > MAX_CACHED_HASHES:
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
    """A `Hashes` for each column that has hashes."""

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
