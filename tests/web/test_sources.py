"""What the page reads of a system that does not run: tables and journal."""

import json
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from heliograph.journal.heads import Head, write_head
from heliograph.journal.storage.arrow import SCHEMA
from heliograph.ntf.config import PREFIX, NtfConfig
from heliograph.pipeline.tables.offsets import METADATA, Offsets, encode, write_account
from heliograph.runtime.config.file import load
from heliograph.system.config import PipelineOptions, SystemConfig
from heliograph.system.install import create
from heliograph.system.layout import Layout
from heliograph.web.sources import SystemSources
from tests.pipeline.objectives.test_describing import stored
from tests.web.test_paths import ACCEPTED, MINE, STORED


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    create(tmp_path, any_port=True)
    return Layout(tmp_path)


@pytest.fixture
def sources(layout: Layout) -> SystemSources:
    config = load(NtfConfig, layout.ntf / "config.toml", prefix=PREFIX, environ={})
    return SystemSources(layout, SystemConfig(), config)


def test_a_new_system(sources: SystemSources) -> None:
    assert sources.processes() == []
    assert sources.pipeline()["state"] == "empty"
    assert sources.disks()[0]["free"] > 0
    assert sources.history(24) == {"hours": 24, "points": [], "outcomes": {}}
    assert sources.search(MINE)["kind"] == "nothing"
    assert sources.search("AAAA")["kind"] == "nothing"
    assert sources.addresses() == {"smp": None, "ntf": None}


def test_a_notification_that_only_the_journal_knows(layout: Layout, sources: SystemSources) -> None:
    folder = layout.journal / "r"
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist([*STORED, ACCEPTED], schema=SCHEMA), folder / "1-1.parquet")
    (folder / "_1-2.log").write_bytes(b"not sealed yet")
    found = sources.search(MINE)
    assert (found["kind"], found["summary"]) == ("notification", "The push provider accepted it.")
    assert [event["part"] for event in found["events"]] == [
        "smp",
        "smp",
        "ntf",
        "ntf",
        "ntf",
        "ntf",
    ]
    assert found["events"][-1]["what"] == "push accepted"
    assert sources.pipeline()["lag_seconds"] is not None


def test_a_damaged_segment_is_no_answer(layout: Layout, sources: SystemSources) -> None:
    folder = layout.journal / "r"
    folder.mkdir()
    (folder / "1-1.parquet").write_bytes(b"PAR1 or not")
    assert sources.search(MINE)["kind"] == "nothing"


def test_history(layout: Layout, sources: SystemSources) -> None:
    now = int(time.time())
    recent = {
        "at": now - 3600,
        "outcomes": {"shown": 3, "expired": 1},
        "p50_us": 1500,
        "p99_us": None,
    }
    old = {"at": now - 90_000, "outcomes": {"shown": 9}, "p50_us": 1, "p99_us": 1}
    account = {"at": now, "outcomes": {"shown": 12, "expired": 1}, "hours": [old, recent]}
    counts = {"events": 77, "quarantined": 2}
    info = {"commitInfo": {METADATA: encode(Offsets(batch=1, counts=counts))}}
    log = layout.tables / "events" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{1:020}.json").write_text(json.dumps(info))
    write_account(layout.tables, {**account, "objectives": stored()})
    assert sources.history(24) == {
        "hours": 24,
        "points": [
            {
                "at": now - 3600,
                "notifications": 4,
                "accepted": 3,
                "rejected": 1,
                "p50_ms": 1.5,
                "p99_ms": None,
            }
        ],
        "outcomes": {"shown": 3, "expired": 1},
    }
    assert len(sources.history(48)["points"]) == 2
    pipeline = sources.pipeline()
    assert (pipeline["state"], pipeline["events"]) == ("unknown", 77)
    assert (pipeline["quarantined"], pipeline["unaccounted"]) == (2, 0)
    assert pipeline["outcomes"] == {"shown": 12, "expired": 1}
    [broken, unknown] = pipeline["objectives"]
    assert (broken["provider"], broken["state"], broken["percent"]) == ("all", "missed", 60.0)
    assert [alert["severity"] for alert in broken["alerts"]] == ["critical", "critical", "warning"]
    assert (unknown["provider"], unknown["state"]) == ("fcm", "not enough data")
    assert unknown["alerts"] == []
    assert pipeline["objectives_until"] == 86_400.0


@pytest.mark.parametrize(
    ("stored", "head", "state"),
    [
        ("complete", "recent", "complete"),
        ("complete", "old", "lagging"),
        ("complete", "behind", "gaps"),
        ("lagging", "recent", "complete"),
        ("gaps", "old", "gaps"),
        ("missing", "recent", "unaccounted"),
        (None, "recent", "unknown"),
    ],
)
def test_the_verdict_is_of_now(
    layout: Layout, sources: SystemSources, stored: str | None, head: str, state: str
) -> None:
    """An account that was complete is not, when a router is silent since or segments are gone."""
    now = int(time.time() * 1e6)
    facts = {"part": "ntf", "boots": {"5": {"last_at": 5}}}
    offsets = Offsets(batch=1, seen={"r/5": [(1, 9)]}, routers={"r": facts})
    log = layout.tables / "events" / "_delta_log"
    log.mkdir(parents=True)
    info = {"commitInfo": {METADATA: encode(offsets)}}
    (log / f"{1:020}.json").write_text(json.dumps(info))
    account = {"at": 0, "outcomes": {"shown": 1}}
    write_account(layout.tables, account | ({"verdict": stored} if stored else {}))
    at, seq = (5 if head == "old" else now), (10 if head == "behind" else 9)
    write_head(layout.journal, Head("r", 5, "ntf", 1, seq, at))
    assert sources.pipeline()["state"] == state


def test_a_pipeline_that_is_off_has_no_lag(layout: Layout) -> None:
    (layout.journal / "r").mkdir()
    (layout.journal / "r" / "1-1.parquet").touch()
    sources = SystemSources(
        layout, SystemConfig(pipeline=PipelineOptions(enabled=False)), NtfConfig()
    )
    found = sources.pipeline()
    assert (found["state"], found["lag_seconds"]) == ("off", None)


def test_tables_that_cannot_be_read(layout: Layout, sources: SystemSources) -> None:
    log = layout.tables / "events" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020}.json").write_text("{")
    assert sources.pipeline()["state"] == "unreadable"
    assert sources.pipeline()["quarantined"] is None
    assert sources.history(1)["points"] == []
    assert sources.search(MINE)["kind"] == "nothing"
