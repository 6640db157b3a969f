"""PostgreSQL fails over to a synchronous standby while a router of three processes works."""

import asyncio
import time
from pathlib import Path

import pytest

from tests.db.replication import Primary, Standby, url_of_both
from tests.faults.test_cluster_faults import ClusterWorld
from tests.faults.test_ntf_faults import LOAD


class FailoverWorld(ClusterWorld):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.primary, self.standby = self._servers
        self._distant_store = self.store

    def _open_store(self) -> tuple[Primary, str]:
        primary = Primary()
        url = primary.new_url()
        standby = Standby(primary)
        primary.wait_for_standby()
        self._servers = primary, standby
        return primary, url_of_both(url, primary, standby)

    async def close_rest(self) -> None:
        self.standby.remove()
        await super().close_rest()

    def kinds(self) -> list[str]:
        return ["failover"]

    async def trouble(self, until: float) -> None:
        await asyncio.sleep(max(until - time.monotonic() - LOAD / 2, 0))
        self.faults["failover"] += 1
        self.primary.kill()
        await asyncio.sleep(0.5)
        await asyncio.to_thread(self.standby.promote)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_standby_takes_over(tmp_path: Path) -> None:
    """Nothing that was committed is lost, and no process is taken for dead."""
    world = await asyncio.to_thread(FailoverWorld, tmp_path)
    try:
        await world.start()
        members = [machine.members() for machine in world.machines]
        await world.play(1)
        await world.until_owned()
        assert world.faults["failover"] == 1
        assert [machine.members() for machine in world.machines] == members
        assert world.rows("SELECT pg_is_in_recovery()") == [(False,)]
    finally:
        await world.close()
