"""Adaptive pace of a worker: longer intervals and smaller batches while its router fails."""

from dataclasses import dataclass, replace

from heliograph.runtime.backoff import Backoff


@dataclass(frozen=True, slots=True)
class Pace:
    """The size of the next batch, and the number of failures in a row."""

    full: int
    size: int
    failures: int = 0

    @classmethod
    def start(cls, full: int) -> "Pace":
        return cls(full, full)

    def failed(self) -> "Pace":
        """Return a slower pace, so that an overloaded router can answer at least a few requests."""
        return replace(self, size=max(self.size // 2, 1), failures=self.failures + 1)

    def succeeded(self) -> "Pace":
        return replace(self, size=min(self.size * 2, self.full), failures=0)

    def delay(self, backoff: Backoff, random: float) -> float:
        """Return the seconds to wait before the next batch."""
        return backoff.delay(self.failures, random) if self.failures else 0.0
