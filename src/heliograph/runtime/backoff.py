"""When to try again: growing, with jitter, never before the other side asked for."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Seconds. The first delay doubles up to the last; jitter takes up to that share away."""

    first: float = 1.0
    last: float = 300.0
    jitter: float = 0.3

    def delay(self, attempts: int, random: float, asked: float | None = None) -> float:
        """After so many failed attempts; `random` is in [0, 1), `asked` is a Retry-After."""
        grown = min(self.first * 2.0 ** min(max(attempts - 1, 0), 30), self.last)
        return max(grown * (1 - self.jitter * random), asked or 0.0)
