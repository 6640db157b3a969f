"""The heads that a writer keeps: they never claim more than what is sealed."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from heliograph.journal.heads import HEADS, HEARTBEAT, SHARED_HEARTBEAT, Head, write_head
from heliograph.journal.opening import open_journal
from heliograph.journal.readers import ACKNOWLEDGED, Acknowledged, encode_acknowledged
from heliograph.journal.schema import Part
from heliograph.journal.storage.segments import SegmentWriter
from heliograph.runtime.config.sections import JournalOptions
from tests.journal.support import FAST, IDENTITY, SLOW, files, heads, note, writer
from tests.waiting import block_until


def test_a_head_follows_each_seal_and_says_when_the_run_ended(tmp_path: Path) -> None:
    journal = writer(tmp_path)
    for number in (1, 2):
        note(journal, number)
        block_until(lambda: journal.written == number)  # noqa: B023
        block_until(lambda: heads(tmp_path)[0].segment == number)  # noqa: B023
        [head] = heads(tmp_path)
        assert (head.router, head.part, head.seq) == (IDENTITY.router, "ntf", number)
        assert not head.ended
    journal.close()
    [ended] = heads(tmp_path)
    assert ended.ended
    assert ended.at >= head.at
    assert replace(ended, ended=False, at=head.at) == head


def test_what_is_not_sealed_is_not_claimed(tmp_path: Path) -> None:
    journal = writer(tmp_path, SLOW)
    note(journal, 1, 2, 3)
    asyncio.run(journal.synced())
    assert [(head.segment, head.seq) for head in heads(tmp_path)] == [(0, 0)]
    journal.close()
    assert [(head.segment, head.seq) for head in heads(tmp_path)] == [(1, 3)]


def test_an_idle_run_renews_its_head(tmp_path: Path) -> None:
    journal = writer(tmp_path, replace(FAST, heartbeat=0.01))
    note(journal, 1)
    block_until(lambda: [head.seq for head in heads(tmp_path)] == [1])
    before = heads(tmp_path)[0]
    block_until(lambda: heads(tmp_path)[0].at > before.at)
    assert replace(heads(tmp_path)[0], at=before.at) == before
    assert len(files(tmp_path, ".parquet")) == 1
    journal.close()


@pytest.mark.parametrize(("is_shared", "after"), [(False, HEARTBEAT), (True, SHARED_HEARTBEAT)])
def test_a_process_beside_others_renews_its_head_more_often(
    tmp_path: Path, is_shared: bool, after: float
) -> None:
    options = JournalOptions(path=str(tmp_path / "journal"))
    journal = open_journal(options, tmp_path, Part.NTF, is_shared=is_shared)
    assert journal is not None
    assert journal.settings.heartbeat == after
    journal.close()


def test_what_could_not_be_written_at_the_end_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    journal = writer(tmp_path)
    note(journal, 1)
    block_until(lambda: journal.written == 1)
    monkeypatch.setattr(SegmentWriter, "append", fails)
    note(journal, 2)
    block_until(lambda: journal.is_failing)
    note(journal, 3, 4)
    journal.close()
    assert [(head.seq, head.ended) for head in heads(tmp_path)] == [(4, True)]


def test_a_head_that_cannot_be_written_fails_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / HEADS).write_text("in the way")
    journal = writer(tmp_path)
    note(journal, 1)
    block_until(lambda: journal.written == 1)
    note(journal, 2)
    journal.close()
    assert (journal.written, journal.lost, journal.is_failing) == (2, 0, False)
    assert caplog.text.count("the head of the journal cannot be written") == 1


def test_what_a_killed_run_left_is_in_its_head(tmp_path: Path) -> None:
    """As if the process were killed: the writer is left alone, another takes over."""
    killed = writer(tmp_path, SLOW)
    note(killed, 1, 2)
    asyncio.run(killed.synced())
    journal = writer(tmp_path)
    note(journal, 3)
    block_until(lambda: journal.written == 1)
    first = heads(tmp_path)[0]
    assert (first.segment, first.seq, first.ended) == (1, 2, True)
    journal.close()
    killed.close()


def test_heads_of_acknowledged_runs_are_removed(tmp_path: Path) -> None:
    for number in (1, 2):
        journal = writer(tmp_path)
        note(journal, number)
        journal.close()
    boots = [head.boot for head in heads(tmp_path)]
    acknowledged = encode_acknowledged(Acknowledged({boots[0]: [(1, 1)]}))
    (tmp_path / IDENTITY.router / ACKNOWLEDGED).write_bytes(acknowledged)
    journal = writer(tmp_path)
    note(journal, 3)
    journal.close()
    assert [head.boot for head in heads(tmp_path)][:1] == boots[1:]
    assert len(heads(tmp_path)) == 2


def test_the_head_of_a_run_that_lost_its_end_stays(tmp_path: Path) -> None:
    """It is the only evidence, also when a pipeline has acknowledged all that was written."""
    journal = writer(tmp_path, replace(FAST, max_bytes=20_000, refuse_new=True))
    sent = 0
    while not journal.is_failing:
        sent += 1
        note(journal, sent)
        block_until(lambda: journal.written >= sent or journal.is_failing)  # noqa: B023
    note(journal, sent + 1, sent + 2)
    journal.close()
    [before] = heads(tmp_path)
    assert (before.seq, before.lost, before.ended) == (sent + 2, journal.lost, True)
    assert before.lost >= 2
    acknowledged = encode_acknowledged(Acknowledged({before.boot: [(1, before.segment)]}))
    (tmp_path / IDENTITY.router / ACKNOWLEDGED).write_bytes(acknowledged)
    writer(tmp_path).close()
    assert heads(tmp_path)[0] == before


def test_the_head_of_a_run_that_wrote_nothing_is_removed_unless_it_lost_events(
    tmp_path: Path,
) -> None:
    for boot, lost in ((5, 0), (6, 3)):
        write_head(tmp_path, Head(IDENTITY.router, boot, "ntf", 0, lost, boot, True, lost))
    writer(tmp_path).close()
    assert [head.boot for head in heads(tmp_path)][:-1] == [6]


def test_what_a_failed_seal_left_is_in_the_head_when_it_was_recovered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(SegmentWriter, "seal", fails)
        journal = writer(tmp_path, SLOW)
        note(journal, 1, 2)
        journal.close()
    [before] = heads(tmp_path)
    assert (before.segment, before.seq, before.lost, before.ended) == (0, 2, 0, True)
    writer(tmp_path).close()
    assert heads(tmp_path)[0] == replace(before, segment=1)
