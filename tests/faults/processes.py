"""The routers and the simulated APNs as processes of their own, to be killed and started again.

With HELIOGRAPH_WORKERS=3, notification routers are three processes each, on PostgreSQL.
"""

import asyncio
import os
import re
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from heliograph.cli.main import main
from tests.db.postgres import shared_postgres
from tests.ports import steady_port

HELIOGRAPH = (
    *(sys.executable, "-c"),
    "import sys; from heliograph.cli.main import main; sys.exit(main())",
)
START_TIMEOUT = 180.0
WORKERS = int(os.environ.get("HELIOGRAPH_WORKERS", "0"))
LEASE = 2.0
STORE_URL = "HELIOGRAPH_NTF_STORE_URL"
STORES = ("postgresql",) if WORKERS else ("sqlite", "postgresql")
"""Kinds of stores that a notification router which is a process can have."""


def skewed(ahead: int) -> tuple[str, ...]:
    """The command, with a clock that is so many seconds ahead."""
    if not ahead:
        return HELIOGRAPH
    python, option, script = HELIOGRAPH
    clock = (
        "import time; right, right_ns = time.time, time.time_ns;"
        f" time.time = lambda: right() + {ahead};"
        f" time.time_ns = lambda: right_ns() + {ahead} * 10**9;"
    )
    return python, option, f"{clock} {script}"


KEY_ID, TEAM_ID, TOPIC = "TESTKEYID1", "5NN7GUYB6T", "chat.simplex.app"


class Process:
    """`heliograph ...`: it keeps its port from start to start."""

    def __init__(
        self, directory: Path, *command: str, environment: Mapping[str, str] | None = None
    ) -> None:
        self.directory = directory
        self.ready = ""
        self.command: tuple[str, ...] = HELIOGRAPH
        self._arguments = command
        self.environment = {**os.environ, **(environment or {})}
        if WORKERS and command == ("ntf", "start"):
            self._use_workers()
        self._process: asyncio.subprocess.Process | None = None
        self.options: tuple[str, ...] = ("--port", str(steady_port()))

    def _use_workers(self) -> None:
        self._arguments += ("--workers", str(WORKERS))
        self.environment["HELIOGRAPH_NTF_PROCESSES_LEASE_SECONDS"] = str(LEASE)
        if not self.environment.get(STORE_URL, "").startswith("postgresql"):
            self.environment[STORE_URL] = shared_postgres().new_url()

    def _pids(self) -> list[int]:
        """Of the process and of its workers, if it has any."""
        assert self._process is not None
        return [self._process.pid, *children(self._process.pid)]

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def store_url(self) -> str:
        """Of a notification router."""
        return self.environment.get(STORE_URL, f"sqlite:///{self.directory}/ntf.db")

    @property
    def log(self) -> Path:
        return self.directory / "stderr.log"

    async def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self.command,
                *self._arguments,
                "--dir",
                str(self.directory),
                *self.options,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=self.environment,
            )
        assert self._process.stdout is not None
        async with asyncio.timeout(START_TIMEOUT):
            line = (await self._process.stdout.readline()).decode()
        assert line.startswith("ready "), (line, self.log.read_text()[-2000:])
        self.ready = line.removeprefix("ready ").strip()
        self._keep_ports()

    def _keep_ports(self) -> None:
        port = re.search(r":(\d+)(?: |$)", self.ready)
        assert port is not None
        self.options = ("--port", port[1])

    async def kill(self) -> None:
        """As by `kill -9`; waits until it is gone."""
        if self._process is not None:
            if self._process.returncode is None:
                for pid in self._pids():
                    send_signal(pid, signal.SIGKILL)
            await self._process.wait()

    def pause(self) -> None:
        """As by SIGSTOP: connections stay, nothing is answered."""
        for pid in self._pids():
            send_signal(pid, signal.SIGSTOP)

    def resume(self) -> None:
        for pid in self._pids():
            send_signal(pid, signal.SIGCONT)

    async def stop(self) -> None:
        """As an operator does."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(START_TIMEOUT):
            assert await self._process.wait() == 0

    async def restart(self) -> None:
        await self.kill()
        await self.start()


class SimulatorProcess(Process):
    def __init__(self, directory: Path) -> None:
        super().__init__(
            directory,
            *("sim", "apns"),
            *("--key-id", KEY_ID, "--team-id", TEAM_ID, "--topic", TOPIC),
        )
        self.options += ("--control-port", str(steady_port()))
        directory.mkdir()

    def _keep_ports(self) -> None:
        super()._keep_ports()
        control = re.search(r"control http://[^:]+:(\d+)", self.ready)
        assert control is not None
        self.options += ("--control-port", control[1])

    @property
    def url(self) -> str:
        return self.ready.split(" ")[0]

    @property
    def control(self) -> str:
        return self.ready.split(" ")[2]

    @property
    def record(self) -> Path:
        return self.directory / "apns.jsonl"

    @property
    def options_of_ntf(self) -> dict[str, str]:
        """The notification router's configuration for it."""
        options: dict[str, Any] = {
            "KEY_FILE": self.directory / "apns.p8",
            "KEY_ID": KEY_ID,
            "TEAM_ID": TEAM_ID,
            "TOPIC": TOPIC,
            "TEST_URL": self.url,
            "CA_FILE": self.directory / "ca.crt",
            "ALLOW_TEST_TOKENS": "true",
            "TIMEOUT_SECONDS": "2",
        }
        return {f"HELIOGRAPH_NTF_PUSH_APNS_{key}": str(value) for key, value in options.items()}


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process and its children, by SIGSTOP: they keep their connections, and answer nothing."""
    pids = [pid, *children(pid)]
    for each in pids:
        send_signal(each, signal.SIGSTOP)
    try:
        yield
    finally:
        for each in pids:
            send_signal(each, signal.SIGCONT)


def children(pid: int) -> list[int]:
    """The children of a process that run."""
    return [
        int(stat.parent.name) for stat in Path("/proc").glob("[0-9]*/stat") if _parent(stat) == pid
    ]


def _parent(stat: Path) -> int | None:
    try:
        return int(stat.read_text().rsplit(") ", 1)[1].split()[1])
    except OSError:
        return None


def send_signal(pid: int, which: signal.Signals) -> None:
    """Send a signal to a process, unless its supervisor has ended it meanwhile."""
    with suppress(ProcessLookupError):
        os.kill(pid, which)


async def init(kind: str, directory: Path, command: tuple[str, ...] = HELIOGRAPH) -> None:
    arguments = (kind, "init", "--dir", str(directory), "--host", "127.0.0.1", "--port", "0")
    if command == HELIOGRAPH:
        assert main(arguments) == 0  # here, because a process takes a second to start
        return
    process = await asyncio.create_subprocess_exec(
        *command, *arguments, stdout=asyncio.subprocess.DEVNULL
    )
    assert await process.wait() == 0
