"""A planted world: floods, a failing, a slow provider and a silent router are found in time."""

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heliograph.actions.contract import EVERYTHING, FLOOD_SECONDS, ActionKind
from heliograph.pipeline.decisions import anomalies
from heliograph.pipeline.decisions.deciding import DecisionSettings, RepairDecision
from heliograph.pipeline.tables.tables import Tables
from heliograph.sim.fleet.abuse import SECOND, AbuseSettings, AbuseWorld
from tests.pipeline.support import pipeline as pipeline_of

Key = tuple[ActionKind, str]


def key_of(item: RepairDecision) -> Key:
    finding = item.evidence["finding"]
    named = item.subject != EVERYTHING
    return item.kind, item.subject if named else f"{finding} {item.evidence.get('provider')}"


def expected(world: AbuseWorld) -> set[Key]:
    return {
        *((ActionKind.THROTTLE_TOKEN, token) for token in world.flooded_tokens),
        *((ActionKind.THROTTLE_SUBSCRIPTION, item) for item in world.flooded_subscriptions),
        (ActionKind.REPORT, world.silent_server),
        (ActionKind.ALERT, f"failing_provider {world.failing_provider}"),
        (ActionKind.ALERT, f"slow_provider {world.slow_provider}"),
    }


@pytest.mark.parametrize(
    ("begins", "phase"), [(0, 0), (3 * SECOND, 8 * SECOND)], ids=["early", "late"]
)
def test_everything_planted_is_found_within_a_minute_and_nothing_else(
    spark: Any, tmp_path: Path, begins: int, phase: int
) -> None:
    """Also if trouble begins just after the router has counted, and within a bucket."""
    usual = AbuseSettings()
    world = AbuseWorld(replace(usual, start=usual.start + begins, phase=phase))
    later = tmp_path / "later"
    segments = world.write(later, seconds=10)
    journal = tmp_path / "journal"
    pipeline = pipeline_of(spark, Tables(tmp_path / "tables"), journal)
    found: dict[Key, tuple[int, RepairDecision]] = {}
    walls: list[float] = []
    for end, path in segments[:9]:
        target = journal / path.relative_to(later)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
        began = time.monotonic()
        pipeline.ingester.ingest_batch()
        pipeline.update_rates()
        result = anomalies.decide(pipeline, DecisionSettings(), 0.0)
        walls.append(time.monotonic() - began)
        assert result.stopped == []
        for item in result.decisions:
            found.setdefault(key_of(item), (end, item))
        if end == world.trouble_at:
            assert found == {}
    truth = expected(world)
    right = truth & found.keys()
    recall, precision = len(right) / len(truth), len(right) / len(found)
    delays = sorted((found[key][0] - world.trouble_at) / SECOND for key in right)
    print(  # noqa: T201  what the test measures
        f"\n{len(truth)} planted, {len(found)} found: recall {recall:.3f}, precision"
        f" {precision:.3f}; event time to detection p50 {delays[len(delays) // 2]:.0f} s, most"
        f" {delays[-1]:.0f} s; a step of Spark {sorted(walls[1:])[len(walls) // 2]:.1f} s"
    )
    extra = [item for key, (_, item) in found.items() if key not in truth]
    assert extra == []
    assert truth - found.keys() == set()
    assert delays[-1] <= 60
    check_evidence([item for _, item in found.values()], world)


def check_evidence(decisions: Sequence[RepairDecision], world: AbuseWorld) -> None:
    """Evidence explains itself, and fits into an action."""
    for item in decisions:
        numbers = item.evidence
        assert {"observed", "baseline", "deviation", "from", "until"} <= numbers.keys()
        assert numbers["until"] - numbers["from"] == FLOOD_SECONDS * SECOND
        assert numbers["until"] > world.trouble_at
        assert len(json.dumps(numbers)) < 400
