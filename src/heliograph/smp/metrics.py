"""Prometheus metrics of the messaging router.

Names are those of the reference, misspellings included, where it has the same metric; our own
begin with `heliograph_smp_`. No label may identify a client or a queue.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from heliograph import __version__
from heliograph.journal.metrics import journal_metrics
from heliograph.runtime.metrics import counter, gauge
from heliograph.smp.counters import RelayOutcome, ServiceEvent
from heliograph.wire.handshakes import ServiceRole

if TYPE_CHECKING:
    from heliograph.smp.router import SmpRouter
    from heliograph.transport.server import Listener

logger = logging.getLogger(__name__)

COUNT_INTERVAL = 60.0
COUNT_SHARE = 0.01
"""The share of time that the store may spend on counting."""


@dataclass(frozen=True, slots=True)
class SmpTotals:
    """Numbers that are too expensive to count at every scrape."""

    queues: int = 0
    notifiers: int = 0
    messages: int = 0
    notifications: int = 0
    subscribed_clients: int = 0
    notified_clients: int = 0


class SmpCollector(Collector):
    """Reads the router's numbers at each scrape; `count` refreshes the expensive ones."""

    def __init__(self, router: "SmpRouter", listener: "Listener", port: int) -> None:
        self._router = router
        self._listener = listener
        self._port = str(port)
        self._totals: SmpTotals | None = None

    @property
    def totals(self) -> SmpTotals:
        """Return the numbers counted last, zeros before the first time."""
        return self._totals or SmpTotals()

    async def count(self) -> None:
        """Refresh the expensive numbers, every minute or less often, until cancelled."""
        while True:
            started = time.monotonic()
            try:
                self._totals = await self._count()
            except Exception as exc:
                logger.warning("counting for the metrics failed: %s", exc)
            taken = time.monotonic() - started
            await asyncio.sleep(max(COUNT_INTERVAL, taken / COUNT_SHARE))

    async def _count(self) -> SmpTotals:
        clients = self._router.clients
        subscribed = sum(1 for client in clients if client.subscriptions)
        notified = sum(1 for client in clients if client.notifiers or client.service_count)
        return SmpTotals(*await self._router.store.counts(), subscribed, notified)

    def collect(self) -> Iterator[Metric]:
        yield from self._queues()
        yield from self._messages()
        yield from self._notifications()
        yield from self._services()
        yield from self._commands()
        yield from self._relays()
        yield from self._connections()
        yield from self._own()
        yield from journal_metrics("smp", self._router.observer.journal)

    def _queues(self) -> Iterator[Metric]:
        counters, totals = self._router.observer.counters, self._totals
        yield counter("simplex_smp_queues_created", "Created queues.", counters.queues_created)
        yield counter("simplex_smp_queues_secured", "Secured queues.", counters.queues_secured)
        yield counter(
            "simplex_smp_queues_deleted", "Deleted queues.", {"all": counters.queues_deleted}
        )
        yield gauge(
            "simplex_smp_loaded_queues_queue_count", "Queues in memory.", len(self._router.queues)
        )
        if totals is not None:
            # The reference counts in two ways, and dashboards show either.
            for name in ("simplex_smp_queues_total1", "simplex_smp_queues_total2"):
                yield gauge(name, "Stored queues.", totals.queues)
            for name in ("simplex_smp_queues_notify_total1", "simplex_smp_queues_notify_total2"):
                yield gauge(name, "Stored queues with a notifier.", totals.notifiers)

    def _messages(self) -> Iterator[Metric]:
        counters, totals = self._router.observer.counters, self._totals
        yield counter("simplex_smp_messages_sent", "Sent messages.", counters.messages_sent)
        yield counter(
            "simplex_smp_messages_sent_errors",
            "Messages refused, by reason.",
            {"quota": counters.messages_quota},
        )
        yield counter(
            "simplex_smp_messages_received", "Received messages.", counters.messages_received
        )
        yield counter(
            "simplex_smp_messages_expired", "Expired messages.", counters.messages_expired
        )
        if totals is not None:
            yield gauge("simplex_smp_messages_total", "Stored messages.", totals.messages)
        yield counter(
            "simplex_smp_subscribtion_successes", "Subscriptions to queues.", counters.subscribed
        )
        yield counter(
            "simplex_smp_subscribtion_end", "Ended subscriptions.", counters.subscription_ended
        )
        yield gauge(
            "simplex_smp_subscribtion_total",
            "Subscriptions to queues now.",
            len(self._router.subscribers.recipients),
        )
        if totals is not None:
            yield gauge(
                "simplex_smp_subscribtion_clients_total",
                "Clients subscribed to queues.",
                totals.subscribed_clients,
            )

    def _notifications(self) -> Iterator[Metric]:
        counters, totals = self._router.observer.counters, self._totals
        yield counter(
            "simplex_smp_messages_notify_sent",
            "Sent messages with the notification flag.",
            counters.messages_notify_sent,
        )
        yield counter(
            "simplex_smp_messages_notify_get_sent", "Requests to get.", counters.messages_get
        )
        yield counter(
            "simplex_smp_queues_notify_created",
            "Created notifier credentials.",
            counters.notifiers_created,
        )
        yield counter(
            "simplex_smp_queues_notify_deleted",
            "Deleted notifier credentials.",
            counters.notifiers_deleted,
        )
        yield counter(
            "simplex_smp_messages_ntf_successes",
            "Notifications sent to notification routers.",
            counters.notifications_delivered,
        )
        yield counter(
            "simplex_smp_subscription_ntf_requests",
            "Requests to subscribe to notifications.",
            counters.notifier_subscribed,
        )
        yield gauge(
            "simplex_smp_subscription_ntf_total",
            "Subscriptions to notifications now, without those by service.",
            len(self._router.subscribers.notifiers),
        )
        if totals is not None:
            yield gauge(
                "simplex_smp_subscription_ntf_clients_total",
                "Clients subscribed to notifications.",
                totals.notified_clients,
            )

    def _services(self) -> Iterator[Metric]:
        router = self._router
        events = router.observer.counters.services[ServiceRole.NOTIFIER]
        for role, name in ((ServiceRole.MESSAGING, "rcv"), (ServiceRole.NOTIFIER, "ntf")):
            services = [item for item in router.services.values() if item.role is role]
            yield gauge(f"simplex_smp_{name}_services_count", "Services.", len(services))
            yield gauge(
                f"simplex_smp_{name}_services_queues_count",
                "Queues associated with services.",
                sum(service.count for service in services),
            )
        yield counter(
            "simplex_smp_ntf_services_assoc_new",
            "New associations of queues with services.",
            events[ServiceEvent.ASSOCIATED],
        )
        yield counter(
            "simplex_smp_ntf_services_assoc_duplicate",
            "Repeated associations of queues with services.",
            events[ServiceEvent.ASSOCIATED_AGAIN],
        )
        yield counter(
            "simplex_smp_ntf_services_assoc_removed",
            "Removed associations of queues with services.",
            events[ServiceEvent.DISSOCIATED],
        )
        subscribed = self._subscribed_queues(ServiceRole.NOTIFIER)
        for name in ("ntf_services_sub_queues", "subscription_ntf_service_subs_total"):
            yield gauge(
                f"simplex_smp_{name}", "Queues that services get notifications of.", sum(subscribed)
            )
        yield gauge(
            "simplex_smp_subscribtion_nts_services_total",
            "Services subscribed to notifications.",
            len(subscribed),
        )
        receiving = self._subscribed_queues(ServiceRole.MESSAGING)
        yield gauge(
            "simplex_smp_subscribtion_services_total",
            "Services subscribed to messages.",
            len(receiving),
        )
        yield gauge(
            "simplex_smp_subscribtion_service_subs_total",
            "Queues that services get messages of.",
            sum(receiving),
        )

    def _subscribed_queues(self, role: ServiceRole) -> list[int]:
        """Return how many queues each subscribed service of the role has."""
        router = self._router
        return [
            client.service_count
            for service_id, client in router.subscribers.services.items()
            if router.services[service_id].role is role
        ]

    def _commands(self) -> Iterator[Metric]:
        """Blocks of commands and what was wrong with commands, as the reference splits them."""
        count = self._router.observer.counters
        batches, refused = count.batches, count.refused
        for name, doc, value in (
            ("queues_blocked", "Blocked queues.", count.queues_blocked),
            ("queues_deleted_batch", "Blocks of several DEL.", batches["DEL"]),
            ("queues_notify_deleted_batch", "Blocks of several NDEL.", batches["NDEL"]),
            (
                "queues_notify_new_created",
                "Queues created with a notifier.",
                count.notifiers_created_with_queue,
            ),
            ("subscribtion_successes_batch", "Blocks of several SUB.", batches["SUB"]),
            ("subscribtion_end_batch", "Ended subscriptions.", count.subscription_ended),
            ("subscription_ntf_requests_batch", "Blocks of several NSUB.", batches["NSUB"]),
            ("messages_ntf_successes_batch", "Blocks with NMSG.", count.notification_batches),
            (
                "messages_notify_received",
                "Received messages with the notification flag.",
                count.messages_received_notified,
            ),
            (
                "messages_notify_get_received",
                "Messages received by GET.",
                count.messages_received_by_get,
            ),
        ):
            yield counter(f"simplex_smp_{name}", doc, value)
        for name, doc, values in (
            (
                "subscribtion_errors",
                "SUB without effect, by reason.",
                {
                    "auth": refused["SUB"],
                    "duplicate": count.subscribed_again,
                    "prohibited": count.subscribe_prohibited,
                },
            ),
            (
                "subscribtion_ntf_errors",
                "NSUB without effect, by reason.",
                {"auth": refused["NSUB"], "duplicate": count.notifier_subscribed_again},
            ),
            (
                "messages_notify_get_errors",
                "GET without a new message, by reason.",
                {
                    "nomsg": count.messages_get_empty,
                    "auth": refused["GET"],
                    "duplicate": count.messages_get_again,
                    "prohibited": count.messages_get_prohibited,
                },
            ),
        ):
            yield counter(f"simplex_smp_{name}", doc, values)

    def _relays(self) -> Iterator[Metric]:
        counters = self._router.observer.counters
        for name, what, relays in (
            ("sessions", "Sessions with other routers", counters.relay_sessions),
            ("messages", "Commands forwarded to other routers", counters.relay_commands),
        ):
            sources = {"all": relays.all, "own": relays.own}
            yield counter(
                f"simplex_smp_relay_{name}_requests",
                f"{what}: requests.",
                {source: found.total() for source, found in sources.items()},
                label="source",
            )
            yield counter(
                f"simplex_smp_relay_{name}_successes",
                f"{what}: successes.",
                {source: found[RelayOutcome.SUCCESS] for source, found in sources.items()},
                label="source",
            )
            errors = Metric(f"simplex_smp_relay_{name}_errors", f"{what}: errors.", "counter")
            for source, found in sources.items():
                for outcome in (RelayOutcome.CONNECT, RelayOutcome.COMPAT, RelayOutcome.OTHER):
                    labels = {"source": source, "type": outcome.value}
                    errors.add_sample(errors.name, labels, found[outcome])
            yield errors
        yield counter(
            "simplex_smp_relay_messages_received",
            "Commands that other routers forwarded.",
            counters.forwarded_received,
        )

    def _connections(self) -> Iterator[Metric]:
        info = Metric("simplex_smp_info", "The router's version.", "gauge")
        labels = {"version": f"heliograph-{__version__}", "rts_options": ""}
        info.add_sample(info.name, labels, 1)
        yield info
        yield gauge(
            "simplex_smp_sockets_active",
            "Open connections.",
            {self._port: len(self._listener.connections)},
            label="port",
        )
        yield counter(
            "simplex_smp_sockets_accepted",
            "Accepted connections.",
            {self._port: self._listener.accepted_connections},
            label="port",
        )
        yield gauge("simplex_smp_threads_total", "Threads.", threading.active_count())
        yield gauge("simplex_smp_clients_total", "Clients.", len(self._router.clients))

    def _own(self) -> Iterator[Metric]:
        counters, totals = self._router.observer.counters, self._totals
        for name, doc, value in (
            ("auth_errors", "Refused commands.", counters.auth_errors),
            ("store_failures", "Batches that the store failed to commit.", counters.store_failures),
            (
                "notifications_redelivered",
                "Notifications that were sent, not confirmed, and will be sent again.",
                counters.notifications_redelivered,
            ),
            (
                "connections_refused",
                "Connections refused because there were too many.",
                self._listener.refused_connections,
            ),
        ):
            yield counter(f"heliograph_smp_{name}_total", doc, value)
        yield counter(
            "heliograph_smp_limited_total",
            "How often a limit refused a new queue or made commands of a connection wait.",
            {"new_queues": counters.queues_refused, "commands": counters.throttled},
            "limit",
        )
        if totals is not None:
            yield gauge(
                "heliograph_smp_notifications_pending",
                "Stored notifications, not yet confirmed.",
                totals.notifications,
            )
