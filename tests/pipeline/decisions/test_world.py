"""Lost subscriptions of real routers: found on Spark, repaired by actions, and pushed again."""

import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from heliograph.actions.contract import ActionKind
from heliograph.actions.pairing import make_pair_secret, pair_secret
from heliograph.actions.snapshots import write_snapshot
from heliograph.actions.table import append_actions, read_actions
from heliograph.journal.hashing import Hasher
from heliograph.ntf.actions.snapshots import snapshot_of as snapshot_of_ntf
from heliograph.pipeline.decisions.deciding import (
    Decisions,
    DecisionSettings,
    reconcile_snapshots,
    sign_all,
)
from heliograph.smp.snapshots import snapshot_of as snapshot_of_smp
from heliograph.wire.ntf.tokens import SubscriptionState
from tests.actions.support import ROUTER, SIGNER
from tests.journal.recorder import KEY
from tests.ntf.actions.support import a_runner, cap, hashed
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


async def test_what_was_lost_is_found_and_repaired_and_nothing_else(
    spark: Any, tmp_path: Path, secret: bytes
) -> None:
    tables, folder = tmp_path / "tables", tmp_path / "snapshots"
    async with a_world(f"sqlite:///{tmp_path}/ntf.db", tmp_path) as world:
        phone = await world.registered()
        queues = await world.queues(EACH * (len(LOSSES) + 2))
        ids = [await phone.subscribe(queue) for queue in queues]
        both = list(zip(queues, ids, strict=True))
        planted: dict[str, list[tuple[Queue, bytes]]] = {}
        for number, kind in enumerate((*LOSSES, "orphan")):
            planted[kind] = both[number * EACH : (number + 1) * EACH]
        for kind in LOSSES:
            for queue, subscription_id in planted[kind]:
                await lose(world, kind, queue, subscription_id)
        for queue, subscription_id in planted["orphan"]:
            await queue.delete(world.sender)
            await phone.until_state(subscription_id, SubscriptionState.DELETED)
        await take(world, folder, secret)
        found = reconcile_snapshots(spark, folder, SETTINGS, time.time())
        expected = {
            (kind, hashed("subscription", item)) for kind in planted for _, item in planted[kind]
        }
        assert {(d.evidence["finding"], d.subject) for d in found.decisions} == expected
        assert not found.stopped
        # Twice is once.
        signed = sign_all(found.decisions, SIGNER, SETTINGS)
        assert append_actions(tables, signed) == len(expected)
        again = reconcile_snapshots(spark, folder, SETTINGS, time.time())
        assert append_actions(tables, sign_all(again.decisions, SIGNER, SETTINGS)) == 0
        runner = a_runner(world, tables, cap=cap(100))
        await runner.apply_automatic()
        for kind in LOSSES:
            for _, subscription_id in planted[kind]:
                await phone.until_state(subscription_id, SubscriptionState.ACTIVE)
        repaired = [queue for kind in LOSSES for queue, _ in planted[kind]]
        # NSUB of one that was ACTIVE here is answered in its own time: ask the other side.
        world.apns.skip(phone.device)
        await world.send(*repaired)
        await phone.notified_of(*repaired)
        await take(world, folder, secret)
        settled = reconcile_snapshots(spark, folder, SETTINGS, time.time())
        assert settled.decisions == []
        orphans = [row for row in read_actions(tables) if row["kind"] == "delete_orphan"]
        for row in orphans:
            assert await runner.undo(row["action_id"]) == "undone"
        [[rows]] = await world.read(lambda tx: tx.query("SELECT COUNT(*) FROM subscriptions"))
        assert rows == len(both)


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
