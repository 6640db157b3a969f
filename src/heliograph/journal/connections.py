"""Connections to a collector: strangers, who have shown no token yet, end soon and are bounded."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable

from heliograph.tasks import TaskScope

__all__ = ["Connections"]

MAX_STRANGERS = 256
"""With one more, the oldest ends."""
HANDSHAKE_SECONDS = 10.0
STRANGER_SECONDS = 15.0
"""Seconds from the handshake until a stranger must have shown a token."""
FULL_SECONDS = 0.2
"""Seconds without accepting after the process had no descriptor left."""
BACKLOG = 256


class Connections:
    """Accepts connections, and serves each with a protocol that `make` returns."""

    def __init__(self, make: Callable[[], asyncio.BaseProtocol]) -> None:
        self._make = make
        self._tasks = TaskScope()
        self._strangers: dict[asyncio.BaseProtocol, asyncio.Event] = {}
        self._serving: dict[asyncio.Task[None], None] = {}

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None) -> int:
        """Listen at all addresses of `host`, and return the port. Raises `OSError`."""
        found = await asyncio.get_running_loop().getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        with contextlib.ExitStack() as opened:
            listeners: list[socket.socket] = []
            for family, address in dict.fromkeys((item[0], item[4]) for item in found):
                wanted = (address[0], port, *address[2:])
                listeners.append(socket.create_server(wanted, family=family, backlog=BACKLOG))
                opened.push(listeners[-1])
                port = listeners[-1].getsockname()[1]
            opened.pop_all()
        for listener in listeners:
            listener.setblocking(False)
            self._tasks.spawn(self._accept(listener, tls), name="accept connections")
        return port

    def trust(self, protocol: asyncio.BaseProtocol) -> None:
        """Let a connection live on: its client has shown a token."""
        if protocol in self._strangers:
            self._strangers[protocol].set()

    async def close(self) -> None:
        await self._tasks.close()

    async def _accept(self, listener: socket.socket, tls: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()
        with listener:
            while True:
                try:
                    accepted, _ = await loop.sock_accept(listener)
                except OSError:
                    await asyncio.sleep(FULL_SECONDS)
                    continue
                if len(self._serving) >= MAX_STRANGERS:
                    oldest = next(iter(self._serving))
                    del self._serving[oldest]
                    oldest.cancel()
                task = self._tasks.spawn(self._serve(accepted, tls), name="serve a stranger")
                self._serving[task] = None
                task.add_done_callback(lambda ended: self._serving.pop(ended, None))

    async def _serve(self, accepted: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Serve a connection, and return once its client has shown a token, or too late."""
        protocol, shown = self._make(), asyncio.Event()
        self._strangers[protocol] = shown
        try:
            transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
                lambda: protocol,
                accepted,
                ssl=tls,
                ssl_handshake_timeout=HANDSHAKE_SECONDS if tls else None,
            )
            try:
                async with asyncio.timeout(STRANGER_SECONDS):
                    await shown.wait()
            finally:
                if not shown.is_set():
                    transport.abort()
        except OSError:  # no handshake, or no token in time
            accepted.close()
        finally:
            del self._strangers[protocol]
