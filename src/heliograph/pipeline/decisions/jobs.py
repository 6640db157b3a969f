"""Run the jobs that decide, by hand or from a timer, and write their actions if asked to."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from heliograph.actions.table import append_actions, expire_actions, read_actions
from heliograph.crypto.keys import KeyPair
from heliograph.pipeline.decisions import anomalies, best_hours, dead_tokens, foreign, reconcile
from heliograph.pipeline.decisions.baselines import Baselines
from heliograph.pipeline.decisions.deciding import (
    Decisions,
    DecisionSettings,
    RepairDecision,
    sign_all,
    without_current,
)
from heliograph.pipeline.runner import Pipeline

__all__ = ["JOBS", "Decider", "DecisionRun", "write_decisions"]

logger = logging.getLogger(__name__)

EXPIRED_KEPT = 7 * 86_400.0
"""Seconds that actions are kept in the table after their end."""
ANOMALIES = "anomalies"

Job = Callable[[Pipeline, DecisionSettings, float], Decisions]
JOBS: Mapping[str, Job] = {
    ANOMALIES: anomalies.decide,
    "foreign": foreign.decide,
    "dead-tokens": dead_tokens.decide,
    "best-hours": best_hours.decide,
}
"""Jobs that need only the tables."""


@dataclass(frozen=True, slots=True)
class DecisionRun:
    """What jobs found. `written` is how many actions are new in the table, None if it is dry."""

    found: list[str]
    stopped: list[str]
    decisions: list[RepairDecision]
    written: int | None


@dataclass(slots=True)
class Decider:
    """Chosen jobs, with their settings. Without a `signer` it writes nothing."""

    place: str | Path
    jobs: tuple[str, ...]
    settings: DecisionSettings = field(default_factory=DecisionSettings)
    snapshots: Path | None = None
    signer: KeyPair | None = None
    _said: set[str] = field(default_factory=set)
    _baselines: Baselines = field(default_factory=Baselines)

    def decide(self, pipeline: Pipeline, now: float) -> DecisionRun:
        """Run all jobs once."""
        results = [self._job(name)(pipeline, self.settings, now) for name in self.jobs]
        if self.snapshots is not None:
            results.append(reconcile.decide(pipeline.spark, self.snapshots, self.settings, now))
        made = [item for result in results for item in result.decisions]
        found = [line for result in results for line in result.found]
        stopped = [line for result in results for line in result.stopped]
        written = None
        if self.signer is not None:
            written = write_decisions(self.place, made, self.signer, self.settings, now)
        return DecisionRun(found, stopped, made, written)

    def _job(self, name: str) -> Job:
        if name == ANOMALIES:
            return partial(anomalies.decide, baselines=self._baselines)
        return JOBS[name]

    def run(self, pipeline: Pipeline) -> None:
        """Run all jobs from a timer, and log what was not found the last time."""
        run = self.decide(pipeline, time.time())
        state = "would be decided with --decide-write" if run.written is None else "was decided"
        lines = {
            f"{item.router}: {item.evidence.get('finding')}: {item.kind.value} {state}"
            for item in run.decisions
        } | {f"nothing is decided: {line}" for line in run.stopped if "baseline" not in line}
        for line in sorted(lines - self._said):
            logger.warning("%s", line)
        self._said = lines


def write_decisions(
    place: str | Path,
    made: list[RepairDecision],
    signer: KeyPair,
    settings: DecisionSettings,
    now: float,
) -> int:
    """Write actions for decisions that the table does not have; return how many are new."""
    if not made:
        return 0
    # Before the table is read: what cannot be read any more could never be expired.
    expire_actions(place, int((now - EXPIRED_KEPT) * 1e6))
    new = without_current(made, read_actions(place), now)
    return append_actions(place, sign_all(new, signer, settings, now))
