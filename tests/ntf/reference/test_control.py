import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest

from heliograph.ntf.observing.metrics import NtfCollector
from heliograph.ntf.reference.control import NtfControlPort, ProcessState
from heliograph.ntf.reference.statslog import NtfStatsLog
from heliograph.ntf.router import NtfSettings
from heliograph.ntf.store import totals
from heliograph.runtime.errors import StartError
from heliograph.runtime.reference import control as module
from heliograph.runtime.reference.control import Passwords, Role
from tests.ntf.support import SETTINGS, NtfWorld
from tests.runtime.reference import control

HELP = NtfControlPort.help
PASSWORDS = Passwords(b"admins", b"users")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WRONG_PASSWORD_DELAY", 0.01)


@pytest.fixture
def settings() -> NtfSettings:
    return NtfSettings(
        outbox=SETTINGS.outbox, subscriber=SETTINGS.subscriber, own_domains=("127.0.0.1",)
    )


@asynccontextmanager
async def a_port(world: NtfWorld, passwords: Passwords = PASSWORDS) -> AsyncIterator[int]:
    collector = NtfCollector(world.router, world.listener, partial(totals.count, world.url))
    collector.totals = await totals.count(world.url)
    stats = NtfStatsLog(world.router.stats, world.directory / "stats.json")
    control = NtfControlPort(ProcessState(world.router, stats, collector), passwords)
    port = await control.start(0)
    try:
        yield port
    finally:
        await control.close()


async def talk(port: int, *lines: str) -> list[str]:
    """What is answered to all of it, after the greeting."""
    return await control.talk(port, "Ntf server control port", *lines)


async def test_roles(small_world: NtfWorld, caplog: pytest.LogCaptureFixture) -> None:
    async with a_port(small_world) as port:
        assert await talk(port, "stats", "server-info") == ["AUTH", "AUTH"]
        assert await talk(port, "auth wrong") == ["Current role is CPRNone"]
        assert (await talk(port, "auth users"))[0] == "Current role is CPRUser"
        assert await talk(port, "auth users", "auth admins") == [
            "Current role is CPRUser",
            "Current role is CPRUser, start new session to change.",
        ]
        assert (await talk(port, "auth admins", "auth admins"))[1] == "Current role is CPRAdmin"
    assert "wrong" in caplog.text
    assert "admins" not in caplog.text


async def test_nobody_without_passwords(small_world: NtfWorld) -> None:
    async with a_port(small_world, Passwords()) as port:
        assert await talk(port, "auth None", "auth", "stats") == [
            "Current role is CPRNone",
            "error: auth needs a password",
            "AUTH",
        ]


async def test_words(small_world: NtfWorld) -> None:
    async with a_port(small_world) as port:
        assert await talk(port, "help", "", "nonsense", "help\r") == [
            HELP,
            f"error: no such command; {HELP}",
            HELP,
        ]


async def test_stats(small_world: NtfWorld) -> None:
    await small_world.registered()
    async with a_port(small_world) as port:
        lines = await talk(port, "auth users", "stats")
    found = dict(line.split(": ", 1) for line in lines[1:])
    assert found["tknCreated"] == found["tknVerified"] == "1"
    assert found["ntfVrfInvalidTkn"] == found["daily active tokens"] == "0"
    assert found["fromTime"].endswith("UTC")


async def test_server_info_names_own_servers_to_administrators(small_world: NtfWorld) -> None:
    phone = await small_world.registered()
    await phone.subscribe(await small_world.queue())
    async with a_port(small_world) as port:
        user = await talk(port, "auth users", "server-info")
        admin = await talk(port, "auth admins", "server-info")
    for lines in (user, admin):
        assert "SMP sessions count: 1" in lines
        assert "SMP subscribers own servers count: 1" in lines
        assert "SMP queue subscriptions total: 1" in lines
        assert "Push notifications queue length: 0" in lines
    assert "127.0.0.1" not in "".join(user)
    assert "SMP queue subscriptions on 127.0.0.1: 1" in admin


async def test_a_flood_in_one_line(small_world: NtfWorld) -> None:
    async with a_port(small_world) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"x" * 100_000)
        async with asyncio.timeout(10):
            await reader.read()  # it ends
        writer.close()
        assert await talk(port, "help") == [HELP]


async def test_too_many_connections(small_world: NtfWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CONNECTIONS", 1)
    async with a_port(small_world) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await reader.readline()
        second, other = await asyncio.open_connection("127.0.0.1", port)
        assert await second.read() == b""
        for each in (writer, other):
            each.close()


async def test_port_taken(small_world: NtfWorld) -> None:
    async with a_port(small_world) as port:
        collector = NtfCollector(
            small_world.router, small_world.listener, partial(totals.count, small_world.url)
        )
        stats = NtfStatsLog(small_world.router.stats, small_world.directory / "stats.json")
        control = NtfControlPort(ProcessState(small_world.router, stats, collector), PASSWORDS)
        with pytest.raises(StartError, match="taken"):
            await control.start(port)


def test_passwords() -> None:
    assert PASSWORDS.role(b"admins") is Role.ADMIN
    assert PASSWORDS.role(b"") is Role.NONE
    assert Passwords().role(b"") is Role.NONE
    assert "admins" not in repr(PASSWORDS)
