"""The control port of the notification router.

    auth PASSWORD    become a user or an administrator, for this connection
    stats            what was counted since the last line of the statistics
    server-info      messaging routers, subscriptions and pending pushes; names for administrators
    help, quit

It changes nothing, and shows nothing of any client.
"""

import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from heliograph.ntf.observing.live import LiveSnapshot, Servers, Subscriptions
from heliograph.runtime.reference.control import ControlPort, Passwords, Role, is_allowed

if TYPE_CHECKING:
    from heliograph.ntf.observing.metrics import NtfCollector
    from heliograph.ntf.reference.statslog import NtfStatsLog
    from heliograph.ntf.router import NtfRouter

__all__ = ["NtfControlPort"]

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


class NtfControlPort(ControlPort):
    title = "Ntf server control port"
    help = "commands: auth PASSWORD, stats, server-info, help, quit"

    def __init__(
        self,
        router: "NtfRouter",
        stats: "NtfStatsLog",
        collector: "NtfCollector",
        passwords: Passwords,
    ) -> None:
        super().__init__(passwords)
        self._router = router
        self._stats = stats
        self._collector = collector

    async def answer(self, role: Role, words: list[str]) -> list[str]:
        questions: dict[str, Callable[[Role], Iterator[str]]] = {
            "stats": self._stats_lines,
            "server-info": self._server_info,
        }
        match words:
            case [word] if word in questions:
                if not is_allowed(role, Role.USER, word):
                    return ["AUTH"]
                return list(questions[word](role))
        return self.unknown()

    def _stats_lines(self, _: Role) -> Iterator[str]:
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self._stats.since))
        yield f"fromTime: {since}"
        counted = self._stats.period()
        for label, name in _STATS:
            yield f"{label}: {counted[name]}"
        stats, now = self._router.stats, time.time()
        yield f"daily active tokens: {stats.active_tokens.count('day', now)}"
        yield f"daily active subscriptions: {stats.active_subs.count('day', now)}"

    def _server_info(self, role: Role) -> Iterator[str]:
        live: LiveSnapshot = self._collector.live()
        names = role is Role.ADMIN
        yield f"Threads: {threading.active_count()}"
        yield f"Clients: {len(self._router.clients)}"
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
        totals = self._collector.totals
        yield f"Pushes in flight: {self._router.outbox.in_flight}"
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
