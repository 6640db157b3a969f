"""Whatever happens to segments: never falsely green, gaps exact, whole again after a requeue."""

import os
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, example, given, settings, strategies as st

from heliograph.pipeline.account import Verdict
from heliograph.pipeline.requeue import requeue
from heliograph.pipeline.runner import Pipeline
from heliograph.pipeline.tables.tables import open_tables
from tests.pipeline.jobs import test_ledger as stories
from tests.pipeline.support import Event, Scribe, pipeline, snapshot, write_segment

EXAMPLES = int(os.environ.get("HELIOGRAPH_PIPELINE_EXAMPLES", "1"))
PER_SEGMENT = 3
FATES = ("whole", "removed", "truncated", "damaged", "delayed", "duplicated")


def world() -> dict[str, list[Event]]:
    """Segments of routers that go on writing after their story, so that each end is known."""
    segments: dict[str, list[Event]] = {}
    for story in (stories.accepted_and_coalesced, stories.killed_and_accepted, stories.shown):
        for scribe in story():
            renamed = Scribe(f"{scribe.router}.{story.__name__}", scribe.part, scribe.boot)
            for event in scribe.events:
                columns = {
                    name: _own(value, story.__name__) if name in _IDS else value
                    for name, value in event.items()
                    if name not in ("event_id", "router", "part", "boot", "seq")
                }
                made = renamed(columns.pop("kind"))
                made.update(columns)
            for number in range(0, len(renamed.events), PER_SEGMENT):
                name = f"{renamed.router}/{renamed.boot}-{number // PER_SEGMENT + 1:08}"
                segments[name] = renamed.events[number : number + PER_SEGMENT]
    return segments


_IDS = ("notification", "notifications", "token", "subscription")


def _own(value: Any, story: str) -> Any:
    if isinstance(value, list):
        return [f"{item}.{story}" for item in value]
    return f"{value}.{story}"


WORLD = world()


def last_of_each_run() -> set[str]:
    newest = {name.rpartition("-")[0]: name for name in sorted(WORLD)}
    return set(newest.values())


LAST = last_of_each_run()
fates = st.fixed_dictionaries(
    {
        # What is removed at the end of a run cannot be known until its router writes again.
        name: st.sampled_from([fate for fate in FATES if fate != "removed" or name not in LAST])
        for name in WORLD
    }
)


def spoil(path: Path, fate: str, where: int) -> None:
    data = bytearray(path.read_bytes())
    footer = int.from_bytes(data[-8:-4], "little") + 8
    if fate == "truncated":
        del data[4 + where % (len(data) - 8) :]
    else:
        data[4 + where % (len(data) - footer - 4)] ^= 0xFF
    path.write_bytes(data)


def ingest(made: Pipeline) -> None:
    for _ in range(20):
        if made.ingest_batch() is None and not made.is_retrying:
            return
    raise AssertionError("segments wait for ever")


def missing(ingested: dict[str, str]) -> int:
    """Count the numbers below the greatest of each run that no ingested segment has."""
    seen: dict[str, set[int]] = defaultdict(set)
    for name in ingested:
        for event in WORLD[name]:
            seen[f"{event['router']}/{event['boot']}"].add(event["seq"])
    return sum(max(numbers) - len(numbers) for numbers in seen.values())


_EXPECTED: dict[str, Any] = {}


def undisturbed(spark: Any, work: Path) -> dict[str, Any]:
    if not _EXPECTED:
        for name, events in WORLD.items():
            write_segment(work / "journal", name, events)
        with open_tables(work / "tables") as tables:
            made = pipeline(spark, tables, work / "journal")
            ingest(made)
            made.update_stats()
            assert made.account().verdict is Verdict.COMPLETE
            _EXPECTED.update(snapshot(made))
    return _EXPECTED


@settings(
    max_examples=EXAMPLES,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(fates=fates, where=st.integers(0, 10_000))
@example(fates={name: "damaged" if name in LAST else "whole" for name in WORLD}, where=9)
def test_any_segments_suffer_anything(
    spark: Any, tmp_path: Path, fates: dict[str, str], where: int
) -> None:
    expected = undisturbed(spark, tmp_path / "undisturbed")
    work = tmp_path / "disturbed"
    shutil.rmtree(work, ignore_errors=True)
    (work / "journal").mkdir(parents=True)
    for name, fate in fates.items():
        if fate in ("removed", "delayed"):
            continue
        path = write_segment(work / "journal", name, WORLD[name])
        if fate in ("truncated", "damaged"):
            spoil(path, fate, where)
        elif fate == "duplicated":
            write_segment(work / "journal", f"{name.replace('/', '.copy/')}", WORLD[name])
    with open_tables(work / "tables") as tables:
        made = pipeline(spark, tables, work / "journal")
        ingest(made)
        for name, fate in fates.items():
            if fate == "delayed":
                write_segment(work / "journal", name, WORLD[name])
        ingest(made)
        lost = {name for name, fate in fates.items() if fate in ("removed", "truncated", "damaged")}
        account = made.account()
        whole = {name: fate for name, fate in fates.items() if name not in lost}
        assert account.missing_events == missing(whole)
        spoiled = sum(fate in ("truncated", "damaged") for fate in fates.values())
        assert account.quarantined == spoiled
        assert account.is_complete == (not lost)
        for name in lost:
            write_segment(work / "journal", name, WORLD[name])
        assert requeue(made).records == spoiled
        ingest(made)
        made.update_stats()
        assert snapshot(made) == expected
        assert made.account().is_complete
