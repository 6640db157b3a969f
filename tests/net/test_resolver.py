import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from ipaddress import ip_address
from typing import cast

import pycares
import pytest

from heliograph.net import resolver as module
from heliograph.net.public import Address
from heliograph.net.resolver import NameNotResolved, Resolver, dns_lookup
from tests.waiting import until

ADDRESS = ip_address("203.0.113.7")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Names:
    """A lookup that tests fill; names that begin with `silent` have no answer."""

    def __init__(self, **names: str) -> None:
        self.names = {name.replace("_", "."): ip_address(text) for name, text in names.items()}
        self.asked: list[str] = []
        self.given_up = asyncio.Event()

    async def __call__(self, name: str) -> Sequence[Address]:
        self.asked.append(name)
        if name.startswith("silent"):
            await self.given_up.wait()
        await asyncio.sleep(0)
        if name not in self.names:
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return [self.names[name]]


@pytest.mark.parametrize("host", ["203.0.113.7", "::1"])
async def test_an_address_is_not_looked_up(host: str) -> None:
    names = Names()
    assert await Resolver(names).resolve(host) == (ip_address(host),)
    assert names.asked == []


async def test_a_name_is_looked_up_once_and_again_when_it_is_old() -> None:
    clock, names = Clock(), Names(a_example="203.0.113.7")
    resolver = Resolver(names, clock)
    found = await asyncio.gather(*(resolver.resolve(f"{a}.example") for a in ("a", "A", "a")))
    assert found == [(ADDRESS,)] * 3
    assert await resolver.resolve("a.example.") == (ADDRESS,)
    assert names.asked == ["a.example"]
    clock.now += module.FRESH_FOR
    names.names["a.example"] = ip_address("203.0.113.8")
    assert await resolver.resolve("a.example") == (ip_address("203.0.113.8"),)


async def test_failures_are_remembered_for_a_moment() -> None:
    clock, names = Clock(), Names()
    resolver = Resolver(names, clock)
    for _ in range(3):
        with pytest.raises(NameNotResolved):
            await resolver.resolve("a.example")
    assert names.asked == ["a.example"]
    clock.now += module.FAILED_FOR
    names.names["a.example"] = ADDRESS
    assert await resolver.resolve("a.example") == (ADDRESS,)


async def test_a_known_host_outlives_its_name_server() -> None:
    clock, names = Clock(), Names(a_example="203.0.113.7")
    resolver = Resolver(names, clock)
    await resolver.resolve("a.example")
    names.names.clear()
    clock.now += module.FRESH_FOR
    for _ in range(3):
        assert await resolver.resolve("a.example") == (ADDRESS,)
    assert names.asked == ["a.example"] * 2
    clock.now += module.STALE_FOR
    with pytest.raises(NameNotResolved):
        await resolver.resolve("a.example")


async def test_names_that_never_resolve_delay_no_proven_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_LOOKUPS", 4)
    clock, names = Clock(), Names(a_example="203.0.113.7")
    resolver = Resolver(names, clock)
    await resolver.resolve("a.example")
    clock.now += module.FRESH_FOR
    silent = [asyncio.create_task(resolver.resolve(f"silent{n}.example")) for n in range(100)]
    await asyncio.sleep(0.01)
    assert await asyncio.wait_for(resolver.resolve("a.example"), 30) == (ADDRESS,)
    assert len([name for name in names.asked if name.startswith("silent")]) == 4
    for task in silent:
        task.cancel()
    await asyncio.wait(silent)
    names.given_up.set()
    await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})


async def test_lookups_time_out_and_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOKUP_TIMEOUT", 0.05)
    monkeypatch.setattr(module, "MAX_QUEUED", 2)
    resolver = Resolver(Names())
    asked = [resolver.resolve(f"silent{n}.example") for n in range(5)]
    results = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(result) for result in results] == [NameNotResolved] * 5
    await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})


async def test_few_names_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_NAMES", 2)
    names = Names(a="203.0.113.7", b="203.0.113.7", c="203.0.113.7")
    resolver = Resolver(names)
    for name in "abacabc":
        await resolver.resolve(name)
    assert names.asked == ["a", "b", "c", "b", "c"]


class NameServer(asyncio.DatagramProtocol):
    """Answers A queries of names that begin with `honest`, and is silent about others."""

    def __init__(self) -> None:
        self.received = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self.received += 1
        end = data.index(b"\0", 12) + 5
        question, kind = data[12:end], data[end - 4 : end - 2]
        if not question[1:].startswith(b"honest"):
            return
        is_a = kind == b"\0\1"
        head = data[:2] + b"\x81\x80\0\1" + (b"\0\1" if is_a else b"\0\0") + bytes(4)
        record = b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4" + ADDRESS.packed if is_a else b""
        self.transport.sendto(head + question + record, addr)


@pytest.fixture
async def name_server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[NameServer]:
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(NameServer, ("127.0.0.1", 0))
    port = transport.get_extra_info("sockname")[1]
    channel = pycares.Channel(
        servers=["127.0.0.1"], udp_port=port, tcp_port=port, timeout=1.0, tries=2, lookups="fb"
    )
    monkeypatch.setattr(module, "_channel", lambda: channel)
    yield server
    channel.close()
    transport.close()


async def test_a_silent_name_server_keeps_nobody_else_waiting(name_server: NameServer) -> None:
    """More names that never resolve than there were threads, and a new honest one."""
    resolver = Resolver()
    silent = [asyncio.create_task(resolver.resolve(f"silent{n}.example")) for n in range(60)]
    await until(lambda: name_server.received >= 60)  # more at once overflow the server's buffer
    assert await resolver.resolve("honest.example") == (ADDRESS,)
    assert not any(task.done() for task in silent)
    results = await asyncio.gather(*silent, return_exceptions=True)
    assert {type(result) for result in results} == {NameNotResolved}


@pytest.mark.parametrize("name", ["a" * 64 + ".example", "a..example"])
async def test_names_that_cannot_be(name: str) -> None:
    with pytest.raises(NameNotResolved):
        await Resolver().resolve(name)


async def test_the_hosts_file_is_asked() -> None:
    assert ip_address("127.0.0.1") in await module.resolve("localhost")


_RESOLVE_AND_EXIT = """
import asyncio, gc, threading
import pycares
from heliograph.net import resolver

asyncio.run(resolver.resolve("localhost"))
[channel] = [item for item in gc.get_objects() if isinstance(item, pycares.Channel)]
threading.kept = [channel, pycares]  # freed after the globals of pycares
"""


def test_nothing_is_said_when_the_process_exits() -> None:
    command = [sys.executable, "-c", _RESOLVE_AND_EXIT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""


async def test_threads_where_the_library_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_channel", lambda: None)
    assert ip_address("127.0.0.1") in await dns_lookup("localhost")
