"""Base classes of events, and the registries from which the schema is generated."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeGuard, TypeVar, dataclass_transform

from heliograph.journal.columns import Part

Values = Sequence[Any]
"""Values of one column, of the type that the schema gives it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEvent:
    """Base class. `kind` is the name in the journal, `parts` are the programs that write it."""

    kind: ClassVar[str]
    parts: ClassVar[tuple[Part, ...]]
    names: ClassVar[tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventColumns:
    """Many events of one kind: lists and tuples have a value for each event, others are shared."""

    event: ClassVar[type[JournalEvent]]
    names: ClassVar[tuple[str, ...]]

    @property
    def size(self) -> int:
        """Number of events."""
        return next(len(value) for value in self.values() if is_column(value))

    def values(self) -> Values:
        return tuple(getattr(self, name) for name in self.names)


def is_column(value: object) -> TypeGuard[Values]:
    """Return True if there is a value for each event."""
    return isinstance(value, list | tuple)


EVENTS: dict[str, type[JournalEvent]] = {}
"""Event classes by kind."""
COLUMNAR: dict[str, type[EventColumns]] = {}
"""Columnar event classes by kind, for those that have one."""

_E = TypeVar("_E", bound=JournalEvent)
_C = TypeVar("_C", bound=EventColumns)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def event(*parts: Part) -> Callable[[type[_E]], type[_E]]:
    """Register an event class that `parts` record; its kind is its name in snake case."""

    def register(cls: type[_E]) -> type[_E]:
        made = dataclass(frozen=True, slots=True, kw_only=True)(cls)
        made.kind = re.sub(r"(?<!^)([A-Z])", r"_\1", cls.__name__).lower()
        made.parts = parts
        made.names = tuple(field.name for field in fields(made))
        EVENTS[made.kind] = made
        return made

    return register


@dataclass_transform(frozen_default=True, kw_only_default=True)
def columns(event: type[JournalEvent]) -> Callable[[type[_C]], type[_C]]:
    """Register the columnar form of an event class."""

    def register(cls: type[_C]) -> type[_C]:
        made = dataclass(frozen=True, slots=True, kw_only=True)(cls)
        made.event = event
        made.names = tuple(field.name for field in fields(made))
        COLUMNAR[event.kind] = made
        return made

    return register
