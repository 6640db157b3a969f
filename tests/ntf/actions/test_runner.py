"""Actions in a router on real sockets, with a real messaging router and provider."""

import asyncio
from pathlib import Path

import pytest

from heliograph.actions.contract import SECOND, ActionKind
from heliograph.ntf.actions import requests
from heliograph.ntf.actions.options import ActionCap
from heliograph.ntf.store.actions.applying import apply_batch
from heliograph.ntf.store.actions.rules import ResolvedAction
from heliograph.runtime.metrics import expose, process_registry
from heliograph.wire.ntf.tokens import SubscriptionState
from tests.actions.support import an_action, key_of
from tests.ntf.actions.support import a_runner, cap, decided, publish
from tests.ntf.support import NtfWorld, Phone
from tests.smp.support import Queue
from tests.waiting import until

RESUBSCRIBE, DELETE_ORPHAN = ActionKind.RESUBSCRIBE, ActionKind.DELETE_ORPHAN


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    return tmp_path / "tables"


@pytest.fixture
async def lost(small_world: NtfWorld) -> tuple[Phone, Queue, bytes]:
    """A phone whose subscription the notification router takes for ended."""
    phone = await small_world.registered()
    queue = await small_world.queue()
    subscription_id = await phone.subscribe(queue)
    # Somebody who has the key subscribes, so that we get END, and is gone.
    thief = await small_world.smp.connect()
    await queue.nsub(thief)
    await phone.until_state(subscription_id, SubscriptionState.END)
    await thief.close()
    return phone, queue, subscription_id


def kinds(world: NtfWorld) -> list[str]:
    return [event.kind for event in world.events if event.kind.startswith("action_")]


async def test_a_lost_subscription_is_repaired_and_its_phone_gets_the_next_push(
    small_world: NtfWorld, lost: tuple[Phone, Queue, bytes], tables: Path
) -> None:
    phone, queue, subscription_id = lost
    action = decided(RESUBSCRIBE, subscription_id)
    publish(tables, action)
    runner = a_runner(small_world, tables)
    await runner.apply_automatic()
    await phone.until_state(subscription_id, SubscriptionState.ACTIVE)
    small_world.apns.skip(phone.device)
    await small_world.send(queue)
    await phone.notified_of(queue)
    await runner.apply_automatic()
    assert kinds(small_world) == ["action_applied"]
    [event] = [event for event in small_world.events if event.kind == "action_applied"]
    assert event["action"] == action.action_id
    assert event["subscription"] == action.subject


async def test_nothing_is_applied_unless_its_kind_is_automatic(
    small_world: NtfWorld, lost: tuple[Phone, Queue, bytes], tables: Path
) -> None:
    phone, _, subscription_id = lost
    publish(tables, decided(RESUBSCRIBE, subscription_id))
    runner = a_runner(small_world, tables, automatic=frozenset())
    await runner.apply_automatic()
    assert (await phone.schk(subscription_id)).state is SubscriptionState.END
    registry = process_registry()
    registry.register(runner.observer)
    assert 'heliograph_ntf_actions_waiting{kind="resubscribe"} 1' in expose(registry)


async def test_an_orphan_is_deleted_and_restored_by_undo(world: NtfWorld, tables: Path) -> None:
    phone = await world.registered()
    queue = await world.queue()
    subscription_id = await phone.subscribe(queue)
    orphan = decided(DELETE_ORPHAN, subscription_id)
    publish(tables, orphan)
    runner = a_runner(world, tables)
    # The router knows that this one is alive.
    assert await runner.apply([orphan.action_id]) == {orphan.action_id: "disagreed"}
    await queue.delete(world.sender)
    await phone.until_state(subscription_id, SubscriptionState.DELETED)
    assert await runner.apply([orphan.action_id]) == {orphan.action_id: "applied"}
    assert (await runner.apply([orphan.action_id])) == {orphan.action_id: "applied_before"}
    assert await count(world) == 0
    assert await runner.undo(orphan.action_id) == "undone"
    assert (await phone.schk(subscription_id)).state is SubscriptionState.DELETED
    assert await runner.undo(orphan.action_id) == "undone_before"
    assert await runner.undo("no such action") == "unknown"
    # It was undone: the same decision is not made again.
    assert (await runner.apply([orphan.action_id])) == {orphan.action_id: "applied_before"}
    assert kinds(world) == ["action_refused", "action_applied", "action_undone"]
    assert [event.kind for event in world.events].count("subscription_deleted") == 1


async def count(world: NtfWorld) -> int:
    [[number]] = await world.read(lambda tx: tx.query("SELECT COUNT(*) FROM subscriptions"))
    return int(number)


