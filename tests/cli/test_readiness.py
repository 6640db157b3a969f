"""`/readyz` of both routers fails while the store takes no writes, and recovers by itself."""

import os
import resource
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

UNLIMITED = resource.RLIM_INFINITY


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code, exc.read().decode()


def answers(url: str, status: int) -> str:
    """Ask until the status is this; return the text."""
    deadline = time.monotonic() + 30
    while True:
        found, text = get(url)
        if found == status:
            return text
        assert time.monotonic() < deadline, text
        time.sleep(0.1)


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="only Linux has prlimit")
@pytest.mark.parametrize("part", ["smp", "ntf"])
def test_a_disk_that_takes_no_more(part: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "heliograph", part]
    subprocess.run(
        [*command, "init", "--dir", str(tmp_path), "--port", "0"],
        check=True,
        capture_output=True,
        timeout=60,
    )
    process = subprocess.Popen(
        [*command, "start", "--dir", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, f"HELIOGRAPH_{part.upper()}_METRICS_PORT": "0"},
    )
    try:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "metrics at " in line)
        url = line.split("metrics at ")[1].strip().replace("/metrics", "/readyz")
        assert answers(url, 200) == "ok\n"
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1, UNLIMITED))  # as on a full disk
        assert answers(url, 503).startswith("not ready: the store fails: ")
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (UNLIMITED, UNLIMITED))
        assert answers(url, 200) == "ok\n"
    finally:
        process.kill()
        process.communicate()
