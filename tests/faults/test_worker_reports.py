"""The control port and the statistics of a router of real processes speak for all of them."""

import os
import re
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from heliograph.transport.client import Client
from heliograph.wire.addresses import decode_address
from tests.db.postgres import shared_postgres
from tests.faults.processes import SimulatorProcess, init
from tests.faults.support import register
from tests.faults.test_workers import CONFIG, Workers
from tests.runtime.reference import control
from tests.waiting import eventually

CLIENTS = 12
CONTROL = {"HELIOGRAPH_NTF_CONTROL_PORT": "0", "HELIOGRAPH_NTF_CONTROL_USER_PASSWORD": "users"}


@pytest.fixture
async def workers(tmp_path: Path, apns: SimulatorProcess) -> AsyncIterator[Workers]:
    directory = tmp_path / "ntf"
    await init("ntf", directory)
    running = Workers(directory, shared_postgres().new_url(), 2, **apns.options_of_ntf, **CONTROL)
    await running.start()
    try:
        yield running
    finally:
        await running.kill_all()


async def answer(workers: Workers, command: str) -> dict[str, str]:
    port = re.findall(r"control port (\d+)", workers.log.read_text())
    lines = await control.talk(int(port[-1]), "Ntf server control port", "auth users", command)
    return dict(line.split(": ", 1) for line in lines[1:])


async def test_the_control_port_answers_for_all_processes(workers: Workers) -> None:
    """Also while one is stopped or was killed: what it had counted is not lost."""
    clients = [await Client.connect(decode_address(workers.ready), CONFIG) for _ in range(CLIENTS)]
    for client in clients:
        await register(client)
    created = await workers.metrics("simplex_ntf_tokens_created")
    assert min(created) > 0, created
    found = await answer(workers, "stats")
    assert found["tknCreated"] == str(CLIENTS)
    assert found["Processes of this machine"] == "2, of which 2 answered"
    assert "Processes of the router" not in found
    info = await answer(workers, "server-info")
    assert info["Clients"] == str(CLIENTS)
    assert "Push notifications queue length" in info
    members = await workers.until_members(2)
    victim = members[max(members)]
    os.kill(victim, signal.SIGKILL)
    await workers.until_members(2, without=victim)
    await workers.until_ready(4)
    found = await answer(workers, "stats")
    assert found["tknCreated"] == str(CLIENTS)
    stopped = next(iter((await workers.until_members(2)).values()))
    os.kill(stopped, signal.SIGSTOP)
    found = await answer(workers, "stats")
    assert found["Processes of this machine"] == "2, of which 1 answered"
    assert found["tknCreated"] == str(CLIENTS)
    os.kill(stopped, signal.SIGCONT)
    for client in clients:
        await client.close()


async def test_it_says_what_is_of_one_machine_only(workers: Workers, tmp_path: Path) -> None:
    directory = tmp_path / "other"
    shutil.copytree(workers.directory, directory, ignore=shutil.ignore_patterns("workers", "lock"))
    other = Workers(directory, workers.url, 1, **CONTROL)
    try:
        await other.start()

        async def is_known() -> bool:
            found = await answer(workers, "stats")
            scope = "3; these counts are of this machine only"
            return found.get("Processes of the router") == scope

        await eventually(is_known)
        found = await answer(other, "server-info")
        assert found["Processes of this machine"] == "1, of which 1 answered"
        assert found["Processes of the router"].startswith("3; all but what is pending is of this")
    finally:
        await other.kill_all()
