import asyncio
import errno
import logging
import os
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heliograph.journal.events import ClientConnected, JournalEvent
from heliograph.journal.identity import journal_identity
from heliograph.journal.readers import (
    ACKNOWLEDGED,
    Acknowledged,
    encode_acknowledged,
    mark_streamed,
)
from heliograph.journal.schema import violations
from heliograph.journal.storage import segments, writer as writing
from heliograph.journal.storage.log import Log, read_log
from heliograph.journal.storage.segments import SegmentWriter
from heliograph.journal.storage.settings import JournalSettings
from heliograph.journal.storage.writer import JournalWriter
from heliograph.runtime.errors import IdentityError
from heliograph.runtime.files import sync_directory
from tests.journal.support import FAST, IDENTITY, SLOW, events, files, note, numbers, writer
from tests.waiting import block_until


def test_events_can_be_read_while_more_are_written(tmp_path: Path) -> None:
    journal = writer(tmp_path / "journal")
    note(journal, 1, 2)
    block_until(lambda: journal.written == 2)
    assert numbers(tmp_path / "journal") == [1, 2]
    note(journal, 3)
    block_until(lambda: journal.written == 3)
    journal.close()
    found = list(events(tmp_path / "journal"))
    assert [event["count"] for event in found] == [1, 2, 3]
    assert [event["seq"] for event in found] == [1, 2, 3]
    assert len({event["event_id"] for event in found}) == 3
    assert len({event["boot"] for event in found}) == 1
    assert [event["mono"] for event in found] == sorted(event["mono"] for event in found)
    for event in found:
        assert list(violations(event)) == []
    assert (journal.lost, journal.counts().lost) == (0, 0)


@pytest.mark.usefixtures("open_umask")
def test_files_are_private(tmp_path: Path) -> None:
    sealed = writer(tmp_path / "sealed")
    note(sealed, 1)
    sealed.close()
    active = writer(tmp_path / "active", SLOW)
    note(active, 1)
    block_until(lambda: files(tmp_path / "active", ".log"))
    modes = {(path.suffix, path.stat().st_mode & 0o777) for path in tmp_path.rglob("*")}
    assert modes == {("", 0o700), (".log", 0o600), (".parquet", 0o600), (".json", 0o600)}
    active.close()


