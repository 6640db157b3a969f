"""What routers say of their own runs, from which the ledger knows what a kill took away."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heliograph.pipeline.ingest import Summary

Notes = Mapping[str, Any]
"""By router its `part`, and by boot what was found: see `heliograph.pipeline.ingest.runs`."""


@dataclass(frozen=True, slots=True)
class RouterFacts:
    """Times in microseconds; `recovered_*` are of the last run that said what it still owed."""

    router: str
    part: str
    last_at: int
    recovered_boot: int | None
    recovered_through: int | None
    kills: tuple[tuple[int, int], ...]
    """Of runs that did not end as they should: the last event, and when the next had begun."""
    stopped: bool


def with_summary(notes: Notes, summary: "Summary") -> dict[str, Any]:
    """Merged; the same summary again changes nothing."""
    merged: dict[str, Any] = {
        router: {
            "part": known["part"],
            "boots": {b: dict(facts) for b, facts in known["boots"].items()},
        }
        for router, known in notes.items()
    }
    for router, boots in summary.routers.items():
        known = merged.setdefault(router, {"part": summary.parts[router], "boots": {}})
        for boot, facts in boots.items():
            keep_greatest(known["boots"].setdefault(boot, {}), facts)
    return merged


def router_facts(notes: Notes) -> list[RouterFacts]:
    return [
        _facts(router, known["part"], known["boots"]) for router, known in sorted(notes.items())
    ]


def _facts(router: str, part: str, boots: Mapping[str, Mapping[str, int]]) -> RouterFacts:
    ordered = sorted((int(boot), facts) for boot, facts in boots.items())
    recovered = [(boot, facts) for boot, facts in ordered if "recovered_at" in facts]
    killed = [
        (before["last_at"], facts["recovered_at"])
        for (_, before), (_, facts) in pairwise(ordered)
        if "recovered_at" in facts and "stopped_at" not in before
    ]
    return RouterFacts(
        router,
        part,
        max(facts["last_at"] for _, facts in ordered),
        recovered[-1][0] if recovered else None,
        recovered[-1][1]["recovered_through"] if recovered else None,
        tuple(killed),
        "stopped_at" in ordered[-1][1],
    )


def keep_greatest(known: dict[str, int], new: Mapping[str, int | None]) -> None:
    for name, value in new.items():
        if value is not None:
            known[name] = max(known.get(name, value), value)
