"""A router of several processes on two machines, under load: workers are killed, stopped past their
lease and continued, restarted one after another; machines and PostgreSQL are restarted.

Afterwards every notification is covered by a push, as in `test_ntf_faults`, and every subscription
has one owner that is alive. HELIOGRAPH_FAULT_ROUNDS says how often, HELIOGRAPH_FAULT_SEED repeats.
"""

import asyncio
import os
import shutil
import signal
from pathlib import Path

import pytest

from heliograph.db.dialects import open_dialect
from heliograph.db.sql import Row
from tests.faults.processes import Process, init
from tests.faults.test_ntf_faults import SEED, FaultWorld
from tests.faults.test_workers import LEASE, Workers
from tests.waiting import eventually

ROUNDS = int(os.environ.get("HELIOGRAPH_FAULT_ROUNDS", "2"))
WORKERS = (2, 1)
"""On each machine."""
FAULTS = ("worker", "worker", "stopped", "stopped", "rolling", "machine", "reset", "slow", "429")


class ClusterWorld(FaultWorld):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory, "postgresql")
        self.machines: list[Workers] = []

    async def _start_processes(self) -> None:
        await self._start_others()
        service = self.random.random() < 0.3
        for number, count in enumerate(WORKERS):
            directory = self.directory / f"ntf{number}"
            if number:
                await asyncio.to_thread(shutil.copytree, self.directory / "ntf0", directory)
            else:
                await init("ntf", directory)
            self.machines.append(
                Workers(
                    directory,
                    self.store,
                    count,
                    **self.apns.options_of_ntf,
                    HELIOGRAPH_NTF_PUSHES_BACKOFF_FIRST_SECONDS="0.1",
                    HELIOGRAPH_NTF_PUSHES_BACKOFF_LAST_SECONDS="1",
                    HELIOGRAPH_NTF_SUBSCRIPTIONS_USE_SERVICE_CREDENTIALS=str(service).lower(),
                )
            )
        for machine in self.machines:
            await machine.start()

    @property
    def ntf(self) -> Process:  # type: ignore[override]
        """Any machine that runs, as a load balancer chooses."""
        running = [machine for machine in self.machines if machine.is_running]
        return self.random.choice(running or self.machines)

    async def close(self) -> None:
        for machine in self.machines:
            await machine.kill_all()
        await self.smp.kill()
        await self.apns.kill()
        await self.close_rest()

    async def cause(self, kind: str) -> None:
        match kind:
            case "worker":
                os.kill(self._any_worker(), signal.SIGKILL)
            case "stopped":
                pid = self._any_worker()
                os.kill(pid, signal.SIGSTOP)
                await asyncio.sleep(self.random.choice((0.3, 1.0, 2.5)) * LEASE)
                os.kill(pid, signal.SIGCONT)
            case "rolling":
                self.random.choice(self.machines).signal(signal.SIGHUP)
            case "machine":
                machine = self.random.choice(self.machines)
                await machine.kill_all()
                await machine.start()
            case "postgres":
                assert self.postgres is not None
                self.postgres.kill()
                await asyncio.sleep(self.random.choice((0.1, 0.5, 2.0)) * LEASE)
                await asyncio.to_thread(self.postgres.start)
            case _:
                await super().cause(kind)

    def kinds(self) -> list[str]:
        return [*FAULTS, "postgres"]

    def _any_worker(self) -> int:
        """One that runs, by what the store knows."""
        pids = [pid for machine in self.machines for pid in machine.worker_pids()]
        return self.random.choice(pids)

    def rows(self, sql: str) -> list[Row]:
        dialect = open_dialect(self.store, read_only=True)
        try:
            return dialect.query(sql, ())
        finally:
            dialect.close()

    async def until_owned(self) -> None:
        """Wait until each shard has an owner that is alive, and nothing is being moved."""

        async def is_so() -> bool:
            free = await asyncio.to_thread(
                self.rows,
                "SELECT 1 FROM shards WHERE previous IS NOT NULL OR owner IS NULL"
                " OR owner NOT IN (SELECT process_id FROM processes)",
            )
            return not free

        await eventually(is_so, 60)


@pytest.mark.slow
@pytest.mark.timeout(7200)
async def test_every_notification_is_covered_by_a_cluster(tmp_path: Path) -> None:
    print(f"\nHELIOGRAPH_FAULT_SEED={SEED}, {ROUNDS} rounds")  # noqa: T201
    world = ClusterWorld(tmp_path)
    try:
        await world.start()
        for number in range(1, ROUNDS + 1):
            await world.play(number)
            await world.until_owned()
            if number % 25 == 0:
                print(f"{number} rounds, {world.pushes} pushes", flush=True)  # noqa: T201
        summary = dict(world.faults)
        print(f"{world.sent} sent, {world.pushes} pushes, faults: {summary}")  # noqa: T201
    finally:
        await world.close()
