"""Runs a server in a process of its own and measures what it costs."""

import asyncio
import multiprocessing
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import Any

from heliograph.transport import loop

Serve = Callable[..., Awaitable[Any]]
"""Starts a server and returns what clients need to know; the server runs until its process ends."""


@dataclass(frozen=True, slots=True)
class Usage:
    cpu: float
    memory: int


class ServerProcess:
    """A server under measurement."""

    def __init__(self, process: Any, pipe: Connection, facts: Any) -> None:
        self.facts = facts
        self._process = process
        self._pipe = pipe

    @property
    def pid(self) -> int:
        pid: int = self._process.pid
        return pid

    def usage(self) -> Usage:
        usage: Usage = self.ask("usage")
        return usage

    def ask(self, question: str) -> Any:
        """Return the answer of what the server put into `QUESTIONS` under this name."""
        self._pipe.send(question)
        return self._pipe.recv()


@asynccontextmanager
async def server_process(serve: Serve, *arguments: Any) -> AsyncIterator[ServerProcess]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run, args=(serve, arguments, theirs), daemon=True)
    process.start()
    try:
        facts = await asyncio.to_thread(ours.recv)
        yield ServerProcess(process, ours, facts)
    finally:
        process.kill()
        process.join()


def _run(serve: Serve, arguments: tuple[Any, ...], pipe: Connection) -> None:
    async def main() -> None:
        pipe.send(await serve(*arguments))
        Thread(target=_answer, args=(pipe,), daemon=True).start()
        await asyncio.Event().wait()

    loop.run(main())


def _answer(pipe: Connection) -> None:
    while True:
        pipe.send(QUESTIONS[pipe.recv()]())


def _resident() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")


QUESTIONS: dict[str, Callable[[], Any]] = {
    "usage": lambda: Usage(time.process_time(), _resident()),
}
"""In a server's process: what may be asked of it."""


@dataclass(frozen=True, slots=True)
class Rate:
    """What one operation took, in microseconds of the server's CPU and of the clock."""

    cpu: float
    wall: float

    @property
    def per_second(self) -> float:
        return 1e6 / self.wall


DATABASES: list[int] = []
"""Processes whose children's CPU counts with the server's."""


def _cpu(server: ServerProcess) -> float:
    return server.usage().cpu + sum(map(tree_cpu, DATABASES))


def tree_cpu(pid: int) -> float:
    """Of a process and its children, dead or alive, in seconds."""
    total = 0.0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(") ", 1)[1].split()
        except OSError:
            continue
        own = int(stat.parent.name) == pid
        if own or int(fields[1]) == pid:
            ticks = sum(map(int, fields[11 : 15 if own else 13]))
            total += ticks / os.sysconf("SC_CLK_TCK")
    return total


SAMPLES: dict[str, list[float]] = {}
"""Figures of all runs in this process, by name."""


def record(name: str, value: float) -> None:
    """Keep a figure for `bench.readme`."""
    SAMPLES.setdefault(name, []).append(value)


async def measure(server: ServerProcess, count: int, work: Callable[[], Awaitable[None]]) -> Rate:
    before = _cpu(server)
    started = time.perf_counter()
    await work()
    wall = time.perf_counter() - started
    return Rate((_cpu(server) - before) / count * 1e6, wall / count * 1e6)
