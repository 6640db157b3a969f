"""`heliograph ntf start --workers N`: real processes under their supervisor."""

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from heliograph.db.dialects import open_dialect
from heliograph.documents import JsonObject
from heliograph.journal.storage.reader import read_events
from heliograph.transport.client import Client, ClientConfig
from heliograph.wire import ntf
from heliograph.wire.addresses import decode_address
from tests.db.postgres import shared_postgres
from tests.faults.processes import HELIOGRAPH, LEASE, Process, children, init, send_signal
from tests.waiting import eventually, until

CONFIG = ClientConfig(request_timeout=20.0, connect_timeout=20.0)


def _started(pid: int) -> str | None:
    """When a process started, in ticks; None if there is none. A process ID is used again."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()[19]
    except OSError:
        return None


class Workers(Process):
    def __init__(self, directory: Path, url: str, count: int, **environment: str) -> None:
        super().__init__(
            directory,
            *("ntf", "start", "--workers", str(count)),
            environment={
                "HELIOGRAPH_NTF_STORE_URL": url,
                "HELIOGRAPH_NTF_PROCESSES_LEASE_SECONDS": str(LEASE),
                "HELIOGRAPH_NTF_METRICS_PORT": "0",
                **environment,
            },
        )
        self.url = url
        self._seen: set[tuple[int, str | None]] = set()

    async def kill_all(self) -> None:
        """Also workers that a test has stopped."""
        self.worker_pids()
        await self.kill()
        for pid in self.left():
            send_signal(pid, signal.SIGKILL)

    def left(self) -> list[int]:
        """Workers that were seen and still run, whatever has become of their supervisor."""
        return [pid for pid, started in self._seen if started and _started(pid) == started]

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def worker_pids(self) -> list[int]:
        """Those of the supervisor's children that run."""
        assert self._process is not None
        pids = children(self._process.pid)
        self._seen |= {(pid, _started(pid)) for pid in pids}
        return pids

    def members(self) -> dict[int, int]:
        """The process IDs of the members, by their number in the store."""
        dialect = open_dialect(self.url, read_only=True)
        try:
            rows = dialect.query("SELECT process_id, name FROM processes ORDER BY process_id", ())
        finally:
            dialect.close()
        self.worker_pids()
        return {number: int(name.rpartition("/")[2]) for number, name in rows}

    async def until_members(self, count: int, without: int | None = None) -> dict[int, int]:
        async def are_there() -> bool:
            found = await asyncio.to_thread(self.members)
            return len(found) == count and without not in found.values()

        await eventually(are_there, 60)
        return self.members()

    async def until_ready(self, count: int) -> None:
        """Wait until so many processes, with the supervisor, have become ready in all."""
        await until(lambda: self.log.read_text().count("process: ready") >= count)

    async def metrics(self, name: str) -> list[float]:
        """Return a metric of each worker."""
        found = re.search(r"workers: metrics at (\S+)", self.log.read_text())
        assert found is not None
        async with aiohttp.ClientSession() as session:
            each = range(1, len(self.worker_pids()) + 1)
            texts = [await _get(session, f"{found[1]}?process={number}") for number in each]
        return [_value(text, name) for text in texts]

    async def ping(self) -> None:
        client = await Client.connect(decode_address(self.ready), CONFIG)
        try:
            assert await client.request(ntf.PING()) == ntf.PONG()
        finally:
            await client.close()


@pytest.fixture
async def workers(tmp_path: Path) -> AsyncIterator[Workers]:
    directory = tmp_path / "ntf"
    await init("ntf", directory)
    running = Workers(
        directory,
        shared_postgres().new_url(),
        2,
        HELIOGRAPH_NTF_JOURNAL_PATH=str(tmp_path / "journal"),
        HELIOGRAPH_NTF_JOURNAL_SEAL_SECONDS="0.1",
    )
    await running.start()
    try:
        yield running
    finally:
        await running.kill_all()


async def test_a_worker_that_is_killed_is_started_again(workers: Workers, tmp_path: Path) -> None:
    """Metrics and journal are of all workers; a stop ends all."""
    members = await workers.until_members(2)
    for _ in range(4):
        await workers.ping()
    found = re.search(r"workers: metrics at (\S+)", workers.log.read_text())
    assert found is not None
    async with aiohttp.ClientSession() as session:
        text = await _get(session, found[1])
        assert "heliograph_ntf_workers 2" in text
        each = [await _get(session, f"{found[1]}?process={number}") for number in (1, 2)]
        [total, *parts] = (_value(one, "process_cpu_seconds_total") for one in (text, *each))
        assert 0 < max(parts) <= total
        assert (await _get(session, found[1].replace("metrics", "readyz"))) == "ok\n"
    victim = members[min(members)]
    os.kill(victim, signal.SIGKILL)
    members = await workers.until_members(2, without=victim)
    await workers.until_ready(4)
    await workers.ping()
    async with aiohttp.ClientSession() as session:
        assert _value(await _get(session, found[1]), "process_cpu_seconds_total") >= total
    await workers.stop()
    assert workers.members() == {}
    assert not workers.left()
    runs: dict[int, list[JsonObject]] = {}
    for event in read_events(tmp_path / "journal"):
        runs.setdefault(event["boot"], []).append(event)
    assert len(runs) >= 3
    for events in runs.values():
        assert sorted(event["seq"] for event in events) == list(range(1, len(events) + 1))
        assert "router_started" in {event["kind"] for event in events}
    stopped = [event for events in runs.values() for event in events]
    assert sum(event["kind"] == "router_stopped" for event in stopped) == 2


async def test_a_worker_that_is_stopped_is_fenced(workers: Workers, tmp_path: Path) -> None:
    """SIGSTOP past the lease, then SIGCONT: it is out, ends, and another takes its place.

    Meanwhile routers with other keys are refused, and those that want the store to themselves.
    """
    members = await workers.until_members(2)
    victim = members[max(members)]
    os.kill(victim, signal.SIGSTOP)
    await workers.until_members(1, without=victim)
    other = tmp_path / "other"
    await init("ntf", other)
    start = ("ntf", "start", "--dir", str(other), "--port", "0")
    code, text = await _output(*start, "--workers", "1", url=workers.url)
    assert code != 0
    assert "a router with other keys uses this store" in text
    code, text = await _output(*start, url=workers.url)
    assert code != 0
    assert "another router uses this database" in text
    os.kill(victim, signal.SIGCONT)
    await workers.until_members(2, without=victim)
    assert f"/{victim}) lost its lease" in workers.log.read_text()
    await workers.until_ready(4)
    workers.signal(signal.SIGKILL)
    await workers.until_members(0)  # they end with their supervisor


async def _get(session: aiohttp.ClientSession, url: str) -> str:
    async with session.get(url) as response:
        response.raise_for_status()
        return await response.text()


def _value(text: str, name: str) -> float:
    found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
    assert found is not None
    return float(found[1])


async def _output(*arguments: str, url: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *HELIOGRAPH,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "HELIOGRAPH_NTF_STORE_URL": url},
    )
    async with asyncio.timeout(60):
        text, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, text.decode()


async def test_sqlite_is_refused(tmp_path: Path) -> None:
    await init("ntf", tmp_path / "ntf")
    start = ("ntf", "start", "--dir", str(tmp_path / "ntf"), "--port", "0", "--workers", "2")
    code, text = await _output(*start, url=f"sqlite:///{tmp_path}/ntf.db")
    assert code != 0
    assert "SQLite is for one process" in text
