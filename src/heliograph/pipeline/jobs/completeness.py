"""Which windows are covered completely by what was ingested. Pure."""

from collections.abc import Iterable, Sequence

from heliograph.documents import JsonMapping
from heliograph.pipeline.jobs.routers import SERVING, RouterFacts, until_at
from heliograph.pipeline.jobs.windows import Gap
from heliograph.pipeline.objectives.budget import WINDOWS

__all__ = ["SILENT_AFTER", "first_at", "incomplete_windows"]

SECOND = 1_000_000
SILENT_AFTER = 3600 * SECOND
"""Microseconds after which a router that was not stopped is no longer just quiet: its journal may
not have arrived."""


def first_at(notes: JsonMapping) -> int:
    """Return when the oldest known run of a router began, 0 if there is none."""
    begun = [
        int(boot) for known in notes.values() if known["part"] in SERVING for boot in known["boots"]
    ]
    return min(begun, default=0)


def incomplete_windows(
    routers: Sequence[RouterFacts], gaps: Iterable[Gap], quarantined: int, began_at: int
) -> dict[str, str]:
    """Return the windows that are not covered completely, with the reason.

    What is in quarantine has no time, so that no window is complete while there is something.
    """
    until = until_at(routers)
    serving = [item for item in routers if item.part in SERVING]
    ours = [gap for gap in gaps if gap.part in SERVING]
    silent = [
        item
        for item in serving
        if not item.stopped and not item.retired and item.last_at < until - SILENT_AFTER
    ]
    found = {}
    for name, seconds in WINDOWS.items():
        since = until - seconds * SECOND
        missing = sum(gap.events for gap in ours if gap.until_at >= since)
        ended = [i for i in serving if i.retired and not i.stopped and i.last_at >= since]
        if quarantined:
            found[name] = f"{quarantined} records are in quarantine"
        elif missing:
            found[name] = f"{missing} events are missing"
        elif silent:
            found[name] = f"{silent[0].router} was silent for more than an hour"
        elif ended:
            found[name] = f"{ended[0].router} ended without a stop"
        elif began_at > since:
            found[name] = f"events are known of {_days(until - began_at)} only"
    return found


def _days(microseconds: int) -> str:
    days = max(microseconds, 0) / 86_400 / SECOND
    return f"{days:.0f} days" if days >= 2 else f"{days * 24:.1f} hours"
