"""How far the journals reach: until when each router is known, and what its end lacks.

A router that is idle renews the head of its run. So if a run has not ended and its head is old, or
if a router that is known has no head any more, something is missing that nobody can count yet: the
router lags. What a head counts and no journal has is a gap, and can be counted.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from heliograph.documents import JsonMapping
from heliograph.journal.heads import HEARTBEAT, Head
from heliograph.pipeline.intervals import IntervalsByRun
from heliograph.pipeline.jobs.routers import SERVING
from heliograph.pipeline.jobs.windows import Gap
from heliograph.pipeline.vocabulary import DELIVERED

MAX_AGE = 7200.0
"""Seconds after which heads that were read say nothing about now."""

DAMAGED = "the head of a run is damaged: remove it from _heads if the run is complete"


@dataclass(frozen=True, slots=True)
class Heads:
    """The heads of runs, by `ROUTER/BOOT`, as of the Unix time `at`."""

    runs: Mapping[str, Head] = field(default_factory=dict)
    waiting: frozenset[str] = frozenset()
    """Runs of which a journal has segments that were not ingested yet."""
    empty: tuple[str, ...] = ()
    """Journals in which no router has written."""
    at: float = 0.0
    is_stored: bool = False
    """They are those of an earlier account, so runs may have begun since."""
    damaged: tuple[str, ...] = ()
    """The runs of heads that cannot be decoded."""


NO_HEADS = Heads()


@dataclass(frozen=True, slots=True)
class Lag:
    """Something whose events are known only until a time, in microseconds. `what` names it."""

    what: str
    until: int
    reason: str


@dataclass(frozen=True, slots=True)
class Run:
    """A run, all of whose events up to the time `until` were ingested, but for gaps."""

    boot: int
    until: int
    is_over: bool
    has_head: bool


def covers(seen: IntervalsByRun, head: Head) -> bool:
    """Return True if the last event that a head counts was ingested."""
    pairs = seen.get(head.run, ())
    return not head.seq or bool(pairs and pairs[-1][1] >= head.seq)


def tails(seen: IntervalsByRun, notes: JsonMapping, heads: Heads) -> list[Gap]:
    """Return the gaps at the ends of runs: their heads count events that no journal has."""
    found = []
    for run, head in heads.runs.items():
        if run in heads.waiting or covers(seen, head):
            continue
        pairs = seen.get(run, ())
        facts = notes.get(head.router, {}).get("boots", {}).get(str(head.boot), {})
        first = pairs[-1][1] + 1 if pairs else 1
        began = facts.get("last_at", head.boot)
        ended = max(began, head.at)
        found.append(Gap(head.router, head.part, head.boot, first, head.seq, began, ended))
    return found


def known_until(seen: IntervalsByRun, notes: JsonMapping, heads: Heads) -> dict[str, int | None]:
    """Return the times until which routers are known by their heads; None if they have ended."""
    found: dict[str, int | None] = {}
    for router in _serving(notes, heads):
        runs = runs_of(router, seen, notes, heads)
        going = [run.until for run in runs if not run.is_over]
        if going or (runs and runs[-1].has_head):
            found[router] = min(going, default=None)
    return found


def lags(
    seen: IntervalsByRun, notes: JsonMapping, heads: Heads, now: float, grace: float
) -> list[Lag]:
    """Return the routers and journals that lag at the Unix time `now`."""
    oldest = int((now - HEARTBEAT - grace) * 1e6)
    newest = int((now + HEARTBEAT + grace) * 1e6)
    found = [Lag(journal, 0, "no router has written to this journal") for journal in heads.empty]
    serving = _serving(notes, heads)
    damaged = {run.partition("/")[0] for run in heads.damaged}
    found += [Lag(name, 0, DAMAGED) for name in sorted(damaged - serving.keys() - notes.keys())]
    for router, part in serving.items():
        runs = runs_of(router, seen, notes, heads)
        name = f"{router} ({part})"
        last = max((run.until for run in runs), default=0)
        going = sorted((run.until, run.boot) for run in runs if not run.is_over)
        if going and going[0][0] < oldest:
            until, boot = going[0]
            name = f"{router}/{boot} ({part})" if len(going) > 1 else name
            found.append(Lag(name, until, "it has not stopped, and has written nothing since"))
        elif going and going[-1][0] > newest:
            found.append(Lag(name, going[-1][0], "its clock is ahead, so it may have stopped"))
        elif runs and not runs[-1].has_head and not (heads.is_stored and last > heads.at * 1e6):
            found.append(Lag(name, last, "the head of its last run is gone"))
        elif router in damaged:
            found.append(Lag(name, last, DAMAGED))
    return found


def describe_lag(lag: Lag) -> str:
    return f"{lag.what}: {lag.reason}" + (f", known until {utc(lag.until)}" if lag.until else "")


def utc(microseconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(microseconds / 1e6)) + " UTC"


def stale(heads: Heads, now: float) -> list[Lag]:
    """Return a lag if the journals were looked at long ago: what came since is not known."""
    if not heads.at or now - heads.at <= MAX_AGE:
        return []
    return [Lag("all journals", int(heads.at * 1e6), "nobody has read them since")]


def without_receivers(outcomes: Mapping[str, int], notes: JsonMapping) -> list[Lag]:
    """Return a lag if notifications were delivered, but no notification router is known."""
    if not outcomes.get(DELIVERED) or any(known["part"] == "ntf" for known in notes.values()):
        return []
    return [Lag("the notification routers", 0, "none of them has a journal here")]


def _serving(notes: JsonMapping, heads: Heads) -> dict[str, str]:
    """Return the parts of the routers that run all the time and were not retired by name."""
    parts = {head.router: head.part for head in heads.runs.values()}
    parts |= {router: known["part"] for router, known in notes.items()}
    return {
        router: part
        for router, part in sorted(parts.items())
        if part in SERVING and not notes.get(router, {}).get("retired")
    }


def runs_of(router: str, seen: IntervalsByRun, notes: JsonMapping, heads: Heads) -> list[Run]:
    """Return the runs of a router that its journals or heads know, in order."""
    boots: Mapping[str, Mapping[str, int]] = notes.get(router, {}).get("boots", {})
    of_router = {head.boot: head for head in heads.runs.values() if head.router == router}
    recoveries = [facts["recovered_at"] for facts in boots.values() if "recovered_at" in facts]
    return [
        _run(boot, boots.get(str(boot), {}), of_router.get(boot), seen, heads.waiting, recoveries)
        for boot in sorted({*map(int, boots), *of_router})
    ]


def _run(
    boot: int,
    facts: Mapping[str, int],
    head: Head | None,
    seen: IntervalsByRun,
    waiting: Iterable[str],
    recoveries: Sequence[int],
) -> Run:
    until = facts.get("last_at", boot)
    if "retired" in facts:
        return Run(boot, until, True, head is not None)
    is_over = "stopped_at" in facts
    if head is None:
        return Run(boot, until, is_over or any(at > until for at in recoveries), False)
    # A recovery says nothing here: each process of a router records one, also beside this run.
    is_over = (is_over or head.ended) and head.run not in waiting
    if covers(seen, head):
        until = max(until, head.at)
    return Run(boot, until, is_over, True)
