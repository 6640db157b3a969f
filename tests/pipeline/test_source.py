import os
import threading
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from heliograph.pipeline import source
from heliograph.pipeline.source import SegmentFinder, list_segments
from heliograph.pipeline.tables.offsets import Offsets
from heliograph.runtime.errors import StartError
from tests.waiting import block_until


def put(journal: Path, name: str, age: float = 0.0) -> None:
    path = journal / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"PAR1")
    os.utime(path, (1e9 - age, 1e9 - age))


def names(found: list[source.Segment]) -> list[str]:
    return [item.name for item in found]


def taken(*found: source.Segment) -> Offsets:
    return Offsets(**source.with_ingested(Offsets(), found))


def test_the_next_number_is_asked_for(tmp_path: Path) -> None:
    for number in (1, 2):
        put(tmp_path, f"r/1000-{number:08}.parquet")
    finder = SegmentFinder(str(tmp_path), None)
    found = finder.new(Offsets(), 0.0)
    assert names(found) == ["r/1000-00000001.parquet", "r/1000-00000002.parquet"]
    offsets = taken(*found)
    assert finder.new(offsets, 1.0) == []
    put(tmp_path, "r/1000-00000003.parquet")
    put(tmp_path, "r/1000-00000005.parquet")
    put(tmp_path, "r/2000-00000001.parquet")
    [new] = finder.new(offsets, 2.0)
    assert new.name == "r/1000-00000003.parquet"
    assert new == list_segments(str(tmp_path), None)[2]
    # New runs, and what is beyond a gap, are found when all is listed, beside the polls.
    expected = [
        "r/1000-00000003.parquet",
        "r/1000-00000005.parquet",
        "r/2000-00000001.parquet",
    ]
    times = count(source.LIST_INTERVAL)
    block_until(lambda: names(finder.new(offsets, next(times))) == expected)


def test_a_journal_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="there is no journal at"):
        SegmentFinder(str(tmp_path / "none"), None).new(Offsets(), 0.0)


def test_a_journal_that_comes_back_is_read(tmp_path: Path) -> None:
    finder = SegmentFinder(str(tmp_path / "journal"), None)
    with pytest.raises(StartError):
        finder.new(Offsets(), 0.0)
    assert finder.new(Offsets(), 1.0) == []
    put(tmp_path / "journal", "r/1000-00000001.parquet")
    times = count(source.LIST_AGAIN)
    block_until(lambda: names(finder.new(Offsets(), next(times))) == ["r/1000-00000001.parquet"])


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_poll_does_not_list_what_was_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    """A million taken segments are one interval, and one question for the next."""
    put(tmp_path, "r/1000-01000001.parquet")
    offsets = Offsets(segments={"r/1000": [(1, 1_000_000)]})
    finder = SegmentFinder(f"{scheme}{tmp_path}", None)
    [listed] = finder.new(offsets, 0.0)
    monkeypatch.setattr(source, "list_segments", None)
    assert finder.new(offsets, 1.0) == [listed]
    assert listed.name == "r/1000-01000001.parquet"


def test_a_slow_listing_delays_no_poll(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "r/1000-00000001.parquet")
    finder = SegmentFinder(str(tmp_path), None)
    offsets = taken(*finder.new(Offsets(), 0.0))
    went_on = threading.Event()
    real = source.list_segments

    def slow(*arguments: Any) -> list[source.Segment]:
        assert went_on.wait(300)
        return real(*arguments)

    monkeypatch.setattr(source, "list_segments", slow)
    put(tmp_path, "r/1000-00000002.parquet")
    put(tmp_path, "r/2000-00000001.parquet")
    assert names(finder.new(offsets, 20.0)) == ["r/1000-00000002.parquet"]
    went_on.set()
    times = count(21.0)
    expected = ["r/1000-00000002.parquet", "r/2000-00000001.parquet"]
    block_until(lambda: names(finder.new(offsets, next(times))) == expected)


def test_runs_that_have_expired_are_not_new(tmp_path: Path) -> None:
    for boot in (1000, 2000):
        put(tmp_path, f"r/{boot}-00000001.parquet")
    assert names(list_segments(str(tmp_path), None, Offsets(expired={"r": 1000}))) == [
        "r/2000-00000001.parquet"
    ]
