import os
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from heliograph.journal.events import ClientConnected
from heliograph.journal.hashing import Hasher
from heliograph.journal.readers import ACKNOWLEDGED, Acknowledged, encode_acknowledged
from heliograph.journal.storage.arrow import SCHEMA, Origin, complete, table_of
from heliograph.journal.storage.log import Log, read_log
from heliograph.journal.storage.segments import (
    LiveRuns,
    Recovered,
    Sealed,
    SegmentWriter,
    new_boot,
    recover,
)

ORIGIN = Origin("router", "ntf", 7)
HASHER = Hasher(bytes(32))


def table(first: int, count: int = 3) -> object:
    events = [(ClientConnected(count=number), 1.0, 1) for number in range(first, first + count)]
    return table_of(events, ORIGIN, first, HASHER)


def logged(path: Path, *firsts: int) -> None:
    log = Log(path)
    for first in firsts:
        log.append(table(first))
    log.close()


def counts(path: Path) -> list[int]:
    found: list[int] = pq.read_table(path, columns=["count"])["count"].to_pylist()
    return found


def events_in(saved: list[Recovered]) -> int:
    return sum(item.events for item in saved)


def test_a_sealed_segment_is_what_was_appended(tmp_path: Path) -> None:
    segment = SegmentWriter(tmp_path, 7)
    assert segment.seal() is None
    segment.append(table(1), 5.0)
    segment.append(table(4), 6.0)
    assert (segment.count, segment.began_at) == (6, 5.0)
    assert [path.name for path in tmp_path.iterdir()] == ["_7-00000001.log"]
    path = segment.seal()
    assert path == tmp_path / "7-00000001.parquet"
    assert list(tmp_path.iterdir()) == [path]
    assert counts(path) == [1, 2, 3, 4, 5, 6]
    # Plain types, whatever reads it: dictionaries are Parquet's matter.
    assert pq.read_schema(path).equals(SCHEMA)
    assert segment.count == 0
    segment.append(table(7), 7.0)
    assert segment.seal() == tmp_path / "7-00000002.parquet"


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_a_log_is_read_as_far_as_it_is_whole(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "_7-00000001.log"
    sizes = []
    log = Log(path)
    for first in (1, 4, 7):
        log.append(table(first))
        sizes.append(log.size)
    log.close()
    data = path.read_bytes()
    assert sum(len(part) for part in read_log(path)) == 9
    start = ([0, *sizes])[kept]
    end = sizes[kept]
    for cut in {start, start + 1, start + 7, start + 9, (start + end) // 2, end - 1}:
        path.write_bytes(data[:cut])
        assert sum(len(part) for part in read_log(path)) == 3 * kept
        # What a loss of power leaves: a file of the right length with nothing in it.
        torn = data[:cut].ljust(len(data), b"\0")
        path.write_bytes(torn)
        is_whole = torn[:end] == data[:end]
        assert sum(len(part) for part in read_log(path)) == 3 * (kept + is_whole)
    flipped = bytearray(data)
    flipped[start + 20] ^= 1
    path.write_bytes(flipped)
    assert sum(len(part) for part in read_log(path)) == 3 * kept


def test_recovery(tmp_path: Path) -> None:
    logged(tmp_path / "_5-00000001.log", 1, 4)  # killed before it was sealed
    logged(tmp_path / "_6-00000001.log", 1)  # while it was sealed
    (tmp_path / "_6-00000001.parquet.tmp").write_bytes(b"half")
    segment = SegmentWriter(tmp_path, 7)  # after that, before the log was removed
    segment.append(table(1), 0.0)
    segment.seal()
    logged(tmp_path / "_7-00000001.log", 1)
    logged(tmp_path / "_8-00000001.log")  # before anything was written
    (tmp_path / "_9-00000001.log").write_bytes(b"\1\0\0\0\x8d\xef\x02\xd2\0")  # by somebody else
    (tmp_path / "notes.txt").write_text("not ours")
    assert events_in(recover(tmp_path)) == 9
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "5-00000001.parquet",
        "6-00000001.parquet",
        "7-00000001.parquet",
        "_9-00000001.unreadable",
        "notes.txt",
    ]
    assert counts(tmp_path / "5-00000001.parquet") == [1, 2, 3, 4, 5, 6]
    assert events_in(recover(tmp_path)) == 0


def test_logs_of_live_runs_are_left_alone(tmp_path: Path) -> None:
    other, own = LiveRuns(tmp_path), LiveRuns(tmp_path)
    with other.starting() as live:
        assert live == set()
        other.hold(5)
    logged(tmp_path / "_5-00000001.log", 1)
    (tmp_path / "_5-00000001.parquet.tmp").write_bytes(b"half")
    with own.starting() as live:
        assert live == {5}
        assert events_in(recover(tmp_path, live)) == 0
        own.hold(6)
    assert (tmp_path / "_5-00000001.log").exists()
    assert (tmp_path / "_5-00000001.parquet.tmp").exists()
    other.release()  # as when its process is killed
    with LiveRuns(tmp_path).starting() as live:
        assert live == {6}
        assert events_in(recover(tmp_path, live)) == 3
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"5-00000001.parquet", "_6.live", "_start"}
    own.release()


