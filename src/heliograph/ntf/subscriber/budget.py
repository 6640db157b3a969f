"""A budget for worthless events: those about queues that are not subscribed, or not understood.

A messaging router that a client named may send any number of them. Beyond the budget they are read
more slowly, which the router notices by back-pressure, and in the end the connection is cut.
"""

RATE = 200.0
"""Worthless events a second that are read in the long run."""
BURST_SECONDS = 10.0
"""How much of the rate may come at once."""
MAX_PAUSED_SECONDS = 30.0
"""Time paused on one connection after which it is cut."""


class EventBudget:
    """The budget of one connection, in worthless events a second."""

    def __init__(self, now: float, rate: float = RATE) -> None:
        self.rate = rate
        self._left = self._burst = rate * BURST_SECONDS
        self._at = now
        self._paused = 0.0

    @property
    def is_exhausted(self) -> bool:
        """Return whether the connection is to be cut."""
        return self._paused > MAX_PAUSED_SECONDS

    def spend(self, count: int, now: float) -> float:
        """Take `count` worthless events and return the seconds to pause reading."""
        self._left = min(self._left + (now - self._at) * self.rate, self._burst) - count
        self._at = now
        pause = max(-self._left / self.rate, 0.0)
        self._paused += pause
        return pause
