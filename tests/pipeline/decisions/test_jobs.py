"""Jobs that decide from a timer: dry unless asked to write, and each state once."""

import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from heliograph.actions.contract import ActionKind
from heliograph.actions.table import read_actions
from heliograph.pipeline.decisions.deciding import DAY, DecisionSettings, RepairDecision
from heliograph.pipeline.decisions.jobs import ANOMALIES, Decider, write_decisions
from heliograph.pipeline.schedule import Schedule, Stream
from heliograph.pipeline.tables.tables import open_tables
from heliograph.sim.fleet.abuse import AbuseSettings, AbuseWorld
from tests.actions.support import ROUTER, SIGNER
from tests.pipeline.support import pipeline
from tests.waiting import block_until

until = partial(block_until, within=300.0)
SMALL = AbuseSettings(tokens=200, minutes=15, trouble_minutes=1, abusers=4)
KEPT = 30_000.0
"""Days, since these events are old."""


def test_a_stream_finds_a_flood_by_itself_and_decides_on_it_once(
    spark: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "tables"
    world = AbuseWorld(SMALL)
    world.write(tmp_path / "journal")
    stop = threading.Event()
    with open_tables(place) as tables:
        made = pipeline(spark, tables, tmp_path / "journal")
        decider = Decider(place, (ANOMALIES,), signer=SIGNER)
        schedule = Schedule(0.01, decide=0.1, keep_events_days=KEPT, keep_ledger_days=KEPT)
        thread = threading.Thread(target=Stream(made, schedule, stop, decide=decider.run).run)
        thread.start()
        try:
            until(lambda: len(read_actions(place)) >= SMALL.abusers)
        finally:
            stop.set()
            thread.join()
        written = read_actions(place)
        floods = {row["subject"] for row in written if "flood" in row["evidence"]}
        assert floods == world.flooded_tokens | world.flooded_subscriptions
        assert "throttle_token was decided" in caplog.text
        # The same again is logged once, and no other action.
        caplog.clear()
        decider.run(made)
        assert caplog.text == ""
        assert read_actions(place) == written


def test_a_difference_that_goes_on_is_one_action_until_that_has_expired(tmp_path: Path) -> None:
    """Each hour's snapshot has other times, so other evidence; after a day it is decided again."""
    settings, now = DecisionSettings(valid_for=DAY), 1_800_000_000.0

    def write(hours: float, finding: str = "unsubscribed") -> int:
        at = now + hours * 3600
        evidence = {"finding": finding, "from": int(at), "subscriptions": int(at) % 1000}
        made = RepairDecision(ROUTER, ActionKind.RESUBSCRIBE, "a" * 32, evidence, "reconcile/1")
        return write_decisions(tmp_path, [made], SIGNER, settings, at)

    assert [write(hours) for hours in (0, 1, 23)] == [1, 0, 0]
    assert write(1, "wrong_service") == 1
    assert [write(hours) for hours in (24, 25)] == [1, 0]


def test_what_nobody_applied_is_decided_again(tmp_path: Path) -> None:
    """Also from the same evidence. Those that ended long ago are removed."""
    evidence = {"finding": "dead"}
    made = RepairDecision(ROUTER, ActionKind.REMOVE_TOKEN, "a" * 32, evidence, "dead-tokens/1")
    settings, now = DecisionSettings(valid_for=DAY), 1_800_000_000.0
    written = [
        write_decisions(tmp_path, [made], SIGNER, settings, now + days * DAY)
        for days in (0, 0.5, 1, 1.5, 10)
    ]
    assert written == [1, 0, 1, 0, 1]
    assert len(read_actions(tmp_path)) == 1


def test_without_a_key_nothing_is_written(
    spark: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "tables"
    AbuseWorld(SMALL).write(tmp_path / "journal")
    with open_tables(place) as tables:
        made = pipeline(spark, tables, tmp_path / "journal")
        while made.ingester.ingest_batch():
            pass
        run = Decider(place, (ANOMALIES,)).decide(made.pinned(), 0.0)
        assert run.written is None
        assert {item.kind for item in run.decisions} > {ActionKind.THROTTLE_TOKEN}
        Decider(place, (ANOMALIES,)).run(made.pinned())
    assert "throttle_token would be decided with --decide-write" in caplog.text
    assert read_actions(place) == []


def test_nothing_is_decided_from_a_window_with_missing_events(spark: Any, tmp_path: Path) -> None:
    place = tmp_path / "tables"
    world = AbuseWorld(SMALL)
    segments = world.write(tmp_path / "journal", seconds=10)
    segments[3][1].unlink()
    with open_tables(place) as tables:
        made = pipeline(spark, tables, tmp_path / "journal")
        while made.ingester.ingest_batch():
            pass
        run = Decider(place, (ANOMALIES,), signer=SIGNER).decide(made, 0.0)
    assert (run.decisions, run.written) == ([], 0)
    assert run.stopped == [f"{'ab' * 8}: not all events of the newest window are known"]
