"""An echo server and its clients, over loopback on each network stack."""

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, cast

from heliograph.crypto.certificates import create_authority, issue_leaf
from heliograph.transport import accepting, loop, tls

NOW = time.time()
SERVER = issue_leaf(create_authority("SMP server CA", NOW), "127.0.0.1", NOW)
SERVER_CONTEXT = tls.server_context(SERVER, ["smp/1"], request_client_certificate=True)
CLIENT_CONTEXT = tls.client_context(["smp/1"])
TIMEOUT = 10

Run = Callable[[Coroutine[Any, Any, None]], None]


class Echo(asyncio.Protocol):
    """Sends back what arrives, and reports its end."""

    def __init__(self) -> None:
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(None)


class Client(Echo):
    """Sends a message and waits for it to come back."""

    def data_received(self, data: bytes) -> None:
        self.echoed.set_result(data)

    async def exchange(self) -> None:
        self.echoed: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.transport.write(b"hello")
        assert await self.echoed == b"hello"

    async def check(self) -> None:
        await self.exchange()
        self.transport.close()
        await self.lost


@contextlib.asynccontextmanager
async def echoing(
    host: str | None = "127.0.0.1", *, context: ssl.SSLContext | None = None, **options: Any
) -> AsyncIterator[tuple[accepting.Server, int]]:
    accepted: list[Echo] = []

    def accept() -> Echo:
        accepted.append(Echo())
        return accepted[-1]

    server = await accepting.create_server(accept, host, 0, ssl=context, **options)
    try:
        yield server, server.sockets[0].getsockname()[1]
    finally:
        server.close()
        server.close()
        await server.wait_closed()
        assert server.sockets == ()
        for echo in accepted:
            if hasattr(echo, "transport"):
                echo.transport.abort()
                await echo.lost


async def check(port: int, context: ssl.SSLContext | None, host: str = "127.0.0.1") -> None:
    """Connect and exchange a message."""
    sock = await loop.connect_tcp(host, port)
    _, client = await loop.create_connection(Client, sock, ssl=context)
    await client.check()
