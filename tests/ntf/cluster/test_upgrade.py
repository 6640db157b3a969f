"""Processes of two versions, whose tables differ: expand while both run, contract without the old.

The migrations of the later version are planted.
"""

import asyncio
from pathlib import Path

import pytest

from heliograph.db.database import Migration
from heliograph.db.dialects import Transaction
from heliograph.db.errors import DatabaseNewer
from heliograph.ntf.cluster import member as member_module
from heliograph.ntf.cluster.member import ClusterMember
from heliograph.ntf.cluster.tables import Process
from heliograph.ntf.store.schema import MIGRATIONS
from tests.ntf.cluster.support import CLUSTER, a_cluster
from tests.waiting import eventually

EXPAND = Migration("0002_labels", "ALTER TABLE tokens ADD COLUMN label TEXT")
CONTRACT = Migration("0003_labels_contract", "ALTER TABLE tokens DROP COLUMN created_at")
LATER = (*MIGRATIONS, EXPAND, CONTRACT)


def columns(tx: Transaction) -> set[str]:
    rows = tx.query(
        "SELECT CAST(column_name AS TEXT) FROM information_schema.columns"
        " WHERE table_name = 'tokens' AND table_schema = current_schema()"
    )
    return {name for (name,) in rows}


async def test_versions_run_together_until_the_old_one_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member_module, "UPKEEP_SECONDS", 0.2)
    async with a_cluster(tmp_path, 1) as cluster:
        [old] = cluster.members
        phone = await old.registered()
        queue = await old.queue()
        await phone.subscribe(queue)

        async def join(name: str, migrations: tuple[Migration, ...]) -> ClusterMember:
            process = Process(name, old.fingerprint, name)
            return await ClusterMember.join(
                cluster.url, process, lease=CLUSTER.lease, migrations=migrations
            )

        new = await join("later", LATER)
        running = asyncio.create_task(new.run())
        assert await new.database.read(columns) >= {"label", "created_at"}
        # The old version serves, and may even start again.
        await old.send(queue)
        await phone.notified_of(queue)
        again = await join("earlier", MIGRATIONS)
        await again.leave()
        await again.database.close()
        await asyncio.sleep(3 * new.interval)
        assert "created_at" in await new.database.read(columns)

        member = old.router.member
        assert member is not None
        await member.start_leaving()
        await member.database.write(
            lambda tx: tx.execute("DELETE FROM processes WHERE name = 'process-0'")
        )

        async def is_contracted() -> bool:
            return "created_at" not in await new.database.read(columns)

        await eventually(is_contracted)
        with pytest.raises(DatabaseNewer, match="a later version of Heliograph"):
            await join("earlier", MIGRATIONS)
        running.cancel()
        await asyncio.wait([running])
        await new.leave()
        await new.database.close()
