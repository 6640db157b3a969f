"""Service-level objectives: what share of notifications shall be accepted, and how soon. Pure."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["DEFAULTS", "LIMITS", "Objective", "parse_objective", "parse_objectives"]

LIMITS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600)
"""Seconds that an objective can name: sums of closed notifications are kept for each."""
SCALE = 1_000_000
_TEXT = re.compile(r"(\d{1,2}(?:\.\d{1,4})?) ?% accepted(?: in (\d{1,4}) ?s)?")


@dataclass(frozen=True, slots=True)
class Objective:
    """At least `millionths` of all notifications are accepted by a provider, within `seconds`.

    Without `seconds`, it does not matter how soon.
    """

    millionths: int
    seconds: int | None = None

    @property
    def allowed(self) -> int:
        """Return how many of a million notifications may fail."""
        return SCALE - self.millionths

    @property
    def text(self) -> str:
        percent = f"{self.millionths / 10_000:.4f}".rstrip("0").rstrip(".")
        return f"{percent}% accepted" + (f" in {self.seconds}s" if self.seconds else "")


def parse_objective(text: str) -> Objective:
    """Parse an objective such as `99% accepted in 10s`. Raises `ValueError`."""
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        raise ValueError(f'{text}: must be as "99% accepted in 10s" or "99.9% accepted"')
    millionths = round(float(match[1]) * 10_000)
    if not 0 < millionths < SCALE:
        raise ValueError(f"{text}: must be more than 0% and less than 100%")
    seconds = None if match[2] is None else int(match[2])
    if seconds is not None and seconds not in LIMITS:
        raise ValueError(f"{text}: the time must be one of {', '.join(map(str, LIMITS))} s")
    return Objective(millionths, seconds)


def parse_objectives(texts: Iterable[str]) -> tuple[Objective, ...]:
    """Parse objectives; one that is named twice counts once. Raises `ValueError`."""
    return tuple(dict.fromkeys(map(parse_objective, texts)))


DEFAULTS = parse_objectives(["99% accepted in 10s", "99.9% accepted"])
