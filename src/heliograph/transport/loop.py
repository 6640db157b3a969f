"""The event loop, and how sockets become transports on it.

Three stacks, chosen by argument or by the environment variable ``HELIOGRAPH_NET``:

- ``aiofastnet`` (the default): uvloop, with aiofastnet's transports, the cheapest per round trip;
- ``uvloop``: uvloop alone, should aiofastnet misbehave;
- ``asyncio``: the standard library alone, for platforms and debuggers that need it.

The rest of the package opens sockets only through this module, so that the stacks are
interchangeable. It knows no protocol, and it judges no peer: see `heliograph.transport.tls`.
"""

import asyncio
import ctypes
import logging
import os
import platform
import socket
import ssl
from collections.abc import Callable, Coroutine
from enum import StrEnum
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from heliograph.transport.tls import set_tcp_options

__all__ = [
    "Net",
    "chosen_net",
    "connect_tcp",
    "create_connection",
    "create_server",
    "new_event_loop",
    "run",
]

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")
_Protocol = TypeVar("_Protocol", bound=asyncio.BaseProtocol)

ENVIRONMENT_VARIABLE = "HELIOGRAPH_NET"
HANDSHAKE_TIMEOUT = 60.0
SHUTDOWN_TIMEOUT = 5.0
BACKLOG = 1024

# Four TLS records: what a connection's buffers in aiofastnet may cost, each way.
_BUFFER_SIZE = 4 * (16 * 1024 + 64)

# An address is never sent as a server name, and aiofastnet refuses an empty one. The reference
# answers a named server with its web certificate.
_NO_SERVER_NAME = "127.0.0.1"

_M_MMAP_THRESHOLD = -3
_MMAP_THRESHOLD = 4 * 1024 * 1024


class Net(StrEnum):
    """The stack that sockets run on."""

    AIOFASTNET = "aiofastnet"
    UVLOOP = "uvloop"
    ASYNCIO = "asyncio"


_nets: WeakKeyDictionary[asyncio.AbstractEventLoop, Net] = WeakKeyDictionary()


def chosen_net(net: Net | str | None = None) -> Net:
    """Return ``net`` if given, else what the environment says, else the default."""
    return Net(net or os.environ.get(ENVIRONMENT_VARIABLE) or Net.AIOFASTNET)


def new_event_loop(net: Net | str | None = None) -> asyncio.AbstractEventLoop:
    """Make an event loop of the chosen stack."""
    net = chosen_net(net)
    if net is Net.ASYNCIO:
        loop = asyncio.new_event_loop()
    else:
        import uvloop

        loop = uvloop.new_event_loop()
    if net is Net.UVLOOP:
        _keep_buffers_on_the_heap()
    loop.set_exception_handler(_handle_exception)
    _nets[loop] = net
    return loop


def run(
    main: Coroutine[Any, Any, _Result],
    *,
    net: Net | str | None = None,
    debug: bool | None = None,
) -> _Result:
    """Run ``main`` to its end on a new event loop of the chosen stack."""
    with asyncio.Runner(loop_factory=lambda: new_event_loop(net), debug=debug) as runner:
        return runner.run(main)


async def create_server(
    protocol_factory: Callable[[], asyncio.BaseProtocol],
    host: str | None,
    port: int,
    *,
    ssl: ssl.SSLContext | None,
    handshake_timeout: float = HANDSHAKE_TIMEOUT,
    reuse_port: bool = False,
) -> asyncio.Server:
    """Listen on ``host``, or on all addresses if it is None; port 0 is any free one."""
    loop = asyncio.get_running_loop()
    sock = _listen(host, port, reuse_port)
    options: dict[str, Any] = {"sock": sock, "ssl": ssl, "backlog": BACKLOG}
    if ssl is not None:
        options["ssl_handshake_timeout"] = handshake_timeout
        options["ssl_shutdown_timeout"] = SHUTDOWN_TIMEOUT
    try:
        if _net_of(loop) is not Net.AIOFASTNET:
            return await loop.create_server(protocol_factory, **options)
        import aiofastnet

        if ssl is not None:
            options["ssl_incoming_bio_size"] = options["ssl_outgoing_bio_size"] = _BUFFER_SIZE
        return await aiofastnet.create_server(loop, protocol_factory, **options)
    except BaseException:
        sock.close()
        raise


async def connect_tcp(host: str, port: int) -> socket.socket:
    """Connect to the first address of ``host`` that answers, in the resolver's order."""
    loop = asyncio.get_running_loop()
    failure = OSError("the host has no address")
    for family, kind, protocol, _, address in await loop.getaddrinfo(
        host, port, type=socket.SOCK_STREAM
    ):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            set_tcp_options(sock)
            await loop.sock_connect(sock, address)
        except OSError as exc:
            sock.close()
            failure = exc
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failure


async def create_connection(
    protocol_factory: Callable[[], _Protocol],
    sock: socket.socket,
    *,
    ssl: ssl.SSLContext | None,
    handshake_timeout: float = HANDSHAKE_TIMEOUT,
) -> tuple[asyncio.Transport, _Protocol]:
    """Make a transport of a connected socket, with TLS if there is a context.

    The socket, from `connect_tcp` or through a proxy, belongs to the transport from then on, also
    when this fails. All failures of the peer are `OSError`.
    """
    loop = asyncio.get_running_loop()
    options: dict[str, Any] = {"sock": sock, "ssl": ssl}
    if ssl is not None:
        options["server_hostname"] = _NO_SERVER_NAME
        options["ssl_handshake_timeout"] = handshake_timeout
        options["ssl_shutdown_timeout"] = SHUTDOWN_TIMEOUT
    if _net_of(loop) is not Net.AIOFASTNET:
        return await loop.create_connection(protocol_factory, **options)
    import aiofastnet

    if ssl is not None:
        options["ssl_incoming_bio_size"] = options["ssl_outgoing_bio_size"] = _BUFFER_SIZE
    return await aiofastnet.create_connection(loop, protocol_factory, **options)


def _net_of(loop: asyncio.AbstractEventLoop) -> Net:
    # A loop made elsewhere, by a test runner for instance, follows the environment.
    return _nets.get(loop) or chosen_net()


class _Listener(socket.socket):
    """A listening socket that survives running out of file descriptors."""

    def remove_reader(self, fd: int) -> None:
        # aiofastnet 1.2 calls this on the socket where it means the loop.
        asyncio.get_running_loop().remove_reader(fd)


def _listen(host: str | None, port: int, reuse_port: bool) -> _Listener:
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
    set_tcp_options(sock)  # accepted sockets inherit them
    return _Listener(fileno=sock.detach())


def _handle_exception(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what nobody caught, without the addresses that transports and sockets would print."""
    message = context.get("message") or "unhandled exception in the event loop"
    exception = context.get("exception")
    if isinstance(exception, type):  # aiofastnet 1.2, when a handshake is aborted
        exception = exception()
    if isinstance(exception, ssl.SSLError | ConnectionError | TimeoutError):
        logger.debug("%s: %s", message, type(exception).__name__)
    elif isinstance(exception, OSError):
        logger.warning("%s: %s (%s)", message, type(exception).__name__, exception.errno)
    else:
        logger.error("%s", message, exc_info=exception)


def _keep_buffers_on_the_heap() -> None:
    # uvloop reads into a fresh 256 KiB buffer each time: mapping and unmapping it costs more than
    # the rest of a small round trip.
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD)
