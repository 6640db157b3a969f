"""Which windows of a router's events are complete: nothing is decided from others.

A window is complete if the router ran all the time, no sequence number of it is missing, and
everything of it has arrived, from each of its processes. This module needs no Spark.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from heliograph.actions.contract import FLOOD_SECONDS
from heliograph.documents import JsonMapping
from heliograph.pipeline.intervals import Pair, merge
from heliograph.pipeline.jobs.coverage import Edges
from heliograph.pipeline.jobs.rates import BUCKET
from heliograph.pipeline.jobs.reach import NO_HEADS, Heads, Run, runs_of
from heliograph.pipeline.jobs.routers import router_facts
from heliograph.pipeline.jobs.windows import Gap

__all__ = ["HISTORY", "WINDOW", "RouterWindows", "complete_windows"]

WINDOW = FLOOD_SECONDS * 1_000_000
"""Microseconds of events that are compared with the windows before.

Some events count what happened in the ten seconds before, and windows end at whole buckets: so
what fills a window is in one that ends a minute after it began, or earlier.
"""
HISTORY = 270
"""Windows before the newest that a baseline has at most."""
MAX_LAG = 120 * 1_000_000
"""Microseconds after which a process that is behind is not waited for: windows that may lack its
events are incomplete.
"""


class RouterWindows(NamedTuple):
    """The windows of one router that end at `end`, by their distance from it: 0 is the newest."""

    router: str
    end: int
    complete: tuple[int, ...]
    runs: Mapping[int, Pair] = {}
    """The time of the first event of each run, and until when it is known, by boot."""

    @property
    def is_known(self) -> bool:
        """Return whether the newest window is complete."""
        return 0 in self.complete


def complete_windows(
    notes: JsonMapping,
    seen: Mapping[str, Sequence[Pair]],
    edges: Edges,
    gaps: Iterable[Gap],
    heads: Heads = NO_HEADS,
) -> list[RouterWindows]:
    """Return the windows of each notification router that runs. `heads` are as new as `seen`."""
    missing: dict[str, list[Pair]] = {}
    for gap in gaps:
        missing.setdefault(gap.router, []).append((gap.from_at, gap.until_at))
    found = []
    for facts in router_facts(notes):
        if facts.part != "ntf" or facts.retired:
            continue
        runs = runs_of(facts.router, seen, notes, heads)
        going = [run.until for run in runs if not run.is_over]
        if not going:
            continue
        last = max(going)
        end = min(until for until in going if until >= last - MAX_LAG) // BUCKET * BUCKET
        behind = [(until, last) for until in going if until < last - MAX_LAG]
        holes = [*missing.get(facts.router, ()), *facts.kills, *behind]
        times = {run.boot: (_begin(facts.router, run, seen, edges), run.until) for run in runs}
        spans = merge(times.values())
        windows = (
            (number, end - (number + 1) * WINDOW, end - number * WINDOW)
            for number in range(HISTORY + 1)
        )
        complete = tuple(
            number
            for number, low, high in windows
            if any(begin <= low and high <= until for begin, until in spans)
            and not any(begin <= high and until >= low for begin, until in holes)
        )
        found.append(RouterWindows(facts.router, end, complete, times))
    return found


def _begin(router: str, run: Run, seen: Mapping[str, Sequence[Pair]], edges: Edges) -> int:
    """Return the time of the first event of a run."""
    name = f"{router}/{run.boot}"
    intervals = seen.get(name, ())
    first = edges.get(name, {}).get(str(intervals[0][0])) if intervals else None
    return run.until if first is None else first[0]