def test_a_later_run_has_a_greater_number(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        journal = writer(tmp_path)
        note(journal, number)
        journal.close()
    found = list(events(tmp_path))
    assert [event["count"] for event in found] == [1, 2, 3]
    boots = [event["boot"] for event in found]
    assert boots == sorted(set(boots))


def sleeps(thread: threading.Thread) -> bool:
    """Say whether a thread does nothing for a while."""

    def switches() -> list[str]:
        status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
        return [line for line in status.splitlines() if "ctxt_switches" in line]

    before = switches()
    time.sleep(0.1)
    return switches() == before


def test_nothing_happens_while_there_is_nothing(tmp_path: Path) -> None:
    others = {*threading.enumerate()}
    journal = writer(tmp_path)
    [thread] = {*threading.enumerate()} - others
    note(journal, 1)
    block_until(lambda: journal.written == 1)
    before = os.listdir(tmp_path / IDENTITY.router)
    block_until(lambda: sleeps(thread))
    assert journal.backlog == 0
    assert os.listdir(tmp_path / IDENTITY.router) == before
    assert thread.is_alive()
    journal.close()
    assert not thread.is_alive()


def test_what_is_synced_survives_without_a_seal(tmp_path: Path) -> None:
    """As if the process were killed: the writer is left alone, another takes over."""
    journal = writer(tmp_path, SLOW)
    note(journal, 1, 2, 3)
    [log] = until_files(tmp_path, ".log")
    asyncio.run(journal.synced())
    data = log.read_bytes()
    journal.close()
    for path in files(tmp_path, ""):
        path.unlink()
    log.write_bytes(data + b"half of a frame")
    journal = writer(tmp_path)
    note(journal, 4)
    journal.close()
    assert numbers(tmp_path) == [1, 2, 3, 4]
    assert not files(tmp_path, ".log")


def until_written(journal: JournalWriter, number: int) -> None:
    block_until(lambda: journal.written == number or journal.is_failing)


def until_files(directory: Path, suffix: str) -> list[Path]:
    block_until(lambda: files(directory, suffix))
    return files(directory, suffix)


def test_segments_are_sealed_by_size(tmp_path: Path) -> None:
    journal = writer(tmp_path, replace(SLOW, seal_bytes=1))
    note(journal, 1)
    block_until(lambda: journal.written == 1)
    note(journal, 2)
    block_until(lambda: journal.written == 2)
    assert len(files(tmp_path, ".parquet")) == 2
    journal.close()


def test_many_events(tmp_path: Path) -> None:
    journal = writer(tmp_path)
    for first in range(0, 60_000, 1_000):
        note(journal, *range(first, first + 1_000))
        block_until(lambda: journal.backlog < 20_000)
    journal.close(60)
    assert numbers(tmp_path) == list(range(60_000))
    assert journal.lost == 0


# What fails.


def test_too_many_are_counted_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "CAPACITY", 5)
    (tmp_path / "journal").write_text("in the way")
    journal = writer(tmp_path / "journal")
    note(journal, 1)
    block_until(lambda: journal.is_failing)
    note(journal, *range(2, 9))
    assert journal.backlog == 5
    assert journal.counts().lost == 3
    (tmp_path / "journal").unlink()
    block_until(lambda: journal.written >= 6)
    note(journal, 9)
    journal.close()
    found = list(events(tmp_path / "journal"))
    assert [(event["kind"], event["seq"]) for event in found] == [
        *(("client_connected", seq) for seq in range(1, 6)),
        ("journal_lost", 9),
        ("client_connected", 10),
    ]
    [lost] = [event for event in found if event["kind"] == "journal_lost"]
    assert (lost["count"], lost["reason"]) == (3, "overflow")
    assert list(violations(lost)) == []
    assert numbers(tmp_path / "journal") == [1, 2, 3, 4, 5, 9]
    assert journal.lost == 3


def in_the_way(tmp_path: Path) -> Path:
    (tmp_path / "journal").write_text("not a directory")
    return tmp_path / "journal"


def missing(tmp_path: Path) -> Path:
    return tmp_path / "mount" / "journal"


def unwritable(tmp_path: Path) -> Path:
    return Path("/proc/journal")


@pytest.mark.parametrize("place", [in_the_way, missing, unwritable])
def test_the_router_goes_on_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, place: Any
) -> None:
    journal = writer(place(tmp_path))
    note(journal, 1)
    block_until(lambda: journal.is_failing)
    note(journal, 2, 3)
    journal.close()
    assert journal.lost == 3
    reported = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(reported) == 2
    assert "cannot be written; the router continues without it" in reported[0]
    assert reported[1] == "3 events could not be journaled"


def test_a_place_that_appears_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    journal = writer(tmp_path / "mount" / "journal")
    note(journal, 1, 2)
    block_until(lambda: journal.is_failing)
    (tmp_path / "mount").mkdir()
    note(journal, 3)
    block_until(lambda: journal.written == 3)
    journal.close()
    assert numbers(tmp_path / "mount" / "journal") == [1, 2, 3]
    assert "the journal can be written again; 0 events were lost" in caplog.text


def test_a_directory_that_is_removed(tmp_path: Path) -> None:
    journal = writer(tmp_path / "journal", SLOW)
    note(journal, 1, 2)
    until_files(tmp_path / "journal", ".log")
    asyncio.run(journal.synced())
    shutil.rmtree(tmp_path / "journal")
    note(journal, 3)
    journal.close()
    assert numbers(tmp_path / "journal") == [1, 2, 3]
    assert journal.lost == 0


FAILURES = ("append", "seal", "rename", "sync_directory")


