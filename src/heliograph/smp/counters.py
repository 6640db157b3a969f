"""Counters of the messaging router, for metrics, statistics and the control port."""

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

from heliograph.wire.handshakes import ServiceRole


class RelayOutcome(Enum):
    """The result of a session or a command with a destination router, as the reference counts."""

    SUCCESS = "success"
    CONNECT = "connect"
    COMPAT = "compat"
    OTHER = "other"


@dataclass(slots=True)
class RelayCounters:
    """Requests by outcome, and those among them to the operator's own routers."""

    all: Counter[RelayOutcome] = field(default_factory=Counter)
    own: Counter[RelayOutcome] = field(default_factory=Counter)

    def add(self, outcome: RelayOutcome, own: bool) -> None:
        self.all[outcome] += 1
        if own:
            self.own[outcome] += 1


class ServiceEvent(Enum):
    """Events of services, in the order of the reference's statistics."""

    ASSOCIATED = "associated"
    ASSOCIATED_AGAIN = "associated_again"
    REASSOCIATED = "reassociated"
    DISSOCIATED = "dissociated"
    SUBSCRIBED = "subscribed"
    SUBSCRIBED_AGAIN = "subscribed_again"
    QUEUES = "queues"
    """Queues that services subscribed to."""
    ENDED = "ended"


@dataclass(slots=True)
class SmpCounters:
    """Counters since the process started; plain integers, because hot paths increment them.

    One attribute for each counter that the reference exports.
    """

    queues_created: int = 0
    queues_secured: int = 0
    queues_deleted: int = 0
    queues_deleted_new: int = 0
    """Those among them without a sender's key."""
    queues_blocked: int = 0
    subscribed: int = 0
    subscribed_pending: int = 0
    """Subscriptions to queues that had messages."""
    subscribed_again: int = 0
    subscribe_prohibited: int = 0
    subscription_ended: int = 0
    messages_sent: int = 0
    messages_notify_sent: int = 0
    messages_quota: int = 0
    messages_large: int = 0
    messages_received: int = 0
    messages_received_notified: int = 0
    messages_received_by_get: int = 0
    messages_get: int = 0
    messages_get_empty: int = 0
    messages_get_again: int = 0
    messages_get_prohibited: int = 0
    messages_expired: int = 0
    notifiers_created: int = 0
    notifiers_created_with_queue: int = 0
    notifiers_deleted: int = 0
    notifier_subscribed: int = 0
    notifier_subscribed_again: int = 0
    notifications_delivered: int = 0
    notification_batches: int = 0
    notifications_expired: int = 0
    notifications_redelivered: int = 0
    auth_errors: int = 0
    store_failures: int = 0
    throttled: int = 0
    queues_refused: int = 0
    forwarded_received: int = 0
    relay_sessions: RelayCounters = field(default_factory=RelayCounters)
    relay_commands: RelayCounters = field(default_factory=RelayCounters)
    services: dict[ServiceRole, Counter[ServiceEvent]] = field(
        default_factory=lambda: {role: Counter() for role in ServiceRole}
    )
    refused: Counter[str] = field(default_factory=Counter)
    """Unauthorized commands, by name."""
    batches: Counter[str] = field(default_factory=Counter)
    """Blocks of several commands, by the name of the first."""
