from pathlib import Path
from types import SimpleNamespace

import pytest

from heliograph.cli.main import main
from heliograph.journal.shipping import FileTarget, Shipper, open_target
from heliograph.pipeline.tables.storage import Storage
from heliograph.runtime.errors import StartError
from tests.journal.support import files, heads, note, numbers, writer


def journal(directory: Path, *noted: int) -> Path:
    written = writer(directory)
    note(written, *noted)
    written.close()
    return directory


def test_segments_are_copied_once_and_whole(tmp_path: Path) -> None:
    source, target = journal(tmp_path / "journal", 1, 2), tmp_path / "there"
    shipper = Shipper(source, FileTarget(str(target)))
    assert shipper.ship() == 1
    assert shipper.ship() == 0
    journal(source, 3)
    assert Shipper(source, FileTarget(target.as_uri())).ship() == 1
    assert numbers(target) == [1, 2, 3]
    assert not list(target.rglob("*.tmp"))
    # A file that an interrupted copy left is replaced.
    [first, _] = files(target, ".parquet")
    data = first.read_bytes()
    first.write_bytes(data[:10])
    assert Shipper(source, FileTarget(str(target))).ship() == 1
    assert first.read_bytes() == data
    assert heads(target) == heads(source)


def test_a_segment_that_was_damaged_here_replaces_none(tmp_path: Path) -> None:
    source, target = journal(tmp_path / "journal", 1, 2), tmp_path / "there"
    assert Shipper(source, FileTarget(str(target))).ship() == 1
    [path] = files(source, ".parquet")
    path.write_bytes(path.read_bytes()[:100])
    again = Shipper(source, FileTarget(str(target)))
    assert again.ship() == 0
    assert again.refused == 1
    assert numbers(target) == [1, 2]


def test_what_cannot_be_shipped_is_said(tmp_path: Path) -> None:
    source = journal(tmp_path / "journal", 1)
    (tmp_path / "file").touch()
    with pytest.raises(StartError, match="cannot be shipped"):
        Shipper(source, FileTarget(str(tmp_path / "file"))).ship()
    with pytest.raises(StartError, match="see \\[journal\\] path"):
        Shipper(tmp_path / "none", FileTarget(str(tmp_path / "there"))).ship()
    with pytest.raises(StartError, match="name a directory, or a URL"):
        open_target("s4://b", None)


@pytest.mark.parametrize("interval", ["-1", "nan", "inf", "soon"])
def test_follow_refuses_what_is_no_interval(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], interval: str
) -> None:
    source, target = journal(tmp_path / "journal", 1), tmp_path / "there"
    with pytest.raises(SystemExit, match="2"):
        main(["journal", "ship", str(source), "--to", str(target), f"--follow={interval}"])
    assert f"{interval} is not a number of seconds" in capsys.readouterr().err
    assert not target.exists()


def test_a_failure_of_a_file_system_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str) -> None:
        raise OSError("no such library\ntried here\ntried there")

    monkeypatch.setattr("pyarrow.fs.FileSystem", SimpleNamespace(from_uri=fail))
    expected = r"^hdfs://h/j: no such library: name a directory, or a URL as s3://bucket/folder$"
    with pytest.raises(StartError, match=expected):
        FileTarget("hdfs://h/j")
    with pytest.raises(StartError, match=expected):
        Storage("hdfs://h/j")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = journal(tmp_path / "journal", 1)
    assert main(["journal", "ship", str(source), "--to", str(tmp_path / "there")]) == 0
    assert capsys.readouterr().out == f"1 segments shipped to {tmp_path / 'there'}\n"
    assert numbers(tmp_path / "there") == [1]
