"""A router of several processes on two machines, under load: workers are killed, stopped past their
lease and continued, restarted one after another; machines and PostgreSQL are restarted; one machine
loses its network to PostgreSQL.

Afterwards every notification is covered by a push, as in `test_ntf_faults`, none was pushed twice
unless a fault explains it, and every subscription has one owner that is alive.

HELIOGRAPH_FAULT_ROUNDS says how often, HELIOGRAPH_FAULT_SEED repeats.
"""

import asyncio
import os
import shutil
import signal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from heliograph.db import postgres
from heliograph.db.dialects import Transaction, open_dialect
from heliograph.db.sql import Row
from heliograph.ntf.cluster import tables
from tests.faults.processes import LEASE, Process, init, send_signal
from tests.faults.relay import SocketRelay
from tests.faults.test_ntf_faults import SEED, Device, FaultWorld
from tests.faults.test_workers import Workers
from tests.waiting import eventually

ROUNDS = int(os.environ.get("HELIOGRAPH_FAULT_ROUNDS", "2"))
WORKERS = (2, 1)
"""On each machine."""
FAULTS = ("worker", "worker", "stopped", "stopped", "cut", "cut", "rolling", "rolling", "machine")
PROVIDER_FAULTS = ("reset", "slow", "429")
HARMLESS = frozenset(("rolling", "slow", "429"))
"""Faults after which nothing is pushed twice."""


class ClusterWorld(FaultWorld):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory, "postgresql")
        self.machines: list[Workers] = []
        self.uses_service = False
        self.repeated = 0
        """Pushes about the same messages as an earlier one."""
        self._seen: set[frozenset[bytes]] = set()
        assert self.postgres is not None
        self._network = SocketRelay(directory / ".s.PGSQL.5432", self.postgres.socket)
        local = quote(str(self.postgres.socket.parent), safe="")
        self._distant_store = self.store.replace(local, quote(str(directory), safe=""))

    async def _start_processes(self) -> None:
        await self._start_others()
        await self._network.start()
        self.uses_service = self.random.random() < 0.3
        for number, count in enumerate(WORKERS):
            directory = self.directory / f"ntf{number}"
            if number:
                await asyncio.to_thread(shutil.copytree, self.directory / "ntf0", directory)
            else:
                await init("ntf", directory)
            self.machines.append(
                Workers(
                    directory,
                    self._distant_store if number else self.store,
                    count,
                    **self.apns.options_of_ntf,
                    HELIOGRAPH_NTF_PUSHES_BACKOFF_FIRST_SECONDS="0.1",
                    HELIOGRAPH_NTF_PUSHES_BACKOFF_LAST_SECONDS="1",
                    HELIOGRAPH_NTF_SUBSCRIPTIONS_USE_SERVICE_CREDENTIALS=str(
                        self.uses_service
                    ).lower(),
                )
            )
        await self._start_machines()

    def split(self) -> None:
        """Split the messaging router as if it were large, so that shards move."""
        if self.uses_service:
            return
        dialect = open_dialect(self.store)
        try:
            dialect.begin()
            dialect.query(postgres._ORDER, ())
            tables.split_large(Transaction(dialect), at=1)
            dialect.commit()
        finally:
            dialect.close()

    async def _start_machines(self) -> None:
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
        await self._network.close()
        await self.close_rest()

    async def cause(self, kind: str) -> None:
        match kind:
            case "worker":
                send_signal(self._any_worker(), signal.SIGKILL)
            case "stopped":
                pid = self._any_worker()
                send_signal(pid, signal.SIGSTOP)
                await asyncio.sleep(self.random.choice((0.3, 1.0, 2.5)) * LEASE)
                send_signal(pid, signal.SIGCONT)
            case "cut":
                self._network.stall()
                await asyncio.sleep(self.random.choice((0.3, 1.0, 2.5)) * LEASE)
                await self._network.cut()
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
        return [*FAULTS, *PROVIDER_FAULTS, "postgres"]

    def _read_entry(self, device: Device, entry: dict[str, Any]) -> None:
        before = len(self._unplaced)
        super()._read_entry(device, entry)
        if messages := frozenset(message for _, message in self._unplaced[before:]):
            self.repeated += messages in self._seen
            self._seen.add(messages)

    async def play(self, number: int) -> None:
        faults, repeated = self.faults.copy(), self.repeated
        await super().play(number)
        caused = self.faults - faults
        if caused.keys() <= HARMLESS:
            assert self.repeated == repeated, f"round {number}, seed {SEED}: {caused}"

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
        await asyncio.to_thread(world.split)
        for number in range(1, ROUNDS + 1):
            await world.play(number)
            await world.until_owned()
            if number % 25 == 0:
                print(f"{number} rounds, {world.pushes} pushes", flush=True)  # noqa: T201
        summary = dict(world.faults)
        print(  # noqa: T201
            f"{world.sent} sent, {world.pushes} pushes, {world.repeated} repeated, {summary}"
        )
    finally:
        await world.close()
