"""kill -9 of the shipper and of the collector at random moments: nothing lost, nothing twice."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from heliograph.journal.shipping import HttpTarget, Shipper
from tests.journal.support import IDENTITY, files, note, numbers, writer

ROUNDS = int(os.environ.get("HELIOGRAPH_SHIP_KILL_ROUNDS", "3"))
SEGMENTS = 40
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


def test_kill_at_random_moments(tmp_path: Path) -> None:
    chance = random.Random(7)
    source, there, token = tmp_path / "journal", tmp_path / "there", tmp_path / "token"
    token.write_text(TOKEN)
    noted = 0
    port = 0
    for number in range(ROUNDS):
        for _ in range(SEGMENTS):
            noted += 1
            made = writer(source)
            note(made, noted)
            made.close()
        process, url = collector(there, token, port)
        port = int(url.rpartition(":")[2])
        shipper = start(
            "ship", str(source), "--to", url, "--token-file", str(token), "--follow", "0.01"
        )
        try:
            before = len(files(there, ".parquet"))
            deadline = time.monotonic() + 60
            while len(files(there, ".parquet")) == before and time.monotonic() < deadline:
                time.sleep(0.002)
            time.sleep(chance.random() * 0.05)  # a random moment, not a wait for something
        finally:
            for killed in (process, shipper) if number % 2 else (shipper, process):
                end(killed)
    process, url = collector(there, token, port)
    try:
        Shipper(source, HttpTarget(url, TOKEN)).ship()
        assert Shipper(source, HttpTarget(url, TOKEN)).ship() == 0
    finally:
        end(process)
    assert numbers(there) == list(range(1, noted + 1))
    assert [path.read_bytes() for path in files(there, ".parquet")] == [
        path.read_bytes() for path in files(source, ".parquet")
    ]
    assert not list((there / IDENTITY.router).glob(".*"))


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
