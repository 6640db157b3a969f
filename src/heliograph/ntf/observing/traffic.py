"""Count traffic that no event of a token or subscription attributes, for the journal.

Every few seconds it becomes events about messaging routers, providers and busy networks, which name
no token: what came from whom cannot be linked with whom it was for.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address, ip_network
from typing import NamedTuple

from heliograph.journal.events import (
    JournalEvent,
    PushesTimed,
    RegistrationsCounted,
    SmpCounted,
)
from heliograph.runtime.limits import is_loopback

__all__ = ["INTERVAL", "MIN_REGISTRATIONS", "ServerName", "TrafficCounts", "source_of"]

INTERVAL = 10.0
"""Seconds between events."""
MIN_REGISTRATIONS = 20
"""Registrations in an interval from which their network is recorded, as a hash of the day."""
MAX_NETWORKS = 10_000
MAX_SILENT = 12
"""Intervals for which a messaging router that became silent is still recorded, with 0."""
DAY = 86_400
_PREFIXES = {4: 24, 6: 48}


class ServerName(NamedTuple):
    """A messaging router; `host` is None unless it is one of the operator's own."""

    address: str
    host: str | None


@dataclass(slots=True)
class _Timed:
    count: int = 0
    answers: int = 0
    seconds: float = 0.0
    silent: int = 0

    @property
    def delay(self) -> int | None:
        """Return the mean microseconds until an answer."""
        return round(self.seconds / self.answers * 1e6) if self.answers else None


class TrafficCounts:
    """Counts since the last `events`."""

    def __init__(self) -> None:
        self._servers: dict[int, _Timed] = {}
        self._providers: dict[str, _Timed] = {}
        self._networks: dict[str, int] = {}

    def received(self, server: int, count: int) -> None:
        """Count NMSG of a messaging router."""
        self._servers.setdefault(server, _Timed()).count += count

    def server_answered(self, server: int, seconds: float) -> None:
        """Count an answer of a messaging router, and how long it took."""
        found = self._servers.setdefault(server, _Timed())
        found.answers += 1
        found.seconds += seconds

    def provider_answered(self, provider: str, seconds: float) -> None:
        found = self._providers.setdefault(provider, _Timed())
        found.answers += 1
        found.seconds += seconds

    def registration(self, address: str) -> None:
        """Count a registration that was requested from an address, accepted or not."""
        if is_loopback(address):
            return  # Tor, or a proxy: its clients have nothing in common
        network = network_of(address)
        if network in self._networks or len(self._networks) < MAX_NETWORKS:
            self._networks[network] = self._networks.get(network, 0) + 1

    def events(
        self, name_of: Callable[[int], ServerName | None], now: float
    ) -> Iterator[JournalEvent]:
        """Yield what was counted, and begin again. `now` is Unix time."""
        servers, self._servers = self._servers, {}
        for server, found in servers.items():
            name = name_of(server)
            if name is None:
                continue
            yield SmpCounted(
                server=name.address.encode(),
                own_server=name.host is not None,
                smp_host=name.host,
                count=found.count,
                delay=found.delay,
            )
            silent = 0 if found.count else found.silent + 1
            if silent < MAX_SILENT:
                self._servers[server] = _Timed(silent=silent)
        providers, self._providers = self._providers, {}
        for provider, timed in providers.items():
            yield PushesTimed(provider=provider, count=timed.answers, delay=timed.delay or 0)
        networks, self._networks = self._networks, {}
        for network, count in networks.items():
            if count >= MIN_REGISTRATIONS:
                yield RegistrationsCounted(source=_source(network, now), count=count)


def network_of(address: str) -> str:
    """Return the /24 or /48 of an address, which is often one provider's or organisation's."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return str(ip_network((found, _PREFIXES[found.version]), strict=False))


def source_of(address: str, now: float) -> bytes:
    """Return what the journal hashes for the network of an address on the day of `now`."""
    return _source(network_of(address), now)


def _source(network: str, now: float) -> bytes:
    return b"%d %b" % (int(now) // DAY, network.encode())
