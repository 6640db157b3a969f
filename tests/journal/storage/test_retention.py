"""What retention removes when, and what it counts."""

from pathlib import Path

import pytest

from heliograph.journal.events import ClientConnected
from heliograph.journal.hashing import Hasher
from heliograph.journal.readers import ACKNOWLEDGED, Acknowledged, encode_acknowledged
from heliograph.journal.storage.arrow import Origin, table_of
from heliograph.journal.storage.retention import (
    CLEAN_INTERVAL,
    SCAN_INTERVAL,
    WARN_INTERVAL,
    Retention,
)
from heliograph.journal.storage.segments import Full, Sealed, SegmentWriter
from heliograph.journal.storage.settings import JournalSettings

BOOT = 7
HASHER = Hasher(bytes(32))


def append(segment: SegmentWriter, number: int, boot: int = BOOT) -> None:
    event = ClientConnected(count=number), 1.0, 1
    segment.append(table_of([event], Origin("router", "ntf", boot), number, HASHER), 0.0)
    segment.seal()


def fill(directory: Path, count: int, boot: int = BOOT) -> Sealed:
    segment = SegmentWriter(directory, boot)
    for number in range(1, count + 1):
        append(segment, number, boot)
    sealed = Sealed(directory)
    sealed.scan()
    return sealed


def acknowledge(directory: Path, first: int, last: int) -> None:
    text = encode_acknowledged(Acknowledged({BOOT: [(first, last)]}))
    (directory / ACKNOWLEDGED).write_bytes(text)


def left(directory: Path) -> int:
    return len([*directory.glob("*.parquet")])


def test_what_exceeds_the_limit_is_removed_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sealed = fill(tmp_path, 6)
    one = sealed.bytes // 6
    retention = Retention(sealed, JournalSettings(max_bytes=one * 6))
    retention.enforce(0.0, 0.0)
    assert (left(tmp_path), retention.removed) == (6, (0, 0))
    retention = Retention(sealed, JournalSettings(max_bytes=one * 4 + one // 2))
    retention.enforce(0.0, 0.0)
    assert (left(tmp_path), retention.removed) == (4, (2, 2))
    assert caplog.text.count("2 so far") == 1


def test_what_other_processes_have_sealed_counts_too(tmp_path: Path) -> None:
    """The limit is the router's: or several processes would take as many times the disk."""
    sealed = fill(tmp_path, 3)
    one = sealed.bytes // 3
    retention = Retention(sealed, JournalSettings(max_bytes=one * 4, is_shared=True))
    retention.enforce(0.0, 0.0)
    fill(tmp_path, 3, BOOT + 1)
    retention.enforce(SCAN_INTERVAL - 1, 0.0)
    assert left(tmp_path) == 6
    retention.enforce(SCAN_INTERVAL, 0.0)
    assert (left(tmp_path), retention.removed.segments) == (3, 3)
    assert sealed.bytes <= one * 4


def test_removals_are_logged_once_a_minute(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logged = []
    segment = SegmentWriter(tmp_path, BOOT)
    sealed = Sealed(tmp_path)
    retention = Retention(sealed, JournalSettings(max_bytes=1))
    for number, now in enumerate((0.0, 1.0, WARN_INTERVAL, WARN_INTERVAL + 2), 1):
        append(segment, number)
        sealed.scan()
        retention.enforce(now, 0.0)
        logged.append(caplog.text.count("are removed though no pipeline acknowledged"))
    assert retention.removed == (3, 3)  # never the newest
    assert logged == [0, 1, 1, 2]


def test_nothing_unread_is_removed_if_new_segments_are_refused(tmp_path: Path) -> None:
    sealed = fill(tmp_path, 4)
    one = sealed.bytes // 4
    retention = Retention(sealed, JournalSettings(max_bytes=one * 2, refuse_new=True))
    with pytest.raises(Full, match="max_megabytes"):
        retention.enforce(0.0, 0.0)
    assert (left(tmp_path), retention.removed) == (4, (0, 0))
    acknowledge(tmp_path, 1, 2)
    retention.enforce(1.0, 0.0)
    assert (left(tmp_path), retention.removed) == (2, (0, 0))


def test_old_acknowledged_segments_are_looked_for_once_an_hour(tmp_path: Path) -> None:
    sealed = fill(tmp_path, 3)
    sealed_at = max(path.stat().st_mtime for path in tmp_path.glob("*.parquet"))
    retention = Retention(sealed, JournalSettings(keep_acknowledged=60.0))
    retention.enforce(0.0, sealed_at + 61.0)
    acknowledge(tmp_path, 1, 1)
    retention.enforce(CLEAN_INTERVAL - 1, sealed_at + 61.0)
    assert left(tmp_path) == 3
    retention.enforce(CLEAN_INTERVAL, sealed_at + 59.0)
    assert left(tmp_path) == 3
    retention.enforce(2 * CLEAN_INTERVAL, sealed_at + 61.0)
    assert (left(tmp_path), retention.removed) == (2, (0, 0))
