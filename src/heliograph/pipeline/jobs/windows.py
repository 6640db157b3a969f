"""Times in which events of a router may be missing: after a kill, and in gaps of its journal.

Windows become rows of a small table that is joined by router and hour, so that a query costs the
same for ten thousand of them as for ten.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from heliograph.pipeline.intervals import Pair, merge
from heliograph.pipeline.jobs.routers import RouterFacts, newest_at

ANY_ROUTER = "*"
"""Stands for a router's ID if it is not known which notification router it was."""
BUCKET = 3_600_000_000
"""Microseconds: the hour by which windows are joined."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Missing sequence numbers of a run; times of the events around them, in microseconds."""

    router: str
    part: str
    boot: int
    first_seq: int
    last_seq: int
    from_at: int
    until_at: int

    @property
    def events(self) -> int:
        return self.last_seq - self.first_seq + 1


def ntf_of(routers: Iterable[RouterFacts]) -> list[RouterFacts]:
    return [item for item in routers if item.part == "ntf"]


def horizon(item: RouterFacts, newest: int) -> int:
    """Return the time up to which a router's events are complete; a retired one writes no more."""
    return newest if item.retired else item.last_at


def common_horizon(routers: Sequence[RouterFacts]) -> int:
    """Return the time up to which all notification routers are complete; 0 if there are none."""
    ntf, newest = ntf_of(routers), newest_at(routers)
    running = [item for item in ntf if not item.stopped] or ntf
    return min((horizon(item, newest) for item in running), default=0)


def kill_rows(routers: Sequence[RouterFacts], grace: int) -> list[tuple[str, int, int, int]]:
    """Return rows of router, bucket, low and high: the windows in which a kill lost events.

    A kill loses only the newest events, so it explains nothing older. The rows of `ANY_ROUTER`
    are those of all notification routers.
    """
    found: dict[str, list[Pair]] = {ANY_ROUTER: []}
    for item in ntf_of(routers):
        windows = [(last_at - grace, started_at) for last_at, started_at in item.kills]
        found[item.router] = windows
        found[ANY_ROUTER] += windows
    return [
        (router, bucket, low, high)
        for router, windows in found.items()
        for low, high in merge(windows)
        for bucket in range(low // BUCKET, high // BUCKET + 1)
    ]


def gap_rows(
    gaps: Iterable[Gap], routers: Sequence[RouterFacts], grace: int
) -> list[tuple[str, list[int], list[int]]]:
    """Return rows of router, lows and highs: the windows of its gaps.

    The end of a retired router that was killed counts as a gap: what it still had is not known.
    """
    found: dict[str, list[Pair]] = {}
    for item in ntf_of(routers):
        if item.retired and not item.stopped:
            for router in (item.router, ANY_ROUTER):
                found.setdefault(router, []).append((item.last_at - grace, item.last_at + grace))
    for gap in gaps:
        if gap.part == "ntf":
            for router in (gap.router, ANY_ROUTER):
                found.setdefault(router, []).append((gap.from_at, gap.until_at))
    return [
        (router, [low for low, _ in merged], [high for _, high in merged])
        for router, windows in found.items()
        if (merged := merge(windows))
    ]
