"""What all jobs share: turn findings into signed actions, unless there are too many.

A job is a module with a function `decide` of a pipeline or Spark session, settings and a time.

A finding that concerns a large share of a router is rather an error of the rule, or an outage that
heals by itself, than so many single losses: then nothing is decided, and the operator is notified.
"""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from heliograph.actions.contract import SECOND, Action, ActionKind, new_action
from heliograph.crypto.keys import KeyPair
from heliograph.documents import JsonMapping

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from heliograph.pipeline.runner import Pipeline

__all__ = [
    "DecisionSettings",
    "Decisions",
    "RepairDecision",
    "allowed_kinds",
    "collect",
    "incomplete",
    "sign_all",
    "without_current",
]

DAY = 86_400.0
MIN_CAP = 10
"""Decisions of a kind that a job may make, whatever share of all subjects they are."""
RENEWED_SHARE = 0.1
"""Share of its validity before the end of which a state that goes on is decided on again."""


@dataclass(frozen=True, slots=True)
class DecisionSettings:
    """Caps and times of the jobs; times in seconds."""

    max_percent: float = 5.0
    valid_for: float = 86_400.0
    max_age: float = 7200.0
    dead_after: float = 21 * DAY
    verify_after: float = 3 * DAY
    remove_after: float = 7 * DAY

    def cap(self, population: int) -> int:
        return max(MIN_CAP, int(population * self.max_percent / 100))


@dataclass(frozen=True, slots=True)
class RepairDecision:
    """An action that is not signed yet."""

    router: str
    kind: ActionKind
    subject: str
    evidence: JsonMapping
    rule: str
    valid_for: float | None = None
    """Seconds; None is that of the settings."""


@dataclass(slots=True)
class Decisions:
    """What the jobs decided, in words and as data; `stopped` says why others did not."""

    decisions: list[RepairDecision] = field(default_factory=list)
    found: list[str] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)


def allowed_kinds(
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


def incomplete(pipeline: "Pipeline") -> list[str]:
    """Return why nothing is decided from the events of a pipeline; nothing if they are complete."""
    from heliograph.pipeline.account import Verdict

    verdict = pipeline.account().verdict
    if verdict is Verdict.COMPLETE:
        return []
    return [f"nothing is decided from journals whose verdict is {verdict.value}"]


def collect(
    name: str,
    frame: "DataFrame",
    kind: ActionKind,
    rule: str,
    settings: DecisionSettings,
    result: Decisions,
) -> None:
    """Decide on every row of a frame: `router`, `population`, the kind's subject, and evidence."""
    found = frame.cache()
    try:
        allowed = set()
        for row in found.groupBy("router", "population").count().collect():
            result.found.append(f"{row['router']}: {name} {row['count']} of {row['population']}")
            counts = {kind: row["count"]}
            if allowed_kinds(row["router"], counts, row["population"], settings, result):
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


def without_current(
    decisions: Iterable[RepairDecision], table: Iterable[Mapping[str, object]], now: float
) -> list[RepairDecision]:
    """Leave out decisions for which the table has an action that is still valid.

    A flood that goes on has other numbers every minute, and is one action until shortly before
    that ends. So is a difference that every snapshot shows again, until its action has ended.
    """
    until: dict[tuple[object, ...], float] = {}
    for row in table:
        if isinstance(at := row.get("valid_until"), datetime):
            key = row.get("router"), row.get("kind"), row.get("subject"), _finding(row)
            until[key] = max(until.get(key, 0.0), at.timestamp())

    def is_current(item: RepairDecision) -> bool:
        key = item.router, item.kind.value, item.subject, item.evidence.get("finding")
        margin = (item.valid_for or 0.0) * RENEWED_SHARE
        return until.get(key, 0.0) > now + margin

    return [item for item in decisions if not is_current(item)]


def _finding(row: Mapping[str, object]) -> object:
    try:
        return json.loads(str(row.get("evidence")))["finding"]
    except (ValueError, KeyError, TypeError):
        return None


def sign_all(
    decisions: Iterable[RepairDecision],
    signer: KeyPair,
    settings: DecisionSettings,
    now: float | None = None,
) -> Sequence[Action]:
    """Return the actions of all decisions, valid from now on."""
    decided_at = int(time.time() if now is None else now) * SECOND

    def valid_until(item: RepairDecision) -> int:
        seconds = settings.valid_for if item.valid_for is None else item.valid_for
        return decided_at + int(seconds) * SECOND

    return [
        new_action(
            item.router,
            item.kind,
            item.subject,
            item.evidence,
            item.rule,
            decided_at,
            valid_until(item),
            signer,
        )
        for item in decisions
    ]
