"""CPU, memory and disk of this machine and of processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from heliograph.web.machine import Processes, disks, machine


def test_machine() -> None:
    found = machine()
    assert found["cores"] >= 1
    if sys.platform == "linux":
        assert 0 < found["memory_available"] <= found["memory_total"]
        assert found["uptime_seconds"] > 0


def test_disks_are_listed_once(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    found = disks({"root": tmp_path, "a": tmp_path / "a", "missing": tmp_path / "b"})
    assert [disk["places"] for disk in found] == [["root", "a"]]
    assert 0 <= found[0]["free"] <= found[0]["total"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")
def test_processes() -> None:
    processes = Processes()
    first = processes.measure([os.getpid(), 2**30])
    assert list(first) == [os.getpid()]
    assert first[os.getpid()]["cpu_percent"] is None
    sum(range(3_000_000))
    second = processes.measure([os.getpid()])[os.getpid()]
    assert second["cpu_percent"] > 0
    assert second["memory"] > 1_000_000
    assert second["open_files"] > 2


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")
def test_children_count_as_their_parent() -> None:
    alone = Processes().measure([os.getpid()])[os.getpid()]
    program = "import sys; kept = bytearray(64 << 20); print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        together = Processes().measure([os.getpid()])[os.getpid()]
        child.stdin.close()
    assert together["memory"] - alone["memory"] > 50 << 20
    assert together["open_files"] - alone["open_files"] >= 5  # three of the child, two pipes here