def test_boots_only_grow() -> None:
    assert new_boot(0, 1.5) == 1_500_000
    assert new_boot(1_500_000, 1.5) == 1_500_001
    assert new_boot(9_000_000, 1.5) == 9_000_001


def runs_of_two(directory: Path, *boots: int) -> Sealed:
    for boot in boots:
        segment = SegmentWriter(directory, boot)
        for first in (1, 4):
            segment.append(table(first), 0.0)
            segment.seal()
    sealed = Sealed(directory)
    assert sealed.scan() == boots[-1]
    return sealed


def test_a_segment_that_another_process_removes_meanwhile(tmp_path: Path) -> None:
    """A name without a file, as between the two looks of a scan, is no failure of the journal."""
    runs_of_two(tmp_path, 99)
    (tmp_path / "99-00000003.parquet").symlink_to("removed")
    sealed = Sealed(tmp_path)
    assert sealed.scan() == 99
    assert len(names(tmp_path)) == 3
    assert sealed.remove_oldest(0).segments == 1


def names(directory: Path) -> list[str]:
    return sorted(path.stem for path in directory.glob("*.parquet"))


def test_the_oldest_are_removed(tmp_path: Path) -> None:
    sealed = runs_of_two(tmp_path, 99, 100)
    one = sealed.bytes // 4
    assert sealed.remove_oldest(sealed.bytes) == (0, 0)
    assert sealed.remove_oldest(one * 3) == (1, 3)
    # The last of a run stays longer: its numbers tell a pipeline what is missing.
    os.unlink(tmp_path / "100-00000001.parquet")  # a reader removed it
    assert sealed.remove_oldest(one * 2) == (0, 0)
    assert names(tmp_path) == ["100-00000002", "99-00000002"]
    # The newest stays, however small the limit is.
    assert sealed.remove_oldest(0) == (1, 3)
    assert names(tmp_path) == ["100-00000002"]


def test_what_was_acknowledged_goes_first_and_is_not_missed(tmp_path: Path) -> None:
    sealed = runs_of_two(tmp_path, 99, 100)
    one = sealed.bytes // 4
    acknowledged = Acknowledged({99: [(2, 7)], 100: [(1, 2)]})
    (tmp_path / ACKNOWLEDGED).write_bytes(encode_acknowledged(acknowledged))
    assert sealed.remove_oldest(0, unread=False) == (0, 0)
    assert names(tmp_path) == ["100-00000002", "99-00000001"]  # the newest, and what was not read
    assert sealed.remove_oldest(one) == (1, 3)
    assert names(tmp_path) == ["100-00000002"]


def test_acknowledged_segments_go_when_they_are_old(tmp_path: Path) -> None:
    sealed = runs_of_two(tmp_path, 99)
    sealed.remove_acknowledged(time.time() + 10)
    assert names(tmp_path) == ["99-00000001", "99-00000002"]
    acknowledged = encode_acknowledged(Acknowledged({99: [(1, 1)]}))
    (tmp_path / ACKNOWLEDGED).write_bytes(acknowledged)
    sealed.remove_acknowledged(time.time() - 3600)
    assert names(tmp_path) == ["99-00000001", "99-00000002"]
    (tmp_path / ACKNOWLEDGED).write_bytes(acknowledged[:-1])  # damaged: nothing counts
    sealed.remove_acknowledged(time.time() + 10)
    assert names(tmp_path) == ["99-00000001", "99-00000002"]
    (tmp_path / ACKNOWLEDGED).write_bytes(acknowledged)
    sealed.remove_acknowledged(time.time() + 10)
    assert names(tmp_path) == ["99-00000002"]
    assert sealed.bytes == sum(
        4096 * -(-path.stat().st_size // 4096) for path in tmp_path.glob("*.parquet")
    )


def test_a_log_of_before_is_sealed(tmp_path: Path) -> None:
    """In which each event had its origin, and no frame."""
    log = Log(tmp_path / "_7-00000001.log")
    log.append(complete([table(1)]).replace_schema_metadata(None))
    log.close()
    assert events_in(recover(tmp_path)) == 3
    sealed = tmp_path / "7-00000001.parquet"
    assert pq.read_schema(sealed).equals(SCHEMA)
    assert pq.read_table(sealed)["event_id"].to_pylist() == [
        "router-7-1",
        "router-7-2",
        "router-7-3",
    ]
