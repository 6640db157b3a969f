import os
import subprocess
from pathlib import Path

import pytest

from heliograph.pipeline.spark import java
from heliograph.runtime.errors import StartError


def fake_java(folder: Path, version: str) -> Path:
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025' >&2\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("said", "version"), [("17.0.15", 17), ("1.8.0_402", 8), ("25", 25), ("nonsense", None)]
)
def test_versions(tmp_path: Path, said: str, version: int | None) -> None:
    assert java.java_version(fake_java(tmp_path, said)) == version


def test_java_home_comes_first(tmp_path: Path) -> None:
    fake_java(tmp_path, "21.0.1")
    environ = {"JAVA_HOME": str(tmp_path), "PATH": ""}
    assert java.find_java(tmp_path / "cache", environ) == tmp_path


def test_a_java_home_that_is_too_old_is_refused(tmp_path: Path) -> None:
    fake_java(tmp_path, "11.0.2")
    with pytest.raises(StartError, match="JAVA_HOME has no Java 17"):
        java.find_java(tmp_path / "cache", {"JAVA_HOME": str(tmp_path)})


def test_then_the_path(tmp_path: Path) -> None:
    path = fake_java(tmp_path, "17.0.1")
    assert java.find_java(tmp_path / "cache", {"PATH": str(path.parent)}) == tmp_path


def test_then_the_package(tmp_path: Path) -> None:
    """The real one, through the wrapper, with the argument that it alone would refuse."""
    home = java.find_java(tmp_path, {"PATH": "/nonexistent"})
    assert home == tmp_path / "java"
    words = [str(home / "bin" / "java"), "--add-modules=jdk.incubator.vector", "-version"]
    said = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "version" in said.stderr
    assert os.access(home / "bin" / "java", os.X_OK)


def test_no_java_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "find_spec", lambda name: None)
    with pytest.raises(StartError, match="install one"):
        java.find_java(tmp_path, {"PATH": "/nonexistent"})
