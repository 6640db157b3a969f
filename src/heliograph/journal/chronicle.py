"""What every router tells its journal alike: connections and commands, which it only counts."""

from collections.abc import Iterable

from heliograph.journal.events import Journal
from heliograph.wire.requests import Request


class RouterChronicle:
    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._commands: dict[type, int] = {}
        self._connections = 0

    def stopped(self) -> None:
        self.tell_counts()
        self.journal("router_stopped")

    def connected(self) -> None:
        self._connections += 1

    def commanded(self, requests: Iterable[Request]) -> None:
        counts = self._commands
        for request in requests:
            kind = type(request.command)
            counts[kind] = counts.get(kind, 0) + 1

    def tell_counts(self) -> None:
        """What is not worth an event of its own, since the last time."""
        counts, self._commands = self._commands, {}
        for command, count in counts.items():
            self.journal("commands_counted", command=command.__name__, count=count)
        connections, self._connections = self._connections, 0
        if connections:
            self.journal("client_connected", count=connections)
