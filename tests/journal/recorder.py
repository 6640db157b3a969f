"""A journal in memory, for tests: events as they would be written, each checked by the schema."""

import time
from dataclasses import dataclass
from typing import Any

from heliograph.journal.arrow import one_by_one
from heliograph.journal.events import Hasher, Journal, Many, is_column
from heliograph.journal.schema import SCHEMA_VERSION, violations

KEY = bytes(32)


@dataclass(frozen=True, slots=True)
class Noted:
    kind: str
    at: float
    columns: dict[str, Any]

    @property
    def notification(self) -> Any:
        return self.columns.get("notification")

    def __getitem__(self, name: str) -> Any:
        return self.columns[name]


class Notes(Journal):
    """`check` raises if an event broke a rule of the schema."""

    def __init__(self, part: str) -> None:
        self.events: list[Noted] = []
        self.problems: list[str] = []
        self.raw: list[tuple[str, float, dict[str, Any]]] = []
        self._part = part
        self._hasher = Hasher(KEY)

    def __call__(self, kind: str, /, at: float | None = None, **columns: Any) -> None:
        at = time.time() if at is None else at
        self.raw.append((kind, at, columns))
        hashed = {name: self._hashed(name, value) for name, value in columns.items()}
        common = {
            "schema": SCHEMA_VERSION,
            "event_id": "id",
            "router": "router",
            "part": self._part,
            "boot": 1,
            "seq": len(self.events) + 1,
            "kind": kind,
            "at": at,
            "mono": time.monotonic_ns(),
        }
        self.problems += [f"{kind}: {problem}" for problem in violations(common | hashed)]
        self.events.append(Noted(kind, at, hashed))

    def many(self, kind: str, count: int, /, **columns: Any) -> None:
        self.problems += [
            f"{kind}: {name} has {len(values)} values, not {count}"
            for name, values in columns.items()
            if is_column(values) and len(values) != count
        ]
        for _, at, _, found in one_by_one([Many(kind, time.time(), 0, count, columns)]):
            self(kind, at, **{name: value for name, value in found.items() if value is not None})

    def of(self, kind: str) -> list[Noted]:
        return [event for event in self.events if event.kind == kind]

    def replay(self, journal: Journal) -> None:
        """All events, into another journal."""
        for kind, at, columns in self.raw:
            journal(kind, at=at, **columns)

    def check(self) -> None:
        assert not self.problems

    def _hashed(self, name: str, value: Any) -> Any:
        hashes = self._hasher.of(name)
        if hashes is None or value is None:
            return value
        return [hashes[item] for item in value] if isinstance(value, list) else hashes[value]


def hashed(column: str, value: bytes) -> str | None:
    """As a `Notes` writes an ID of this column."""
    hashes = Hasher(KEY).of(column)
    assert hashes is not None
    return hashes[value]
