"""What those learn, and can do, who read or write the pipeline's tables and snapshots."""

import json
import time
from pathlib import Path

import pyarrow.parquet as pq

from heliograph.actions.contract import ActionKind
from heliograph.actions.pairing import DAY, make_pair_secret, pair_secret
from heliograph.actions.snapshots import SnapshotHeader, list_snapshots, write_snapshot
from heliograph.actions.table import read_actions
from heliograph.journal.hashing import Hasher
from heliograph.ntf.actions.snapshots import snapshot_of as snapshot_of_ntf
from heliograph.smp.snapshots import snapshot_of as snapshot_of_smp
from heliograph.wire.ntf.tokens import SubscriptionState
from tests.actions.support import ROUTER, key_of
from tests.journal.recorder import KEY
from tests.ntf.actions.support import a_runner, decided, publish
from tests.ntf.support import NtfWorld
from tests.smp.support import identity

NOW = time.time()


async def take(
    world: NtfWorld, directory: Path, now: float = NOW
) -> dict[str, list[dict[str, object]]]:
    """Have both routers write a snapshot; return the rows by part."""
    secret_file = directory / "pair.key"
    if not secret_file.exists():
        make_pair_secret(secret_file)
    secret, folder = pair_secret(secret_file), directory / "snapshots"
    ntf = snapshot_of_ntf(world.router.store, secret, Hasher(KEY))
    smp = snapshot_of_smp(
        world.smp.router.store, world.smp.router.subscribers, secret, identity().fingerprint
    )
    ours = await write_snapshot(folder, ROUTER, "ntf", ntf, now)
    theirs = await write_snapshot(folder, "11" * 8, "smp", smp, now)
    headers: list[SnapshotHeader] = [header for header, _ in list_snapshots(folder)]
    assert {header.part for header in headers} == {"ntf", "smp"}
    return {"ntf": pq.read_table(ours).to_pylist(), "smp": pq.read_table(theirs).to_pylist()}


async def test_tables_and_snapshots_name_nobody(small_world: NtfWorld, tmp_path: Path) -> None:
    phone = await small_world.registered()
    queue = await small_world.queue()
    subscription_id = await phone.subscribe(queue)
    rows = await take(small_world, tmp_path)
    publish(tmp_path, decided(ActionKind.RESUBSCRIBE, subscription_id))
    text = json.dumps([rows, read_actions(tmp_path)], default=repr).encode()
    [ours], [theirs] = rows["ntf"], rows["smp"]
    assert ours["notifier"] == theirs["notifier"]
    assert queue.notifier is not None
    for secret in (
        subscription_id,
        phone.token_id,
        phone.device.token,
        queue.notifier_id,
        queue.rcv_id,
        queue.snd_id,
        queue.notifier.auth.private,
        identity().fingerprint,
    ):
        assert secret not in text
        assert secret.hex().encode() not in text
    assert b"127.0.0.1" not in text


async def test_snapshots_of_two_days_cannot_be_linked(
    small_world: NtfWorld, tmp_path: Path
) -> None:
    phone = await small_world.registered()
    await phone.subscribe(await small_world.queue())
    today, tomorrow = [await take(small_world, tmp_path, NOW + n * DAY) for n in range(2)]
    [first], [second] = today["smp"], tomorrow["smp"]
    for name in ("place", "notifier"):
        assert first[name] != second[name]
    # With another secret the same queue has another hash, too.
    other = tmp_path / "other"
    other.mkdir()
    [third] = (await take(small_world, other))["smp"]
    assert third["notifier"] != first["notifier"]


async def test_a_writer_of_the_table_cannot_act(small_world: NtfWorld, tmp_path: Path) -> None:
    phone = await small_world.registered()
    queue = await small_world.queue()
    subscription_id = await phone.subscribe(queue)
    await queue.delete(small_world.sender)
    await phone.until_state(subscription_id, SubscriptionState.DELETED)
    forged = decided(ActionKind.DELETE_ORPHAN, subscription_id, signer=key_of("writer"))
    publish(tmp_path / "tables", forged)
    runner = a_runner(small_world, tmp_path / "tables")
    await runner.apply_automatic()
    assert await runner.apply([forged.action_id]) == {forged.action_id: "forged"}
    assert (await phone.schk(subscription_id)).state is SubscriptionState.DELETED


async def test_the_pipelines_key_ends_no_living_subscription(
    small_world: NtfWorld, tmp_path: Path
) -> None:
    phone = await small_world.registered()
    queue = await small_world.queue()
    subscription_id = await phone.subscribe(queue)
    actions = [decided(kind, subscription_id) for kind in ActionKind if kind.subject != "server"]
    publish(tmp_path / "tables", *actions)
    runner = a_runner(small_world, tmp_path / "tables")
    results = await runner.apply(action.action_id for action in actions)
    assert sorted(results.values()) == ["applied", "disagreed"]
    small_world.apns.skip(phone.device)
    await small_world.send(queue)
    await phone.notified_of(queue)