@pytest.mark.parametrize("failing", FAILURES)
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_a_disk_that_fails_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str, error: int
) -> None:
    """Nothing is lost, and nothing is there twice, whichever step failed."""
    monkeypatch.setattr(writing, "RETRY_INTERVAL", 0.01)
    broken, failed = threading.Event(), threading.Event()

    def fails(function: Any) -> Any:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            if broken.is_set():
                failed.set()
                raise OSError(error, os.strerror(error))
            return function(*arguments, **named)

        return wrapped

    if failing == "append":
        monkeypatch.setattr(Log, "append", fails(Log.append))
    elif failing == "seal":
        monkeypatch.setattr(SegmentWriter, "seal", fails(SegmentWriter.seal))
    elif failing == "rename":
        monkeypatch.setattr(Path, "replace", fails(Path.replace))
    else:
        monkeypatch.setattr(segments, "sync_directory", fails(sync_directory))
    journal = writer(tmp_path)
    note(journal, 1)
    block_until(lambda: journal.written == 1)
    for first in (2, 12, 22):
        failed.clear()
        broken.set()
        note(journal, *range(first, first + 5))
        assert failed.wait(30)  # not for `is_failing`: what still works may end that at once
        note(journal, *range(first + 5, first + 10))
        broken.clear()
        block_until(lambda: not journal.is_failing)
    journal.close()
    assert numbers(tmp_path) == list(range(1, 32))
    assert [event["seq"] for event in events(tmp_path)] == list(range(1, 32))
    assert journal.lost == 0
    assert not files(tmp_path, ".log")


def test_the_oldest_make_room(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    journal = writer(tmp_path, replace(FAST, max_bytes=40_000))
    for number in range(1, 21):
        note(journal, number)
        until_written(journal, number)
    journal.close()
    left = numbers(tmp_path)
    assert left == list(range(21 - len(left), 21))
    assert journal.counts().bytes <= 40_000
    assert journal.counts().removed == 20 - len(left) > 0
    assert journal.lost == 0
    assert caplog.text.count("the oldest segments of the journal are removed") == 1


def test_what_was_read_is_removed_first_and_not_missed(tmp_path: Path) -> None:
    journal = writer(tmp_path, replace(FAST, max_bytes=40_000))
    for number in range(1, 5):
        note(journal, number)
        until_written(journal, number)
    sealed = files(tmp_path, ".parquet")
    boot = int(sealed[0].stem.partition("-")[0])
    unread = sealed[0]
    acknowledged = encode_acknowledged(Acknowledged({boot: [(2, 1000)]}))
    (unread.parent / ACKNOWLEDGED).write_bytes(acknowledged)
    for number in range(5, 21):
        note(journal, number)
        until_written(journal, number)
    journal.close()
    assert journal.counts().bytes <= 40_000
    assert journal.counts().removed == 0
    assert unread.exists()


def test_few_files_unless_somebody_streams(tmp_path: Path) -> None:
    settings = JournalSettings(sync_interval=0.005, seal_after=3600.0, stream_seal_after=0.02)
    journal = writer(tmp_path, settings)
    note(journal, 1)
    block_until(lambda: files(tmp_path, ".log") != [])
    assert journal.written == 0
    journal.close()
    mark_streamed(tmp_path)
    journal = writer(tmp_path, settings)
    note(journal, 2)
    until_written(journal, 1)
    journal.close()
    assert numbers(tmp_path) == [1, 2]


def test_new_events_are_refused_when_it_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(writing, "RETRY_INTERVAL", 0.01)
    journal = writer(tmp_path, replace(FAST, max_bytes=20_000, refuse_new=True))
    sent = 0
    while not journal.is_failing:
        sent += 1
        note(journal, sent)
        until_written(journal, sent)
    written = journal.written
    note(journal, sent + 1)
    assert "as much disk as [journal] max_megabytes allows" in caplog.text
    files(tmp_path, ".parquet")[0].unlink()  # a reader makes room
    files(tmp_path, ".parquet")[0].unlink()
    block_until(lambda: journal.written > written)
    journal.close()
    assert sent + 1 in numbers(tmp_path)
    assert journal.lost == 0


def test_an_event_that_makes_no_sense_costs_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = writer(tmp_path)
    note(journal, 1)
    journal.record(ClientConnected(count="many"))  # type: ignore[arg-type]
    journal.record(JournalEvent())
    note(journal, 2)
    journal.close()
    assert numbers(tmp_path) == [1, 2]
    found = [(event["kind"], event["seq"]) for event in events(tmp_path)]
    assert found[:2] == [("client_connected", 1), ("client_connected", 4)]
    assert journal.lost == 2
    assert "could not be put into columns" in caplog.text


def test_settings_have_defaults(tmp_path: Path) -> None:
    journal = writing.JournalWriter(tmp_path, IDENTITY, "smp")
    assert journal.settings == JournalSettings()
    journal.close()


# Its identity.


def test_identity_is_made_once(tmp_path: Path) -> None:
    made = journal_identity(tmp_path)
    assert journal_identity(tmp_path) == made
    assert len(made.key) == 32
    assert (tmp_path / "journal.key").stat().st_mode & 0o777 == 0o600
    assert made.key.hex() not in repr(made)
    (tmp_path / "other").mkdir()
    other = journal_identity(tmp_path / "other")
    assert other.router != made.router
    assert other.key != made.key


@pytest.mark.parametrize("text", ["", "xyz", "ABCDEF0123456789", "0" * 15])
def test_a_bad_identity(tmp_path: Path, text: str) -> None:
    (tmp_path / "journal.id").write_text(text)
    with pytest.raises(IdentityError, match=r"journal\.id: must be 16 hexadecimal digits"):
        journal_identity(tmp_path)


def test_an_identity_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "journal.id").mkdir()
    with pytest.raises(IdentityError, match=r"journal\.id"):
        journal_identity(tmp_path)


