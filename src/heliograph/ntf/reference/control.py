"""The control port of the notification router.

    auth PASSWORD    become a user or an administrator, for this connection
    stats            what was counted since the last line of the statistics
    server-info      messaging routers, subscriptions and pending pushes; names for administrators
    help, quit

It changes nothing, and shows nothing of any client.
"""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from heliograph.ntf.observing.live import LiveSnapshot, Servers, Subscriptions
from heliograph.ntf.reference.statslog import NtfStatsLog
from heliograph.ntf.store.totals import Totals
from heliograph.runtime.reference.control import ControlPort, Passwords, Role, is_allowed

if TYPE_CHECKING:
    from heliograph.ntf.observing.metrics import NtfCollector
    from heliograph.ntf.router import NtfRouter

__all__ = ["NtfControlPort", "ProcessState", "RouterState", "StateSource"]

_STATS = (
    ("tknCreated", "tkn_created"),
    ("tknVerified", "tkn_verified"),
    ("tknDeleted", "tkn_deleted"),
    ("tknReplaced", "tkn_replaced"),
    ("subCreated", "sub_created"),
    ("subDeleted", "sub_deleted"),
    ("ntfReceived", "ntf_received"),
    ("ntfReceivedAuth", "ntf_received_auth"),
    ("ntfDelivered", "ntf_delivered"),
    ("ntfFailed", "ntf_failed"),
    ("ntfRetried", "ntf_retried"),
    ("ntfExpired", "ntf_expired"),
    ("ntfCronDelivered", "ntf_cron_delivered"),
    ("ntfCronFailed", "ntf_cron_failed"),
    ("ntfVrfQueued", "ntf_vrf_queued"),
    ("ntfVrfDelivered", "ntf_vrf_delivered"),
    ("ntfVrfFailed", "ntf_vrf_failed"),
    ("ntfVrfInvalidTkn", "ntf_vrf_invalid_tkn"),
)


@dataclass(frozen=True, slots=True)
class RouterState:
    """What `server-info` shows. `scope` has lines about processes, if several are the router."""

    threads: int
    clients: int
    in_flight: int
    live: LiveSnapshot
    totals: Totals | None
    scope: tuple[str, ...] = ()


class StateSource(Protocol):
    """What the control port asks: one process, or all of a machine."""

    @property
    def stats(self) -> NtfStatsLog: ...

    async def state(self) -> RouterState: ...


class ProcessState:
    """The state of one process that is the router."""

    def __init__(self, router: "NtfRouter", stats: NtfStatsLog, collector: "NtfCollector") -> None:
        self.stats = stats
        self._router = router
        self._collector = collector

    async def state(self) -> RouterState:
        router, collector = self._router, self._collector
        return RouterState(
            threading.active_count(),
            len(router.clients),
            router.outbox.in_flight,
            collector.live(),
            collector.totals,
        )


class NtfControlPort(ControlPort):
    title = "Ntf server control port"
    help = "commands: auth PASSWORD, stats, server-info, help, quit"

    def __init__(self, source: StateSource, passwords: Passwords) -> None:
        super().__init__(passwords)
        self._source = source

    async def answer(self, role: Role, words: list[str]) -> list[str]:
        match words:
            case ["stats" | "server-info" as word]:
                if not is_allowed(role, Role.USER, word):
                    return ["AUTH"]
                return await (self._stats() if word == "stats" else self._server_info(role))
        return self.unknown()

    async def _stats(self) -> list[str]:
        stats, now = self._source.stats, time.time()
        await stats.gather()
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(stats.since))
        counted = stats.period()
        return [
            f"fromTime: {since}",
            *(f"{label}: {counted[name]}" for label, name in _STATS),
            f"daily active tokens: {stats.stats.active_tokens.count('day', now)}",
            f"daily active subscriptions: {stats.stats.active_subs.count('day', now)}",
            *stats.scope,
        ]

    async def _server_info(self, role: Role) -> list[str]:
        state = await self._source.state()
        return [*_info(state, names=role is Role.ADMIN), *state.scope]


def _info(state: RouterState, *, names: bool) -> Iterator[str]:
    live, totals = state.live, state.totals
    yield f"Threads: {state.threads}"
    yield f"Clients: {state.clients}"
    for title, servers in (
        ("SMP subscribers", live.subscribers),
        ("SMP clients", live.connected),
        ("SMP subscription workers", live.waiting),
    ):
        yield from _servers(title, servers, names)
    yield f"SMP sessions count: {live.sessions}"
    for title, found in (
        ("SMP service subscriptions", live.active_service),
        ("SMP queue subscriptions", live.active),
        ("Pending SMP service subscriptions", live.pending_service),
        ("Pending SMP queue subscriptions", live.pending),
    ):
        yield from _subscriptions(title, found, names)
    yield f"Pushes in flight: {state.in_flight}"
    if totals is not None:
        yield f"Push notifications queue length: {sum(totals.pending_pushes.values())}"
        if totals.oldest_pending is not None:
            yield f"Oldest pending push: {max(time.time() - totals.oldest_pending, 0):.0f} s"


def _servers(title: str, servers: Servers, names: bool) -> Iterator[str]:
    yield f"{title} own servers count: {len(servers.own)}"
    if names:
        yield f"{title} own servers: {','.join(servers.own)}"
    yield f"{title} other servers count: {servers.other}"


def _subscriptions(title: str, found: Subscriptions, names: bool) -> Iterator[str]:
    yield from _servers(title, Servers(sorted(found.own), found.other_servers), names)
    yield f"{title} total: {found.total}"
    yield f"{title} on own servers: {sum(found.own.values())}"
    if names:
        for host, number in sorted(found.own.items()):
            yield f"{title} on {host}: {number}"
    yield f"{title} on other servers: {found.other}"
