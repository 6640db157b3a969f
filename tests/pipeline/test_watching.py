"""The light pipeline: Spark runs only when there is something to read."""

import os
import signal
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from heliograph.cli.main import parser
from heliograph.cli.pipeline.light import command
from heliograph.pipeline import source, watching
from heliograph.pipeline.tables.offsets import Offsets, write_account
from heliograph.pipeline.tables.tables import open_tables
from heliograph.pipeline.watching import Watcher
from heliograph.runtime.errors import StartError
from tests.pipeline.support import Scribe, write_journal, write_segment

TIMEOUT = 240.0


def ingested(place: Path, *names: str) -> None:
    found = source.with_ingested(Offsets(), [source.segment(name, "", 0, 0.0) for name in names])
    with open_tables(place) as tables:
        tables.commit("events", offsets=lambda _: Offsets(**found))


def test_an_account_is_due_when_something_may_be_overdue(tmp_path: Path) -> None:
    ntf = Scribe()
    ntf.nmsg(1, 0.0)
    journal, tables = write_journal(tmp_path / "journal", ntf), tmp_path / "tables"
    ingested(tables, "ntf/1000-00000001.parquet")
    watcher = Watcher(tables, [str(journal)], 900.0)
    write_account(tables, {"outcomes": {"accepted": 3, "waiting": 2}})
    watcher.ran(0.0)
    assert watcher.due(3600.0) is None
    write_account(tables, {"outcomes": {"delivered": 1}})
    watcher.ran(0.0)
    assert watcher.due(3599.0) is None
    assert watcher.due(3600.0) == 0
    watcher.ran(3600.0)
    assert watcher.due(3601.0) is None


def test_a_batch_is_due_when_something_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, tables = tmp_path / "journal", tmp_path / "tables"
    ntf = Scribe()
    ntf.nmsg(1, 0.0)
    write_journal(journal, ntf)
    watcher = Watcher(tables, [str(journal)], 900.0)
    assert watcher.due(0.0)  # the first does not wait
    watcher.ran(10.0)
    assert watcher.due(20.0) is None
    assert watcher.due(910.0)
    ingested(tables, "ntf/1000-00000001.parquet")
    assert watcher.due(2000.0) is None
    # While nothing changes, nothing is listed.
    listed: list[str] = []
    real = source.list_segments

    def listing(journal: str, spark: None) -> list[source.Segment]:
        listed.append(journal)
        return real(journal, spark)

    monkeypatch.setattr(source, "list_segments", listing)
    assert watcher.due(3000.0) is None
    assert not listed
    write_segment(journal, "ntf/1000-00000002", ntf.events)
    assert watcher.due(3000.0)
    watcher.ran(3000.0)
    assert watcher.due(3001.0) is None
    monkeypatch.setattr(watching, "LARGE_BYTES", 1)
    assert watcher.due(3001.0)  # much waits: at once


def test_places(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="there is no journal at"):
        Watcher(tmp_path, [str(tmp_path / "none")], 900.0).due(0.0)
    remote = Watcher(tmp_path, ["s3://bucket/journal"], 900.0)
    assert remote.due(0.0)
    remote.ran(0.0)
    assert remote.due(899.0) is None
    assert remote.due(900.0)


def options(*words: str) -> Namespace:
    return parser("pipeline").parse_args(["pipeline", *words])


def test_a_batch_has_the_settings_of_the_service() -> None:
    words = ["run", "--every", "900", "--dir", "D", "--journal", "J", "--journal", "K"]
    words += ["--memory", "512m", "--master", "local[1]", "--conf", "a=b", "--grace", "7"]
    words += ["--no-acknowledge", "--keep-events", "3", "--objective", "98% accepted in 60s"]
    found = command(options(*words), small=True, upkeep=True)
    again = options(*found[4:])
    assert (str(again.dir), again.journal, again.memory) == ("D", ["J", "K"], "512m")
    assert again.master == "local[1]"
    assert ("a", "b") in again.conf
    assert any("SerialGC" in value for _, value in again.conf)
    assert (again.grace, again.no_acknowledge, again.upkeep) == (7.0, True, True)
    assert again.keep_events == 3.0
    assert [item.text for item in again.objective] == ["98% accepted in 60s"]
    large = options(*command(options(*words), small=False, upkeep=False)[4:])
    assert (large.upkeep, large.memory, large.conf) == (False, "2g", [("a", "b")])


def children(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == pid:
                found += [int(entry.name), *children(int(entry.name))]
    return found


def javas(pid: int) -> list[int]:
    return [child for child in children(pid) if is_java(child)]


def is_java(pid: int) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/exe").endswith("java")
    except OSError:
        return False


def until(condition: Any) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_interrupted_start_leaves_no_java_behind(tmp_path: Path) -> None:
    ntf = Scribe()
    ntf.nmsg(1, 0.0)
    journal = write_journal(tmp_path / "journal", ntf)
    words = [sys.executable, "-m", "heliograph", "pipeline", "once", "--dir", str(tmp_path / "t")]
    words += ["--journal", str(journal), "--master", "local[1]", "--memory", "512m"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        until(lambda: javas(process.pid))
        found = javas(process.pid)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=TIMEOUT)
        assert process.returncode == 130
        assert not output
        until(lambda: not any(map(is_java, found)))
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def test_a_journal_that_cannot_be_read_for_a_moment(tmp_path: Path) -> None:
    journal, away = tmp_path / "journal", tmp_path / "away"
    journal.mkdir()
    words = [sys.executable, "-m", "heliograph", "pipeline", "run", "--every", "900"]
    words += ["--dir", str(tmp_path / "tables"), "--journal", str(journal)]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready")
        journal.rename(away)
        journal.touch()
        until(lambda: "Not a directory" in (tmp_path / "log").read_text())
        journal.unlink()
        away.rename(journal)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_spark_goes_when_there_is_nothing_to_read(tmp_path: Path) -> None:
    ntf = Scribe()
    ntf.nmsg(1, 0.0)
    ntf.accepted([1], 1, 1.0)
    journal = write_journal(tmp_path / "journal", ntf)
    tables = tmp_path / "tables"
    words = [sys.executable, "-m", "heliograph", "pipeline", "run", "--every", "1"]
    words += ["--dir", str(tables), "--journal", str(journal), "--master", "local[1]"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [*words, "--memory", "512m"], stdout=subprocess.PIPE, stderr=log, text=True
        )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == f"ready {tables}\n"
        until(lambda: "a batch took" in (tmp_path / "log").read_text())
        assert "every notification is accounted for" in (tmp_path / "log").read_text()
        until(lambda: not children(process.pid))
        assert (journal / "ntf" / "_acknowledged.json").exists()
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0
