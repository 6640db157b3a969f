"""The daily line of the messaging router, with the reference's columns in its order."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

from heliograph.documents import JsonObject
from heliograph.runtime.reference.periods import DAY
from heliograph.runtime.reference.statslog import StatsLog
from heliograph.smp.counters import RelayOutcome, ServiceEvent, SmpCounters
from heliograph.smp.metrics import SmpTotals
from heliograph.smp.observer import ActiveQueues, SmpObserver
from heliograph.smp.store.records import ServiceRecord
from heliograph.wire.handshakes import ServiceRole

__all__ = ["SERVICE_ROLES", "SmpStatsLog", "count_services", "relay_names"]

RELAYS = ("relay_sessions.all", "relay_sessions.own", "relay_commands.all", "relay_commands.own")
"""The relays in the order of the columns; each has the requests and their outcomes."""

SERVICE_ROLES = (ServiceRole.MESSAGING, ServiceRole.NOTIFIER)

_NONE = "0"
"""The value of a column that the reference no longer counts."""


class SmpStatsLog(StatsLog):
    def __init__(
        self,
        observer: SmpObserver,
        services: Mapping[bytes, ServiceRecord],
        totals: Callable[[], SmpTotals],
        copy: Path,
        log: Path | None = None,
        start: float = 0.0,
        interval: float = DAY,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(clock(), copy, log, start, interval, clock)
        self.active = observer.active = ActiveQueues()
        self._counters = observer.counters
        self._services = services
        self._totals = totals
        self._earlier: Counter[str] = Counter()
        """Counted by earlier runs of the router."""

    def counts(self) -> dict[str, int]:
        counted = Counter(dict(_flat(self._counters)))
        counted.update(self._earlier)
        return dict(counted)

    def columns(self, counted: dict[str, int], now: float) -> list[str]:
        self.refresh(now)
        count = Counter(counted)
        totals = self._totals()

        def numbers(*names: str) -> Iterator[str]:
            return (str(count[name]) for name in names)

        deleted_secured = count["queues_deleted"] - count["queues_deleted_new"]
        got = count["messages_get"] - count["messages_get_empty"] - count["messages_get_again"]
        subscribed = count["notifier_subscribed"] - count["notifier_subscribed_again"]
        created = count["notifiers_created"] - count["notifiers_created_with_queue"]
        return [
            *numbers("queues_created", "queues_secured", "queues_deleted"),
            *numbers("messages_sent", "messages_received"),
            *self.active.all.columns(now),
            *numbers("messages_notify_sent", "messages_received_notified"),
            *self.active.notified.columns(now),
            str(totals.queues),
            str(totals.messages),
            *numbers("messages_expired", "queues_deleted_new"),
            str(deleted_secured),
            *numbers(*(name for relay in RELAYS for name in relay_names(relay))),
            *numbers("forwarded_received", "subscribed_pending", "refused.SUB"),
            *numbers("subscribed_again", "subscribe_prohibited", "refused.SEND"),
            *numbers("messages_quota", "messages_large", "notifications_delivered"),
            *(_NONE, _NONE, _NONE),  # without a subscriber, lost, subscriptions without messages
            *numbers("messages_received_by_get"),
            str(got),
            *numbers("messages_get_empty", "refused.GET", "messages_get_again"),
            *numbers("messages_get_prohibited"),
            *(_NONE, _NONE, _NONE),  # subscribed queues by day, week and month
            str(totals.queues),
            str(created),
            *numbers("notifiers_deleted"),
            str(subscribed),
            *numbers("refused.NSUB", "notifier_subscribed_again"),
            str(totals.notifiers),
            *numbers("batches.DEL", "batches.SUB", "subscription_ended", "subscription_ended"),
            *numbers("batches.NDEL", "batches.NSUB", "notification_batches"),
            *numbers("notifications_expired"),
            str(totals.notifications),
            *map(str, count_services(self._services.values())),
            *numbers(
                *(
                    f"services.{role.name}.{event.value}"
                    for role in SERVICE_ROLES
                    for event in ServiceEvent
                )
            ),
        ]

    def refresh(self, now: float) -> None:
        self.active.refresh(now)

    def dump_counters(self) -> JsonObject:
        return {
            "counters": self.counts(),
            "active": self.active.all.dump(),
            "active_notified": self.active.notified.dump(),
        }

    def restore_counters(self, saved: JsonObject) -> None:
        earlier = Counter({str(name): int(value) for name, value in saved["counters"].items()})
        self.active.all.restore(saved["active"])
        self.active.notified.restore(saved["active_notified"])
        self._earlier = earlier


def relay_names(relay: str) -> tuple[str, ...]:
    """Return the names of a relay's counters: requests, then successes and errors."""
    return (f"{relay}.requests", *(f"{relay}.{outcome.value}" for outcome in RelayOutcome))


def count_services(services: Iterable[ServiceRecord]) -> list[int]:
    """Return the numbers of messaging and notification services, then those of their queues."""
    found = list(services)
    return [
        *(sum(service.role is role for service in found) for role in SERVICE_ROLES),
        *(sum(s.count for s in found if s.role is role) for role in SERVICE_ROLES),
    ]


def _flat(counters: SmpCounters) -> Iterator[tuple[str, int]]:
    """Return all counters by name; those of a group have its name before a dot."""
    for name, value in asdict(counters).items():
        if isinstance(value, int):
            yield name, value
    for name, counted in (("refused", counters.refused), ("batches", counters.batches)):
        for command, value in counted.items():
            yield f"{name}.{command}", value
    for role, events in counters.services.items():
        for event, value in events.items():
            yield f"services.{role.name}.{event.value}", value
    for name, relays in (
        ("relay_sessions", counters.relay_sessions),
        ("relay_commands", counters.relay_commands),
    ):
        for source, outcomes in (("all", relays.all), ("own", relays.own)):
            yield f"{name}.{source}.requests", outcomes.total()
            for outcome, value in outcomes.items():
                yield f"{name}.{source}.{outcome.value}", value
