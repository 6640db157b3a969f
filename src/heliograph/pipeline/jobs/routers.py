"""The runs of routers: when each wrote last, recovered, stopped or was killed."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from heliograph.documents import JsonMapping, JsonObject

if TYPE_CHECKING:
    from heliograph.pipeline.jobs.ingest import Summary

Notes = JsonMapping
"""The `part` of each router, and facts by boot: see `heliograph.pipeline.jobs.ingest.runs`."""


@dataclass(frozen=True, slots=True)
class RouterFacts:
    """Times in microseconds; `recovered_*` are of the last run that recorded `router_recovered`."""

    router: str
    part: str
    last_at: int
    recovered_boot: int | None
    recovered_through: int | None
    kills: tuple[tuple[int, int], ...]
    """The time of the last event of each killed run, and of the recovery of the next run."""
    stopped: bool
    retired: bool = False
    """True if nothing more is expected of it."""


def with_summary(notes: Notes, summary: "Summary") -> JsonObject:
    """Merge a summary into the notes; merging it twice changes nothing."""
    merged: JsonObject = {
        router: {
            **known,
            "boots": {b: dict(facts) for b, facts in known["boots"].items()},
        }
        for router, known in notes.items()
    }
    for router, boots in summary.routers.items():
        known = merged.setdefault(router, {"part": summary.parts[router], "boots": {}})
        known.pop("retired", None)  # it has written again
        for boot, facts in boots.items():
            run = known["boots"].setdefault(boot, {})
            run.pop("retired", None)
            keep_greatest(run, facts)
    return merged


SERVING = ("smp", "ntf")
"""Parts that run all the time; phones may be away."""
GRACE = 300.0
"""Seconds by which the journals of two routers may differ."""
RETIRE_AFTER = 7 * 86_400.0
"""Seconds of silence after which nothing more is expected of a router."""


def router_facts(
    notes: Notes, retire_after: float = RETIRE_AFTER, until: Mapping[str, int | None] | None = None
) -> list[RouterFacts]:
    """Return the facts of each router. Silence is measured by what messaging and notification
    routers wrote: the clock of a phone may be days ahead.

    `until` are times until which routers are known, also if they recorded nothing; None for those
    that have ended.
    """
    found = [
        _facts(router, known["part"], known["boots"], bool(known.get("retired")))
        for router, known in sorted(notes.items())
        if known["boots"]
    ]
    if until is not None:
        found = [
            _known(item, until[item.router]) if item.router in until else item for item in found
        ]
    oldest = until_at(found) - int(retire_after * 1e6)
    return [replace(item, retired=True) if item.last_at < oldest else item for item in found]


def _known(item: RouterFacts, until: int | None) -> RouterFacts:
    if until is None:
        return replace(item, stopped=True)
    return replace(item, last_at=max(item.last_at, until))


def newest_at(routers: Sequence[RouterFacts]) -> int:
    """Return the time of the newest event of all routers; 0 if there is none."""
    return max((item.last_at for item in routers), default=0)


def until_at(routers: Iterable[RouterFacts]) -> int:
    """Return the time of the newest event of messaging and notification routers, 0 if none."""
    return max((item.last_at for item in routers if item.part in SERVING), default=0)


def watermark(routers: Sequence[RouterFacts]) -> int:
    """Return the time that all running messaging and notification routers have passed; if all have
    ended, the time of the newest event of one. The clock of a phone may be days ahead.
    """
    serving = [item for item in routers if item.part in SERVING and not item.retired]
    running = [item.last_at for item in serving if not item.stopped]
    return min(running, default=until_at(routers))


def retire(notes: Notes, name: str, part: str) -> JsonObject:
    """Mark a router, or its run `ROUTER/BOOT`, as retired, also without any event ingested."""
    router, _, boot = name.partition("/")
    known = notes.get(router, {"part": part, "boots": {}})
    if not boot:
        return {**notes, router: {**known, "retired": True}}
    run = {"last_at": int(boot), **known["boots"].get(boot, {}), "retired": 1}
    return {**notes, router: {**known, "boots": {**known["boots"], boot: run}}}


def without_old_boots(notes: Notes, before: int) -> JsonObject:
    """Drop runs whose last event is older than `before`, except the last two of a router."""
    return {
        router: {**known, "boots": _recent(known["boots"], before)}
        for router, known in notes.items()
    }


def expired_runs(notes: Notes, kept: Notes) -> dict[str, int]:
    """Return the last run of each router that `kept` lacks, if all earlier ones lack there, too."""
    found = {}
    for router, known in notes.items():
        oldest = min(map(int, kept[router]["boots"]), default=0)
        gone = [int(boot) for boot in known["boots"] if int(boot) < oldest]
        if gone:
            found[router] = max(gone)
    return found


def _recent(boots: Mapping[str, Mapping[str, int]], before: int) -> JsonObject:
    last = sorted(boots, key=int)[-2:]
    return {
        boot: facts for boot, facts in boots.items() if boot in last or facts["last_at"] >= before
    }


def _facts(
    router: str, part: str, boots: Mapping[str, Mapping[str, int]], retired: bool
) -> RouterFacts:
    ordered = sorted((int(boot), facts) for boot, facts in boots.items())
    recovered = [(boot, facts) for boot, facts in ordered if "recovered_at" in facts]
    # Several processes of a router run at a time: what recovered next need not be the next run.
    recoveries = sorted(facts["recovered_at"] for _, facts in recovered)
    killed = []
    for _, facts in ordered:
        after = bisect_right(recoveries, facts["last_at"])
        if "stopped_at" not in facts and after < len(recoveries):
            killed.append((facts["last_at"], recoveries[after]))
    return RouterFacts(
        router,
        part,
        max(facts["last_at"] for _, facts in ordered),
        recovered[-1][0] if recovered else None,
        recovered[-1][1]["recovered_through"] if recovered else None,
        tuple(killed),
        "stopped_at" in max(ordered, key=lambda run: run[1]["last_at"])[1],
        retired,
    )


def keep_greatest(known: dict[str, int], new: Mapping[str, int | None]) -> None:
    for name, value in new.items():
        if value is not None:
            known[name] = max(known.get(name, value), value)
