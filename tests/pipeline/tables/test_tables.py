import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from heliograph.pipeline.tables.log import CHECKPOINT_INTERVAL
from heliograph.pipeline.tables.offsets import (
    Offsets,
    decode,
    encode,
    read_account,
    read_offsets,
    write_account,
)
from heliograph.pipeline.tables.snapshot import DERIVED, DataFile
from heliograph.pipeline.tables.tables import (
    RowsMissing,
    SecondWriter,
    Tables,
    list_files,
    open_tables,
)
from heliograph.runtime.errors import StartError

SEEN = Offsets(seen={"r/1": [(1, 5)]}, counts={"events": 5})


def put(
    tables: Tables, name: str = "part", rows: int = 2, table: str = "events"
) -> tuple[DataFile, ...]:
    staging = tables.staging(table)
    folder = Path(tables.storage.local or "", staging, "day=2026-01-05")
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"event_id": ["e"] * rows}), folder / f"{name}.parquet")
    return tables.written(staging, rows)


def test_what_is_committed_is_read_again(tmp_path: Path) -> None:
    with open_tables(tmp_path) as tables:
        files = put(tables)
        tables.commit("events", files, offsets=lambda _: SEEN)
        tables.commit("marks", progress=1)
        snapshot = tables.snapshot
    assert files[0].day == "2026-01-05"
    assert (files[0].rows, files[0].batch) == (2, 1)
    found = read_offsets(tmp_path)
    assert (found.seen, found.batch) == (SEEN.seen, 1)
    assert decode(encode(found)) == found
    assert Tables(tmp_path).snapshot == snapshot
    assert snapshot.progress["marks"] == 1
    assert list_files(tmp_path, "events") == list(files)
    [other] = DeltaTable(tmp_path / "events").file_uris()
    assert other.endswith(files[0].path)


def test_a_commit_needs_all_of_its_rows(tmp_path: Path) -> None:
    """A worker with a disk of its own leaves nothing where the driver looks."""
    with open_tables(tmp_path) as tables:
        with pytest.raises(RowsMissing, match=r"24087 rows were written .* and 0 are there"):
            tables.written(tables.staging("events"), 24_087)
        with pytest.raises(RowsMissing, match="must see the same storage"):
            put_with_fewer_rows(tables)
    assert read_offsets(tmp_path) == Offsets()
    assert list_files(tmp_path, "events") == []


def put_with_fewer_rows(tables: Tables) -> None:
    staging = tables.staging("events")
    folder = Path(tables.storage.local or "", staging)
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"event_id": ["e"]}), folder / "part.parquet")
    tables.written(staging, 2)


def test_a_second_writer_of_the_same_batch_is_refused(tmp_path: Path) -> None:
    """Also where there is no lock, as on object storage."""
    one, other = Tables(tmp_path), Tables(tmp_path)
    one.commit("events", put(one, "one"), offsets=lambda _: SEEN)
    with pytest.raises(SecondWriter, match="another pipeline writes to"):
        other.commit("events", put(other, "other"), offsets=lambda _: SEEN)
    assert [Path(file.path).name for file in list_files(tmp_path, "events")] == ["one.parquet"]
    assert read_offsets(tmp_path).batch == 1


def optimize(tables: Tables) -> None:
    DeltaTable(f"{tables.storage.url}/events").optimize.compact()


def names(tables: Tables) -> list[str]:
    return [Path(file.path).name for file in tables.snapshot.of("events")]


def test_commits_of_another_tool_are_followed(tmp_path: Path) -> None:
    """Its files replace ours: nothing is read twice, also after a merge of ours."""
    with open_tables(tmp_path) as tables:
        for name in ("one", "other"):
            tables.commit("events", put(tables, name), offsets=lambda _: SEEN)
        for table in DERIVED:
            tables.commit(table, progress=2)
        optimize(tables)
        last = put(tables, "last")
        tables.commit("events", last, offsets=lambda _: SEEN)
        optimized, other = sorted(tables.snapshot.of("events"), key=lambda file: file.batch)
        assert (optimized.batch, optimized.rows, other) == (0, 4, *last)
        for table in DERIVED:
            tables.commit(table, progress=3)
        optimize(tables)
        merged = put(tables, "merged")
        with pytest.raises(StartError, match=r"another program rewrote files of .*/events\."):
            tables.commit("events", merged, (optimized, *last))
        assert len(names(tables)) == 1
        tables.commit("events", merged, tables.snapshot.of("events"))
        assert names(tables) == ["merged.parquet"]
    assert read_offsets(tmp_path).batch == 3
    assert list_files(tmp_path, "events") == list(merged)


