"""Exponential backoff with jitter that honours Retry-After."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays in seconds: doubling from `first` to `last`, shortened by up to the share `jitter`."""

    first: float = 1.0
    last: float = 300.0
    jitter: float = 0.3

    def delay(self, attempts: int, random: float, retry_after: float | None = None) -> float:
        """Return the delay after `attempts` failures; `random` is in [0, 1)."""
        grown = min(self.first * 2.0 ** min(max(attempts - 1, 0), 30), self.last)
        return max(grown * (1 - self.jitter * random), retry_after or 0.0)
