"""Subscriptions that are lost together, at real routers. Single ones: see `test_planted_world`."""

import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from heliograph.actions.contract import ActionKind
from heliograph.actions.pairing import make_pair_secret, pair_secret
from heliograph.pipeline.decisions.deciding import Decisions, DecisionSettings
from heliograph.pipeline.decisions.reconcile import decide
from tests.actions.support import ROUTER
from tests.ntf.support import a_world
from tests.pipeline.decisions.planted import take_snapshots


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
            await phone.subscribe(queue)
            world.smp.router.subscribers.drop_notifier(queue.notifier_id)
        await take_snapshots(world, folder, secret)
    found: Decisions = decide(spark, folder, DecisionSettings(), time.time())
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
