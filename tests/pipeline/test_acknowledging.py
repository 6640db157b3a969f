import logging
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from heliograph.journal.readers import (
    ACKNOWLEDGED,
    Acknowledged,
    is_streamed,
    read_acknowledged,
)
from heliograph.pipeline.acknowledging import Acknowledger, acknowledged, damaged_segments
from heliograph.pipeline.ingesting.fairness import interleave
from heliograph.pipeline.source import segment
from heliograph.pipeline.tables.offsets import Offsets
from heliograph.pipeline.tables.tables import open_tables

OFFSETS = Offsets(
    segments={"a/1000": [(1, 5)], "a/2000": [(1, 1), (3, 4)], "b/1": [(7, 9)]},
    counts={"quarantined": 1},
)


def test_what_is_committed_and_whole_is_acknowledged() -> None:
    found = acknowledged(OFFSETS, ["a/1000-00000003.parquet", "other.parquet"])
    assert found["a"].runs == {1000: [(1, 2), (4, 5)], 2000: [(1, 1), (3, 4)]}
    assert found["b"].runs == {1: [(7, 9)]}


@pytest.mark.parametrize("text", ['{"1000": [[1, Infinity]]}', '{"1000": [[1]]}', "[]", "[" * 9999])
def test_a_damaged_file_acknowledges_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / ACKNOWLEDGED).write_text(text)
    assert read_acknowledged(tmp_path) == Acknowledged()


def test_each_journal_gets_what_is_of_its_routers(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    (here / "a").mkdir(parents=True)
    (there / "b").mkdir(parents=True)
    reporter = Acknowledger([str(here), there.as_uri()], lambda: ["a/1000-00000003.parquet"])
    with reporter.reporting(lambda: OFFSETS):
        pass
    assert read_acknowledged(here / "a").has(1000, 2)
    assert not read_acknowledged(here / "a").has(1000, 3)
    assert read_acknowledged(there / "b").has(1, 9)
    assert not (here / "b").exists()
    assert not is_streamed(here, 0.0)


def test_a_stream_asks_for_events_soon(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    Acknowledger([str(tmp_path)], list, streams=True).report(OFFSETS)
    touched = (tmp_path / "_streaming").stat().st_mtime
    assert is_streamed(tmp_path, touched + 1)
    assert not is_streamed(tmp_path, touched + 60)


def test_a_journal_that_cannot_be_written_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a" / "_acknowledged.json.tmp").mkdir(parents=True)
    reporter = Acknowledger([str(tmp_path)], list)
    with caplog.at_level(logging.WARNING):
        reporter.report(OFFSETS)
        reporter.report(OFFSETS)
    assert caplog.text.count("cannot be acknowledged") == 1


def test_a_folder_that_cannot_be_written_delays_no_other(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    (here / "a" / "_acknowledged.json.tmp").mkdir(parents=True)
    (here / "_streaming").symlink_to(tmp_path / "nowhere" / "file")
    for journal in (here, there):
        (journal / "b").mkdir(parents=True)
    Acknowledger([str(here), str(there)], list, streams=True).report(OFFSETS)
    assert read_acknowledged(here / "b").has(1, 9)
    assert read_acknowledged(there / "b").has(1, 9)
    assert is_streamed(there, (there / "_streaming").stat().st_mtime)


def test_quarantined_segments_are_found_without_spark(tmp_path: Path) -> None:
    rows = {
        "event_id": ["a/1000-00000003.parquet", "b-1-7", "b-1-8", None],
        "reason": ["damaged"] * 4,
        "raw": [None, "{}", "{}", "{}"],
        "segment": ["a/1000-00000003.parquet", *["b/1-00000007.parquet"] * 3],
    }
    with open_tables(tmp_path) as tables:
        assert damaged_segments(tmp_path) == []
        staging = tables.staging("quarantine")
        (tmp_path / staging).mkdir()
        pq.write_table(pa.table(rows), tmp_path / staging / "part.parquet")
        tables.commit("quarantine", tables.written(staging, 4))
    assert damaged_segments(tmp_path) == ["a/1000-00000003.parquet", "b/1-00000007.parquet"]


def test_a_quarantine_that_cannot_be_read_delays_acknowledgements(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "journal" / "a").mkdir(parents=True)
    place = tmp_path / "tables"
    reporter = Acknowledger([str(tmp_path / "journal")], lambda: damaged_segments(place))
    with caplog.at_level(logging.WARNING):
        reporter.report(OFFSETS)
    assert "cannot be acknowledged" in caplog.text
    with open_tables(place) as tables:
        (place / "quarantine" / "part").mkdir()
        file = place / "quarantine" / "part" / "0.parquet"
        pq.write_table(pa.table({"event_id": ["b-1-7"], "reason": ["x"], "raw": ["{}"]}), file)
        tables.commit("quarantine", tables.written("quarantine/part", 1))
    file.rename(tmp_path / "away")
    reporter.report(OFFSETS)
    assert not read_acknowledged(tmp_path / "journal" / "a").has(1000, 2)
    (tmp_path / "away").rename(file)
    reporter.report(OFFSETS)
    assert read_acknowledged(tmp_path / "journal" / "a").has(1000, 2)


def test_no_router_waits_for_the_backlog_of_another() -> None:
    backlog = [segment(f"a/1-{number:08}.parquet", "", 1, number) for number in range(1, 1000)]
    fresh = [segment(f"{router}/1-00000001.parquet", "", 1, 5000.0) for router in "bc"]
    names = [item.name for item in interleave([*reversed(backlog), *fresh])]
    assert names[:4] == [
        "a/1-00000001.parquet",
        "b/1-00000001.parquet",
        "c/1-00000001.parquet",
        "a/1-00000002.parquet",
    ]
    assert len(names) == 1001
