"""A machine loses its network: to PostgreSQL, to the messaging router and to the provider.

Its workers are in a network namespace whose link is cut, so that nothing is reset or refused.
"""

import asyncio
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from heliograph.db.dialects import open_dialect
from tests.faults.namespace import Namespace
from tests.faults.processes import HELIOGRAPH, LEASE, Process
from tests.faults.relay import GateRelay
from tests.faults.test_cluster_faults import ClusterWorld
from tests.waiting import eventually, until

TAKE_OVER = LEASE + 5.0
"""Seconds until what a cut machine had is subscribed by another."""


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    try:
        made = Namespace()
    except (OSError, subprocess.CalledProcessError) as exc:
        reason = getattr(exc, "stderr", None) or exc
        pytest.skip(f"no network namespace can be made here: {reason}")
    yield made
    made.remove()


class CutWorld(ClusterWorld):
    """The second machine is in a namespace; clients connect to the first."""

    def __init__(self, directory: Path, namespace: Namespace) -> None:
        super().__init__(directory)
        assert self.postgres is not None
        self.namespace = namespace
        self._gate = GateRelay(self.postgres.socket)
        self.taken_over_in = 0.0

    async def _start_machines(self) -> None:
        await self._gate.start()
        local = f"host={quote(str(self.directory), safe='')}"
        assert local in self._distant_store
        far = self.machines[1]
        far.command = (*self.namespace.command, *HELIOGRAPH)
        far.environment["HELIOGRAPH_NTF_STORE_URL"] = self._distant_store.replace(
            local, f"host=127.0.0.1&port={self._gate.port}"
        )
        await super()._start_machines()

    @property
    def ntf(self) -> Process:  # type: ignore[override]
        return self.machines[0]

    async def close(self) -> None:
        await super().close()
        await self._gate.close()

    def far_members(self) -> set[int]:
        """The members on the second machine, by their number in the store."""
        near, far = self.machines
        pids = far.worker_pids()
        return {number for number, pid in near.members().items() if pid in pids}

    def write(self, sql: str) -> None:
        dialect = open_dialect(self.store)
        try:
            dialect.execute(sql, ())
        finally:
            dialect.close()

    async def move_shards_away(self) -> None:
        """Let the second machine own all, as after a restart of the first."""
        [owner] = self.far_members()
        self.write(f"UPDATE shards SET previous = owner, owner = {owner}")
        await self.until_owned()
        assert await self.are_subscribed_by({owner})

    async def trouble(self, until: float) -> None:
        [victim] = self.far_members()
        others = {*self.machines[0].members()} - {victim}
        self.faults["network"] += 1
        self.namespace.cut()
        began = time.monotonic()
        self.write("UPDATE subscriptions SET status = 'INACTIVE'")  # so ACTIVE is a later answer
        await eventually(lambda: self.are_subscribed_by(others))
        self.taken_over_in = time.monotonic() - began
        self.namespace.join()

    async def are_subscribed_by(self, members: set[int]) -> bool:
        rows = await asyncio.to_thread(
            self.rows, "SELECT DISTINCT h.owner, s.status FROM shards h, subscriptions s"
        )
        return all(owner in members and status == "ACTIVE" for owner, status in rows)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_machine_loses_its_network(tmp_path: Path, namespace: Namespace) -> None:
    """Others take over in time, nothing is lost; it is fenced, and joins again."""
    world = CutWorld(tmp_path, namespace)
    try:
        await world.start()
        await world.move_shards_away()
        far, [victim] = world.machines[1], world.far_members()
        await world.play(1)
        assert world.faults["network"] == 1
        print(f"taken over in {world.taken_over_in:.1f} s")  # noqa: T201
        assert world.taken_over_in < TAKE_OVER
        await until(lambda: "lost its lease" in far.log.read_text())
        await eventually(lambda: asyncio.to_thread(lambda: world.far_members() - {victim}))
        await world.until_owned()
    finally:
        await world.close()
