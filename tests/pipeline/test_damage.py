"""Whatever happens to segments: never falsely green, gaps exact, whole again after a requeue."""

import os
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, example, given, settings, strategies as st

from heliograph.journal.heads import Head, write_head
from heliograph.pipeline.account import Verdict
from heliograph.pipeline.requeue import requeue
from heliograph.pipeline.runner import Pipeline
from heliograph.pipeline.tables.tables import open_tables
from tests.pipeline.jobs import test_ledger as stories
from tests.pipeline.support import Event, Scribe, pipeline, snapshot, write_segment

EXAMPLES = int(os.environ.get("HELIOGRAPH_PIPELINE_EXAMPLES", "1"))
PER_SEGMENT = 3
STATES = ("whole", "removed", "truncated", "damaged", "delayed", "duplicated")


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


def run_of(segment: str) -> str:
    return segment.rpartition("-")[0]


def segments_of(run: str) -> list[str]:
    return [name for name in sorted(WORLD) if run_of(name) == run]


RUNS = sorted({run_of(name) for name in WORLD})
NEWEST = sorted({run.rpartition("/")[0]: run for run in RUNS}.values())
"""The last run of each router: only it can lag."""
LAST = {segments_of(run)[-1] for run in RUNS}
HEADS = ("there", "gone", "silent")


def head_of(run: str, state: str = "there") -> Head:
    events = [event for name in segments_of(run) for event in WORLD[name]]
    last = events[-1]
    at = int(max(event["at"] for event in events).timestamp() * 1e6)
    is_over = state == "there"
    segments = len(segments_of(run))
    return Head(last["router"], last["boot"], last["part"], segments, last["seq"], at, is_over)


def is_serving(run: str) -> bool:
    return head_of(run).part in ("smp", "ntf")


states = st.fixed_dictionaries({name: st.sampled_from(STATES) for name in WORLD})
head_states = st.fixed_dictionaries({run: st.sampled_from(HEADS) for run in NEWEST})
WHOLE = dict.fromkeys(WORLD, "whole")
THERE = dict.fromkeys(NEWEST, "there")


def spoil(path: Path, state: str, where: int) -> None:
    data = bytearray(path.read_bytes())
    footer = int.from_bytes(data[-8:-4], "little") + 8
    if state == "truncated":
        del data[4 + where % (len(data) - 8) :]
    else:
        # To the end: a single byte may be in a field that no reader needs.
        for index in range(4 + where % (len(data) - footer - 4), len(data) - footer):
            data[index] ^= 0xFF
    path.write_bytes(data)


def ingest(made: Pipeline) -> None:
    for _ in range(20):
        if made.ingester.ingest_batch() is None and not made.ingester.is_retrying:
            return
    raise AssertionError("segments wait for ever")


def missing(ingested: Collection[str], heads: Mapping[str, str]) -> int:
    """Count the numbers that no ingested segment has, up to what the heads, or others, count."""
    seen: dict[str, set[int]] = {run: set() for run in RUNS}
    for name in ingested:
        seen[run_of(name)] |= {event["seq"] for event in WORLD[name]}
    found = 0
    for run, numbers in seen.items():
        last = max(numbers, default=0) if heads.get(run) == "gone" else head_of(run).seq
        found += last - len(numbers)
    return found


_EXPECTED: dict[str, Any] = {}


def undisturbed(spark: Any, work: Path) -> dict[str, Any]:
    if not _EXPECTED:
        for name, events in WORLD.items():
            write_segment(work / "journal", name, events)
        for run in RUNS:
            write_head(work / "journal", head_of(run))
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
@given(states=states, heads=head_states, where=st.integers(0, 10_000))
@example(
    states={name: "damaged" if name in LAST else "whole" for name in WORLD}, heads=THERE, where=9
)
@example(
    states={name: "removed" if name in LAST else "whole" for name in WORLD}, heads=THERE, where=0
)
@example(
    states={name: "removed" if run_of(name) in NEWEST else "whole" for name in WORLD},
    heads=THERE,
    where=0,
)
@example(states=WHOLE, heads=THERE | {NEWEST[0]: "gone"}, where=0)
@example(states=WHOLE, heads=THERE | {NEWEST[-1]: "silent"}, where=0)
def test_any_segments_suffer_anything(
    spark: Any, tmp_path: Path, states: dict[str, str], heads: dict[str, str], where: int
) -> None:
    lost = {name for name, state in states.items() if state in ("removed", "truncated", "damaged")}
    # Of a run of which neither events nor head were ever seen, nobody can know.
    heads = {
        run: "there" if lost.issuperset(segments_of(run)) else state for run, state in heads.items()
    }
    expected = undisturbed(spark, tmp_path / "undisturbed")
    work = tmp_path / "disturbed"
    shutil.rmtree(work, ignore_errors=True)
    (work / "journal").mkdir(parents=True)
    for run in RUNS:
        if heads.get(run) != "gone":
            write_head(work / "journal", head_of(run, heads.get(run, "there")))
    for name, state in states.items():
        if state in ("removed", "delayed"):
            continue
        path = write_segment(work / "journal", name, WORLD[name])
        if state in ("truncated", "damaged"):
            spoil(path, state, where)
        elif state == "duplicated":
            write_segment(work / "journal", f"{name.replace('/', '.copy/')}", WORLD[name])
    with open_tables(work / "tables") as tables:
        made = pipeline(spark, tables, work / "journal")
        ingest(made)
        for name, state in states.items():
            if state == "delayed":
                write_segment(work / "journal", name, WORLD[name])
        ingest(made)
        account = made.account()
        assert account.missing_events == missing(WORLD.keys() - lost, heads)
        spoiled = sum(state in ("truncated", "damaged") for state in states.values())
        assert account.quarantined == spoiled
        lagging = {run for run, state in heads.items() if state != "there" and is_serving(run)}
        assert account.is_complete == (not lost and not lagging)
        if not lost and lagging:
            assert account.verdict is Verdict.LAGGING
            assert len(account.lags) == len(lagging)
        for name in lost:
            write_segment(work / "journal", name, WORLD[name])
        for run in RUNS:
            write_head(work / "journal", head_of(run))
        assert requeue(made).records == spoiled
        ingest(made)
        made.update_stats()
        assert snapshot(made) == expected
        assert made.account().is_complete
