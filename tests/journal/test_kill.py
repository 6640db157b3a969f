"""kill -9 at random moments; a disk that is full, or read-only, in earnest."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest

from heliograph.journal.storage.reader import read_tables
from tests.journal.support import IDENTITY, files, writer

ROUNDS = 30


def run(*arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.journal.process", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def killed(directory: Path, seed: int, after: float, *, at_work: bool = True) -> dict[int, int]:
    """By run: how many events were sealed in its last report; nothing without a report."""
    with run(str(directory), str(seed)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        reported = process.stdout.readline() if at_work else ""
        time.sleep(after)  # a random moment, not a wait for something
        process.send_signal(signal.SIGKILL)
        reported += process.stdout.read()
    lines = reported.rpartition("\n")[0].splitlines()
    return {int(boot): int(sealed) for boot, sealed in (line.split() for line in lines[-1:])}


def found_in(directory: Path) -> dict[int, list[int]]:
    """By run: the events, once a later run has begun."""
    writer(directory).close()
    assert not files(directory, ".log")
    assert not files(directory, ".tmp")
    found: dict[int, list[int]] = defaultdict(list)
    for table in read_tables(directory):
        seqs = table["seq"].to_pylist()
        assert table["count"].to_pylist() == seqs
        found[table["boot"][0].as_py()] += seqs
    return found


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_kill_at_random_moments(tmp_path: Path) -> None:
    """Nothing that was synced is lost, nothing is there twice, nothing is missing in between."""
    chance = random.Random(1)
    reported: dict[int, int] = {}
    for seed in range(ROUNDS):
        reported |= killed(tmp_path, seed, chance.random() * 0.2, at_work=seed % 5 > 0)
    found = found_in(tmp_path)
    assert len(reported) >= ROUNDS // 2
    assert reported.keys() <= found.keys()
    for boot, seqs in found.items():
        assert len(seqs) >= reported.get(boot, 0)
        assert sorted(seqs) == list(range(1, len(seqs) + 1))


def test_kill_once(tmp_path: Path) -> None:
    [(boot, sealed)] = killed(tmp_path, 7, 0.05).items()
    seqs = found_in(tmp_path)[boot]
    assert len(seqs) >= sealed > 0
    assert sorted(seqs) == list(range(1, len(seqs) + 1))


def test_files_that_may_not_grow(tmp_path: Path) -> None:
    """The process lives, and what could be written is whole."""
    with run(str(tmp_path), "3", "9000") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(1.0)
        assert process.poll() is None
        process.kill()
    for seqs in found_in(tmp_path).values():
        assert len(seqs) == len(set(seqs))


_MOUNTED = """
import sys
from tests.journal.support import *
from tests.waiting import block_until as until
from pathlib import Path
import os, subprocess
place = Path(sys.argv[1])
def mount(*options):
    subprocess.run(["mount", *options, str(place)], check=True)
mount("-t", "tmpfs", "-o", "size=64k", "tmpfs")
journal = writer(place / "journal")
note(journal, 1)
until(lambda: journal.written == 1)
(place / "filler").write_bytes(b"x" * 20_000)
with (place / "filler").open("ab", buffering=0) as filler:
    try:
        while filler.write(b"x" * 4096): pass
    except OSError: pass
    note(journal, 2)
    until(lambda: journal.is_failing)
    assert numbers(place / "journal") == [1]
    note(journal, 3)
(place / "filler").unlink()
until(lambda: journal.written == 3)
assert numbers(place / "journal") == [1, 2, 3]
mount("-o", "remount,bind,ro")
note(journal, 4)
until(lambda: journal.is_failing)
mount("-o", "remount,bind,rw")
until(lambda: journal.written == 4)
journal.close()
assert numbers(place / "journal") == [1, 2, 3, 4]
assert journal.lost == 0
print("all well")
"""


def may_mount() -> bool:
    try:
        done = subprocess.run(
            ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True
        )
    except OSError:
        return False
    return done.returncode == 0


def test_a_full_disk_and_a_read_only_mount(tmp_path: Path) -> None:
    if not may_mount():
        pytest.skip("no file system may be mounted here")
    done = subprocess.run(
        ["unshare", "-rm", sys.executable, "-c", _MOUNTED, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=50,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert done.stdout == "all well\n", done.stderr
    assert "the journal can be written again" in done.stderr
    assert IDENTITY.key.hex() not in done.stderr
