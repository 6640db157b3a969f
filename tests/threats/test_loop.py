"""What those learn, and can do, who read or write the pipeline's tables and snapshots."""

import json
import time
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import Row

from heliograph.actions.contract import ActionKind
from heliograph.actions.pairing import DAY, make_pair_secret, pair_secret
from heliograph.actions.snapshots import SnapshotHeader, list_snapshots, write_snapshot
from heliograph.actions.table import read_actions
from heliograph.journal.hashing import Hasher
from heliograph.ntf.actions.snapshots import snapshot_of as snapshot_of_ntf
from heliograph.ntf.observing.traffic import MIN_REGISTRATIONS
from heliograph.pipeline.decisions import best_hours
from heliograph.smp.snapshots import snapshot_of as snapshot_of_smp
from heliograph.wire.ntf.tokens import SubscriptionState
from tests.actions.support import ROUTER, an_action, key_of
from tests.journal.recorder import KEY
from tests.ntf.actions.support import a_runner, decided, hashed, publish
from tests.ntf.actions.test_wakes import Fleet
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


async def test_the_pipelines_key_ends_no_living_token_or_subscription(
    small_world: NtfWorld, tmp_path: Path
) -> None:
    phone = await small_world.registered()
    queue = await small_world.queue()
    subscription_id = await phone.subscribe(queue)
    entities = {"subscription": subscription_id, "token": phone.token_id}
    actions = [
        decided(kind, entities[kind.subject], evidence={"unseen_since": 0})
        for kind in ActionKind
        if kind.subject in entities
    ]
    publish(tmp_path / "tables", *actions)
    runner = a_runner(small_world, tmp_path / "tables")
    results = await runner.apply(action.action_id for action in actions)
    assert {action.kind for action in actions if results[action.action_id] == "applied"} == {
        ActionKind.RESUBSCRIBE
    }
    assert set(results.values()) == {"applied", "disagreed"}
    small_world.apns.skip(phone.device)
    await small_world.send(queue)
    await phone.notified_of(queue)


async def test_the_pipelines_key_delays_pushes_and_loses_none(
    small_world: NtfWorld, tmp_path: Path
) -> None:
    phone, queue = await small_world.registered(), await small_world.queue()
    await phone.subscribe(queue)
    now = int(time.time() * 1e6)
    little = decided(
        ActionKind.THROTTLE_TOKEN, phone.token_id, evidence={"observed": 299}, rule="flood/1"
    )
    much = an_action(
        ActionKind.THROTTLE_TOKEN,
        subject=hashed("token", phone.token_id),
        evidence={"observed": 300},
        decided_at=now,
        valid_until=now + 2_000_000,
    )
    publish(tmp_path, little, much)
    runner = a_runner(small_world, tmp_path)
    ids = [little.action_id, much.action_id]
    assert list((await runner.apply(ids)).values()) == ["disagreed", "applied"]
    small_world.apns.skip(phone.device)
    await small_world.send(queue)
    await phone.notified_of(queue)
    assert time.time() < now / 1e6 + 30


async def test_the_journal_does_not_link_tokens_with_networks(small_world: NtfWorld) -> None:
    await small_world.registered()
    observer = small_world.router.observer
    address = "192.0.2.77"
    for count in (MIN_REGISTRATIONS - 1, MIN_REGISTRATIONS):
        for _ in range(count):
            observer.traffic.registration(address)
        observer.record_traffic(NOW)
    for _ in range(MIN_REGISTRATIONS):
        observer.traffic.registration(address)
    observer.record_traffic(NOW + DAY)
    found = [event for event in small_world.events if event.kind == "registrations_counted"]
    assert len(found) == 2  # those of fewer are not recorded at all
    assert found[0]["source"] != found[1]["source"]
    assert all(event.columns.get("token") is None for event in found)
    others = [event for event in small_world.events if event not in found]
    assert all(event.columns.get("source") is None for event in others)
    assert address not in repr(small_world.events)


async def test_a_writer_of_the_table_cannot_change_a_wake(
    small_world: NtfWorld, tmp_path: Path
) -> None:
    phones = [await small_world.registered() for _ in range(2)]
    fleet = Fleet(small_world, tmp_path / "tables", phones)
    meant = fleet.tokens[:1]
    action = fleet.action(rate=10.0, tokens=meant)
    fleet.write(meant)
    fleet.write(fleet.tokens)  # by somebody who can write the table
    assert await fleet.apply(action) == "forged"
    assert fleet.woken() == [0, 0]


async def test_the_journal_has_days_of_owners_and_not_their_commands(
    small_world: NtfWorld,
) -> None:
    phone = await small_world.registered()
    write = small_world.router.store.database.write
    await write(lambda tx: tx.execute("UPDATE tokens SET seen_at = seen_at - ?", (2 * DAY * 1000,)))
    small_world.router.store.forget_tokens([phone.token_id])
    for _ in range(3):
        await phone.tchk()
    [seen] = [event for event in small_world.events if event.kind == "owner_seen"]
    assert seen.columns.keys() == {"token", "provider"}


def test_an_action_about_a_wake_up_has_the_hour_of_its_owner_and_no_times() -> None:
    token = "ab" * 16
    row = Row(router=ROUTER, token=token, woken=3, best=20, days=4, target=20)
    made = best_hours.decision(row, 20 * 3600)
    assert (made.subject, made.evidence["best"]) == (token, 20)
    assert made.evidence.keys() == {"phase", "best", "woken", "days"}