async def test_what_is_not_for_us_or_not_true_is_refused_and_counted_once(
    small_world: NtfWorld, lost: tuple[Phone, Queue, bytes], tables: Path
) -> None:
    _, _, subscription_id = lost
    publish(
        tables,
        decided(RESUBSCRIBE, subscription_id, signer=key_of("somebody")),
        decided(RESUBSCRIBE, subscription_id, router="ff" * 8),
        decided(RESUBSCRIBE, bytes(24), evidence={"n": 1}),
        an_action(evidence={"n": 2}, decided_at=0, valid_until=1),
    )
    runner = a_runner(small_world, tables)
    for _ in range(2):
        await runner.apply_automatic()
    reasons = [e["reason"] for e in small_world.events if e.kind == "action_refused"]
    assert sorted(reasons) == ["forged", "stale", "unknown_subject"]
    assert "action_applied" not in kinds(small_world)
    registry = process_registry()
    registry.register(runner.observer)
    assert 'heliograph_ntf_actions_refused_total{reason="forged"} 1' in expose(registry)


async def test_a_cap_stops_a_kind_and_a_day_later_it_goes_on(
    small_world: NtfWorld, tables: Path
) -> None:
    phone = await small_world.registered()
    queues = await small_world.queues(3)
    ids = [await phone.subscribe(queue) for queue in queues]
    actions = [decided(RESUBSCRIBE, item) for item in ids]
    publish(tables, *actions)
    results = await a_runner(small_world, tables, cap=cap(2)).apply(
        action.action_id for action in actions
    )
    assert sorted(results.values()) == ["applied", "applied", "capped"]
    # What was applied more than a day ago counts no more.
    await small_world.router.store.database.write(
        lambda tx: tx.execute("UPDATE actions SET applied_at = 0")
    )
    results = await a_runner(small_world, tables, cap=cap(2)).apply(
        action.action_id for action in actions
    )
    assert sorted(results.values()) == ["applied", "applied_before", "applied_before"]


async def test_actions_that_are_refused_do_not_keep_later_ones_from_their_turn(
    small_world: NtfWorld, lost: tuple[Phone, Queue, bytes], tables: Path
) -> None:
    phone, _, subscription_id = lost
    last = decided(RESUBSCRIBE, subscription_id)
    times = {"decided_at": last.decided_at - SECOND, "valid_until": last.valid_until}
    gone = [an_action(RESUBSCRIBE, subject=f"{number:032x}", **times) for number in range(9)]
    publish(tables, last, *gone)
    pace = ActionCap(cap(10).daily, 3 / 3600)  # three in each pass
    runner = a_runner(small_world, tables, cap=pace)
    for _ in range(4):
        await runner.apply_automatic()
    await phone.until_state(subscription_id, SubscriptionState.ACTIVE)
    assert kinds(small_world).count("action_refused") == 9


async def test_requests_of_an_operator_are_answered(
    small_world: NtfWorld, lost: tuple[Phone, Queue, bytes], tables: Path
) -> None:
    _, _, subscription_id = lost
    action = decided(RESUBSCRIBE, subscription_id)
    publish(tables, action)
    runner = a_runner(small_world, tables, automatic=frozenset())
    running = asyncio.create_task(runner.run())
    try:
        for undo, expected in ((False, "applied"), (True, "nothing_to_undo")):
            name = requests.submit(small_world.directory, (action.action_id, "x"), undo=undo)
            answer = await asyncio.to_thread(
                requests.wait_for_answer, small_world.directory, name, 30.0
            )
            assert answer == {action.action_id: expected, "x": "unknown"}
        # One that cannot be understood is answered, too, and nothing happens.
        bad = small_world.directory / requests.FOLDER / "bad.json"
        bad.write_text("[1")
        await until(lambda: not bad.exists())
    finally:
        running.cancel()


async def test_what_a_kill_kept_from_the_journal_is_recorded_by_the_next_run(
    small_world: NtfWorld, lost: tuple[Phone, Queue, bytes], tables: Path
) -> None:
    _, _, subscription_id = lost
    item = ResolvedAction("aa" * 16, RESUBSCRIBE, subscription_id)
    caps = {RESUBSCRIBE: cap(1).daily}
    await small_world.router.store.database.write(lambda tx: apply_batch(tx, [item], caps, 1))
    runner = a_runner(small_world, tables)
    for _ in range(2):
        await runner.record_recovered()
    assert kinds(small_world) == ["action_applied"]


async def test_a_table_that_cannot_be_read_is_counted_and_stops_nothing(
    small_world: NtfWorld, tables: Path
) -> None:
    publish(tables, an_action())
    for file in (tables / "actions" / "_delta_log").glob("*.json"):
        file.write_text("{")
    runner = a_runner(small_world, tables)
    await runner.apply_automatic()
    assert await runner.apply(["x"]) == {"x": "unreadable"}
    registry = process_registry()
    registry.register(runner.observer)
    assert "heliograph_ntf_actions_read_failures_total 2" in expose(registry)
