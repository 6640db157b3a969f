"""Pushes through HTTP (CONNECT) and SOCKS 5 proxies, to a simulated provider."""

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from heliograph.push.apns import ApnsProvider
from heliograph.push.endpoints import Endpoints, PrivateAddress
from heliograph.push.http import HttpSettings
from heliograph.push.provider import Accepted, RetryLater
from heliograph.push.webpush import WebPushProvider
from heliograph.sim.providers.apns import ApnsRules, ApnsService
from heliograph.sim.providers.simulator import Simulator
from heliograph.sim.providers.webpush import WebPushService
from tests.push import test_apns, test_webpush
from tests.push.support import MESSAGE, closing, delivery, running

USER, PASSWORD = "push", "s:cret"


class Tunnels:
    """A proxy that speaks HTTP or SOCKS 5; `asked` has the destinations."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.real: dict[str, str] = {}
        """Names that only this proxy can resolve."""

        self._serving: set[asyncio.Task[None]] = set()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._serving.add(asyncio.create_task(self._serve(reader, writer)))

    async def close(self) -> None:
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            first = await reader.readexactly(1)
            wanted = await (
                self._socks(reader, writer) if first == b"\x05" else self._http(reader, writer)
            )
            if wanted is None:
                return
            self.asked.append(wanted)
            there = await asyncio.open_connection(self.real.get(wanted[0], wanted[0]), wanted[1])
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(_copy(reader, there[1]))
                    both.create_task(_copy(there[0], writer))
            finally:
                await _end(there[1])
        except* (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            await _end(writer)

    async def _http(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[str, int] | None:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        login = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        if f"proxy-authorization: basic {login}".lower() not in map(str.lower, lines):
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
            return None
        host, _, port = lines[0].split()[1].rpartition(":")
        writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
        return host, int(port)

    async def _socks(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[str, int] | None:
        await reader.readexactly((await reader.readexactly(1))[0])
        writer.write(b"\x05\x02")
        _, size = await reader.readexactly(2)
        user = await reader.readexactly(size)
        password = await reader.readexactly((await reader.readexactly(1))[0])
        is_good = (user.decode(), password.decode()) == (USER, PASSWORD)
        writer.write(b"\x01\x00" if is_good else b"\x01\x01")
        if not is_good:
            return None
        _, _, _, kind = await reader.readexactly(4)
        if kind == 1:
            host = ".".join(map(str, await reader.readexactly(4)))
        else:
            host = (await reader.readexactly((await reader.readexactly(1))[0])).decode()
        port = int.from_bytes(await reader.readexactly(2))
        writer.write(b"\x05\x00\x00\x01" + bytes(6))
        return host, port


async def _end(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@pytest.fixture
async def tunnels() -> AsyncIterator[tuple[Tunnels, int]]:
    made = Tunnels()
    server = await asyncio.start_server(made.accept, "127.0.0.1", 0)
    async with server:
        yield made, server.sockets[0].getsockname()[1]
        await made.close()


@pytest.fixture
async def apns(tmp_path: Path) -> AsyncIterator[Simulator]:
    rules = ApnsRules(test_apns.TOPIC, test_apns.KEY_ID, test_apns.TEAM_ID, 5120)
    async with running(ApnsService(test_apns.KEY, rules), tmp_path) as simulator:
        yield simulator


@pytest.mark.parametrize("scheme", ["http", "socks5"])
async def test_a_push_through_a_proxy(
    apns: Simulator, tunnels: tuple[Tunnels, int], scheme: str
) -> None:
    made, port = tunnels
    proxy = f"{scheme}://{USER}:s%3Acret@127.0.0.1:{port}"
    async with closing(ApnsProvider(test_apns.config(apns, proxy=proxy))) as provider:
        assert isinstance(await provider.send(delivery(test_apns.DEVICE, MESSAGE)), Accepted)
    host, _, port_text = apns.url.removeprefix("https://").partition(":")
    assert made.asked == [(host, int(port_text))]
    assert len(apns.record.select()) == 1


@pytest.mark.parametrize("scheme", ["http", "socks5"])
async def test_a_proxy_that_refuses(
    apns: Simulator, tunnels: tuple[Tunnels, int], scheme: str
) -> None:
    """The push stays pending; the reason names the proxy and no secret."""
    proxy = f"{scheme}://{USER}:wrong@127.0.0.1:{tunnels[1]}"
    async with closing(ApnsProvider(test_apns.config(apns, proxy=proxy))) as provider:
        outcome = await provider.send(delivery(test_apns.DEVICE, MESSAGE))
    assert outcome == RetryLater(None, "ProxyFailed", connection=True)
    assert apns.record.select() == []


async def test_no_proxy_there(apns: Simulator, tunnels: tuple[Tunnels, int]) -> None:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    proxy = f"http://127.0.0.1:{port}"
    async with closing(ApnsProvider(test_apns.config(apns, proxy=proxy))) as provider:
        outcome = await provider.send(delivery(test_apns.DEVICE, MESSAGE))
    assert outcome == RetryLater(None, "ProxyFailed", connection=True)
    assert tunnels[0].asked == []


@pytest.mark.parametrize("scheme", ["http", "socks5"])
async def test_a_proxy_resolves_names_of_endpoints(
    tmp_path: Path, tunnels: tuple[Tunnels, int], scheme: str
) -> None:
    made, port = tunnels
    made.real["localhost"] = "127.0.0.1"

    async def resolver(name: str) -> list[object]:
        raise AssertionError(f"{name} was resolved here")

    proxy = f"{scheme}://{USER}:s%3Acret@127.0.0.1:{port}"
    async with running(WebPushService(), tmp_path) as simulator:
        config = test_webpush.config(simulator, proxy=proxy)
        provider = WebPushProvider(config, resolver=resolver)  # type: ignore[arg-type]
        async with closing(provider):
            device = test_webpush.device(simulator, host="localhost")
            assert await provider.send(test_webpush.delivery(device)) == Accepted()
    assert [host for host, _ in made.asked] == ["localhost"]


@pytest.mark.parametrize("host", ["127.0.0.1", "10.0.0.1", "127.1", "localhost", "nas.lan", "nas"])
async def test_a_proxy_is_not_asked_for_private_hosts(host: str) -> None:
    """The proxy may stand in a network where these names mean something."""
    endpoints = Endpoints(HttpSettings(connections=1, proxy="http://127.0.0.1:1"))
    with pytest.raises(PrivateAddress):
        await endpoints.connections(host)
    endpoints.close()
