"""Tests of `heliograph.transport.socks`: a small SOCKS 5 server that may misbehave."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from heliograph.transport.client import Client, ClientConfig
from heliograph.transport.errors import ConnectFailed, SocksError
from heliograph.transport.loop import Net
from heliograph.transport.protocols import NTF
from heliograph.transport.socks import (
    SocksMode,
    SocksProxy,
    connect_through,
    encode_connect,
    encode_greeting,
    encode_login,
)
from heliograph.wire.addresses import Host, HostKind, decode_host
from heliograph.wire.table import PING, PONG
from tests.transport.support import Run, run_on, serving

ONION = "beccx4yfxxbvyhqypaavemqurytl6hozr47wfc7uuecacjqdvwpw2xid.onion"
GRANTED = b"\5\0\0\1\0\0\0\0\0\0"
TARGET = decode_host("127.0.0.1")


@pytest.fixture(params=list(Net))
def run(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[Run]:
    yield from run_on(request.param, caplog)


@dataclass
class Proxy:
    """A SOCKS 5 server that sends every connection to one port, and notes what it was asked."""

    target: int = 0
    method: int = 0
    login: tuple[bytes, bytes] | None = None
    reply: bytes = GRANTED
    port: int = 0
    methods: list[bytes] = field(default_factory=list)
    asked: list[tuple[int, bytes, int]] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def config(self, mode: SocksMode = SocksMode.ALWAYS, **options: Any) -> ClientConfig:
        return ClientConfig(socks=self.proxy(mode, **options), connect_timeout=5)

    def proxy(self, mode: SocksMode = SocksMode.ALWAYS, **options: Any) -> SocksProxy:
        return SocksProxy("127.0.0.1", self.port, mode, **options)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.append(task)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._serve(reader, writer)
        finally:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        version, count = await reader.readexactly(2)
        assert version == 5
        self.methods.append(await reader.readexactly(count))
        writer.write(bytes((5, self.method)))
        if self.method == 2:
            assert await reader.readexactly(1) == b"\1"
            username = await reader.readexactly((await reader.readexactly(1))[0])
            password = await reader.readexactly((await reader.readexactly(1))[0])
            good = (username, password) == self.login
            writer.write(b"\1\0" if good else b"\1\1")
            if not good:
                return await writer.drain()
        elif self.method != 0:
            return await writer.drain()
        assert await reader.readexactly(3) == b"\5\1\0"
        kind = (await reader.readexactly(1))[0]
        size = {1: 4, 4: 16}.get(kind) or (await reader.readexactly(1))[0]
        host = await reader.readexactly(size)
        self.asked.append((kind, host, int.from_bytes(await reader.readexactly(2))))
        writer.write(self.reply)
        await writer.drain()
        if self.reply[1:2] != b"\0":
            return None
        upstream, downstream = await asyncio.open_connection("127.0.0.1", self.target)
        try:
            await asyncio.gather(pipe(reader, downstream), pipe(upstream, writer))
        finally:
            downstream.transport.abort()
        return None


async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def proxying(**options: Any) -> AsyncIterator[Proxy]:
    proxy = Proxy(**options)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        for task in proxy.tasks:
            task.cancel()
        if proxy.tasks:
            await asyncio.wait(proxy.tasks)
        await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def raw_proxy(*answers: bytes, hang: bool = False) -> AsyncIterator[SocksProxy]:
    """Sends these bytes, whatever it is asked, and closes."""
    tasks = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.current_task())
        with contextlib.suppress(OSError, asyncio.CancelledError):
            for answer in answers:
                await reader.read(1000)
                for byte in answer:
                    writer.write(bytes((byte,)))
                    await writer.drain()
            if hang:
                await asyncio.sleep(30)
        writer.transport.abort() if hang else writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield SocksProxy("127.0.0.1", server.sockets[0].getsockname()[1], SocksMode.ALWAYS)
    finally:
        server.close()
        for task in tasks:
            if task is not None:
                task.cancel()
        await asyncio.sleep(0.02)


# The bytes.


def test_greeting() -> None:
    assert encode_greeting(SocksProxy("h", 1)) == b"\5\1\0"
    assert encode_greeting(SocksProxy("h", 1, username="u")) == b"\5\2\0\2"


def test_login() -> None:
    assert encode_login(SocksProxy("h", 1, username="u", password="pw")) == b"\1\1u\2pw"
    assert encode_login(SocksProxy("h", 1, username="u")) == b"\1\1u\0"
    for proxy in (
        SocksProxy("h", 1, username="u" * 256),
        SocksProxy("h", 1, username="u", password="ä" * 128),
    ):
        with pytest.raises(SocksError, match="255"):
            encode_login(proxy)


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("1.2.3.4", b"\1\1\2\3\4"),
        ("[::1]", b"\4" + bytes(15) + b"\1"),
        ("[::ffff:1.2.3.4]", b"\4" + bytes(10) + b"\xff\xff\1\2\3\4"),
        ("example.com", b"\3\x0bexample.com"),
        (ONION, b"\3\x3e" + ONION.encode()),
    ],
)
def test_connect(host: str, address: bytes) -> None:
    assert encode_connect(decode_host(host), 443) == b"\5\1\0" + address + b"\1\xbb"


def test_long_name() -> None:
    with pytest.raises(SocksError, match="255"):
        encode_connect(Host(HostKind.DOMAIN, "x" * 256), 443)


def test_password_is_not_printed() -> None:
    assert "secret" not in repr(SocksProxy("h", 1, username="u", password="secret"))


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "example.com", ONION])
def test_modes(host: str) -> None:
    assert SocksProxy("h", 1, SocksMode.ALWAYS).serves(decode_host(host))
    assert SocksProxy("h", 1).serves(decode_host(host)) == (host == ONION)


# Through a proxy.


def test_onion_name_reaches_the_proxy_unresolved(run: Run) -> None:
    async def main() -> None:
        async with serving(NTF) as server, proxying(target=server.port) as proxy:
            for mode in SocksMode:
                client = await Client.connect(server.address(hosts=(ONION,)), proxy.config(mode))
                assert await client.request(PING()) == PONG()
                await client.close()
            assert proxy.asked == [(3, ONION.encode(), server.port)] * 2
            assert proxy.methods == [b"\0"] * 2

    run(main())


@pytest.mark.parametrize(
    ("host", "asked"),
    [
        ("127.0.0.1", (1, b"\x7f\0\0\1")),
        ("[::1]", (4, bytes(15) + b"\1")),
        ("no-such-host.invalid", (3, b"no-such-host.invalid")),
    ],
)
def test_always(run: Run, host: str, asked: tuple[int, bytes]) -> None:
    async def main() -> None:
        async with serving(NTF) as server, proxying(target=server.port) as proxy:
            client = await Client.connect(server.address(hosts=(host,)), proxy.config())
            assert await client.request(PING()) == PONG()
            await client.close()
            assert proxy.asked == [(*asked, server.port)]

    run(main())


def test_onion_only(run: Run) -> None:
    async def main() -> None:
        async with serving(NTF) as server, proxying(target=server.port) as proxy:
            config = proxy.config(SocksMode.ONION)
            client = await Client.connect(server.address(), config)
            assert await client.request(PING()) == PONG()
            await client.close()
            assert proxy.methods == []
            # With a proxy onion hosts come first; without one they are left out.
            address = server.address(hosts=("127.0.0.1", ONION))
            await (await Client.connect(address, config)).close()
            assert [host for _, host, _ in proxy.asked] == [ONION.encode()]
            await (await Client.connect(address)).close()
            assert len(proxy.asked) == 1
            # And if the proxy cannot reach it, the other host is tried.
            proxy.reply = b"\5\4\0\1\0\0\0\0\0\0"
            await (await Client.connect(address, config)).close()
            assert len(proxy.asked) == 2

    run(main())


def test_onion_without_a_proxy(run: Run) -> None:
    async def main() -> None:
        async with serving(NTF) as server:
            with pytest.raises(ConnectFailed, match="no SOCKS proxy"):
                await Client.connect(server.address(hosts=(ONION,)))

    run(main())


def test_username_and_password(run: Run) -> None:
    async def main() -> None:
        async with serving(NTF) as server:
            async with proxying(target=server.port, method=2, login=(b"me", b"pw")) as proxy:
                config = proxy.config(username="me", password="pw")
                client = await Client.connect(server.address(), config)
                assert await client.request(PING()) == PONG()
                await client.close()
                assert proxy.methods == [b"\0\2"]
                for options, text in (
                    ({"username": "me", "password": "no"}, "refused the user name"),
                    ({"username": "me"}, "refused the user name"),
                    ({"username": "x" * 256}, "at most 255 bytes"),
                    ({}, "not configured"),
                ):
                    with pytest.raises(ConnectFailed, match=text):
                        await Client.connect(
                            server.address(), proxy.config(SocksMode.ALWAYS, **options)
                        )
            async with proxying(target=server.port) as proxy:  # does not ask for it
                config = proxy.config(username="me", password="pw")
                await (await Client.connect(server.address(), config)).close()

    run(main())


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (1, "general failure"),
        (2, "not allowed"),
        (3, "network unreachable"),
        (4, "host unreachable"),
        (5, "connection refused"),
        (6, "time to live"),
        (7, "command not supported"),
        (8, "address type"),
        (0xF0, "unknown failure"),
    ],
)
def test_refusals(run: Run, code: int, text: str) -> None:
    async def main() -> None:
        reply = bytes((5, code)) + GRANTED[2:]
        async with serving(NTF) as server, proxying(reply=reply) as proxy:
            with pytest.raises(ConnectFailed, match=f"127.0.0.1: the proxy answered: .*{text}"):
                await Client.connect(server.address(), proxy.config())

    run(main())


@pytest.mark.parametrize(
    "reply",
    [GRANTED, b"\5\0\0\4" + bytes(18), b"\5\0\0\3\0\0\0", b"\5\0\0\3\x0bexample.com\0\0"],
    ids=["IPv4", "IPv6", "empty name", "name"],
)
def test_bound_address_of_any_kind(run: Run, reply: bytes) -> None:
    async def main() -> None:
        async with serving(NTF) as server, proxying(target=server.port, reply=reply) as proxy:
            client = await Client.connect(server.address(), proxy.config())
            assert await client.request(PING()) == PONG()
            await client.close()

    run(main())


@pytest.mark.parametrize(
    ("answers", "text"),
    [
        ([b"\4\0"], "does not speak"),
        ([b"HTTP/1.1 400 Bad Request\r\n"], "does not speak"),
        ([b"\5\xff"], "not configured"),
        ([b"\5\1"], "not configured"),
        ([b"\5\2"], "not configured"),
        ([b"\5\0", b"\4\0\0\1\0\0\0\0\0\0"], "does not speak"),
        ([b"\5\0", b"\5\0\0\2\0\0\0\0\0\0"], "does not speak"),
        ([], "closed the connection"),
        ([b"\5"], "closed the connection"),
        ([b"\5\0"], "closed the connection"),
        ([b"\5\0", b"\5\0\0"], "closed the connection"),
        ([b"\5\0", b"\5\0\0\1\0\0"], "closed the connection"),
        ([b"\5\0", b"\5\0\0\3\xff"], "closed the connection"),
    ],
)
def test_garbage_and_early_ends(run: Run, answers: list[bytes], text: str) -> None:
    async def main() -> None:
        async with raw_proxy(*answers) as proxy:
            with pytest.raises((SocksError, ConnectionError)) as info:
                await connect_through(proxy, TARGET, 443)
            assert text in str(info.value) or isinstance(info.value, ConnectionError)

    run(main())


@pytest.mark.parametrize("answers", [[], [b"\5\0"], [b"\5\0", b"\5\0\0\1"]])
def test_proxy_that_hangs(run: Run, answers: list[bytes]) -> None:
    async def main() -> None:
        async with serving(NTF) as server, raw_proxy(*answers, hang=True) as proxy:
            config = ClientConfig(socks=proxy, connect_timeout=0.2)
            with pytest.raises(ConnectFailed, match="in time"):
                await Client.connect(server.address(), config)
            task = asyncio.create_task(connect_through(proxy, TARGET, 443))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    run(main())


def test_no_proxy_there(run: Run) -> None:
    async def main() -> None:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))  # taken, and not listening
            proxy = SocksProxy("127.0.0.1", sock.getsockname()[1], SocksMode.ALWAYS)
            async with serving(NTF) as server:
                with pytest.raises(ConnectFailed, match=r"127\.0\.0\.1"):
                    await Client.connect(server.address(), ClientConfig(socks=proxy))

    run(main())
