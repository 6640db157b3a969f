"""Which addresses a client may have us connect to, and connections that can go nowhere else.

A client chooses its Web Push endpoint, so its name is resolved here, once; what is private,
loopback or link-local is left out; and connections are pinned to the rest. A name that later stands
for another address cannot lead them there.
"""

import asyncio
import ipaddress
import re
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

from heliograph.push.http import Connections, HttpSettings, NoAnswer

Address = IPv4Address | IPv6Address
Resolver = Callable[[str], Sequence[Address]]

MAX_HOSTS = 256
KEEP = 300.0
"""Seconds that a resolved name is believed."""

LOOKUPS = 8
LOOKUP_TIMEOUT = 15.0

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9a-fA-F]*")


class PrivateAddress(Exception):
    """The host has no address that a client may have us connect to."""


@dataclass(frozen=True, slots=True)
class _Host:
    connections: Connections
    addresses: frozenset[Address]
    resolved_at: float


def is_public(address: Address) -> bool:
    """Whether an address is out in the Internet, also if it embeds one of the other family."""
    if isinstance(address, IPv6Address):
        embedded = address.ipv4_mapped or address.sixtofour
        if address in _NAT64:
            embedded = IPv4Address(address.packed[12:])
        if embedded is not None:
            return is_public(embedded)
        if address.teredo is not None or address.is_site_local:
            return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def resolve(host: str) -> Sequence[Address]:
    """All addresses of a host, by the system's resolver; blocks."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [ipaddress.ip_address(str(item[4][0]).partition("%")[0]) for item in found]


class Endpoints:
    """Connections by host, made when first needed and forgotten when others need the room."""

    def __init__(
        self,
        settings: HttpSettings,
        *,
        allow_private: bool = False,
        resolver: Resolver = resolve,
    ) -> None:
        self._settings = settings
        self._allow_private = allow_private
        self._resolver = resolver
        self._hosts: OrderedDict[str, _Host] = OrderedDict()
        self._lookups: dict[str, asyncio.Task[Connections]] = {}
        # Of its own, because names that never resolve would block everybody else's threads.
        self._executor = ThreadPoolExecutor(LOOKUPS, "push-lookup")

    async def connections(self, host: str) -> Connections:
        """Raises `PrivateAddress`, or `NoAnswer` if the name does not resolve."""
        known = self._hosts.get(host)
        if known is not None and time.monotonic() - known.resolved_at < KEEP:
            self._hosts.move_to_end(host)
            return known.connections
        lookup = self._lookups.get(host)
        if lookup is None:
            lookup = self._lookups[host] = asyncio.create_task(self._connect(host))
            lookup.add_done_callback(lambda task: self._looked_up(host, task))
        try:
            return await asyncio.shield(lookup)
        except asyncio.CancelledError:
            if lookup.cancelled():
                raise NoAnswer("Closed") from None
            raise

    def refresh(self) -> None:
        for host in self._hosts.values():
            host.connections.refresh()

    def close(self) -> None:
        for lookup in self._lookups.values():
            lookup.cancel()
        for host in self._hosts.values():
            host.connections.close()
        self._hosts.clear()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _looked_up(self, host: str, task: "asyncio.Task[Connections]") -> None:
        del self._lookups[host]
        if not task.cancelled():
            task.exception()  # those who waited have it

    async def _connect(self, host: str) -> Connections:
        addresses = await self._allowed(host)
        known = self._hosts.get(host)
        if known is not None and known.addresses == frozenset(addresses):
            connections = known.connections
        else:
            connections = Connections(self._settings, pin=(host, addresses))
        self._hosts[host] = _Host(connections, frozenset(addresses), time.monotonic())
        self._hosts.move_to_end(host)
        if len(self._hosts) > MAX_HOSTS:
            self._hosts.popitem(last=False)
        return connections

    async def _allowed(self, host: str) -> list[Address]:
        # HTTP clients take a name whose last part is a number for an address, and ask no resolver:
        # 127.1 and 0x7f000001 are the loopback.
        if _NUMBER.fullmatch(host.rstrip(".").rpartition(".")[2]):
            try:
                found: Sequence[Address] = [IPv4Address(host)]
            except ValueError:
                raise PrivateAddress from None
        else:
            found = await self._lookup(host)
        allowed = [item for item in found if self._allow_private or is_public(item)]
        if not allowed:
            raise PrivateAddress
        return allowed

    async def _lookup(self, host: str) -> Sequence[Address]:
        running = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(LOOKUP_TIMEOUT):
                return await running.run_in_executor(self._executor, self._resolver, host)
        except (OSError, TimeoutError, UnicodeError, ValueError):
            raise NoAnswer("NameNotResolved") from None
