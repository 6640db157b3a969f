"""When nothing is read from a messaging router: the reasons, and the rate of a throttled one."""

import asyncio
import functools
from collections.abc import Callable

from heliograph.ntf.store.restrictions import Restrictions
from heliograph.ntf.subscriber.budget import EventBudget
from heliograph.transport.client import Client

MAX_THROTTLE_PAUSE = 5.0
"""Seconds that reading from a throttled router is paused at a time, so that PINGs are answered."""


class ReadingPauses:
    """Pause reading from the current connection, if there is one, while there is any reason."""

    def __init__(self, client: Callable[[], Client | None]) -> None:
        self.reasons: set[str] = set()
        self._client = client
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def set(self, reason: str, paused: bool) -> None:
        (self.reasons.add if paused else self.reasons.discard)(reason)
        if (client := self._client()) is not None:
            client.pause_reading() if self.reasons else client.resume_reading()

    def pause_for(self, reason: str, seconds: float) -> None:
        self.set(reason, True)
        if reason in self._timers:
            self._timers[reason].cancel()
        resume = functools.partial(self.set, reason, False)
        self._timers[reason] = asyncio.get_running_loop().call_later(seconds, resume)


class Throttle:
    """Pause reading from a router that is throttled, for as long as its budget is used up."""

    def __init__(self, restrictions: Restrictions, server_id: int, pauses: ReadingPauses) -> None:
        self._restrictions = restrictions
        self._server_id = server_id
        self._pauses = pauses
        self._budget: EventBudget | None = None

    def spend(self, count: int, now: float) -> None:
        """Take `count` notifications of the budget at the Unix time `now`."""
        rate = self._restrictions.rate_of(self._server_id, int(now * 1000))
        if rate is None:
            self._budget = None
            return
        if self._budget is None or self._budget.rate != rate:
            self._budget = EventBudget(now, rate)
        if pause := min(self._budget.spend(count, now), MAX_THROTTLE_PAUSE):
            self._pauses.pause_for("throttle", pause)
