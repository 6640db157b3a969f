"""Which windows of a router's events are complete: nothing is decided from others.

A window is complete if the router ran all the time, no sequence number of it is missing, and
everything of it has arrived. This module needs no Spark.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from heliograph.documents import JsonMapping
from heliograph.pipeline.intervals import Pair, merge
from heliograph.pipeline.jobs.coverage import Edges
from heliograph.pipeline.jobs.rates import BUCKET
from heliograph.pipeline.jobs.routers import router_facts
from heliograph.pipeline.jobs.windows import Gap

__all__ = ["HISTORY", "WINDOW", "RouterWindows", "complete_windows"]

WINDOW = 6 * BUCKET
"""Microseconds of events that are compared with the windows before."""
HISTORY = 180
"""Windows before the newest that a baseline has at most."""
MAX_LAG = 120 * 1_000_000
"""Microseconds after which a process that writes nothing is not waited for."""


class RouterWindows(NamedTuple):
    """The windows of one router that end at `end`, by their distance from it: 0 is the newest."""

    router: str
    end: int
    complete: tuple[int, ...]
    runs: Mapping[int, Pair] = {}
    """The times of the first and last event of each run, by boot."""

    @property
    def is_known(self) -> bool:
        """Return whether the newest window is complete."""
        return 0 in self.complete


def complete_windows(
    notes: JsonMapping,
    seen: Mapping[str, Sequence[Pair]],
    edges: Edges,
    gaps: Iterable[Gap],
) -> list[RouterWindows]:
    """Return the windows of each notification router that runs."""
    missing: dict[str, list[Pair]] = {}
    for gap in gaps:
        missing.setdefault(gap.router, []).append((gap.from_at, gap.until_at))
    found = []
    for facts in router_facts(notes):
        if facts.part != "ntf" or facts.retired or facts.stopped:
            continue
        boots = notes[facts.router]["boots"]
        runs = _runs(facts.router, boots, seen, edges)
        last = max(until for _, until in runs.values())
        running = [
            until
            for boot, (_, until) in runs.items()
            if until >= last - MAX_LAG and "stopped_at" not in boots[str(boot)]
        ]
        end = min(running, default=last) // BUCKET * BUCKET
        holes = [*missing.get(facts.router, ()), *facts.kills]
        spans = merge(runs.values())
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
        found.append(RouterWindows(facts.router, end, complete, runs))
    return found


def _runs(
    router: str,
    boots: Mapping[str, Mapping[str, int]],
    seen: Mapping[str, Sequence[Pair]],
    edges: Edges,
) -> dict[int, Pair]:
    """Return the first and last time of each run, by boot."""
    runs = {}
    for boot, facts in boots.items():
        run = f"{router}/{boot}"
        intervals = seen.get(run, ())
        first = edges.get(run, {}).get(str(intervals[0][0])) if intervals else None
        begin = facts["last_at"] if first is None else first[0]
        runs[int(boot)] = (begin, facts["last_at"])
    return runs
