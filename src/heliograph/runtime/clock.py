"""Wall-clock time without the steps of the system's clock."""

import time
from collections.abc import Callable

__all__ = ["SteadyClock", "steady_time"]

TOLERANCE = 2.0
"""Difference in seconds from which the system's clock has made a step."""
ADOPT_AFTER = 60.0
"""Seconds that a step must last to be adopted."""


class SteadyClock:
    """Follow the wall clock, and ignore a step until it has lasted for a minute.

    A clock that is wrong for some seconds must not change the times that are stored.
    """

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.steps = 0
        """Number of adopted steps."""
        self._wall = wall
        self._monotonic = monotonic
        self._offset = wall() - monotonic()
        self._step: tuple[float, float] | None = None
        """The offset after a step, and when it was first seen."""

    def now(self) -> float:
        """Return seconds since the epoch."""
        monotonic = self._monotonic()
        offset = self._wall() - monotonic
        if abs(offset - self._offset) <= TOLERANCE:
            self._offset, self._step = offset, None
        elif self._step is None or abs(offset - self._step[0]) > TOLERANCE:
            self._step = offset, monotonic
        elif monotonic - self._step[1] >= ADOPT_AFTER:
            self._offset, self._step = offset, None
            self.steps += 1
        return self._offset + monotonic


_clock: SteadyClock | None = None


def steady_time() -> float:
    """Return the time of one steady clock for the whole process."""
    global _clock
    if _clock is None:
        _clock = SteadyClock(lambda: time.time())
    return _clock.now()
