"""How fast a worker asks: growing intervals and shrinking batches while its router fails."""

from dataclasses import dataclass, replace

from heliograph.runtime.backoff import Backoff


@dataclass(frozen=True, slots=True)
class Pace:
    """How many to ask in the next batch, and how often it failed in a row."""

    full: int
    size: int
    failures: int = 0

    @classmethod
    def start(cls, full: int) -> "Pace":
        return cls(full, full)

    def failed(self) -> "Pace":
        """No answer: less next time, so that a router that can do little does that."""
        return replace(self, size=max(self.size // 2, 1), failures=self.failures + 1)

    def succeeded(self) -> "Pace":
        return replace(self, size=min(self.size * 2, self.full), failures=0)

    def delay(self, backoff: Backoff, random: float) -> float:
        """Before the next batch."""
        return backoff.delay(self.failures, random) if self.failures else 0.0
