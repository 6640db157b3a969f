"""A snapshot of the router's connections to messaging routers, for metrics and the control port.

Names the operator's own messaging routers; others are only counted.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from heliograph.ntf.store.totals import Totals

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


def snapshot(router: "NtfRouter", totals: Totals | None) -> LiveSnapshot:
    """Return the state of all subscribers; `totals` adds what is pending in the store."""
    subscribers = list(router.subscribers.values())
    connected: set[int] = set()
    active: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
    for subscriber in subscribers:
        client, server_id = subscriber.client, subscriber.server.server_id
        if client is not None and client.is_connected:
            connected.add(server_id)
            by_service = client.established.service is not None
            active[by_service].append((server_id, subscriber.subscribed))
    server_ids = {subscriber.server.server_id for subscriber in subscribers}
    pending: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
    for (server_id, associated), number in (totals or Totals()).pending.items():
        pending[associated].append((server_id, number))
    return LiveSnapshot(
        _servers(router, server_ids),
        _servers(router, connected),
        _servers(router, server_ids - connected),
        _subscriptions(router, active[True]),
        _subscriptions(router, active[False]),
        _subscriptions(router, pending[True]),
        _subscriptions(router, pending[False]),
    )


def _servers(router: "NtfRouter", server_ids: Iterable[int]) -> Servers:
    found = Servers()
    for server_id in server_ids:
        host = router.observer.own_host(server_id)
        if host is None:
            found.other += 1
        else:
            found.own.append(host)
    found.own.sort()
    return found


def _subscriptions(router: "NtfRouter", numbers: list[tuple[int, int]]) -> Subscriptions:
    found = Subscriptions()
    for server_id, number in numbers:
        host = router.observer.own_host(server_id)
        if host is not None:
            found.own[host] = found.own.get(host, 0) + number
        elif number:
            found.other_servers += 1
            found.other += number
    return found
