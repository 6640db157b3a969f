"""What readers of a journal report to its writers, in files beside the segments.

    DIR/<router>/_acknowledged.json     the segments that a pipeline has committed, by run
    DIR/_streaming                      touched while a pipeline wants events within a second

Writers and collectors remove acknowledged segments first. Without these files, or if they are
damaged, nothing counts as acknowledged.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = [
    "ACKNOWLEDGED",
    "Acknowledged",
    "decode_acknowledged",
    "encode_acknowledged",
    "is_streamed",
    "mark_streamed",
    "read_acknowledged",
]

logger = logging.getLogger(__name__)

ACKNOWLEDGED = "_acknowledged.json"
STREAMING = "_streaming"
STREAM_MARK_SECONDS = 30.0
"""How long a mark counts: a stream that was killed asks for nothing any more."""


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Intervals of segment numbers, first and last included, by boot."""

    runs: Mapping[int, Sequence[tuple[int, int]]] = field(default_factory=dict)

    def has(self, boot: int, number: int) -> bool:
        return any(first <= number <= last for first, last in self.runs.get(boot, ()))


def encode_acknowledged(acknowledged: Acknowledged) -> bytes:
    return json.dumps(dict(acknowledged.runs), separators=(",", ":")).encode()


def decode_acknowledged(data: bytes) -> Acknowledged:
    """Return the acknowledged numbers of a file. Raises `ValueError`."""
    try:
        runs = {
            int(boot): [(int(first), int(last)) for first, last in pairs]
            for boot, pairs in json.loads(data).items()
        }
    except (AttributeError, TypeError, OverflowError, RecursionError) as exc:
        raise ValueError("not a list of acknowledged segments") from exc
    return Acknowledged(runs)


def read_acknowledged(directory: Path) -> Acknowledged:
    """Return what was acknowledged of the router whose directory it is."""
    try:
        return decode_acknowledged((directory / ACKNOWLEDGED).read_bytes())
    except FileNotFoundError:
        return Acknowledged()
    except (OSError, ValueError) as exc:
        logger.warning("%s cannot be read, nothing counts as acknowledged: %s", ACKNOWLEDGED, exc)
        return Acknowledged()


def mark_streamed(journal: Path) -> None:
    """Ask writers to seal at once, for the next half minute. Raises OSError."""
    (journal / STREAMING).touch()


def is_streamed(journal: Path, now: float) -> bool:
    """Return True if a pipeline streams this journal at Unix time `now`."""
    try:
        return abs(now - (journal / STREAMING).stat().st_mtime) < STREAM_MARK_SECONDS
    except OSError:
        return False
