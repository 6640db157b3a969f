"""The kinds of events, generated from the classes in `heliograph.journal.events`.

The writer, the reader, the pipeline's schema, the documentation and the checks use it. A new kind
keeps the version, and readers skip kinds that they do not know; a kind that is no longer written
stays listed.
"""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields

from heliograph.documents import JsonMapping
from heliograph.journal.columns import COLUMNS, REQUIRED, SCHEMA_VERSION, Column, ColumnType, Part
from heliograph.journal.events import EVENTS, JournalEvent

__all__ = [
    "COLUMNS",
    "KINDS",
    "REQUIRED",
    "SCHEMA_VERSION",
    "Column",
    "ColumnType",
    "Kind",
    "Part",
    "violations",
]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of event. It always has the columns `has`, and may have those of `may_have`."""

    name: str
    parts: tuple[Part, ...]
    doc: str
    has: tuple[str, ...] = ()
    may_have: tuple[str, ...] = ()

    @classmethod
    def of(cls, event: type[JournalEvent]) -> "Kind":
        found = {field.name: field.default is MISSING for field in fields(event)}
        return cls(
            event.kind,
            event.parts,
            " ".join((inspect.getdoc(event) or "").split()),
            tuple(name for name, required in found.items() if required),
            tuple(name for name, required in found.items() if not required),
        )


KINDS: Mapping[str, Kind] = {kind: Kind.of(event) for kind, event in EVENTS.items()}


def violations(event: JsonMapping) -> Iterator[str]:
    """Yield the violations of an event. For unknown kinds, check only the required columns."""
    for name in event.keys() - COLUMNS.keys():
        yield f"{name}: there is no such column"
    for name in REQUIRED:
        if event.get(name) is None:
            yield f"{name}: missing"
    kind = KINDS.get(event.get("kind") or "")
    if kind is None:
        if event.get("schema") == SCHEMA_VERSION:
            yield "kind: unknown"
        return
    for name in kind.has:
        if event.get(name) is None:
            yield f"{name}: missing in {kind.name}"
    allowed = {*REQUIRED, *kind.has, *kind.may_have}
    for name, value in event.items():
        if value is not None and name in COLUMNS and name not in allowed:
            yield f"{name}: not a column of {kind.name}"
