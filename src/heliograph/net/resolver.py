"""Names to addresses, without threads that a silent name server could fill.

Lookups of one name are one lookup, and their number is limited. Names that resolved before have
lookups of their own, so that names that never resolve cannot delay them; failures are remembered
for a moment, and a name server that fails does not make a known host unknown.
"""

import asyncio
import atexit
import contextlib
import functools
import ipaddress
import socket
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from heliograph.net.public import Address
from heliograph.tasks import SharedTasks

__all__ = ["Lookup", "NameNotResolved", "Resolver", "dns_lookup", "resolve"]

Lookup = Callable[[str], Awaitable[Sequence[Address]]]
"""Ask for the addresses of a name; raises `OSError` or `UnicodeError`."""

QUERY_TIMEOUT = 2.0
"""Seconds for the first query; the second one gets twice as long."""
QUERY_TRIES = 2
LOOKUP_TIMEOUT = 8.0
MAX_LOOKUPS = 256
"""Lookups at a time of names that never resolved, and as many of those that did."""
MAX_QUEUED = 10_000
FRESH_FOR = 60.0
STALE_FOR = 24 * 3600.0
"""Seconds that known addresses are used when their name cannot be resolved."""
FAILED_FOR = 30.0
MAX_NAMES = 10_000


class NameNotResolved(OSError):
    """No address is known for a name."""


class Resolver:
    """The names that one event loop asked for."""

    def __init__(
        self, lookup: Lookup | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._lookup = lookup or dns_lookup
        self._clock = clock
        self._known: OrderedDict[str, tuple[float, tuple[Address, ...]]] = OrderedDict()
        self._failed: OrderedDict[str, float] = OrderedDict()
        self._running = SharedTasks[str, tuple[Address, ...]]("name lookup")
        self._slots = asyncio.Semaphore(MAX_LOOKUPS)
        self._proven_slots = asyncio.Semaphore(MAX_LOOKUPS)

    async def resolve(self, host: str) -> tuple[Address, ...]:
        """Return the addresses of a name, or an address itself. Raises `NameNotResolved`."""
        try:
            return (ipaddress.ip_address(host),)
        except ValueError:
            pass
        name = host.lower().removesuffix(".")
        now = self._clock()
        at, addresses = self._known.get(name, (-STALE_FOR, ()))
        if now - at < FRESH_FOR:
            self._known.move_to_end(name)
            return addresses
        if now - self._failed.get(name, -FAILED_FOR) >= FAILED_FOR:
            try:
                return await self._shared_lookup(name)
            except NameNotResolved:
                pass
        if now - at < STALE_FOR:
            return addresses
        raise NameNotResolved("the name does not resolve")

    async def _shared_lookup(self, name: str) -> tuple[Address, ...]:
        if name not in self._running and len(self._running) >= MAX_QUEUED:
            raise NameNotResolved("too many names are being resolved")
        return await self._running.run(name, functools.partial(self._run, name))

    async def _run(self, name: str) -> tuple[Address, ...]:
        async with self._proven_slots if name in self._known else self._slots:
            try:
                async with asyncio.timeout(LOOKUP_TIMEOUT):
                    addresses = tuple(await self._lookup(name))
            except (OSError, TimeoutError, UnicodeError, ValueError):
                addresses = ()
        if not addresses:
            _remember(self._failed, name, self._clock())
            raise NameNotResolved("the name does not resolve")
        self._failed.pop(name, None)
        _remember(self._known, name, (self._clock(), addresses))
        return addresses


_Known = TypeVar("_Known")

CAresObject = Any
"""An object of `pycares`, which may be missing."""


def _remember(names: "OrderedDict[str, _Known]", name: str, value: _Known) -> None:
    names[name] = value
    names.move_to_end(name)
    if len(names) > MAX_NAMES:
        names.popitem(last=False)


_resolvers: WeakKeyDictionary[asyncio.AbstractEventLoop, Resolver] = WeakKeyDictionary()


async def resolve(host: str) -> tuple[Address, ...]:
    """Return the addresses of a host, by the resolver of the running event loop."""
    loop = asyncio.get_running_loop()
    if loop not in _resolvers:
        _resolvers[loop] = Resolver()
    return await _resolvers[loop].resolve(host)


async def dns_lookup(name: str) -> Sequence[Address]:
    """Ask the hosts file and the name servers of the system, by c-ares."""
    channel = _channel()
    if channel is None:
        return await _threaded_lookup(name)
    import pycares

    loop = asyncio.get_running_loop()
    answered: asyncio.Future[tuple[CAresObject, int | None]] = loop.create_future()

    def settle(result: CAresObject, error: int | None) -> None:
        if not answered.done():
            answered.set_result((result, error))

    def answer(result: CAresObject, error: int | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, result, error)

    channel.getaddrinfo(
        name.encode("idna").decode(),
        None,
        family=socket.AF_UNSPEC,
        type=socket.SOCK_STREAM,
        callback=answer,
    )
    result, error = await answered
    if error is not None:
        raise NameNotResolved(pycares.errno.strerror(error))
    return [_address(node.addr[0].decode()) for node in result.nodes]


@functools.cache
def _channel() -> CAresObject:
    """Return the channel of this process, which has a thread; None where c-ares is missing."""
    try:
        import pycares
    except ImportError:
        return None
    channel = pycares.Channel(timeout=QUERY_TIMEOUT, tries=QUERY_TRIES)
    atexit.register(channel.close)  # later, the library has been taken apart
    return channel


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(16, "name-lookup")


async def _threaded_lookup(name: str) -> Sequence[Address]:
    loop = asyncio.get_running_loop()
    ask = functools.partial(socket.getaddrinfo, name, None, type=socket.SOCK_STREAM)
    found = await loop.run_in_executor(_threads(), ask)
    return [_address(str(item[4][0])) for item in found]


def _address(text: str) -> Address:
    return ipaddress.ip_address(text.partition("%")[0])
