"""What a worker reports to its supervisor: questions on standard input, answers on standard output.

A question is a line with a number and a word; the answer a line of JSON with the same number.
Before it reports, a worker saves its statistics, which the supervisor then reads.
"""

import asyncio
import json
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from heliograph.documents import JsonObject
from heliograph.ntf.observing.live import ServerState, states

if TYPE_CHECKING:
    from heliograph.ntf.reference.statslog import NtfStatsLog
    from heliograph.ntf.router import NtfRouter

__all__ = ["ANSWER_TIMEOUT", "PING", "REPORT", "WorkerReports", "report", "server_states"]

logger = logging.getLogger(__name__)

REPORT, PING = "report", "ping"
ANSWER_TIMEOUT = 5.0


class WorkerReports:
    """Answers the supervisor, from `start` on; earlier questions stay unanswered."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._report: Callable[[], Awaitable[JsonObject]]

    def start(self, make: Callable[[], Awaitable[JsonObject]]) -> None:
        """Answer each question with what `make` returns."""
        self._report = make
        self._loop = asyncio.get_running_loop()

    def received(self, line: bytes) -> None:
        """Answer a question; called by a thread that may wait until the answer was read."""
        number, _, what = line.decode("ascii", "replace").strip().partition(" ")
        loop = self._loop
        if loop is None or not number.isdigit():
            return
        try:
            making = asyncio.run_coroutine_threadsafe(self._make(what), loop)
            made = making.result(ANSWER_TIMEOUT)  # a slow disk must not look like a hanging worker
            print(json.dumps({"question": int(number), "report": made}), flush=True)  # noqa: T201
        except Exception:
            logger.exception("the supervisor's question cannot be answered")

    async def _make(self, what: str) -> JsonObject:
        return {} if what == PING else await self._report()


async def report(router: "NtfRouter", stats: "NtfStatsLog") -> JsonObject:
    """Save the statistics of a worker, and return its state."""
    await stats.keep()
    members = () if router.member is None else router.member.roster.members
    return {
        "threads": threading.active_count(),
        "clients": len(router.clients),
        "in_flight": router.outbox.in_flight,
        "processes": len(members),
        "servers": states(router),
    }


def server_states(found: JsonObject) -> list[ServerState]:
    """Return the states of messaging routers in a report."""
    return [ServerState(*item) for item in found["servers"]]
