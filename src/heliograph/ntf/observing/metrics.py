"""The router's metrics for Prometheus.

Metrics that the reference has keep its names; our own begin with `heliograph_ntf_`. No label may
identify a token, subscription or client.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from heliograph import __version__
from heliograph.journal.metrics import journal_metrics
from heliograph.ntf.observing.live import LiveSnapshot, Servers, Subscriptions, snapshot, states
from heliograph.ntf.observing.stats import Histogram
from heliograph.ntf.store.totals import Totals
from heliograph.runtime.metrics import counter, gauge
from heliograph.runtime.reference.periods import ActiveIds

if TYPE_CHECKING:
    from heliograph.ntf.router import NtfRouter
    from heliograph.transport.server import Listener

__all__ = ["SAVED_COUNTERS", "NtfCollector"]

logger = logging.getLogger(__name__)

COUNT_INTERVAL = 15.0
COUNT_SHARE = 0.02
"""The share of time that may be spent on counting."""

_NOTIFICATIONS = (
    ("received", "Received notifications.", "ntf_received"),
    ("received_auth", "Received notifications without token or subscription.", "ntf_received_auth"),
    ("delivered", "Delivered pushes of notifications.", "ntf_delivered"),
    ("failed", "Failed pushes of notifications.", "ntf_failed"),
    ("periodic_delivered", "Delivered periodic pushes.", "ntf_cron_delivered"),
    ("periodic_failed", "Failed periodic pushes.", "ntf_cron_failed"),
    ("verification_queued", "Token verifications queued.", "ntf_vrf_queued"),
    ("verification_delivered", "Delivered token verifications.", "ntf_vrf_delivered"),
    ("verification_failed", "Failed token verifications.", "ntf_vrf_failed"),
    (
        "verification_invalid_tkn",
        "Token verifications that found the token invalid.",
        "ntf_vrf_invalid_tkn",
    ),
)
_OWN = (
    ("received_own", "Received notifications, by own server.", "received_own"),
    (
        "received_auth_own",
        "Received notifications without token or subscription, by own server.",
        "received_auth_own",
    ),
    ("delivered_own", "Delivered pushes of notifications, by own server.", "delivered_own"),
    ("failed_own", "Failed pushes of notifications, by own server.", "failed_own"),
)
_SAVED = (
    ("tokens_collected", "Tokens removed because they were not verified in time.", "tkn_collected"),
    ("pushes_retried", "Delivery attempts after the first.", "ntf_retried"),
    ("pushes_expired", "Pushes that expired undelivered.", "ntf_expired"),
    (
        "drift_repaired",
        "Service associations that differed from a messaging router's and were repaired.",
        "drift_repaired",
    ),
)
SAVED_COUNTERS = ("simplex_ntf_", *(f"heliograph_ntf_{name}_total" for name, _, _ in _SAVED))
"""Beginnings of the names of counters that a run continues from what an earlier one saved."""
_PERIODS = (("daily", "day"), ("weekly", "week"), ("monthly", "month"))


class NtfCollector(Collector):
    """Collect the router's numbers at each scrape; `count` caches the costly ones."""

    def __init__(
        self, router: "NtfRouter", listener: "Listener", counting: Callable[[], Awaitable[Totals]]
    ) -> None:
        self.totals: Totals | None = None
        self._router = router
        self._listener = listener
        self._counting = counting

    async def count(self) -> None:
        """Count what is costly, repeatedly, for at most `COUNT_SHARE` of the time."""
        while True:
            started = time.monotonic()
            try:
                self.totals = await self._counting()
            except Exception as exc:
                logger.warning("counting for the metrics failed: %s", exc)
            taken = time.monotonic() - started
            await asyncio.sleep(max(COUNT_INTERVAL, taken / COUNT_SHARE))

    def live(self) -> LiveSnapshot:
        return snapshot(states(self._router), self.totals, self._router.settings.own_domains)

    def collect(self) -> Iterator[Metric]:
        live = self.live()
        yield from self._tokens()
        yield from self._subscriptions(live)
        yield from self._notifications()
        yield from self._servers(live)
        yield from self._own()
        yield from self._pending()
        yield from journal_metrics("ntf", self._router.journal)

    def _tokens(self) -> Iterator[Metric]:
        counters = self._router.stats.counters
        for name in ("created", "verified", "deleted", "replaced"):
            value = getattr(counters, f"tkn_{name}")
            yield counter(f"simplex_ntf_tokens_{name}", f"{name.capitalize()} tokens.", value)
        yield from _active("simplex_ntf_tokens_count", "tokens", self._router.stats.active_tokens)
        if self.totals is not None:
            number = sum(self.totals.tokens.values())
            yield gauge("simplex_ntf_tokens_total", "Stored tokens.", number)
            yield gauge(
                "heliograph_ntf_tokens", "Stored tokens, by status.", self.totals.tokens, "status"
            )

    def _subscriptions(self, live: LiveSnapshot) -> Iterator[Metric]:
        stats = self._router.stats
        for name in ("created", "deleted"):
            value = getattr(stats.counters, f"sub_{name}")
            doc = f"{name.capitalize()} subscriptions."
            yield counter(f"simplex_ntf_subscriptions_{name}", doc, value)
        yield from _active("simplex_ntf_subscriptions_count", "subscriptions", stats.active_subs)
        if self.totals is not None:
            stored = self.totals.subscriptions
            number = sum(stored.values())
            yield gauge("simplex_ntf_subscriptions_approx_total", "Stored subscriptions.", number)
            doc = "Stored subscriptions, by status."
            yield gauge("heliograph_ntf_subscriptions", doc, stored, "status")
        for prefix, word, found in (
            ("simplex_ntf_smp_service_subscription_active", "Active", live.active_service),
            ("simplex_ntf_smp_subscription_active", "Active", live.active),
            ("simplex_ntf_smp_service_subscription_pending", "Pending", live.pending_service),
            ("simplex_ntf_smp_subscription_pending", "Pending", live.pending),
        ):
            yield from _by_server(prefix, word, found)

    def _notifications(self) -> Iterator[Metric]:
        counters = self._router.stats.counters
        for name, doc, key in _NOTIFICATIONS:
            yield counter(f"simplex_ntf_notifications_{name}", doc, getattr(counters, key))
        for name, doc, key in _OWN:
            values: dict[str, int] = getattr(counters, key)
            if values:
                yield counter(f"simplex_ntf_notifications_{name}", doc, dict(values), "server")
        if self.totals is not None:
            doc = "Stored last notifications."
            yield gauge("simplex_ntf_notifications_total", doc, self.totals.notifications)

    def _servers(self, live: LiveSnapshot) -> Iterator[Metric]:
        info = Metric("simplex_ntf_info", "The router's version.", "gauge")
        labels = {"version": f"heliograph-{__version__}", "rts_options": ""}
        info.add_sample(info.name, labels, 1)
        yield info
        yield gauge("simplex_ntf_threads_total", "Threads.", threading.active_count())
        yield from _workers("simplex_ntf_smp_subscribers", "SMP subscribers", live.subscribers)
        yield from _workers("simplex_ntf_smp_agent_clients", "SMP clients", live.connected)
        yield from _workers(
            "simplex_ntf_smp_agent_sub_workers", "SMP subscribers that reconnect", live.waiting
        )
        yield gauge("simplex_ntf_smp_sessions_count", "SMP sessions.", live.sessions)
        waiting = 0 if self.totals is None else sum(self.totals.pending_pushes.values())
        yield gauge(
            "simplex_ntf_apns_push_queue_length",
            "Pending pushes of all providers.",
            max(waiting, self._router.outbox.in_flight),
        )

    def _own(self) -> Iterator[Metric]:
        router, stats = self._router, self._router.stats
        yield _histogram(
            "heliograph_ntf_push_latency_seconds",
            "From the arrival of a notification to the provider's acceptance of its push.",
            stats.push_latency,
        )
        yield counter(
            "heliograph_ntf_push_failures_total",
            "Pushes that a provider did not accept, by its reason.",
            dict(stats.failures),
            "reason",
        )
        yield counter(
            "heliograph_ntf_quota_exceeded_total",
            "Commands refused because of a limit, by limit.",
            dict(stats.quota_exceeded),
            "limit",
        )
        yield counter(
            "heliograph_ntf_worthless_events_total",
            "Events of messaging routers that concern no subscription, by own router, or other.",
            dict(stats.worthless_events),
            "server",
        )
        for name, doc, key in _SAVED:
            value = getattr(stats.counters, key)
            yield counter(f"heliograph_ntf_{name}_total", doc, value)
        yield counter(
            "heliograph_ntf_connections_refused_total",
            "Connections closed at once because the limit was reached.",
            self._listener.refused_connections,
        )
        for index, name in enumerate(("accepted", "failed")):
            answered = {text: found[index] for text, found in stats.by_provider.items()}
            doc = f"Pushes that providers {'accepted' if index == 0 else 'did not accept'}."
            yield counter(f"heliograph_ntf_provider_{name}_total", doc, answered, "provider")
        yield gauge("heliograph_ntf_clients", "Clients.", len(router.clients))

    def _pending(self) -> Iterator[Metric]:
        in_flight = {kind.text: lane.active for kind, lane in self._router.outbox.lanes.items()}
        doc = "Pushes in flight."
        yield gauge("heliograph_ntf_pushes_in_flight", doc, in_flight, "provider")
        if self.totals is None:
            return
        yield gauge(
            "heliograph_ntf_pending_pushes", "Pending pushes.", self.totals.pending_pushes, "kind"
        )
        oldest = self.totals.oldest_pending
        yield gauge(
            "heliograph_ntf_oldest_pending_push_seconds",
            "Age of the oldest pending push; 0 if there is none.",
            0.0 if oldest is None else max(time.time() - oldest, 0.0),
        )


