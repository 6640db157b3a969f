"""Listen on a port, and make transports of accepted connections, with TLS.

Handshakes are bounded in time and number. No peer is judged here: see `heliograph.transport.tls`.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from typing import cast

from heliograph.tasks import TaskScope
from heliograph.transport.loop import (
    HANDSHAKE_TIMEOUT,
    Net,
    forget_hangup,
    net_of,
    tls_options,
    watch_hangup,
)
from heliograph.transport.tls import set_tcp_options

__all__ = ["Server", "create_server", "reserve_port"]

logger = logging.getLogger(__name__)

MAX_HANDSHAKES = 4096
BACKLOG = 1024
ACCEPT_RETRY_DELAY = 1.0

# The fatal alert in a plaintext record, as it answers a ClientHello.
_NO_APPLICATION_PROTOCOL = bytes.fromhex("15 0303 0002 0278")


class Server:
    """A listening socket. The connections it accepted outlive it."""

    def __init__(
        self,
        sock: socket.socket,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        context: ssl.SSLContext | None,
        handshake_timeout: float,
        max_handshakes: int,
    ) -> None:
        self._sock = sock
        self._protocol_factory = protocol_factory
        self._context = context
        self._handshake_timeout = handshake_timeout
        self._max_handshakes = max_handshakes
        self._tasks = TaskScope()
        self._handshakes: dict[asyncio.Task[None], None] = {}
        """Tasks in the order they began, without those that were cancelled to make room."""
        self.failed_handshakes = 0
        """Failed handshakes and those in progress: memory that `release_memory` may return."""
        self._loop = asyncio.get_running_loop()
        self._retry: asyncio.TimerHandle | None = None
        self._resume()

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        """The socket, for its address, while the server listens."""
        return () if self._sock.fileno() < 0 else (self._sock,)

    def close(self) -> None:
        """Stop listening, and cancel handshakes in progress."""
        if not self.sockets:
            return
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_reader(self._sock)
        self._sock.close()
        # Later, because a task cancelled before its first step would not close its socket.
        self._loop.call_soon(self._tasks.cancel)

    async def wait_closed(self) -> None:
        """Wait until nothing of a closed server is left."""
        await self._tasks.wait()

    def _resume(self) -> None:
        self._loop.add_reader(self._sock, self._accept)

    def _accept(self) -> None:
        for _ in range(BACKLOG):
            try:
                sock, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as exc:
                # Most likely out of file descriptors, and the socket would stay readable.
                logger.warning("cannot accept connections: %s (%s)", type(exc).__name__, exc.errno)
                self._loop.remove_reader(self._sock)
                self._retry = self._loop.call_later(ACCEPT_RETRY_DELAY, self._resume)
                return
            if len(self._handshakes) >= self._max_handshakes:
                # A handshake takes milliseconds: the oldest one is the most suspicious.
                oldest = next(iter(self._handshakes))
                self._forget(oldest)
                self._loop.call_soon(oldest.cancel)
            handshake = self._tasks.spawn(self._handshake(sock), name="TLS handshake")
            self._handshakes[handshake] = None
            handshake.add_done_callback(self._forget)

    def _forget(self, handshake: asyncio.Task[None]) -> None:
        self._handshakes.pop(handshake, None)

    async def _handshake(self, sock: socket.socket) -> None:
        try:
            sock.setblocking(False)
            spare = sock.dup()
        except OSError as exc:
            sock.close()
            logger.warning("cannot serve a connection: %s (%s)", type(exc).__name__, exc.errno)
            return
        with spare:
            task = cast("asyncio.Task[None]", asyncio.current_task())
            watch_hangup(spare, task.cancel)
            self.failed_handshakes += 1
            try:
                await self._connect(sock)
                self.failed_handshakes -= 1
            except OSError as exc:
                reason = exc.reason if isinstance(exc, ssl.SSLError) else type(exc).__name__
                logger.debug("TLS handshake failed: %s", reason)
                if reason == "NO_APPLICATION_PROTOCOL":
                    # OpenSSL made the alert, but every stack drops it with the connection.
                    with contextlib.suppress(OSError):
                        spare.send(_NO_APPLICATION_PROTOCOL)
                # Or the connection's buffers would wait for the garbage collector: the stack's
                # future has the exception, whose traceback has the frame with that future.
                exc.__traceback__ = None
            finally:
                forget_hangup(spare)

    async def _connect(self, sock: socket.socket) -> None:
        options = tls_options(self._loop, self._context, self._handshake_timeout)
        if net_of(self._loop) is Net.AIOFASTNET:
            import aiofastnet

            await aiofastnet.connect_accepted_socket(
                self._loop, self._protocol_factory, sock, **options
            )
        else:
            await self._loop.connect_accepted_socket(self._protocol_factory, sock, **options)


async def create_server(
    protocol_factory: Callable[[], asyncio.BaseProtocol],
    host: str | None,
    port: int,
    *,
    ssl: ssl.SSLContext | None,
    handshake_timeout: float = HANDSHAKE_TIMEOUT,
    max_handshakes: int = MAX_HANDSHAKES,
    reuse_port: bool = False,
) -> Server:
    """Listen on ``host``, or on all addresses if it is None; port 0 is any free one.

    Of more than ``max_handshakes`` connections in their TLS handshake, the oldest is closed.
    """
    sock = _listen(host, port, reuse_port)
    return Server(sock, protocol_factory, ssl, handshake_timeout, max_handshakes)


def _listen(host: str | None, port: int, reuse_port: bool) -> socket.socket:
    if host is None and socket.has_dualstack_ipv6():
        sock = socket.create_server(
            ("", port),
            family=socket.AF_INET6,
            dualstack_ipv6=True,
            backlog=BACKLOG,
            reuse_port=reuse_port,
        )
    else:
        family = socket.AF_INET6 if host and ":" in host else socket.AF_INET
        sock = socket.create_server(
            (host or "", port), family=family, backlog=BACKLOG, reuse_port=reuse_port
        )
    sock.setblocking(False)
    set_tcp_options(sock)  # accepted sockets inherit them
    return sock


def reserve_port(host: str | None, port: int) -> socket.socket:
    """Bind a port that other processes listen on with `reuse_port`; port 0 is any free one."""
    is_dual = host is None and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if is_dual or (host and ":" in host) else socket.AF_INET
    sock = socket.socket(family)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_dual:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind((host or "", port))
    except BaseException:
        sock.close()
        raise
    return sock
