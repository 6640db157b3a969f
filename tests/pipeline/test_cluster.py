"""On a standalone cluster of real processes: a worker with a disk of its own, and one killed."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from heliograph.pipeline.spark.submit import environment
from heliograph.sim.fleet import Fleet, FleetSettings
from tests.waiting import block_until

HERE = Path(__file__).parents[2]


def spark_class(log: Path, *words: str) -> "subprocess.Popen[str]":
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    script = Path(spec.origin).parent / "bin" / "spark-class"
    options = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    known = {
        **environment(),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "200m",
        "SPARK_DAEMON_JAVA_OPTS": options,
    }
    with log.open("w") as errors:
        return subprocess.Popen(
            [str(script), *words],
            stdout=subprocess.DEVNULL,
            stderr=errors,
            text=True,
            env=known,
            start_new_session=True,
        )


def said(log: Path, pattern: str) -> str:
    block_until(lambda: re.search(pattern, log.read_text()) is not None, within=300.0)
    found = re.search(pattern, log.read_text())
    assert found is not None
    return found[0]


def end(process: "subprocess.Popen[str]") -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()


@contextmanager
def a_cluster(tmp_path: Path) -> Iterator[tuple[str, "list[subprocess.Popen[str]]"]]:
    """Start a master and two workers as processes."""
    started = []
    try:
        words: tuple[str, ...] = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        log = tmp_path / "master.log"
        started.append(spark_class(log, "org.apache.spark.deploy.master.Master", *words))
        url = said(log, r"spark://127\.0\.0\.1:\d+")
        logs = [tmp_path / f"worker{number}.log" for number in (1, 2)]
        for log in logs:
            words = ("--host", "127.0.0.1", "--cores", "1", "--memory", "700m", "--webui-port", "0")
            folder = str(log.with_suffix(""))
            started.append(
                spark_class(
                    log, "org.apache.spark.deploy.worker.Worker", *words, "--work-dir", folder, url
                )
            )
        for log in logs:
            said(log, "Successfully registered with master")
        yield url, started[1:]
    finally:
        for process in started:
            end(process)


def answer(driver: "subprocess.Popen[str]", log: Path) -> dict[str, Any]:
    assert driver.stdout is not None
    line = driver.stdout.readline()
    assert line, log.read_text()[-3000:]
    found: dict[str, Any] = json.loads(line)
    return found


@pytest.mark.timeout(900)
def test_a_worker_with_its_own_disk_and_one_that_is_killed(tmp_path: Path) -> None:
    fleet = Fleet(FleetSettings(notifications=600, tokens=30, seed=11))
    fleet.write(tmp_path / "journal", rows_per_segment=500)
    log = tmp_path / "driver.log"
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "journal").symlink_to(tmp_path / "journal")
    with a_cluster(tmp_path) as (url, workers), log.open("w") as errors:
        driver = subprocess.Popen(
            [sys.executable, "-m", "tests.pipeline.on_cluster", url, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=tmp_path / "home",
            env={**environment(), "PYTHONPATH": str(HERE)},
            start_new_session=True,
        )
        try:
            for _ in ("tables", "journal"):
                refused = answer(driver, log)
                assert "all workers of Spark must see the same storage" in str(refused["refused"])
                assert refused["batch"] == 0  # no segment is taken
            assert answer(driver, log) == {"ready": True}
            os.killpg(workers[0].pid, signal.SIGKILL)  # with its executor
            assert driver.stdin is not None
            driver.stdin.write("\n")
            driver.stdin.flush()
            found = answer(driver, log)
        finally:
            end(driver)
    assert found == {"outcomes": fleet.outcomes, "events": fleet.events}
