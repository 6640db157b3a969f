"""kill -9 of the shipper and of the collector at random moments: nothing lost, nothing twice."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from heliograph.journal.shipping import FileTarget, HttpTarget, Shipper
from tests.journal.support import IDENTITY, files, note, numbers, writer

ROUNDS = int(os.environ.get("HELIOGRAPH_SHIP_KILL_ROUNDS", "2"))
SEGMENTS = 20
TOKEN = "t" * 32


def start(*words: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "heliograph", "journal", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def collector(there: Path, token: Path, port: int) -> tuple["subprocess.Popen[str]", str]:
    words = ["collect", str(there), "--token-file", str(token), "--listen", f"127.0.0.1:{port}"]
    process = start(*words)
    assert process.stdout is not None
    ready = process.stdout.readline()
    assert ready.startswith("ready "), process.communicate()
    return process, ready.removeprefix("ready ").strip()


def end(process: "subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


@pytest.mark.parametrize("to", ["collector", "directory"])
def test_kill_at_random_moments(tmp_path: Path, to: str) -> None:
    chance = random.Random(7)
    source, there, token = tmp_path / "journal", tmp_path / "there", tmp_path / "token"
    token.write_text(TOKEN)
    noted = port = 0
    for number in range(ROUNDS):
        for _ in range(SEGMENTS):
            noted += 1
            made = writer(source)
            note(made, noted)
            made.close()
        place, running = str(there), []
        if to == "collector":
            process, place = collector(there, token, port)
            port = int(place.rpartition(":")[2])
            running.append(process)
        words = ["ship", str(source), "--to", place, "--token-file", str(token)]
        running.append(start(*words, "--follow", "0.01"))
        try:
            before = len(files(there, ".parquet"))
            deadline = time.monotonic() + 60
            while len(files(there, ".parquet")) == before and time.monotonic() < deadline:
                time.sleep(0.002)
            time.sleep(chance.random() * 0.05)  # a random moment, not a wait for something
        finally:
            for killed in running if number % 2 else reversed(running):
                end(killed)
    if to == "directory":
        assert_equal(source, there, lambda: Shipper(source, FileTarget(str(there))).ship())
    else:
        process, url = collector(there, token, port)
        try:
            assert_equal(source, there, lambda: Shipper(source, HttpTarget(url, TOKEN)).ship())
        finally:
            end(process)
    assert numbers(there) == list(range(1, noted + 1))


def assert_equal(source: Path, there: Path, ship: Callable[[], int]) -> None:
    """After one more round, each segment is there once and whole, and nothing else."""
    ship()
    assert ship() == 0
    assert [path.read_bytes() for path in files(there, ".parquet")] == [
        path.read_bytes() for path in files(source, ".parquet")
    ]
    assert not list((there / IDENTITY.router).glob(".*"))
    assert not list((there / IDENTITY.router).glob("*.tmp"))


def test_a_shipper_waits_for_a_collector_that_is_away(tmp_path: Path) -> None:
    source, there, token = tmp_path / "journal", tmp_path / "there", tmp_path / "token"
    token.write_text(TOKEN)
    made = writer(source)
    note(made, 1)
    made.close()
    process, url = collector(there, token, 0)
    end(process)
    shipper = start("ship", str(source), "--to", url, "--token-file", str(token), "--follow", "0.1")
    try:
        assert shipper.stderr is not None
        assert shipper.stdout is not None
        assert "cannot be shipped" in shipper.stderr.readline()
        process, _ = collector(there, token, int(url.rpartition(":")[2]))
        try:
            assert shipper.stdout.readline() == f"1 segments shipped to {url}\n"
        finally:
            end(process)
    finally:
        end(shipper)
    assert numbers(there) == [1]
