"""A world of real processes, and phones in it."""

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from heliograph.agent.agent import AgentSettings
from heliograph.agent.clients import ClientSettings
from heliograph.agent.keys import Cost
from heliograph.device.chats.content import Content
from heliograph.device.states import AppState
from heliograph.phone.phone import Phone
from heliograph.phone.push import ApnsSource, PushSource
from heliograph.phone.watch import Screen, Watch
from heliograph.runtime.backoff import Backoff
from heliograph.wire.ntf.tokens import NotificationsMode
from tests.faults.processes import HELIOGRAPH, Process, SimulatorProcess, init

TIMEOUT = 60.0
_PATCH = (
    "import heliograph.phone.app as app; wait_until = app.wait_until;"
    " app.wait_until = lambda condition, patience: wait_until(condition, min(patience, 1.0));"
)
IMPATIENT = (*HELIOGRAPH[:2], f"{_PATCH} {HELIOGRAPH[2]}")
"""The command, for a router that is down: it waits one second where a user's waits ten or more."""
FAST = Backoff(first=0.1, last=0.5)
SETTINGS = AgentSettings(
    clients=ClientSettings(backoff=FAST, stable_after=0.5),
    retry=FAST,
    cost=Cost(operations=1, memory=8192),
    poll_interval=0.1,
)


class World:
    """A messaging router, a notification router and an APNs simulator, each a process."""

    def __init__(self, directory: Path, made_by: tuple[str, ...] = HELIOGRAPH) -> None:
        self._made_by = made_by
        self.directory = directory
        self.apns = SimulatorProcess(directory / "apns")
        self.smp = Process(
            directory / "smp",
            *("smp", "start"),
            environment={"HELIOGRAPH_SMP_NOTIFICATIONS_DELIVERY_INTERVAL": "0.05"},
        )
        self.ntf: Process

    async def start(self) -> None:
        await asyncio.gather(
            self.apns.start(),
            init("smp", self.directory / "smp", self._made_by),
            init("ntf", self.directory / "ntf", self._made_by),
        )
        options = self.apns.options_of_ntf
        self.ntf = Process(self.directory / "ntf", "ntf", "start", environment=options)
        await asyncio.gather(self.smp.start(), self.ntf.start())

    async def stop(self) -> None:
        for process in (self.smp, self.apns, getattr(self, "ntf", self.smp)):
            await process.kill()

    @property
    def smp_address(self) -> str:
        return self.smp.ready

    @property
    def ntf_address(self) -> str:
        return self.ntf.ready

    async def new_phone(self, name: str, *, passphrase: str | None = None) -> Phone:
        return await Phone.create(
            self.directory / name,
            name,
            [self.smp_address],
            [self.ntf_address],
            passphrase=passphrase,
            settings=SETTINGS,
        )

    async def source(self, phone: Phone) -> ApnsSource:
        return ApnsSource(self.apns.control, await phone.token())


@contextlib.asynccontextmanager
async def a_world(directory: Path, made_by: tuple[str, ...] = HELIOGRAPH) -> AsyncIterator[World]:
    world = World(directory, made_by)
    try:
        await world.start()
        yield world
    finally:
        await world.stop()


async def register(
    world: World, phone: Phone, mode: NotificationsMode = NotificationsMode.INSTANT
) -> None:
    source = await world.source(phone)
    try:
        async with phone.app() as app:
            await app.register_and_verify(source, mode, TIMEOUT)
    finally:
        await source.close()


class Watching:
    """What a phone shows, while it is watched."""

    def __init__(self, phone: Phone, source: PushSource, state: AppState) -> None:
        self.phone = phone
        self.screen = Screen(lambda content: self._news.set())
        self.app = phone.foreground(self.screen, state)
        self._news = asyncio.Event()
        self._source = source
        self._taken = 0
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.app.launch()
        self._task = asyncio.create_task(Watch(self.phone, self.screen, self.app).run(self._source))

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.app.close()
        await self._source.close()

    async def next(self, within: float = TIMEOUT) -> Content:
        """The next notification."""
        async with asyncio.timeout(within):
            while len(self.screen.shown) <= self._taken:
                self._news.clear()
                await self._news.wait()
        self._taken += 1
        return self.screen.shown[self._taken - 1]

    async def until(self, title: str, body: str, within: float = TIMEOUT) -> Content:
        """The next that says so; those before it are passed over."""
        deadline = time.monotonic() + within
        while True:
            content = await self.next(max(deadline - time.monotonic(), 0.1))
            if (content.title, content.body) == (title, body):
                return content


@contextlib.asynccontextmanager
async def watching(
    world: World, phone: Phone, state: AppState = AppState.SUSPENDED
) -> AsyncIterator[Watching]:
    watch = Watching(phone, await world.source(phone), state)
    await watch.start()
    try:
        yield watch
    finally:
        await watch.stop()


async def connect(world: World, alice: Phone, bob: Phone) -> None:
    """Each knows the other by name."""
    async with alice.app() as app:
        link = await app.invite("bob")
    async with bob.app() as app:
        await app.accept(link, "alice")


async def device(
    name: str,
    directory: Path,
    *arguments: str,
    ok: bool = True,
    command: tuple[str, ...] = HELIOGRAPH,
) -> str:
    """`heliograph device ...`, as a user types it; gives what it printed."""
    process = await asyncio.create_subprocess_exec(
        *(*command, "device", name, "--dir", str(directory), *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(TIMEOUT):
        out, err = await process.communicate()
    assert b"Traceback" not in err, err.decode()
    assert (process.returncode == 0) == ok, (out.decode(), err.decode())
    return out.decode() if ok else err.decode()


class WatchProcess:
    """`heliograph device watch --json`: what it shows, line by line."""

    def __init__(
        self, directory: Path, *arguments: str, command: tuple[str, ...] = HELIOGRAPH
    ) -> None:
        self._command = command
        self._directory = directory
        self._arguments = arguments
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *(*self._command, "device", "watch", "--dir", str(self._directory), "--json"),
            *self._arguments,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert self._process.stderr is not None
        async with asyncio.timeout(TIMEOUT):
            line = await self._process.stderr.readline()
        assert line.startswith(b"watching "), line

    async def next(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        async with asyncio.timeout(TIMEOUT):
            line = await self._process.stdout.readline()
        assert line, "it ended"
        shown: dict[str, Any] = json.loads(line)
        return shown

    async def until(self, title: str, body: str) -> dict[str, Any]:
        while True:
            shown = await self.next()
            if (shown["title"], shown["body"]) == (title, body):
                return shown

    async def stop(self, number: int = signal.SIGTERM) -> int:
        """The exit code."""
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(number)
        async with asyncio.timeout(TIMEOUT):
            await self._process.communicate()
        assert self._process.returncode is not None
        return self._process.returncode

    async def kill(self) -> None:
        if self._process is not None:
            await self.stop(signal.SIGKILL)

    async def restart(self) -> None:
        await self.kill()
        await self.start()
