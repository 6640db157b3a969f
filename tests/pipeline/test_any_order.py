"""Any interleaving, duplication, delay, split into files and restart gives the same tables."""

import itertools
import os
import shutil
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings, strategies as st

from heliograph.pipeline.tables.tables import open_tables
from heliograph.pipeline.upkeep import compact
from tests.pipeline.jobs import test_ledger as stories
from tests.pipeline.support import Event, Scribe, pipeline, snapshot, write_segment

EXAMPLES = int(os.environ.get("HELIOGRAPH_PIPELINE_EXAMPLES", "3"))


def all_events() -> list[Event]:
    """Several stories beside each other, each with routers and ids of its own, and a wrong one."""
    chosen = (
        stories.accepted_and_coalesced,
        stories.shown,
        stories.rejected_expired_deleted,
        stories.killed_and_accepted,
        stories.smp_killed,
        stories.pending_push_forgotten,
    )
    events: list[Event] = []
    for number, story in enumerate(chosen):
        for scribe in story():
            events += [_renamed(event, f"{number}") for event in scribe.events]
    wrong = Scribe("wrong")("push_pending", 5.0)
    return [*events, wrong]


def _renamed(event: Event, suffix: str) -> Event:
    renamed = dict(event)
    for name in ("router", "token", "subscription", "notification"):
        if renamed.get(name) is not None:
            renamed[name] += f".{suffix}"
    if renamed.get("notifications") is not None:
        renamed["notifications"] = [f"{item}.{suffix}" for item in renamed["notifications"]]
    renamed["event_id"] = f"{renamed['router']}-{renamed['boot']}-{renamed['seq']}"
    return renamed


EVENTS = all_events()


@st.composite
def disturbances(draw: st.DrawFn) -> list[list[list[Event]]]:
    """Batches of segments of events: all of them, some twice, in any order."""
    twice = draw(st.lists(st.sampled_from(range(len(EVENTS))), max_size=12))
    order = draw(st.permutations([*range(len(EVENTS)), *twice]))
    cuts = sorted(draw(st.lists(st.integers(0, len(order)), max_size=5)))
    bounds = [0, *cuts, len(order)]
    segments = [
        [EVENTS[index] for index in order[low:high]] for low, high in itertools.pairwise(bounds)
    ]
    first = draw(st.integers(0, len(segments)))
    return [segments[:first], segments[first:]]


@settings(
    max_examples=EXAMPLES,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(batches=disturbances(), compacts=st.booleans())
def test_the_same_tables(
    spark: Any, tmp_path: Path, batches: list[list[list[Event]]], compacts: bool
) -> None:
    expected = _undisturbed(spark, tmp_path)
    work = tmp_path / "disturbed"
    shutil.rmtree(work, ignore_errors=True)
    number = 0
    for batch in batches:
        for segment in batch:
            number += 1
            write_segment(work / "journal", f"mixed/{number}-00000001", segment)
        (work / "journal").mkdir(parents=True, exist_ok=True)
        with open_tables(work / "tables") as tables:  # a restart between batches
            made = pipeline(spark, tables, work / "journal")
            made.ingester.ingest_batch()
            made.update_stats()
            if compacts:
                made.update_ledger()
                compact(made, everything=True)
            if batch is batches[-1]:
                assert snapshot(made) == expected


_EXPECTED: dict[str, Any] = {}


def _undisturbed(spark: Any, tmp_path: Path) -> dict[str, Any]:
    if not _EXPECTED:
        write_segment(tmp_path / "journal", "all/1-00000001", EVENTS)
        with open_tables(tmp_path / "tables") as tables:
            made = pipeline(spark, tables, tmp_path / "journal")
            made.ingester.ingest_batch()
            made.update_stats()
            _EXPECTED.update(snapshot(made))
    return _EXPECTED
