import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from ipaddress import ip_address
from pathlib import Path

import pytest

from heliograph.net.public import Address
from heliograph.push import endpoints
from heliograph.push.endpoints import Endpoints, PrivateAddress
from heliograph.push.http import HttpSettings, NoAnswer
from heliograph.runtime.authority import Authority
from heliograph.sim.providers.http2 import Http2Server, HttpReply

PUBLIC = ip_address("203.0.114.1")
SETTINGS = HttpSettings(connections=1, http2_only=False)


class Names:
    """A resolver that tests fill."""

    def __init__(self, **names: Sequence[str]) -> None:
        self.names = {name.replace("_", "."): list(found) for name, found in names.items()}
        self.asked: list[str] = []

    async def __call__(self, host: str) -> Sequence[Address]:
        self.asked.append(host)
        if host not in self.names:
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return [ip_address(text) for text in self.names[host]]


async def connections_to(host: str, resolver: Names, *, allow_private: bool = False) -> None:
    found = Endpoints(SETTINGS, allow_private=allow_private, resolver=resolver)
    try:
        await found.connections(host)
    finally:
        found.close()


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "10.0.0.1", "127.1", "0x7f.1", "0x7f000001", "2130706433", "017700000001"),
        *("127.0.0.1.", "a.127", "1.2.3.4.5", "8.8.8.8.", "0x", "169.254.169.254"),
    ],
)
async def test_numbers(host: str) -> None:
    """No resolver is asked, because the HTTP client would not either."""
    names = Names()
    with pytest.raises(PrivateAddress):
        await connections_to(host, names)
    assert names.asked == []


async def test_public_numbers() -> None:
    await connections_to("8.8.8.8", Names())


async def test_private_names() -> None:
    names = Names(private_example=["10.0.0.1", "::1"], mixed_example=["10.0.0.1", "8.8.8.8"])
    with pytest.raises(PrivateAddress):
        await connections_to("private.example", names)
    await connections_to("private.example", names, allow_private=True)
    await connections_to("mixed.example", names)


async def test_private_numbers_may_be_allowed() -> None:
    await connections_to("127.0.0.1", Names(), allow_private=True)
    with pytest.raises(PrivateAddress):
        await connections_to("127.1", Names(), allow_private=True)


async def test_unknown_names() -> None:
    with pytest.raises(NoAnswer, match="NameNotResolved"):
        await connections_to("unknown.example", Names())


async def test_the_system_resolver() -> None:
    found = Endpoints(SETTINGS)
    with pytest.raises(PrivateAddress):
        await found.connections("localhost")
    with pytest.raises(NoAnswer):
        await found.connections("a" * 64 + ".example")  # no label is that long
    found.close()


async def test_names_are_looked_up_once() -> None:
    names = Names(a_example=["8.8.8.8"])
    found = Endpoints(SETTINGS, resolver=names)
    several = await asyncio.gather(*(found.connections("a.example") for _ in range(5)))
    assert len(set(map(id, several))) == 1
    assert await found.connections("a.example") is several[0]
    assert names.asked == ["a.example"]
    found.refresh("a.example")
    found.refresh("unknown.example")
    found.close()


async def test_names_are_looked_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "RESOLVED_FOR_SECONDS", 0.0)
    names = Names(a_example=["8.8.8.8"])
    found = Endpoints(SETTINGS, resolver=names)
    first = await found.connections("a.example")
    assert await found.connections("a.example") is first
    names.names["a.example"] = ["8.8.4.4"]
    assert await found.connections("a.example") is not first
    names.names["a.example"] = ["127.0.0.1"]
    with pytest.raises(PrivateAddress):
        await found.connections("a.example")
    found.close()


async def test_few_hosts_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "MAX_HOSTS", 2)
    names = Names(a=["8.8.8.8"], b=["8.8.8.8"], c=["8.8.8.8"])
    found = Endpoints(SETTINGS, resolver=names)
    for host in "abacabc":
        await found.connections(host)
    assert names.asked == ["a", "b", "c", "b", "c"]
    found.close()


async def test_close_ends_lookups() -> None:
    async def resolver(host: str) -> Sequence[Address]:
        await asyncio.sleep(0.2)
        return [PUBLIC]

    found = Endpoints(SETTINGS, resolver=resolver)
    waiting = asyncio.create_task(found.connections("slow.example"))
    cancelled = asyncio.create_task(found.connections("slow.example"))
    await asyncio.sleep(0.05)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    found.close()
    with pytest.raises(NoAnswer, match="Closed"):
        await waiting


@pytest.fixture
async def rebound(tmp_path: Path) -> AsyncIterator[tuple[int, HttpSettings]]:
    """A server whose name is unknown to the world, and stands for the loopback only here."""
    authority = Authority(tmp_path)
    context = authority.server_context("rebound.example", "rebound.example.")
    server = Http2Server(lambda request: HttpReply(201), context)
    port = await server.start("127.0.0.1", 0)
    ca = authority.file.read_bytes()
    yield port, HttpSettings(connections=1, ca=ca, http2_only=False)
    await server.close()


async def test_connections_go_to_the_address_that_was_checked(
    rebound: tuple[int, HttpSettings],
) -> None:
    port, settings = rebound
    names = Names(rebound_example=["127.0.0.1"])
    found = Endpoints(settings, allow_private=True, resolver=names)
    connections = await found.connections("rebound.example")
    names.names["rebound.example"] = ["192.0.2.1"]
    for _ in range(3):
        got = await connections.post(f"https://rebound.example:{port}/", {}, b"")
        assert got.status == 201
        connections.refresh()
    assert names.asked == ["rebound.example"]
    found.close()


@pytest.mark.parametrize("host", ["REBOUND.example", "rebound.example.", "localhost", "127.0.0.1"])
async def test_no_other_spelling_is_resolved(rebound: tuple[int, HttpSettings], host: str) -> None:
    port, settings = rebound
    found = Endpoints(settings, allow_private=True, resolver=Names(rebound_example=["127.0.0.1"]))
    connections = await found.connections("rebound.example")
    with pytest.raises(NoAnswer, match="NotPinned"):
        await connections.post(f"https://{host}:{port}/", {}, b"")
    found.close()
