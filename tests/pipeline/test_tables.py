import json
from pathlib import Path

import pytest

from heliograph.pipeline.tables import (
    MANIFEST,
    DataFile,
    Manifest,
    Tables,
    decode,
    encode,
    open_tables,
    read_manifest,
)
from heliograph.runtime.errors import StartError


def put(tables: Tables, name: str = "part") -> tuple[DataFile, ...]:
    staging = tables.staging("events")
    (staging / "day=2026-01-05").mkdir(parents=True)
    (staging / "day=2026-01-05" / f"{name}.parquet").write_bytes(b"data")
    return tables.written(staging)


def test_what_is_committed_is_read_again(tmp_path: Path) -> None:
    with open_tables(tmp_path) as tables:
        files = put(tables)
        tables.commit({"events": files}, seen={"r/1": [(1, 5)]}, counts={"events": 5})
    found = read_manifest(tmp_path)
    assert found.of("events") == files
    assert files[0].day == "2026-01-05"
    assert found.seen == {"r/1": [(1, 5)]}
    assert decode(encode(found)) == found


def test_what_was_not_committed_is_removed(tmp_path: Path) -> None:
    with open_tables(tmp_path) as tables:
        tables.commit({"events": put(tables, "kept")})
        put(tables, "lost")
    with open_tables(tmp_path) as tables:
        names = [path.name for path in (tmp_path / "events").rglob("*.parquet")]
    assert names == ["kept.parquet"]


def test_a_replaced_file_stays_for_readers(tmp_path: Path) -> None:
    with open_tables(tmp_path) as tables:
        old = put(tables, "old")
        tables.commit({"events": old}, now=0.0)
        tables.commit({"events": put(tables, "new")}, {"events": old}, now=100.0)
        assert [file.path for file in tables.manifest.of("events")] != [old[0].path]
        assert tables.vacuum(now=200.0) == 0
        assert (tmp_path / old[0].path).exists()
        assert tables.vacuum(now=701.0) == 1
        assert not (tmp_path / old[0].path).exists()
    assert read_manifest(tmp_path).retired == ()


def test_only_one_process_writes(tmp_path: Path) -> None:
    with (
        open_tables(tmp_path),
        pytest.raises(StartError, match="another pipeline"),
        open_tables(tmp_path),
    ):
        pass
    with open_tables(tmp_path):
        pass


def test_a_failed_commit_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with open_tables(tmp_path) as tables:
        tables.commit(counts={"events": 1})
        before = tables.manifest
        monkeypatch.setitem(Tables.commit.__globals__, "write_file", fail)
        with pytest.raises(OSError, match="No space"):
            tables.commit(counts={"events": 2})
        assert tables.manifest == before == read_manifest(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 99}', '{"format": 1}'])
def test_a_damaged_manifest_is_an_error_that_helps(tmp_path: Path, text: str) -> None:
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(StartError, match="move the directory away"):
        read_manifest(tmp_path)


def test_an_empty_directory_has_an_empty_manifest(tmp_path: Path) -> None:
    assert read_manifest(tmp_path) == Manifest()
    assert json.loads(encode(Manifest()))["version"] == 0
