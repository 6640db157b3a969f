"""Which addresses a client may have us connect to, and connections that can go nowhere else.

A client chooses its Web Push endpoint, so its name is resolved here, once; what is private,
loopback or link-local is left out; and connections are pinned to the rest. A name that later stands
for another address cannot lead them there. With a proxy, that one resolves the names, and only what
a name says of itself can be judged here.
"""

import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Address

from heliograph.net.public import Address, is_number, is_public, is_public_name
from heliograph.net.resolver import Lookup, resolve
from heliograph.push.connecting import HttpConnections, connections_to
from heliograph.push.http import HttpSettings, NoAnswer
from heliograph.tasks import ScopeClosed, SharedTasks

MAX_HOSTS = 256
RESOLVED_FOR_SECONDS = 300.0
"""Seconds that a resolved name is believed."""


class PrivateAddress(Exception):
    """The host has no address that a client may have us connect to."""


@dataclass(frozen=True, slots=True)
class _PinnedHost:
    connections: HttpConnections
    addresses: frozenset[Address]
    resolved_at: float


class Endpoints:
    """Connections by host, made when first needed and forgotten when others need the room."""

    def __init__(
        self,
        settings: HttpSettings,
        *,
        allow_private: bool = False,
        resolver: Lookup = resolve,
    ) -> None:
        self._settings = settings
        self._allow_private = allow_private
        self._resolver = resolver
        self._hosts: OrderedDict[str, _PinnedHost] = OrderedDict()
        self._lookups = SharedTasks[str, HttpConnections]("push endpoint")

    async def connections(self, host: str) -> HttpConnections:
        """Return the connections to a host.

        Raises `PrivateAddress`, or `NoAnswer` if the name does not resolve.
        """
        known = self._hosts.get(host)
        if known is not None and time.monotonic() - known.resolved_at < RESOLVED_FOR_SECONDS:
            self._hosts.move_to_end(host)
            return known.connections
        try:
            return await self._lookups.run(host, partial(self._connect, host))
        except ScopeClosed:
            raise NoAnswer("Closed") from None

    def refresh(self, host: str) -> None:
        """Replace the connections of one host."""
        if host in self._hosts:
            self._hosts[host].connections.refresh()

    def close(self) -> None:
        self._lookups.cancel()
        for host in self._hosts.values():
            host.connections.close()
        self._hosts.clear()

    async def _connect(self, host: str) -> HttpConnections:
        is_proxied = bool(self._settings.proxy) and not is_number(host)
        addresses = self._allowed_name(host) if is_proxied else await self._allowed(host)
        known = self._hosts.get(host)
        if known is not None and known.addresses == frozenset(addresses):
            connections = known.connections
        else:
            pin = None if is_proxied else (host, addresses)
            connections = connections_to(self._settings, pin)
        self._hosts[host] = _PinnedHost(connections, frozenset(addresses), time.monotonic())
        self._hosts.move_to_end(host)
        if len(self._hosts) > MAX_HOSTS:
            self._hosts.popitem(last=False)
        return connections

    def _allowed_name(self, host: str) -> list[Address]:
        """Return no address: a proxy resolves the name, in a network that may be private."""
        if not self._allow_private and not is_public_name(host):
            raise PrivateAddress
        return []

    async def _allowed(self, host: str) -> list[Address]:
        # HTTP clients take a name whose last part is a number for an address, and ask no resolver:
        # 127.1 and 0x7f000001 are the loopback.
        if is_number(host):
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
        try:
            return await self._resolver(host)
        except (OSError, UnicodeError):
            raise NoAnswer("NameNotResolved") from None
