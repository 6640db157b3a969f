"""Throttles, pauses and alerts in a router on real sockets: effect, neighbours, undo, expiry."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from heliograph.actions.contract import EVERYTHING, SECOND, Action, ActionKind
from heliograph.ntf.observing.traffic import source_of
from heliograph.ntf.store.actions.restrictions import LONGEST, MAX_RATE
from heliograph.runtime.metrics import expose, process_registry
from heliograph.wire import ntf
from heliograph.wire.errors import ErrorCode
from heliograph.wire.ntf.tokens import TokenStatus
from tests.actions.support import an_action
from tests.ntf.actions.support import a_runner, hashed, publish
from tests.ntf.support import NtfWorld
from tests.waiting import until

QUOTA = ntf.ERR(ErrorCode.QUOTA)
EVIDENCE = {"finding": "token_flood", "observed": 100_000, "baseline": 60.0}


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    return tmp_path / "tables"


def decided(kind: ActionKind, subject: str, seconds: float = 3600.0, **changes: Any) -> Action:
    now = int(time.time() * 1e6)
    values = {"evidence": EVIDENCE, "rule": "flood/1", **changes}
    return an_action(
        kind, subject=subject, decided_at=now, valid_until=now + int(seconds * SECOND), **values
    )


def kinds(world: NtfWorld) -> list[str]:
    return [event.kind for event in world.events if event.kind.startswith("action_")]


async def test_a_throttled_token_waits_its_neighbour_does_not_and_undo_lifts_it(
    world: NtfWorld, tables: Path
) -> None:
    phone, neighbour = await world.registered(), await world.registered()
    queue, other = await world.queues(2)
    await phone.subscribe(queue)
    await neighbour.subscribe(other)
    action = decided(ActionKind.THROTTLE_TOKEN, hashed("token", phone.token_id))
    publish(tables, action)
    runner = a_runner(world, tables)
    await runner.apply_automatic()
    world.apns.skip(phone.device)
    for _ in range(5):
        await world.send(queue, other)
        await neighbour.notified_of(other)
    assert world.apns.attempts(phone.device) <= 2  # the verification, and one at a slot's end
    # It survives a restart, since it is in the store.
    await world.restart_ntf(phone, neighbour)
    runner = a_runner(world, tables)
    assert await runner.undo(action.action_id) == "undone"
    await phone.notified_of(queue)
    await world.until_none_pending()
    await world.send(queue)
    await phone.notified_of(queue)
    assert kinds(world) == ["action_applied", "action_undone"]


async def test_a_throttle_expires_by_itself_and_is_recorded(
    small_world: NtfWorld, tables: Path
) -> None:
    phone, queue = await small_world.registered(), await small_world.queue()
    subscription_id = await phone.subscribe(queue)
    subject = hashed("subscription", subscription_id)
    publish(tables, decided(ActionKind.THROTTLE_SUBSCRIPTION, subject, seconds=1.5))
    runner = a_runner(small_world, tables)
    await runner.apply_automatic()
    small_world.apns.skip(phone.device)
    began = time.monotonic()
    await small_world.send(queue)
    await phone.notified_of(queue)
    await small_world.until_none_pending()
    running = asyncio.create_task(runner.run())
    try:
        await until(lambda: "action_expired" in kinds(small_world))
    finally:
        running.cancel()
    await small_world.send(queue)
    await phone.notified_of(queue)
    assert time.monotonic() - began < 10
    assert list(small_world.router.store.restrictions) == []


async def test_new_tokens_are_refused_while_registrations_are_paused(
    small_world: NtfWorld, tables: Path
) -> None:
    phone = await small_world.registered()
    everyone = decided(ActionKind.PAUSE_REGISTRATIONS, EVERYTHING)
    here = hashed("source", source_of("127.0.0.1", time.time()))
    elsewhere = decided(
        ActionKind.PAUSE_REGISTRATIONS, hashed("source", source_of("192.0.2.1", time.time()))
    )
    publish(tables, elsewhere)
    runner = a_runner(small_world, tables)
    await runner.apply_automatic()
    await small_world.registered()
    for action in (everyone, decided(ActionKind.PAUSE_REGISTRATIONS, here)):
        publish(tables, action)
        await runner.apply_automatic()
        assert await (await small_world.phone()).tnew() == QUOTA
        assert await phone.tchk() is TokenStatus.ACTIVE
        assert await runner.undo(action.action_id) == "undone"
        await small_world.registered()
    assert small_world.router.stats.quota_exceeded == {"paused": 2}


async def test_a_throttled_messaging_router_is_read_within_its_budget(
    small_world: NtfWorld, tables: Path
) -> None:
    phone, queue = await small_world.registered(), await small_world.queue()
    await phone.subscribe(queue)
    [subscriber] = small_world.router.subscribers.values()
    address = str(subscriber.address)
    publish(tables, decided(ActionKind.THROTTLE_SERVER, hashed("server", address.encode())))
    runner = a_runner(small_world, tables)
    await runner.apply_automatic()
    now = time.time()
    assert small_world.router.store.restrictions.rate_of(1, int(now * 1000)) == 50
    subscriber._throttle.spend(400, now)
    assert "throttle" not in subscriber._pauses.reasons  # ten seconds of its rate may come at once
    subscriber._throttle.spend(150, now)
    assert "throttle" in subscriber._pauses.reasons
    await until(lambda: "throttle" not in subscriber._pauses.reasons)
    await small_world.send(queue)
    await phone.notified_of(queue)


async def test_alerts_are_in_the_metrics_until_they_expire(
    small_world: NtfWorld, tables: Path
) -> None:
    evidence = {"finding": "failing_provider", "provider": "apns_prod", "observed": 0.9}
    alert = decided(ActionKind.ALERT, EVERYTHING, evidence=evidence)
    publish(tables, alert)
    runner = a_runner(small_world, tables)
    await runner.apply_automatic()
    registry = process_registry()
    registry.register(runner.observer)
    shown = 'heliograph_ntf_alerts{finding="failing_provider"} 1'
    assert shown in expose(registry)
    assert 'heliograph_ntf_actions_in_force{kind="alert"} 1' in expose(registry)
    late = a_runner(small_world, tables, clock=lambda: time.time() + LONGEST)
    await late.expire_restrictions()
    assert "heliograph_ntf_alerts{" not in expose(registry)
    assert await runner.undo(alert.action_id) == "nothing_to_undo"


async def test_an_absurd_baseline_is_a_rate_that_the_store_can_have(
    small_world: NtfWorld, tables: Path
) -> None:
    phone = await small_world.registered()
    await phone.subscribe(await small_world.queue())
    [[address]] = await small_world.read(lambda tx: tx.query("SELECT address FROM servers"))
    evidence = {"finding": "server_flood", "observed": 1e300, "baseline": 1e300}
    action = decided(
        ActionKind.THROTTLE_SERVER, hashed("server", address.encode()), evidence=evidence
    )
    publish(tables, action)
    await a_runner(small_world, tables).apply_automatic()
    [restriction] = small_world.router.store.restrictions
    assert restriction.rate == MAX_RATE
