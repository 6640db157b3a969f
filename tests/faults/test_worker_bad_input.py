"""Mistakes of operators with real processes: a refusal or a warning that names the process."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from heliograph.db.dialects import open_dialect
from heliograph.transport.client import Client
from heliograph.wire.addresses import decode_address
from tests.db.postgres import shared_postgres
from tests.db.replication import Primary, Standby
from tests.faults.processes import HELIOGRAPH, SimulatorProcess, init
from tests.faults.support import accepted, register
from tests.faults.test_workers import CONFIG, Workers
from tests.waiting import until

SKEW = 60
CLOCK = f"""
import time
right, right_ns = time.time, time.time_ns
time.time = lambda: right() + {SKEW}
time.time_ns = lambda: right_ns() + {SKEW} * 10**9
"""


@pytest.fixture
async def workers(tmp_path: Path, apns: SimulatorProcess) -> AsyncIterator[Workers]:
    directory = tmp_path / "ntf"
    await init("ntf", directory)
    running = Workers(directory, shared_postgres().new_url(), 2, **apns.options_of_ntf)
    await running.start()
    try:
        yield running
    finally:
        await running.kill_all()


def execute(url: str, sql: str, *parameters: object) -> None:
    dialect = open_dialect(url)
    try:
        dialect.execute(sql, parameters)
    finally:
        dialect.close()


async def output(workers: Workers, *arguments: str, url: str | None = None) -> str:
    """What a command prints, whatever its exit code."""
    environment = workers.environment | ({"HELIOGRAPH_NTF_STORE_URL": url} if url else {})
    process = await asyncio.create_subprocess_exec(
        *HELIOGRAPH,
        *arguments,
        *("--dir", str(workers.directory)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=environment,
    )
    async with asyncio.timeout(100):
        text, _ = await process.communicate()
    return text.decode()


async def test_a_clock_that_is_a_minute_off_on_one_machine(
    workers: Workers, apns: SimulatorProcess, tmp_path: Path
) -> None:
    """It is named by the leader and by doctor; its process serves, and loses nothing."""
    directory, clock = tmp_path / "other", tmp_path / "clock"
    ignored = shutil.ignore_patterns("workers", "lock", "stderr.log")
    shutil.copytree(workers.directory, directory, ignore=ignored)
    clock.mkdir()
    (clock / "sitecustomize.py").write_text(CLOCK)
    skewed = Workers(directory, workers.url, 1, **apns.options_of_ntf, PYTHONPATH=os.fspath(clock))
    try:
        await skewed.start()
        [pid] = skewed.worker_pids()
        client = await Client.connect(decode_address(skewed.ready), CONFIG)
        await register(client)
        await client.close()
        await until(lambda: len(accepted(apns)) == 1, 60)
        assert (await skewed.until_members(3))[3] == pid

        def is_named() -> bool:
            text = workers.log.read_text()
            return f"/{pid} by {SKEW} s" in text or f"/{pid} by {SKEW - 1} s" in text

        await until(is_named, 30)
        found = await output(workers, "doctor")
        assert "3 are the router" in found
        assert f"/{pid} differs by" in found
    finally:
        await skewed.kill_all()


async def test_processes_edited_by_hand(workers: Workers) -> None:
    """A row that is gone fences its process, which starts again; an ended lease is renewed."""
    members = await workers.until_members(2)
    first, second = sorted(members)
    execute(workers.url, "UPDATE leases SET expires_at = 0 WHERE process_id = ?", first)
    execute(workers.url, "DELETE FROM processes WHERE process_id = ?", second)
    found = await workers.until_members(2, without=members[second])
    assert members[first] in found.values()
    await workers.until_ready(4)
    log = workers.log.read_text()
    assert f"/{members[second]}) lost its lease" in log
    assert f"/{members[first]}) lost its lease" not in log
    execute(workers.url, "UPDATE processes SET version = '0.0.1' WHERE process_id = ?", first)
    assert "their versions differ" in await output(workers, "doctor")
    await workers.ping()


async def test_a_version_that_is_too_old_for_the_store(workers: Workers) -> None:
    """A later version has removed what this one uses: it does not start, and says why."""
    await workers.stop()
    execute(workers.url, "INSERT INTO migrations (name, at) VALUES ('0009_later_contract', 1)")
    text = await output(workers, "ntf", "start", "--workers", "2", "--port", "0")
    assert "a later version of Heliograph" in text


async def test_postgresql_in_recovery(workers: Workers) -> None:
    primary = await asyncio.to_thread(Primary)
    standby: Standby | None = None
    try:
        primary.new_url()
        standby = await asyncio.to_thread(Standby, primary)
        await workers.stop()
        start = ("ntf", "start", "--workers", "2", "--port", "0")
        text = await output(workers, *start, url=standby.url)
        assert "is in recovery and takes no writes" in text
    finally:
        if standby is not None:
            await asyncio.to_thread(standby.remove)
        await asyncio.to_thread(primary.remove)
