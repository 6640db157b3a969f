"""Start all parts, restart what ends, and stop all of them together.

A part that ends before it was ever ready fails the start, with the last lines of its log. Later it
is restarted, after a delay that grows while it keeps ending.
"""

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Iterable

from heliograph.runtime.errors import StartError, file_error
from heliograph.system.layout import Layout
from heliograph.system.logfile import LogFile, tail
from heliograph.system.parts import SystemPart
from heliograph.system.state import PartState, PartStatus, SystemStatus
from heliograph.tasks import TaskScope

__all__ = ["Supervisor"]

logger = logging.getLogger(__name__)

READY = b"ready"
START_SECONDS = 60.0
STOP_SECONDS = 20.0
KILL_SECONDS = 5.0
FIRST_DELAY, LAST_DELAY = 0.5, 30.0
SETTLED_SECONDS = 60.0
"""A part that ran this long is restarted without a longer delay."""
LAST_LINES = 5
_LINE_LIMIT = 1 << 20


class Supervisor:
    def __init__(self, layout: Layout, parts: Iterable[SystemPart]) -> None:
        self._layout = layout
        self._parts = tuple(parts)
        self._processes: dict[str, Process] = {}
        self._ready = {part.name: asyncio.Event() for part in self._parts}
        self._scope = TaskScope()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._failure: StartError | None = None
        self._begins: dict[str, int] = {}
        """The offset in each part's log where its last run begins."""
        self._is_stopping = False
        now = time.time()
        statuses = {part.name: PartStatus(since=now) for part in self._parts}
        self.status = SystemStatus(os.getpid(), now, parts=statuses)

    async def start(self) -> None:
        """Wait until every part that is not slow is ready. Raises `StartError`."""
        try:
            self._layout.logs.mkdir(mode=0o700, exist_ok=True)
        except OSError as exc:
            raise StartError(file_error(exc, self._layout.logs)) from exc
        for part in self._parts:
            self._tasks[part.name] = self._scope.spawn(self._keep(part), name=part.name)
        waiting = self._scope.spawn(self._all_ready(), name="wait until all are ready")
        done, _ = await asyncio.wait(
            {waiting, *self._tasks.values()},
            timeout=START_SECONDS,
            return_when=asyncio.FIRST_COMPLETED,
        )
        if waiting not in done:
            waiting.cancel()
            for task in done:
                task.result()
            if self._failure is not None:
                raise self._failure
            late = [
                part.name
                for part in self._parts
                if not part.is_slow and not self._ready[part.name].is_set()
            ]
            raise StartError(
                f"{' and '.join(late)} did not become ready in {START_SECONDS:.0f} s: see"
                f" {self._layout.log(late[0])}"
            )
        self.status.is_up = True
        self._write_state()

    async def stop(self) -> None:
        """Stop all parts at once: they keep no state for each other that is not durable."""
        self._is_stopping = True
        for name, task in self._tasks.items():
            process = self._processes.get(name)
            if process is not None and process.returncode is None:
                _signal(process, signal.SIGTERM)
            else:
                task.cancel()  # it waits for another part, or for its restart
        await self._wait_ended(STOP_SECONDS)
        for name, process in self._processes.items():
            if process.returncode is None:
                logger.warning("%s did not stop in %.0f s: killed", name, STOP_SECONDS)
                _signal(process, signal.SIGKILL)
        await self._wait_ended(KILL_SECONDS)
        await self._scope.close()  # something that a part started may hold its output open
        self.status.is_up = False
        self._write_state()

    async def _wait_ended(self, seconds: float) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=seconds)

    async def _all_ready(self) -> None:
        for part in self._parts:
            if not part.is_slow:
                await self._ready[part.name].wait()

    async def _keep(self, part: SystemPart) -> None:
        status = self.status.parts[part.name]
        try:
            for name in part.needs:
                await self._ready[name].wait()
            await self._run_and_restart(part, status)
        except StartError as exc:
            self._failure = exc
        finally:
            status.state, status.pid = PartState.STOPPED, None
            self._write_state()

    async def _run_and_restart(self, part: SystemPart, status: PartStatus) -> None:
        delay = FIRST_DELAY
        while not self._is_stopping:
            started = time.monotonic()
            try:
                code = await self._run(part, status)
                ended, explanation = _ending(code), self._explain_failure(part, code)
            except OSError as exc:  # no more processes, or its log cannot be written
                ended = f"{exc.filename or part.command[0]}: {exc.strerror}"
                explanation = f"{part.name} did not start: {ended}"
            status.pid, status.since, status.ended = None, time.time(), ended
            if self._is_stopping:
                break
            if not self._ready[part.name].is_set() and not part.is_slow:
                raise StartError(explanation)
            if time.monotonic() - started > SETTLED_SECONDS:
                delay = FIRST_DELAY
            logger.warning("%s ended (%s): restarting in %g s", part.name, ended, delay)
            status.state = PartState.WAITING
            status.restarts += 1
            self._write_state()
            await asyncio.sleep(delay)
            delay = min(delay * 2, LAST_DELAY)

    async def _run(self, part: SystemPart, status: PartStatus) -> int:
        status.state, status.since = PartState.STARTING, time.time()
        log = LogFile(self._layout.log(part.name))
        try:
            return await self._run_with(log, part, status)
        finally:
            log.close()

    async def _run_with(self, log: LogFile, part: SystemPart, status: PartStatus) -> int:
        process = await asyncio.create_subprocess_exec(
            *part.command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
            limit=_LINE_LIMIT,
            start_new_session=True,  # Ctrl-C goes to the supervisor alone, which stops the parts
            preexec_fn=_die_with_parent,
        )
        self._processes[part.name] = process
        status.pid = process.pid
        self._write_state()
        if self._is_stopping:
            _signal(process, signal.SIGTERM)
        self._begins[part.name] = log.path.stat().st_size
        try:
            await asyncio.gather(
                self._read_output(part, process, status), _copy(process.stderr, log)
            )
            return await process.wait()
        finally:
            if process.returncode is None:
                _signal(process, signal.SIGKILL)

    async def _read_output(self, part: SystemPart, process: Process, status: PartStatus) -> None:
        assert process.stdout is not None  # noqa: S101
        while line := await _line(process.stdout):
            if line.startswith(READY):
                status.address = line[len(READY) :].decode(errors="replace").strip()
                status.state, status.since = PartState.RUNNING, time.time()
                self._ready[part.name].set()
                self._write_state()
                logger.info("%s is ready", part.name)

    def _explain_failure(self, part: SystemPart, code: int) -> str:
        log = self._layout.log(part.name)
        lines = [f"{part.name} did not start ({_ending(code)}):"]
        lines_of_run = tail(log, LAST_LINES, self._begins[part.name])
        lines += [f"  {line}" for line in lines_of_run if " INFO " not in line]
        return "\n".join([*lines, f"see {log}"])

    def _write_state(self) -> None:
        try:
            self.status.write(self._layout.state)
        except OSError as exc:
            logger.warning("%s cannot be written: %s", self._layout.state, exc.strerror)


async def _line(stream: asyncio.StreamReader) -> bytes:
    """Return the next line; skip lines that are too long."""
    while True:
        with contextlib.suppress(ValueError):
            return await stream.readline()


async def _copy(stream: asyncio.StreamReader | None, log: LogFile) -> None:
    assert stream is not None  # noqa: S101
    while data := await stream.read(65536):
        try:
            log.write(data)
        except OSError as exc:
            logger.warning("%s cannot be written: %s", log.path, exc.strerror)


def _ending(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    return f"killed by {signal.Signals(-code).name}"


def _signal(process: Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)


_LIBC = ctypes.CDLL(None) if os.uname().sysname == "Linux" else None
_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    """Ask the kernel to stop this part when the supervisor is killed, so that ports are free."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