def _active(prefix: str, what: str, ids: ActiveIds) -> Iterator[Metric]:
    now = time.time()
    for name, period in _PERIODS:
        doc = f"Active {what} of this {period}."
        yield gauge(f"{prefix}_{name}", doc, ids.count(period, now))


def _by_server(prefix: str, word: str, found: Subscriptions) -> Iterator[Metric]:
    doc = f"{word} subscriptions"
    if found.own:
        ones = dict.fromkeys(found.own, 1)
        yield gauge(f"{prefix}_server_count_own", f"{doc}, own servers.", ones, "server")
        yield gauge(f"{prefix}_sub_count_own", f"{doc} of own servers.", found.own, "server")
    yield gauge(f"{prefix}_server_count_other", f"{doc}, other servers.", found.other_servers)
    yield gauge(f"{prefix}_sub_count_other", f"{doc} of other servers.", found.other)


def _workers(prefix: str, what: str, servers: Servers) -> Iterator[Metric]:
    if servers.own:
        ones = dict.fromkeys(servers.own, 1)
        yield gauge(f"{prefix}_count_own", f"{what}, own servers.", ones, "server")
    yield gauge(f"{prefix}_count_other", f"{what}, other servers.", servers.other)


def _histogram(name: str, doc: str, histogram: Histogram) -> Metric:
    metric = Metric(name, doc, "histogram")
    bounds = (*map(str, histogram.BOUNDS), "+Inf")
    total = 0
    for bound, total in zip(bounds, accumulate(histogram.counts), strict=True):
        metric.add_sample(f"{name}_bucket", {"le": bound}, total)
    metric.add_sample(f"{name}_sum", {}, histogram.sum)
    metric.add_sample(f"{name}_count", {}, total)
    return metric
