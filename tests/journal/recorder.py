"""A journal in memory, for tests: events as they would be written, each checked by the schema."""

import time
from dataclasses import dataclass
from typing import Any

from heliograph.journal.events import EventColumns, JournalEvent, is_column
from heliograph.journal.hashing import Hasher
from heliograph.journal.journal import Journal
from heliograph.journal.schema import SCHEMA_VERSION, violations
from heliograph.journal.storage.arrow import RecordedColumns, one_by_one

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
        self.raw: list[tuple[JournalEvent, float]] = []
        self._part = part
        self._hasher = Hasher(KEY)

    def hash_of(self, column: str, value: bytes) -> str | None:
        hashes = self._hasher.of(column)
        return None if hashes is None else hashes[value]

    def record(self, event: JournalEvent, at: float | None = None) -> None:
        at = time.time() if at is None else at
        self.raw.append((event, at))
        kind = event.kind
        values = {name: getattr(event, name) for name in event.names}
        hashed = {
            name: self._hashed(name, value) for name, value in values.items() if value is not None
        }
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

    def record_columns(self, columns: EventColumns) -> None:
        count = columns.size
        self.problems += [
            f"{columns.event.kind}: {name} has {len(values)} values, not {count}"
            for name, values in zip(columns.names, columns.values(), strict=True)
            if is_column(values) and len(values) != count
        ]
        for event, at, _ in one_by_one([RecordedColumns(columns, time.time(), 0, count)]):
            self.record(event, at)

    def of(self, kind: str) -> list[Noted]:
        return [event for event in self.events if event.kind == kind]

    def replay(self, journal: Journal) -> None:
        """All events, into another journal."""
        for event, at in self.raw:
            journal.record(event, at)

    def check(self) -> None:
        assert not self.problems

    def _hashed(self, name: str, value: Any) -> Any:
        hashes = self._hasher.of(name)
        if hashes is None:
            return value
        return hashes[value] if isinstance(value, bytes) else [hashes[item] for item in value]


def hashed(column: str, value: bytes) -> str | None:
    """As a `Notes` writes an ID of this column."""
    hashes = Hasher(KEY).of(column)
    assert hashes is not None
    return hashes[value]
