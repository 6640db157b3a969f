"""Coverage: the events known to be missing, by sequence number and time.

Sequence numbers have no gaps unless something was lost: events that found no room (`journal_lost`),
segments that were removed before they were read, are damaged, or have not arrived yet, and events
in quarantine. At the end of a run its head counts them. Events that a kill took from there have no
number and are not counted here.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from heliograph.documents import JsonMapping
from heliograph.pipeline.intervals import Pair
from heliograph.pipeline.jobs.reach import Heads, tails
from heliograph.pipeline.jobs.windows import Gap

Times = Mapping[int, Pair]
"""The first and last event time of each block of sequence numbers, in microseconds."""
Edges = Mapping[str, Mapping[str, Pair]]
"""The times of events near each end of an interval, by run and sequence number."""
BLOCK_BITS = 6


def with_times(
    known: Edges, seen: Mapping[str, Sequence[Pair]], new: Mapping[str, Times]
) -> dict[str, dict[str, Pair]]:
    """Return the edges of `seen`, from those known before and the times of new events."""
    result = {run: dict(edges) for run, edges in known.items()}
    for run, times in new.items():
        before = known.get(run, {})
        result[run] = {}
        for number in (number for pair in seen[run] for number in pair):
            found = [before.get(str(number)), times.get(number >> BLOCK_BITS)]
            pairs = [pair for pair in found if pair is not None]
            if pairs:
                result[run][str(number)] = (
                    min(first for first, _ in pairs),
                    max(last for _, last in pairs),
                )
    return result


def gaps(
    seen: Mapping[str, Sequence[Pair]], edges: Edges, routers: JsonMapping, heads: Heads
) -> list[Gap]:
    """Return the gaps of all runs, oldest first; also those before the head of a run."""
    found = tails(seen, routers, heads)
    for run, intervals in seen.items():
        router, _, boot = run.rpartition("/")
        times = edges.get(run, {})
        part = routers.get(router, {}).get("part", "")
        # A run's number is the time at which it began.
        whole = [(0, 0), *intervals]
        for (_, before), (after, _) in pairwise(whole):
            if after > before + 1:
                from_at = times[str(before)][0] if str(before) in times else int(boot)
                until_at = times[str(after)][1] if str(after) in times else from_at
                found.append(Gap(router, part, int(boot), before + 1, after - 1, from_at, until_at))
    return sorted(found, key=lambda gap: (gap.from_at, gap.router, gap.first_seq))
