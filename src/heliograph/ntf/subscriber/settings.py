"""Settings and types of subscribers."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from heliograph.ntf.store.records import Incoming
from heliograph.ntf.subscriber import budget
from heliograph.ntf.subscriber.dials import DialLimits
from heliograph.runtime.backoff import Backoff
from heliograph.transport.client import ClientConfig
from heliograph.wire.ntf.tokens import SubscriptionState

SubscriptionReport = tuple[bytes, SubscriptionState]
"""A subscription ID and its new state."""


@dataclass(frozen=True, slots=True)
class SubscriberSettings:
    """`stable_after`: seconds a connection must last to reset the backoff.

    One field per setting; defaults suit production.
    """

    batch: int = 900
    page: int = 9_000
    backoff: Backoff = field(default_factory=lambda: Backoff(first=0.5, last=60.0))
    stable_after: float = 2.0
    healthy_period: float = 600.0
    """Seconds after the last stable connection in which delays stay below `healthy_delay`."""
    healthy_delay: float = 2.0
    retry_errors: float = 60.0
    use_service: bool = False
    refused_delay: float = 3600.0
    """Seconds between attempts at a router that has only private addresses."""
    unproven_delay: float = 600.0
    """The longest delay for a router that never worked."""
    dials: DialLimits = field(default_factory=DialLimits)
    worthless_rate: float = budget.RATE
    """Worthless events a second that are read from one messaging router."""
    client: ClientConfig = field(default_factory=ClientConfig)


Receive = Callable[[int, list[Incoming]], asyncio.Future[int]]
"""Store the notifications of a router; the future is done once they are durable, and its result
is how many were for no subscription.
"""