def test_a_commit_of_another_tool_right_after_ours_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the files that it removed would be merged, and count beside its own."""
    with open_tables(tmp_path) as tables:
        tables.commit("events", put(tables, "one"), offsets=lambda _: SEEN)
        for table in DERIVED:
            tables.commit(table, progress=1)
        write = DeltaTable.create_write_transaction

        def optimized(*arguments: Any, **more: Any) -> None:
            write(*arguments, **more)
            optimize(tables)

        monkeypatch.setattr(DeltaTable, "create_write_transaction", optimized)
        tables.commit("events", put(tables, "other"), tables.snapshot.of("events"))
        tables.commit("events", put(tables, "last"))
        monkeypatch.undo()
        assert tables.snapshot.of("events") == tuple(list_files(tmp_path, "events"))
        assert len(names(tables)) == 1


def test_another_tool_may_not_hide_events_from_other_tables(tmp_path: Path) -> None:
    """Files without a batch would be taken for known ones, and the ledger would lack events."""
    refused = r"rewrote files of .*/events that marks does not contain yet: restore version 2 of"
    with open_tables(tmp_path) as tables:
        for name in ("one", "other"):
            tables.commit("events", put(tables, name), offsets=lambda _: SEEN)
        optimize(tables)
        with pytest.raises(StartError, match=refused):
            tables.commit("events", put(tables), offsets=lambda _: SEEN)
        assert names(tables) == ["one.parquet", "other.parquet"]  # these can still be counted
    with pytest.raises(StartError, match=refused), open_tables(tmp_path):
        pass
    DeltaTable(str(tmp_path / "events")).restore(2)
    with open_tables(tmp_path) as tables:
        assert names(tables) == ["one.parquet", "other.parquet"]
        tables.commit("events", put(tables, "last"), offsets=lambda _: SEEN)
    assert read_offsets(tmp_path).batch == 3


@pytest.mark.parametrize("table", ["events", "marks", "quarantine"])
def test_a_restored_version_lacks_rows_that_progress_tells_of(tmp_path: Path, table: str) -> None:
    refused = rf"changed the rows of .*/{table} after version 2: restore version 2 "
    delta = str(tmp_path / table)
    with open_tables(tmp_path) as tables:
        for number in (1, 2):
            tables.commit("events", put(tables), offsets=lambda _: SEEN)
            if table != "events":
                progress = None if table == "quarantine" else number
                tables.commit(table, put(tables, table=table), progress=progress)
        DeltaTable(delta).restore(1)
        with pytest.raises(StartError, match=refused):
            tables.commit(table, put(tables, table=table))
    with pytest.raises(StartError, match=refused), open_tables(tmp_path):
        pass
    DeltaTable(delta).restore(2)
    with open_tables(tmp_path) as tables:
        assert len(tables.snapshot.of(table)) == 2
        tables.commit(table, put(tables, table=table))
    with open_tables(tmp_path) as tables:
        assert len(tables.snapshot.of(table)) == 3


def test_a_replaced_file_stays_for_readers(tmp_path: Path) -> None:
    with open_tables(tmp_path) as tables:
        old = put(tables, "old")
        tables.commit("events", old, offsets=lambda _: SEEN)
        pinned = tables.pinned()
        tables.commit("events", put(tables, "new"), old)
        assert [Path(file.path).name for file in tables.snapshot.of("events")] == ["new.parquet"]
        assert pinned.snapshot.of("events") == old
        assert tables.vacuum() == 0
        assert (tmp_path / "events" / old[0].path).exists()
        assert tables.vacuum(retention_hours=0) == 1
        assert not (tmp_path / "events" / old[0].path).exists()
    # A commit that adds nothing keeps the offsets, so that no log is needed for long.
    assert replace(read_offsets(tmp_path), batch=0, committed_at=0.0) == SEEN


def test_what_was_not_committed_does_not_count_and_is_removed(tmp_path: Path) -> None:
    with open_tables(tmp_path) as tables:
        tables.commit("events", put(tables, "kept"), offsets=lambda _: SEEN)
        [lost] = put(tables, "lost")
    with open_tables(tmp_path) as tables:
        assert [Path(file.path).name for file in tables.snapshot.of("events")] == ["kept.parquet"]
        assert tables.vacuum() == 0  # it may be of a batch that is being written
        assert tables.vacuum(retention_hours=0) == 1
    assert not (tmp_path / "events" / lost.path).exists()


def commit_often(tables: Tables, upto: int) -> None:
    while tables.snapshot.offsets.batch < upto:
        tables.commit("events", offsets=lambda offsets: offsets)


def test_a_checkpoint_that_fails_fails_no_commit(tmp_path: Path) -> None:
    log = tmp_path / "events" / "_delta_log"
    with open_tables(tmp_path) as tables:
        commit_often(tables, CHECKPOINT_INTERVAL - 2)
        (log / "_last_checkpoint").mkdir()  # it cannot be replaced by a file
        commit_often(tables, CHECKPOINT_INTERVAL)
        (log / "_last_checkpoint").rmdir()
        commit_often(tables, 2 * CHECKPOINT_INTERVAL - 1)
    assert (log / f"{2 * CHECKPOINT_INTERVAL - 1:020}.checkpoint.parquet").exists()
    assert read_offsets(tmp_path).batch == 2 * CHECKPOINT_INTERVAL - 1
    # The checkpoint has the last batch, and the commit of its offsets is lost.
    (log / f"{2 * CHECKPOINT_INTERVAL - 1:020}.json").unlink()
    with pytest.raises(StartError, match=r"lacks commits: events has"), open_tables(tmp_path):
        pass


def test_a_commit_that_fails_is_repeated(tmp_path: Path) -> None:
    log, away = tmp_path / "events" / "_delta_log", tmp_path / "away"
    with open_tables(tmp_path) as tables:
        commit_often(tables, 2)
        log.rename(away)
        log.touch()
        with pytest.raises(StartError, match=r"events cannot be written: [^\n\x1b]+$"):
            commit_often(tables, 3)
        log.unlink()
        away.rename(log)
        commit_often(tables, 3)
    assert read_offsets(tmp_path).batch == 3


def test_a_commit_whose_answer_was_lost_counts_once(tmp_path: Path) -> None:
    with open_tables(tmp_path) as tables:
        commit_often(tables, 1)
        known = tables.snapshot
        tables.commit("events", put(tables), offsets=lambda _: SEEN)
        newest, tables.snapshot = tables.snapshot, known
        tables._reload("events")
        assert tables.snapshot == newest


def test_lost_commits_of_events_are_noticed(tmp_path: Path) -> None:
    with open_tables(tmp_path) as tables:
        tables.commit("events", offsets=lambda _: SEEN)
        tables.commit("events", put(tables), offsets=lambda _: SEEN)
        tables.commit("counts", progress=2)
    (tmp_path / "events" / "_delta_log" / f"{2:020}.json").unlink()
    with (
        pytest.raises(StartError, match=r"lacks commits: counts has batch 2, .* ends with 1"),
        open_tables(tmp_path),
    ):
        pass


def test_a_damaged_commit_is_said_in_one_line(tmp_path: Path) -> None:
    with open_tables(tmp_path) as tables:
        tables.commit("events", offsets=lambda _: SEEN)
    (tmp_path / "events" / "_delta_log" / f"{1:020}.json").write_text("{")
    with pytest.raises(StartError, match=r"^[^\n\x1b]+$"), open_tables(tmp_path):
        pass


def test_only_one_process_writes(tmp_path: Path) -> None:
    with (
        open_tables(tmp_path),
        pytest.raises(StartError, match="another pipeline"),
        open_tables(tmp_path),
    ):
        pass
    with open_tables(tmp_path):
        pass


@pytest.mark.parametrize("text", ["{", '{"commitInfo": {"heliograph": "{}"}}'])
def test_a_damaged_log_is_an_error_that_helps(tmp_path: Path, text: str) -> None:
    log = tmp_path / "events" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020}.json").write_text(text)
    with pytest.raises(StartError, match="move the directory away"):
        read_offsets(tmp_path)


def test_an_empty_directory_has_empty_offsets(tmp_path: Path) -> None:
    assert read_offsets(tmp_path) == Offsets()
    assert read_account(tmp_path) == {}
    write_account(tmp_path, {"at": 1.0})
    assert read_account(tmp_path) == {"at": 1.0}
    assert json.loads((tmp_path / "account.json").read_text()) == {"at": 1.0}


@pytest.mark.parametrize("place", ["nothing://b/t", "s4://b"])
def test_a_place_of_an_unknown_sort_is_said(place: str) -> None:
    with pytest.raises(StartError, match="name a directory, or a URL"):
        Tables(place)
