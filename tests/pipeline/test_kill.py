"""kill -9 of the driver at random moments: the tables equal those of an undisturbed run."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from heliograph.pipeline.tables.offsets import read_offsets
from heliograph.pipeline.tables.tables import open_tables
from heliograph.pipeline.upkeep import compact
from heliograph.sim.fleet import Fleet, FleetSettings
from tests.pipeline.support import (
    SPARK_SETTINGS,
    START,
    Scribe,
    pipeline,
    snapshot,
    write_segment,
)
from tests.pipeline.test_watching import javas
from tests.waiting import block_until

ROUNDS = int(os.environ.get("HELIOGRAPH_PIPELINE_KILL_ROUNDS", "2"))
MASTER = os.environ.get("HELIOGRAPH_PIPELINE_KILL_MASTER", "local[2]")
START_TIMEOUT = 300.0


def start(directory: Path, journal: Path) -> "subprocess.Popen[bytes]":
    """The driver, with a JVM of its own that goes with it."""
    code = "import sys; from heliograph.cli.main import main; sys.exit(main())"
    words = [sys.executable, "-c", code, "pipeline", "run", "--poll", "0.05"]
    words += ["--dir", str(directory), "--journal", str(journal), "--master", MASTER]
    words += ["--keep-events", "30000", "--keep-ledger", "30000"]  # days, as these events are old
    for key, value in SPARK_SETTINGS.items():
        words += ["--conf", f"{key}={value}"]
    with directory.with_suffix(".log").open("ab") as log:
        return subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=log, start_new_session=True, bufsize=0
        )


def ready(process: "subprocess.Popen[bytes]", directory: Path) -> None:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith(b"ready"), directory.with_suffix(".log").read_text()[-3000:]


def kill(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


@pytest.mark.slow
@pytest.mark.timeout(600 + 120 * ROUNDS)
def test_killed_at_random_moments(spark: Any, tmp_path: Path) -> None:
    settings = FleetSettings(
        notifications=600, tokens=30, seed=9, start=int(START.timestamp()) * 1_000_000
    )
    fleet = Fleet(settings)
    ready_made = fleet.write(tmp_path / "made", rows_per_segment=100)
    journal, directory = tmp_path / "journal", tmp_path / "tables"
    journal.mkdir()
    chance = random.Random(9)
    each = max(1, len(ready_made) // (ROUNDS + 1))
    left = list(ready_made)
    kills_amid_work = 0
    for _ in range(ROUNDS):
        process = start(directory, journal)
        try:
            ready(process, directory)
            _reveal(left[:each], tmp_path / "made", journal)
            left = left[each:]
            before = read_offsets(directory).batch
            _wait_for(chance, directory, process)
            kills_amid_work += read_offsets(directory).batch == before
        finally:
            kill(process)
    _reveal(left, tmp_path / "made", journal)
    with open_tables(directory) as tables:
        made = pipeline(spark, tables, journal)
        while made.ingester.ingest_batch() is not None:
            pass
        made.update_stats()
        disturbed = snapshot(made)
        assert made.account().outcomes == fleet.outcomes
        made.update_ledger()
        compact(made, everything=True)
        assert snapshot(made) == disturbed
    with open_tables(tmp_path / "undisturbed") as tables:
        made = pipeline(spark, tables, journal)
        while made.ingester.ingest_batch() is not None:
            pass
        made.update_stats()
        assert snapshot(made) == disturbed
    reported = f"{ROUNDS} kills, {kills_amid_work} before the first commit of their round\n"
    sys.stdout.write(reported)


def _wait_for(chance: random.Random, directory: Path, process: "subprocess.Popen[bytes]") -> None:
    """A moment: any, or just when files are written, or just when a commit was made."""
    version = read_offsets(directory).batch
    files = _files(directory)
    moment = chance.choice(("any", "files", "commit", "commit"))
    deadline = time.monotonic() + (chance.uniform(0.0, 4.0) if moment == "any" else START_TIMEOUT)
    while time.monotonic() < deadline and process.poll() is None:
        if moment == "files" and _files(directory) != files:
            break
        if moment == "commit" and read_offsets(directory).batch != version:
            break
        time.sleep(0.002)
    time.sleep(chance.choice((0.0, 0.0, 0.05, 0.5)))


def _files(directory: Path) -> int:
    """Also of folders that go while they are counted."""
    return sum(name.endswith(".parquet") for *_, names in os.walk(directory) for name in names)


def _reveal(paths: list[Path], made: Path, journal: Path) -> None:
    """As a router does: with one rename."""
    for path in paths:
        target = journal / path.relative_to(made)
        target.parent.mkdir(exist_ok=True)
        path.rename(target)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_stream_without_java_ends(tmp_path: Path) -> None:
    """So that a supervisor starts it again: no retry can succeed."""
    journal, directory = tmp_path / "journal", tmp_path / "tables"
    journal.mkdir()
    ntf = Scribe()
    ntf.nmsg(1, 0.0)
    ntf.nmsg(2, 1.0)
    process = start(directory, journal)
    try:
        ready(process, directory)
        write_segment(journal, "ntf/1000-00000001", ntf.events[:2])
        block_until(lambda: read_offsets(directory).batch > 0, within=START_TIMEOUT)
        for java in javas(process.pid):
            os.kill(java, signal.SIGKILL)
        write_segment(journal, "ntf/1000-00000002", ntf.events[2:])
        assert process.wait(START_TIMEOUT) == 1
    finally:
        kill(process)
    assert "the Java process of Spark ended" in directory.with_suffix(".log").read_text()
    assert read_offsets(directory).counts["segments"] == 1
