"""Record the events that all routers have in common; connections and commands are only counted."""

from collections.abc import Sequence
from typing import Generic, TypeVar

from heliograph.journal.events import ClientConnected, CommandsCounted, RouterStopped
from heliograph.journal.journal import Journal
from heliograph.wire.requests import Request

_Command = TypeVar("_Command")


class RouterObserver(Generic[_Command]):
    """Base class of the routers' observers."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._commands: dict[type, int] = {}
        self._connections = 0

    def stopped(self) -> None:
        self.record_counts()
        self.journal.record(RouterStopped())

    def connected(self) -> None:
        self._connections += 1

    def commanded(self, requests: Sequence[Request[_Command]]) -> None:
        counts = self._commands
        for request in requests:
            kind = type(request.command)
            counts[kind] = counts.get(kind, 0) + 1

    def record_counts(self) -> None:
        """Record the counts since the last call."""
        counts, self._commands = self._commands, {}
        for command, count in counts.items():
            self.journal.record(CommandsCounted(command=command.__name__, count=count))
        connections, self._connections = self._connections, 0
        if connections:
            self.journal.record(ClientConnected(count=connections))
