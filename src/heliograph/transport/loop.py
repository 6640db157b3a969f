"""The event loop, and how sockets become transports on it.

Three stacks, chosen by argument or by the environment variable ``HELIOGRAPH_NET``:

- ``aiofastnet`` (the default): uvloop, with aiofastnet's transports, the cheapest per round trip;
- ``uvloop``: uvloop alone, should aiofastnet misbehave;
- ``asyncio``: the standard library alone, for platforms and debuggers that need it.

The rest of the package opens sockets only through this module and `heliograph.transport.accepting`,
so that the stacks are interchangeable. It knows no protocol, and it judges no peer: see
`heliograph.transport.tls`.
"""

import asyncio
import ctypes
import gc
import logging
import os
import platform
import socket
import ssl
import sys
from collections.abc import Callable, Coroutine
from enum import StrEnum
from typing import Any, Protocol, TypeVar, cast
from weakref import WeakKeyDictionary

from heliograph.net.public import Address
from heliograph.net.resolver import resolve
from heliograph.transport import hangups
from heliograph.transport.errors import AddressRefused
from heliograph.transport.tls import set_tcp_options

__all__ = [
    "Allow",
    "Net",
    "chosen_net",
    "connect_tcp",
    "create_connection",
    "forget_hangup",
    "net_of",
    "new_event_loop",
    "release_memory",
    "reports_close_notify",
    "run",
    "tls_options",
    "watch_hangup",
]

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")
_Protocol = TypeVar("_Protocol", bound=asyncio.BaseProtocol)

Allow = Callable[[Address], bool]
"""Whether an address may be connected to."""


class Descriptor(Protocol):
    """A socket, or an object with its descriptor."""

    def fileno(self) -> int: ...


ENVIRONMENT_VARIABLE = "HELIOGRAPH_NET"
HANDSHAKE_TIMEOUT = 60.0
SHUTDOWN_TIMEOUT = 5.0

# One TLS record of a 16 KiB block: what a connection's buffers in aiofastnet cost, each way.
_BUFFER_SIZE = 16 * 1024 + 64

# An address is never sent as a server name, and aiofastnet refuses an empty one. The reference
# answers a named server with its web certificate.
_NO_SERVER_NAME = "127.0.0.1"

# Commands make many objects that reference counting frees, and few cycles: with Python's own
# thresholds, a twentieth of a router's time would go into looking for those.
_GC_THRESHOLDS = (20_000, 20, 20)

# Threads of the database and of HTTP ask for the interpreter at each step; 5 ms is long for that.
_SWITCH_INTERVAL = 0.001

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
    main: Coroutine[object, object, _Result],
    *,
    net: Net | str | None = None,
    debug: bool | None = None,
) -> _Result:
    """Run ``main`` to its end on a new event loop of the chosen stack."""
    gc.set_threshold(*_GC_THRESHOLDS)
    sys.setswitchinterval(_SWITCH_INTERVAL)
    with asyncio.Runner(loop_factory=lambda: new_event_loop(net), debug=debug) as runner:
        return runner.run(main)


async def connect_tcp(host: str, port: int, allow: Allow | None = None) -> socket.socket:
    """Connect to the first address of ``host`` that answers, in the resolver's order.

    Addresses are judged after the name was resolved, so that no name can stand for another one.
    Raises `AddressRefused` for an address that is refused. A name that has only such addresses
    fails as if it had none: a stranger does not learn which internal names exist.
    """
    loop = asyncio.get_running_loop()
    failure: Exception = OSError("the host has no address")
    for address in await resolve(host):
        if allow is not None and not allow(address):
            if str(address) == host:
                failure = AddressRefused("the address may not be connected to")
            continue
        sock = socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6)
        try:
            sock.setblocking(False)
            set_tcp_options(sock)
            await loop.sock_connect(sock, (str(address), port))
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
    options = tls_options(loop, ssl, handshake_timeout)
    if ssl is not None:
        options["server_hostname"] = _NO_SERVER_NAME
    try:
        if net_of(loop) is Net.AIOFASTNET:
            import aiofastnet

            return await aiofastnet.create_connection(loop, protocol_factory, sock=sock, **options)
        return await loop.create_connection(protocol_factory, sock=sock, **options)
    except Exception:
        # A stack that made no transport of it leaves it open. Another closes its transport first.
        loop.call_soon(sock.close)
        raise


def watch_hangup(sock: Descriptor | None, callback: Callable[[], object]) -> None:
    """Call ``callback`` once the peer has reset the connection, where the stack may not notice."""
    if sock is not None and net_of(asyncio.get_running_loop()) is Net.AIOFASTNET:
        hangups.watch(sock.fileno(), callback)


def forget_hangup(sock: Descriptor | None) -> None:
    """Stop watching a socket. Call this before it is closed."""
    if sock is not None and net_of(asyncio.get_running_loop()) is Net.AIOFASTNET:
        hangups.forget(sock.fileno())


def reports_close_notify() -> bool:
    """Return False on asyncio, where the end of TCP looks like the end of TLS."""
    return net_of(asyncio.get_running_loop()) is not Net.ASYNCIO


def net_of(loop: asyncio.AbstractEventLoop) -> Net:
    """Return the stack of a loop."""
    # A loop made elsewhere, by a test runner for instance, follows the environment.
    return _nets.get(loop) or chosen_net()


def tls_options(
    loop: asyncio.AbstractEventLoop, context: ssl.SSLContext | None, handshake_timeout: float
) -> dict[str, Any]:  # keyword arguments of several functions
    """Return the arguments for TLS of the functions that make transports."""
    if context is None:
        return {}
    sizes = {"ssl_incoming_bio_size": _BUFFER_SIZE, "ssl_outgoing_bio_size": _BUFFER_SIZE}
    return {
        "ssl": context,
        "ssl_handshake_timeout": handshake_timeout,
        "ssl_shutdown_timeout": SHUTDOWN_TIMEOUT,
        **(sizes if net_of(loop) is Net.AIOFASTNET else {}),
    }


def _handle_exception(_loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    """Log an unhandled exception, without the addresses that transports and sockets would print."""
    message = context.get("message") or "unhandled exception in the event loop"
    exception = context.get("exception")
    if isinstance(exception, type):  # aiofastnet 1.2, when a handshake is aborted
        exception = exception()
    is_expected = isinstance(exception, ssl.SSLError | ConnectionError | TimeoutError)
    if is_expected or (isinstance(exception, RuntimeError) and _is_closing(context)):
        logger.debug("%s: %s", message, type(exception).__name__)
    elif isinstance(exception, OSError):
        logger.warning("%s: %s (%s)", message, type(exception).__name__, exception.errno)
    else:
        logger.error("%s", message, exc_info=cast(BaseException | None, exception))


def _is_closing(context: dict[str, object]) -> bool:
    """Return whether a transport failed that was aborted: aiofastnet 1.2 goes on to read."""
    transport = context.get("transport")
    return transport is not None and cast(asyncio.BaseTransport, transport).is_closing()


def release_memory() -> None:
    """Give back to the system what closed connections left on the heap."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


def _keep_buffers_on_the_heap() -> None:
    # uvloop reads into a fresh 256 KiB buffer each time: mapping and unmapping it costs more than
    # the rest of a small round trip.
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD)
