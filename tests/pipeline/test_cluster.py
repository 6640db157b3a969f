"""On executors that are processes of their own, and with one of them killed: the same result."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from heliograph.pipeline.tables.offsets import read_offsets
from heliograph.pipeline.tables.tables import open_tables
from heliograph.sim.fleet import Fleet, FleetSettings

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        "HELIOGRAPH_PIPELINE_CLUSTER" not in os.environ,
        reason="takes minutes: set HELIOGRAPH_PIPELINE_CLUSTER=1",
    ),
]
CODE = "import sys; from heliograph.cli.main import main; sys.exit(main())"


def run(directory: Path, journal: Path, master: str) -> "subprocess.Popen[str]":
    words = [sys.executable, "-c", CODE, "pipeline", "once", "--dir", str(directory)]
    words += ["--journal", str(journal), "--master", master, "--memory", "700m"]
    words += ["--conf", "spark.executor.memory=600m"]
    return subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def finish(process: "subprocess.Popen[str]") -> str:
    try:
        out, err = process.communicate(timeout=1500)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, (out, err[-3000:])
    return out


def outcomes(out: str) -> dict[str, int]:
    return {name: int(count) for name, count in re.findall(r"^([a-z]+) +(\d+)$", out, re.MULTILINE)}


def a_fleet(tmp_path: Path, notifications: int) -> tuple[Fleet, Path]:
    fleet = Fleet(FleetSettings(notifications=notifications, tokens=100, seed=11))
    fleet.write(tmp_path / "journal", rows_per_segment=20_000)
    return fleet, tmp_path / "journal"


def test_on_a_local_cluster(tmp_path: Path) -> None:
    fleet, journal = a_fleet(tmp_path, 5000)
    out = finish(run(tmp_path / "tables", journal, "local-cluster[2,1,700]"))
    assert outcomes(out) == fleet.outcomes
    assert read_offsets(tmp_path / "tables").counts["events"] == fleet.events


def spark_class(*words: str) -> "subprocess.Popen[str]":
    from heliograph.pipeline.spark.submit import environment

    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    script = Path(spec.origin).parent / "bin" / "spark-class"
    known = {**environment(), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "300m"}
    return subprocess.Popen(
        [str(script), *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=known,
        start_new_session=True,
    )


def said(process: "subprocess.Popen[str]", pattern: str) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        found = re.search(pattern, line)
        if found:
            return found[1]
    raise AssertionError(f"it ended without {pattern}")


@contextmanager
def a_cluster(tmp_path: Path) -> Iterator[tuple[str, "list[subprocess.Popen[str]]"]]:
    """A master and two workers as real processes."""
    started = []
    try:
        words: tuple[str, ...] = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        master = spark_class("org.apache.spark.deploy.master.Master", *words)
        started.append(master)
        url = said(master, r"(spark://127\.0\.0\.1:\d+)")
        for number in (1, 2):
            words = ("--host", "127.0.0.1", "--cores", "1", "--memory", "800m", "--webui-port", "0")
            folder = str(tmp_path / f"worker{number}")
            worker = spark_class(
                "org.apache.spark.deploy.worker.Worker", *words, "--work-dir", folder, url
            )
            started.append(worker)
            said(worker, r"(Successfully registered with master)")
        yield url, started[1:]
    finally:
        for process in started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            assert process.stderr is not None
            process.stderr.close()


def test_on_a_standalone_cluster_with_a_worker_killed(tmp_path: Path) -> None:
    fleet, journal = a_fleet(tmp_path, 20_000)
    with a_cluster(tmp_path) as (url, workers):
        process = run(tmp_path / "tables", journal, url)
        deadline = time.monotonic() + 600
        while not any((tmp_path / "worker1").rglob("stderr")) and time.monotonic() < deadline:
            time.sleep(0.1)  # until it has an executor
        time.sleep(2.0)  # a moment amid its work; any is right
        os.killpg(workers[0].pid, signal.SIGKILL)
        out = finish(process)
    assert outcomes(out) == fleet.outcomes
    with open_tables(tmp_path / "tables") as tables:
        assert tables.snapshot.offsets.counts["events"] == fleet.events
