import os
import stat
from pathlib import Path

import pytest

from heliograph.runtime.files import make_private_directory, write_file


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_mode_is_exact_and_nothing_else_is_left(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_file(tmp_path / "key", b"1", 0o600)
        os.umask(0o077)
        write_file(tmp_path / "cert", b"2")
    finally:
        os.umask(before)
    assert mode(tmp_path / "key") == 0o600
    assert mode(tmp_path / "cert") == 0o644
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cert", "key"]


def test_a_failure_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_file(tmp_path / "key", b"old")

    def fail(_: int) -> None:
        raise OSError

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError):  # noqa: PT011
        write_file(tmp_path / "key", b"new")
    assert (tmp_path / "key").read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 1


def test_directories_with_other_things_in_them_are_left_alone(tmp_path: Path) -> None:
    make_private_directory(tmp_path / "a" / "b")
    assert mode(tmp_path / "a" / "b") == 0o700
    (tmp_path / "empty").mkdir(0o755)
    make_private_directory(tmp_path / "empty")
    assert mode(tmp_path / "empty") == 0o700
    (tmp_path / "used").mkdir()
    (tmp_path / "used").chmod(0o755)
    (tmp_path / "used" / "file").touch()
    make_private_directory(tmp_path / "used")
    assert mode(tmp_path / "used") == 0o755
