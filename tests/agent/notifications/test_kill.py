"""Processes that are killed, again and again, while an agent subscribes and while it deletes.

HELIOGRAPH_FAULT_SEED repeats a run, as far as processes can.
"""

import asyncio
import contextlib
import json
import os
import random
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from heliograph.agent.connections import queues
from heliograph.agent.notifications.records import SubAction
from heliograph.db.dialects import Transaction
from heliograph.wire.addresses import decode_address
from heliograph.wire.ntf.push import VerificationPush, decode_push
from tests.agent.notifications.support import TIMEOUT, AgentWorld, Rig, agent_world
from tests.agent.places import BOTH_STORES, place_of
from tests.faults.processes import Process, SimulatorProcess, init
from tests.waiting import eventually

CONNECTIONS = 30
KILLS = 4
SEED = int(os.environ.get("HELIOGRAPH_FAULT_SEED", time.time_ns() % 1_000_000))


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[AgentWorld]:
    async with agent_world(tmp_path) as running:
        yield running


async def work_and_die(rig: Rig, seconds: float) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.agent.notifications.process", str(place_of(rig.directory))),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"opened\n"
        await asyncio.sleep(seconds)  # the moment of its death is what varies
    finally:
        process.kill()
        await process.wait()


def disable(tx: Transaction, conn_ids: list[str]) -> None:
    for conn_id in conn_ids:
        queues.set_enable_ntfs(tx, conn_id, False)


@BOTH_STORES
@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_an_agent_that_is_killed_at_any_moment(world: AgentWorld) -> None:
    routers, rig = [await world.smp() for _ in range(2)], await world.rig()
    await rig.register()
    await rig.close()
    await rig.open(start=False)
    conn_ids = [
        conn_id for router in routers for conn_id in await rig.connect(router, CONNECTIONS // 2)
    ]
    await rig.close()
    moments = random.Random(SEED)
    for _ in range(KILLS):
        await work_and_die(rig, moments.uniform(0.0, 0.2))
    await rig.open()
    await rig.until_action(conn_ids, SubAction.NTF_CHECK)
    for conn_id in conn_ids[:3]:
        await rig.notified(conn_id)
    await rig.close()

    await rig.open(start=False)
    off, on = conn_ids[::2], conn_ids[1::2]

    await rig.store.write(lambda tx: disable(tx, off))
    await rig.ntf.delete(off)
    await rig.close()
    for _ in range(KILLS):
        await work_and_die(rig, moments.uniform(0.0, 0.2))
    await rig.open()
    await rig.until_none(off)
    await rig.until_active(len(on))
    for conn_id in off:
        assert (await rig.queue(conn_id)).notifier is None
    await rig.notified(on[0])


class ProcessRig(Rig):
    """An agent of routers and a provider that are processes of their own."""

    def __init__(self, directory: Path, ntf: Process, smp: Process, apns: SimulatorProcess) -> None:
        address = decode_address(ntf.ready.split(" ")[0])
        world: Any = SimpleNamespace(address=address, apns=SimpleNamespace(skip=self._skip))
        super().__init__(directory / "agent", world)
        self.smp: Any = SimpleNamespace(address=decode_address(smp.ready.split(" ")[0]))
        self._record = apns.record
        self._seen = 0

    def _skip(self, device: object) -> None:
        self._seen = self._record.stat().st_size

    async def pushed(self, kind: type = VerificationPush) -> Any:
        found: list[Any] = []

        async def has_come() -> bool:
            with self._record.open("rb") as record:
                record.seek(self._seen)
                for line in record:
                    if not line.endswith(b"\n"):
                        break
                    self._seen += len(line)
                    entry = json.loads(line)
                    push = decode_push(entry["body"].encode())
                    if entry["accepted"] and isinstance(push, kind):
                        found.append(push)
                        return True
            return False

        await eventually(has_come, TIMEOUT)
        return found[0]


@contextlib.asynccontextmanager
async def processes(directory: Path) -> AsyncIterator[tuple[Process, Process, SimulatorProcess]]:
    apns = SimulatorProcess(directory / "apns")
    await asyncio.gather(*(init(kind, directory / kind) for kind in ("smp", "ntf")))
    await apns.start()
    smp = Process(
        directory / "smp",
        *("smp", "start"),
        environment={"HELIOGRAPH_SMP_NOTIFICATIONS_DELIVERY_INTERVAL": "0"},
    )
    environment = {
        **apns.options_of_ntf,
        "HELIOGRAPH_NTF_PUSHES_BACKOFF_FIRST_SECONDS": "0.1",
        "HELIOGRAPH_NTF_PUSHES_BACKOFF_LAST_SECONDS": "1",
    }
    ntf = Process(directory / "ntf", *("ntf", "start"), environment=environment)
    try:
        await asyncio.gather(smp.start(), ntf.start())
        yield ntf, smp, apns
    finally:
        for process in (ntf, smp, apns):
            await process.kill()


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_every_process_is_killed_while_an_agent_subscribes(tmp_path: Path) -> None:
    moments = random.Random(SEED)
    async with processes(tmp_path) as (ntf, smp, apns):
        rig = ProcessRig(tmp_path, ntf, smp, apns)
        await rig.open()
        try:
            await rig.register()
            conn_ids = await rig.connect(rig.smp, CONNECTIONS, create=False)
            for number, process in enumerate((smp, ntf, smp, ntf)):
                part = conn_ids[number::4]
                await rig.ntf.create(part)
                await asyncio.sleep(moments.uniform(0.0, 0.1))  # as above
                await process.kill()
                await rig.restart()
                await process.start()
            await rig.until_action(conn_ids, SubAction.NTF_CHECK)
            for conn_id in conn_ids[:4]:
                await rig.notified(conn_id)
        finally:
            await rig.close()
