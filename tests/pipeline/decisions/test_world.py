"""Lost subscriptions of real routers: found on Spark, repaired by actions, and pushed again."""

import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from heliograph.actions.contract import ActionKind
from heliograph.actions.pairing import make_pair_secret, pair_secret
from heliograph.actions.snapshots import write_snapshot
from heliograph.journal.hashing import Hasher
from heliograph.ntf.snapshots import snapshot_of as snapshot_of_ntf
from heliograph.pipeline.decisions.deciding import (
    Decisions,
    DecisionSettings,
    reconcile_snapshots,
)
from heliograph.smp.snapshots import snapshot_of as snapshot_of_smp
from tests.actions.support import ROUTER
from tests.journal.recorder import KEY
from tests.ntf.support import NtfWorld, a_world
from tests.smp.support import Queue, identity

EACH = 3
LOSSES = ("unsubscribed", "ended", "refused", "failed")
SETTINGS = DecisionSettings(max_percent=90.0)


async def take(world: NtfWorld, folder: Path, secret: bytes) -> None:
    """Have both routers write a snapshot."""
    now = time.time()
    ntf = snapshot_of_ntf(world.router.store, secret, Hasher(KEY))
    await write_snapshot(folder, ROUTER, "ntf", ntf, now)
    fingerprint = identity().fingerprint
    router = world.smp.router
    smp = snapshot_of_smp(router.store, router.subscribers, secret, fingerprint)
    await write_snapshot(folder, "11" * 8, "smp", smp, now)


async def lose(world: NtfWorld, kind: str, queue: Queue, subscription_id: bytes) -> None:
    """Lose a subscription silently: no client and no router is notified."""
    world.smp.router.subscribers.drop_notifier(queue.notifier_id)
    state = {"ended": "END", "refused": "AUTH", "failed": "ERR"}.get(kind)
    if state is not None:
        sql = "UPDATE subscriptions SET status = ? WHERE subscription_id = ?"
        write = world.router.store.database.write
        await write(lambda tx: tx.execute(sql, (state, subscription_id)))


@pytest.fixture
def secret(tmp_path: Path) -> bytes:
    make_pair_secret(tmp_path / "pair.key")
    return pair_secret(tmp_path / "pair.key")


async def test_an_outage_is_not_taken_for_losses_of_everybody(
    spark: Any, tmp_path: Path, secret: bytes
) -> None:
    folder = tmp_path / "snapshots"
    async with a_world(f"sqlite:///{tmp_path}/ntf.db", tmp_path) as world:
        phone = await world.registered()
        for queue in await world.queues(12):
            await lose(world, "unsubscribed", queue, await phone.subscribe(queue))
        await take(world, folder, secret)
    found: Decisions = reconcile_snapshots(spark, folder, DecisionSettings(), time.time())
    assert found.decisions == []
    kind = ActionKind.RESUBSCRIBE.value
    assert found.stopped == [
        f"{ROUTER}: 12 times {kind} is more than 10, which is 5% of 12: none was decided on"
    ]
    # Neither IDs nor addresses are in what the routers wrote.
    text = repr([pq.read_table(file).to_pylist() for file in folder.glob("*/*.parquet")])
    for item in phone.subscriptions:
        assert item.hex() not in text
    assert "127.0.0.1" not in text
