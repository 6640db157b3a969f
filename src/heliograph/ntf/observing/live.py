"""A snapshot of the router's connections to messaging routers, for metrics and the control port.

Names the operator's own messaging routers; others are only counted.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from heliograph.ntf.store.totals import Totals
from heliograph.wire.addresses import decode_address
from heliograph.wire.errors import WireError

if TYPE_CHECKING:
    from heliograph.ntf.router import NtfRouter


@dataclass(slots=True)
class Servers:
    own: list[str] = field(default_factory=list)
    other: int = 0


@dataclass(slots=True)
class Subscriptions:
    own: dict[str, int] = field(default_factory=dict)
    other_servers: int = 0
    other: int = 0

    @property
    def total(self) -> int:
        return sum(self.own.values()) + self.other


@dataclass(frozen=True, slots=True)
class LiveSnapshot:
    """Each subscriber is either in `connected` or in `waiting`."""

    subscribers: Servers
    connected: Servers
    waiting: Servers
    active_service: Subscriptions
    active: Subscriptions
    pending_service: Subscriptions
    pending: Subscriptions

    @property
    def sessions(self) -> int:
        return len(self.connected.own) + self.connected.other


class ServerState(NamedTuple):
    """What one process has of a messaging router, or of a shard of one."""

    server_id: int
    host: str | None
    """Of an own server."""
    is_connected: bool
    by_service: bool
    subscribed: int


def states(router: "NtfRouter") -> list[ServerState]:
    """Return the state of all subscribers of a process."""
    found = []
    for subscriber in router.subscribers.values():
        client, server_id = subscriber.client, subscriber.server.server_id
        host = router.observer.own_host(server_id)
        if client is None or not client.is_connected:
            found.append(ServerState(server_id, host, False, False, 0))
            continue
        by_service = client.established.service is not None
        found.append(ServerState(server_id, host, True, by_service, subscriber.subscribed))
    return found


def snapshot(
    found: Sequence[ServerState], totals: Totals | None, own_domains: Collection[str]
) -> LiveSnapshot:
    """Sum up subscribers, of one process or several; `totals` adds what is pending in the store.

    It may be pending at messaging routers that other processes subscribe to.
    """
    hosts = {state.server_id: state.host for state in found}
    connected = {state.server_id for state in found if state.is_connected}
    active: dict[bool, Counter[int]] = {True: Counter(), False: Counter()}
    for state in found:
        if state.is_connected:
            active[state.by_service][state.server_id] += state.subscribed
    pending: dict[bool, Counter[int]] = {True: Counter(), False: Counter()}
    pending_hosts: dict[int, str | None] = {}
    for (server_id, address, associated), number in (totals or Totals()).pending.items():
        pending[associated][server_id] += number
        pending_hosts[server_id] = own_host(address, own_domains)
    return LiveSnapshot(
        _servers(hosts, hosts),
        _servers(hosts, connected),
        _servers(hosts, hosts.keys() - connected),
        _subscriptions(hosts, active[True]),
        _subscriptions(hosts, active[False]),
        _subscriptions(pending_hosts, pending[True]),
        _subscriptions(pending_hosts, pending[False]),
    )


def own_host(address: str, own_domains: Collection[str]) -> str | None:
    """Return the host of a messaging router of the operator's own, None for others."""
    if not own_domains:
        return None
    host = _first_host(address)
    is_own = any(host == name or host.endswith(f".{name}") for name in own_domains)
    return host if is_own else None


@lru_cache(maxsize=1024)
def _first_host(address: str) -> str:
    try:
        return decode_address(address).hosts[0].text
    except WireError:
        return ""


def _servers(hosts: Mapping[int, str | None], server_ids: Iterable[int]) -> Servers:
    found = Servers()
    for server_id in server_ids:
        host = hosts[server_id]
        if host is None:
            found.other += 1
        else:
            found.own.append(host)
    found.own.sort()
    return found


def _subscriptions(hosts: Mapping[int, str | None], numbers: Mapping[int, int]) -> Subscriptions:
    found = Subscriptions()
    for server_id, number in numbers.items():
        host = hosts.get(server_id)
        if host is not None:
            found.own[host] = found.own.get(host, 0) + number
        elif number:
            found.other_servers += 1
            found.other += number
    return found