async def test_synced_is_on_disk(tmp_path: Path) -> None:
    journal = writer(tmp_path, JournalSettings(sync_interval=0.05, seal_after=3600.0))
    await journal.synced()
    for number in range(3):
        note(journal, number)
        await journal.synced()
        [log] = files(tmp_path, ".log")
        found = [row for table in read_log(log) for row in table["count"].to_pylist()]
        assert found == list(range(number + 1))
    note(journal, 3)
    waiting = [asyncio.create_task(journal.synced()) for _ in range(3)]
    await asyncio.gather(*waiting)
    note(journal, 4)
    last = asyncio.create_task(journal.synced())
    await asyncio.to_thread(journal.close)
    await asyncio.wait_for(last, 10)
    note(journal, 5)
    await journal.synced()  # nobody writes it any more
    assert numbers(tmp_path) == [0, 1, 2, 3, 4]


async def test_nobody_waits_for_a_journal_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "journal").write_text("in the way")
    journal = writer(tmp_path / "journal")
    note(journal, 1)
    await asyncio.wait_for(journal.synced(), 10)
    assert journal.is_failing
    note(journal, 2)
    await asyncio.wait_for(journal.synced(), 10)
    (tmp_path / "journal").unlink()
    await asyncio.to_thread(block_until, lambda: not journal.is_failing)
    await asyncio.wait_for(journal.synced(), 10)
    journal.close()
    assert numbers(tmp_path / "journal") == [1, 2]


async def test_nobody_waits_for_events_that_an_unexpected_failure_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = writer(tmp_path)
    note(journal, 1)
    await asyncio.to_thread(block_until, lambda: journal.written == 1)

    def broken(*_: object) -> None:
        raise RuntimeError("no disk's fault")

    monkeypatch.setattr(SegmentWriter, "append", broken)
    note(journal, 2)
    await asyncio.wait_for(journal.synced(), 10)
    assert journal.lost == 1
    monkeypatch.undo()
    note(journal, 3)
    await asyncio.to_thread(journal.close)
    assert numbers(tmp_path) == [1, 3]
    assert {"count": 1, "reason": "overflow"}.items() <= next(
        event for event in events(tmp_path) if event["kind"] == "journal_lost"
    ).items()


async def test_a_waiter_does_not_wait_for_later_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = writer(tmp_path)
    append, ending = SegmentWriter.append, threading.Event()

    def slow(self: SegmentWriter, *arguments: Any) -> None:
        """While it goes on, there is always more."""
        append(self, *arguments)
        if not ending.is_set():
            note(journal, 2)

    monkeypatch.setattr(SegmentWriter, "append", slow)
    note(journal, 1)
    try:
        await asyncio.wait_for(journal.synced(), 10)
    finally:
        ending.set()
    await asyncio.to_thread(journal.close)
    assert numbers(tmp_path)[0] == 1
    assert set(numbers(tmp_path)[1:]) <= {2}
