"""Turn findings into signed actions, unless there are more than a job may decide on.

A finding that concerns a large share of a router is rather an error of the rule, or an outage that
heals by itself, than so many single losses: then nothing is decided, and the operator is notified.
"""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from heliograph.actions.contract import SECOND, Action, ActionKind, new_action
from heliograph.actions.snapshots import list_snapshots
from heliograph.crypto.keys import KeyPair
from heliograph.documents import JsonMapping
from heliograph.pipeline.decisions import foreign, reconcile
from heliograph.pipeline.decisions.reconcile import ACTIONS, SURPLUS, SnapshotPair

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from heliograph.pipeline.runner import Pipeline

__all__ = ["DecisionSettings", "Decisions", "decide_foreign", "reconcile_snapshots", "sign_all"]

LEAST = 10
"""Decisions of a kind that a job may make, whatever share of all subjects they are."""


@dataclass(frozen=True, slots=True)
class DecisionSettings:
    """Caps and times of the jobs; times in seconds."""

    max_percent: float = 5.0
    valid_for: float = 86_400.0
    max_age: float = 7200.0

    def cap(self, population: int) -> int:
        return max(LEAST, int(population * self.max_percent / 100))


@dataclass(frozen=True, slots=True)
class RepairDecision:
    """An action that is not signed yet."""

    router: str
    kind: ActionKind
    subject: str
    evidence: JsonMapping
    rule: str


@dataclass(slots=True)
class Decisions:
    """What the jobs decided, in words and as data; `stopped` says why others did not."""

    decisions: list[RepairDecision] = field(default_factory=list)
    found: list[str] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)


def reconcile_snapshots(
    spark: "SparkSession", folder: Path, settings: DecisionSettings, now: float
) -> Decisions:
    """Compare the newest snapshots of all routers that were taken together."""
    result = Decisions()
    pairs = reconcile.choose_pairs(
        list_snapshots(folder), int(now * 1e6), int(settings.max_age * 1e6)
    )
    if not pairs:
        result.stopped.append(
            f"no two routers have snapshots in {folder} that were taken together and are recent"
        )
    for pair in pairs:
        _reconcile(spark, pair, settings, result)
    return result


def _reconcile(
    spark: "SparkSession", pair: SnapshotPair, settings: DecisionSettings, result: Decisions
) -> None:
    header = pair.ntf[0]
    ntf, smp = reconcile.read(spark, [pair.ntf]), reconcile.read(spark, pair.smp)
    differences = reconcile.compare(ntf, smp, pair.places).cache()
    try:
        counts: Mapping[str, int] = {
            row["finding"]: row["number"]
            for row in differences.groupBy("finding")
            .agg({"number": "sum"})
            .withColumnRenamed("sum(number)", "number")
            .collect()
        }
        result.found += [
            f"{header.router}: {finding} {count}, of {header.rows} subscriptions"
            for finding, count in sorted(counts.items())
        ]
        by_kind: Counter[ActionKind] = Counter()
        for finding, count in counts.items():
            by_kind[ACTIONS[finding]] += 1 if finding == SURPLUS else count
        allowed = _allowed(header.router, by_kind, header.rows, settings, result)
        rows = differences.where(
            differences["finding"].isin([name for name, kind in ACTIONS.items() if kind in allowed])
        ).collect()
    finally:
        differences.unpersist()
    began, ended = pair.window
    for row in rows:
        kind = ACTIONS[row["finding"]]
        evidence = {
            "finding": row["finding"],
            "number": row["number"],
            "from": began,
            "until": ended,
            "subscriptions": header.rows,
        }
        result.decisions.append(
            RepairDecision(header.router, kind, row[kind.subject], evidence, reconcile.RULE)
        )


def _allowed(
    router: str,
    by_kind: Mapping[ActionKind, int],
    population: int,
    settings: DecisionSettings,
    result: Decisions,
) -> set[ActionKind]:
    """Return the kinds of which there are no more than a job may decide on."""
    cap = settings.cap(population)
    for kind, count in by_kind.items():
        if count > cap:
            result.stopped.append(
                f"{router}: {count} times {kind.value} is more than {cap}, which is"
                f" {settings.max_percent:g}% of {population}: none was decided on"
            )
    return {kind for kind, count in by_kind.items() if count <= cap}


def decide_foreign(pipeline: "Pipeline", settings: DecisionSettings) -> Decisions:
    """Look for losses at messaging routers that export nothing, in the journal's events.

    Nothing is decided unless the verdict is complete: what looks like silence may be missing.
    """
    from heliograph.pipeline.account import Verdict

    result = Decisions()
    verdict = pipeline.account().verdict
    if verdict is not Verdict.COMPLETE:
        result.stopped.append(f"nothing is decided from journals whose verdict is {verdict.value}")
        return result
    events = pipeline.read("events")
    for name, frame, kind, rule in (
        ("silent", foreign.silent(events), ActionKind.RESUBSCRIBE, foreign.SILENCE_RULE),
        ("short", foreign.short(events), ActionKind.REPORT, foreign.SHORT_RULE),
    ):
        _collect(name, frame, kind, rule, settings, result)
    return result


def _collect(
    name: str,
    frame: "DataFrame",
    kind: ActionKind,
    rule: str,
    settings: DecisionSettings,
    result: Decisions,
) -> None:
    found = frame.cache()
    try:
        allowed = set()
        for row in found.groupBy("router", "population").count().collect():
            result.found.append(f"{row['router']}: {name} {row['count']} of {row['population']}")
            counts = {kind: row["count"]}
            if _allowed(row["router"], counts, row["population"], settings, result):
                allowed.add(row["router"])
        rows = found.where(found["router"].isin(sorted(allowed))).collect() if allowed else []
    finally:
        found.unpersist()
    for row in rows:
        values = row.asDict()
        router, subject = values.pop("router"), values.pop(kind.subject)
        # Not how many there are now, or the same silence would be another action every day.
        del values["population"]
        result.decisions.append(
            RepairDecision(router, kind, subject, {"finding": name, **values}, rule)
        )


def sign_all(
    decisions: Iterable[RepairDecision],
    signer: KeyPair,
    settings: DecisionSettings,
    now: float | None = None,
) -> Sequence[Action]:
    """Return the actions of all decisions, valid from now on."""
    decided_at = int(time.time() if now is None else now) * SECOND
    valid_until = decided_at + int(settings.valid_for) * SECOND
    return [
        new_action(
            item.router,
            item.kind,
            item.subject,
            item.evidence,
            item.rule,
            decided_at,
            valid_until,
            signer,
        )
        for item in decisions
    ]
