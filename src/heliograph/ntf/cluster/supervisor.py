"""Several processes of one router on this machine: start, watch, restart, stop.

The workers listen on one port, and the kernel spreads connections over them. A worker that ends is
started again, after a delay that grows while it keeps failing; one that hangs is killed. SIGHUP
restarts one after another, unless the configuration has mistakes.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from heliograph.documents import JsonObject
from heliograph.ntf.cluster.reports import ANSWER_TIMEOUT, PING, REPORT
from heliograph.runtime.backoff import Backoff
from heliograph.runtime.errors import StartError
from heliograph.tasks import TaskScope

__all__ = ["PORT_FILE", "WORKERS", "WorkerProcesses", "command_for", "worker_directory"]

logger = logging.getLogger(__name__)

SLOW_START = 60.0
STOP_TIMEOUT = 60.0
PING_SECONDS = 5.0
HANG_TIMEOUT = 60.0
MAX_ANSWER = 2**24
STABLE_SECONDS = 5.0
"""Seconds that a worker must run to reset the delay before its next start."""
DELAYS = Backoff(first=0.2, last=10.0)


WORKERS = "workers"
PORT_FILE = "metrics.port"


def worker_directory(directory: Path, number: int) -> Path:
    """Return where a worker keeps what is its own: counters, and the port of its metrics."""
    return directory / WORKERS / str(number)


@dataclass(slots=True)
class _Worker:
    number: int
    process: asyncio.subprocess.Process | None = None
    address: str = ""
    failures: int = 0
    started_at: float = 0.0
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)
    questions: int = 0


class WorkerProcesses:
    """The worker processes.

    `command` starts one, with its number appended; with `--check` too, it fails if none could start
    with the configuration as it is now.
    """

    def __init__(self, command: Sequence[str], count: int) -> None:
        self._command = tuple(command)
        self._workers = [_Worker(number) for number in range(1, count + 1)]
        self._tasks = TaskScope()
        self._is_stopping = False
        self._restarting = asyncio.Lock()

    @property
    def pids(self) -> list[int]:
        """Return the process IDs of the workers that run."""
        return [
            worker.process.pid
            for worker in self._workers
            if worker.process is not None and worker.process.returncode is None
        ]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """Run all workers inside the context; yield the router's address once all are ready."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, self._hang_up)  # or it would end this process
        try:
            async with self._restarting:
                for worker in self._workers:
                    await self._start(worker)
                    await self._wait_ready(worker)
                    self._tasks.spawn(self._watch(worker), name="watch a worker")
                    self._tasks.spawn(self._end_if_hung(worker), name="ping a worker")
            yield self._workers[0].address
        finally:
            await self._stop()
            loop.remove_signal_handler(signal.SIGHUP)

    def _hang_up(self) -> None:
        self._tasks.spawn(self.restart_each(), name="rolling restart")

    async def restart_each(self) -> None:
        """Restart one worker after another, so that others serve meanwhile."""
        async with self._restarting:
            if not await self._can_start():
                logger.error("no worker is restarted: they could not start, as is said above")
                return
            for worker in self._workers:
                logger.info("restarting worker %d", worker.number)
                await self._end(worker)
                await worker.ready.wait()

    async def _can_start(self) -> bool:
        """Return whether a worker could start with the configuration as it is now."""
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command, "0", "--check", stdin=asyncio.subprocess.DEVNULL
            )
        except OSError as exc:
            logger.error("the configuration cannot be checked: %s", exc)
            return False
        try:
            return await process.wait() == 0
        finally:
            self._signal(process, signal.SIGKILL)

    async def _end(self, worker: _Worker) -> None:
        """End a worker, which `_watch` starts again."""
        process = worker.process
        worker.ready.clear()
        self._signal(process, signal.SIGTERM)
        if process is not None:
            try:
                async with asyncio.timeout(STOP_TIMEOUT):
                    await process.wait()
            except TimeoutError:
                logger.warning("worker %d does not stop: killing it", worker.number)
                self._signal(process, signal.SIGKILL)

    async def ask(self) -> dict[int, JsonObject]:
        """Return the reports of the workers that answer in time, by their number."""
        reports = await asyncio.gather(*(self._ask(each, REPORT) for each in self._workers))
        return {
            worker.number: report
            for worker, report in zip(self._workers, reports, strict=True)
            if report is not None
        }

    async def _ask(self, worker: _Worker, what: str) -> JsonObject | None:
        async with worker.asking:
            process = worker.process
            if process is None or not worker.ready.is_set():
                return None
            assert process.stdin is not None and process.stdout is not None  # noqa: PT018, S101
            worker.questions += 1
            try:
                async with asyncio.timeout(ANSWER_TIMEOUT):
                    process.stdin.write(f"{worker.questions} {what}\n".encode())
                    while line := await process.stdout.readline():
                        answer: JsonObject = json.loads(line)
                        if answer["question"] == worker.questions:  # not one that came too late
                            report: JsonObject = answer["report"]
                            return report
            except (OSError, TimeoutError, ValueError, KeyError, TypeError):
                logger.warning("worker %d does not answer", worker.number)
            return None

    async def _end_if_hung(self, worker: _Worker) -> None:
        """Kill a worker that does not answer: the kernel goes on to give it connections."""
        answered_at = time.monotonic()
        while True:
            await asyncio.sleep(PING_SECONDS)
            process = worker.process
            if await self._ask(worker, PING) is not None or not worker.ready.is_set():
                answered_at = time.monotonic()
            elif time.monotonic() - answered_at > HANG_TIMEOUT:
                logger.error("worker %d hangs: killing it", worker.number)
                self._signal(process, signal.SIGKILL)

    async def _start(self, worker: _Worker) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"}
        worker.ready.clear()
        worker.started_at = time.monotonic()
        # Its input ends with this process, which a worker takes for SIGTERM. A session of its own
        # keeps a terminal's SIGINT from it.
        worker.process = await asyncio.create_subprocess_exec(
            *self._command,
            str(worker.number),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=MAX_ANSWER,
            env=environment,
            start_new_session=True,
        )

    async def _wait_ready(self, worker: _Worker) -> None:
        """Wait until a worker is ready, however long it migrates a large store.

        Raises `StartError` if it ends before.
        """
        process = worker.process
        assert process is not None and process.stdout is not None  # noqa: PT018, S101
        reading = asyncio.ensure_future(process.stdout.readline())
        try:
            while not (await asyncio.wait([reading], timeout=SLOW_START))[0]:
                seconds = time.monotonic() - worker.started_at
                logger.warning("worker %d is not ready after %d s", worker.number, seconds)
            line = (await reading).decode().strip()
        finally:
            reading.cancel()
        if not line.startswith("ready "):
            raise StartError(f"worker {worker.number} did not start: its message is above")
        worker.address = line.removeprefix("ready ")
        worker.ready.set()

    async def _watch(self, worker: _Worker) -> None:
        """Start a worker again whenever it ends."""
        while not self._is_stopping:
            assert worker.process is not None  # noqa: S101
            code = await worker.process.wait()
            if self._is_stopping:
                return
            if code == 0 or time.monotonic() - worker.started_at > STABLE_SECONDS:
                worker.failures = 0
            if code != 0:
                await self._delay(worker, f"ended ({_reason(code)})")
            await self._start_again(worker)
            try:
                await self._wait_ready(worker)
            except StartError as exc:
                logger.error("%s", exc)
                self._signal(worker.process, signal.SIGKILL)

    async def _start_again(self, worker: _Worker) -> None:
        """Start a worker, once the machine has room for a process."""
        while True:
            try:
                return await self._start(worker)
            except OSError as exc:
                await self._delay(worker, f"cannot be started: {exc}")

    async def _delay(self, worker: _Worker, failure: str) -> None:
        worker.failures += 1
        delay = DELAYS.delay(worker.failures, 0.0)
        logger.error("worker %d %s: starting it again in %.2g s", worker.number, failure, delay)
        await asyncio.sleep(delay)

    async def _stop(self) -> None:
        self._is_stopping = True
        await self._tasks.close()
        for worker in self._workers:
            self._signal(worker.process, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_TIMEOUT):
                await self._wait_ended()
        for worker in self._workers:
            self._signal(worker.process, signal.SIGKILL)
        await self._wait_ended()

    async def _wait_ended(self) -> None:
        for worker in self._workers:
            if worker.process is not None:
                await worker.process.wait()

    def _signal(self, process: asyncio.subprocess.Process | None, number: int) -> None:
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)


def _reason(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"code {code}"


def command_for(directory: Path, host: str, port: int) -> list[str]:
    """Return the command of a worker, to which its number is appended."""
    return [
        *(sys.executable, "-m", "heliograph", "ntf", "start", "--dir", str(directory)),
        *("--host", host, "--port", str(port), "--worker"),
    ]
