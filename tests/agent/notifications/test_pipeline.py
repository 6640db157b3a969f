"""Subscriptions over real routers: the two stages, checks, deletion, restarts, and what may fail.

A router that is down keeps a subscription at the stage that needs it, so that a restart meets it
there.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heliograph.agent.connections import queues
from heliograph.agent.keys import Vault
from heliograph.agent.notifications import supervisor
from heliograph.agent.notifications.context import notified_queues
from heliograph.agent.notifications.records import (
    CommandKind,
    SubAction,
    SubscriptionStage,
    SupervisorCommand,
)
from heliograph.agent.store import AgentStore
from heliograph.db.dialects import Transaction
from heliograph.ntf.limits import NtfLimits
from heliograph.transport.client import Client
from heliograph.wire import ntf, smp
from heliograph.wire.ntf.tokens import SubscriptionState, TokenStatus
from tests.agent.notifications.support import DAY, SETTINGS, TIMEOUT, AgentWorld, Rig, agent_world
from tests.agent.places import BOTH_STORES
from tests.agent.support import Router
from tests.waiting import eventually

pytestmark = BOTH_STORES

KEY, SMP_DELETE, CREATE, CHECK, NTF_DELETE = SubAction
S = SubscriptionState


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[AgentWorld]:
    async with agent_world(tmp_path) as running:
        yield running


async def subscribed(world: AgentWorld, count: int = 1) -> tuple[Router, Rig, list[str]]:
    router, rig = await world.smp(), await world.rig()
    await rig.register()
    conn_ids = await rig.connect(router, count)
    await rig.until_subscribed(conn_ids)
    return router, rig, conn_ids


async def until_checked(rig: Rig, conn_id: str) -> None:
    """Until the next check is due in three days, by the clock as it is now."""

    async def is_so() -> bool:
        sub = await rig.sub(conn_id)
        return sub is not None and 2 * DAY < sub.due - rig.clock() <= 3 * DAY

    await eventually(is_so, TIMEOUT)


async def until_another_notifier(rig: Rig, conn_id: str, before: bytes) -> None:
    async def is_so() -> bool:
        sub = await rig.sub(conn_id)
        return sub is not None and sub.action is CHECK and sub.notifier_id != before

    await eventually(is_so, TIMEOUT)


async def notifier_of(rig: Rig, conn_id: str) -> bytes:
    notifier = (await rig.queue(conn_id)).notifier
    assert notifier is not None
    return notifier.notifier_id


# The way of a subscription.


async def test_a_connection_is_notified(world: AgentWorld) -> None:
    router, rig, [conn_id] = await subscribed(world)
    sub, token = await rig.sub(conn_id), await rig.token()
    assert sub is not None
    assert (sub.stage, sub.state, sub.token_id) == (
        SubscriptionStage.CREATED,
        S.NEW,
        token.token_id,
    )
    assert (sub.smp_address, sub.ntf_address) == (router.address, token.ntf_address)
    assert 0 < sub.due - rig.clock() <= DAY
    await rig.notified(conn_id)


async def test_connections_from_before_the_token_are_subscribed_with_it(world: AgentWorld) -> None:
    router, rig = await world.smp(), await world.rig()
    first = await rig.connect(router, 2)
    await rig.ask()
    second = await rig.connect(router)
    await rig.ntf.commands_stored()
    assert await rig.ntf.subscriptions() == []  # creates are not taken before it is active
    await rig.verify()
    await rig.until_subscribed([*first, *second])


async def test_many_in_batches_over_several_routers(world: AgentWorld) -> None:
    rig = await world.rig(settings=replace(SETTINGS, batch=8))
    await rig.register()
    routers = [await world.smp() for _ in range(3)]
    conn_ids = [conn_id for router in routers for conn_id in await rig.connect(router, 20)]
    await rig.until_subscribed(conn_ids)
    for conn_id in (conn_ids[0], conn_ids[-1]):
        await rig.notified(conn_id)


async def test_creating_again_changes_nothing(world: AgentWorld) -> None:
    _, rig, conn_ids = await subscribed(world, 3)
    before = await rig.ntf.subscriptions()
    await rig.ntf.create(conn_ids)
    await rig.ntf.refresh()
    await rig.ntf.commands_stored()
    assert await rig.ntf.subscriptions() == before


async def test_notifications_off_and_on_for_one_connection(world: AgentWorld) -> None:
    _, rig, [off, on] = await subscribed(world, 2)
    before = await notifier_of(rig, off)
    await rig.enable(off, False)
    await rig.until_none([off])
    assert await rig.count_at_router() == 1
    assert (await rig.queue(off)).notifier is None
    await rig.notified(on)
    await rig.send(off)
    assert await world.ntf.apns.is_quiet(rig.device)
    await rig.enable(off, True)
    await rig.until_subscribed([off, on])
    assert await notifier_of(rig, off) != before
    await rig.notified(off)


async def test_a_deleted_connection_is_forgotten_at_the_notification_router(
    world: AgentWorld,
) -> None:
    _, rig, [gone, kept] = await subscribed(world, 2)
    await rig.store.write(lambda tx: queues.delete_connection(tx, gone))
    await rig.ntf.forget([gone])
    await rig.until_none([gone])
    assert await rig.count_at_router() == 1
    await rig.notified(kept)


# Restarts at each stored action: of the agent, and of the router that it was to be done at.


async def test_restart_while_a_key_is_to_be_set(world: AgentWorld) -> None:
    router, rig = await world.smp(), await world.rig()
    await rig.register()
    conn_ids = await rig.connect(router, 2, create=False)
    await router.stop()
    await rig.ntf.create(conn_ids)
    await rig.until_action(conn_ids, KEY)
    await rig.restart()
    await router.start()
    await rig.until_subscribed(conn_ids)
    await rig.notified(conn_ids[0])


async def test_restart_while_a_subscription_is_to_be_created(world: AgentWorld) -> None:
    router, rig = await world.smp(), await world.rig()
    await rig.register()
    await world.stop_ntf()
    conn_ids = await rig.connect(router, 2)
    await rig.until_action(conn_ids, CREATE)
    await rig.restart()
    await world.start_ntf()
    await rig.until_subscribed(conn_ids)
    await rig.notified(conn_ids[0])


async def test_restart_while_a_check_is_due(world: AgentWorld) -> None:
    _, rig, [conn_id] = await subscribed(world)
    await world.stop_ntf()
    rig.clock.ahead = DAY
    await rig.restart()
    await rig.until_action([conn_id], CHECK)
    await world.start_ntf()
    await until_checked(rig, conn_id)


async def test_restart_while_a_notifier_is_to_be_deleted(world: AgentWorld) -> None:
    router, rig, [conn_id, other] = await subscribed(world, 2)
    await router.stop()
    await rig.enable(conn_id, False)
    await rig.until_action([conn_id], SMP_DELETE)
    await rig.restart()
    await router.start()
    await rig.until_none([conn_id])
    assert await rig.count_at_router() == 1
    await rig.notified(other)


async def test_restart_while_a_subscription_is_to_be_deleted(world: AgentWorld) -> None:
    _, rig, [conn_id, other] = await subscribed(world, 2)
    await world.stop_ntf()
    await rig.enable(conn_id, False)
    await rig.until_action([conn_id], NTF_DELETE)
    assert (await rig.queue(conn_id)).notifier is None
    await rig.restart()
    await world.start_ntf()
    await rig.until_none([conn_id])
    assert await rig.count_at_router() == 1
    await rig.notified(other)


@pytest.mark.parametrize("action", [KEY, CREATE])
async def test_a_create_while_a_deletion_is_pending_begins_again(
    world: AgentWorld, action: SubAction
) -> None:
    router, rig, [conn_id] = await subscribed(world)
    before = await notifier_of(rig, conn_id)
    if action is KEY:
        await router.stop()
        await rig.enable(conn_id, False)
        await rig.until_action([conn_id], SMP_DELETE)
    else:
        await world.stop_ntf()
        await rig.enable(conn_id, False)
        await rig.until_action([conn_id], NTF_DELETE)
    await rig.ntf.create([conn_id])
    await rig.until_action([conn_id], action)
    if action is KEY:
        await router.start()
    else:
        await world.start_ntf()
    await until_another_notifier(rig, conn_id, before)
    await rig.notified(conn_id)


async def test_routers_restart_and_notifications_go_on(world: AgentWorld) -> None:
    router, rig, [conn_id] = await subscribed(world)
    await router.restart()
    await rig.until_active(1)
    await rig.notified(conn_id)
    await world.stop_ntf()
    await world.start_ntf()
    await rig.until_active(1)
    await rig.notified(conn_id)


async def test_what_was_asked_before_a_crash_is_found_at_the_start(world: AgentWorld) -> None:
    """Commands wait in memory; what they were for is in the store."""
    router, rig, [off, gone, kept] = await subscribed(world, 3)
    await rig.close()
    await rig.open(start=False)

    def change(tx: Transaction) -> None:
        queues.set_enable_ntfs(tx, off, False)
        queues.delete_connection(tx, gone)

    await rig.store.write(change)
    [new] = await rig.connect(router, create=False)
    await rig.restart()
    await rig.until_none([off, gone])
    await rig.until_subscribed([kept, new])


# Checks.


async def test_checks_are_made_when_they_are_due(world: AgentWorld) -> None:
    _, rig, [conn_id] = await subscribed(world)
    rig.clock.ahead = DAY - 60
    await rig.ntf.wake_pending()
    sub = await rig.sub(conn_id)
    assert sub is not None
    assert sub.state is S.NEW
    rig.clock.ahead = DAY + 1
    await rig.ntf.wake_pending()
    await until_checked(rig, conn_id)
    assert await rig.states() == [S.ACTIVE]
    rig.clock.ahead += 3 * DAY
    await rig.ntf.wake_pending()
    await until_checked(rig, conn_id)


async def test_an_ended_subscription_is_made_again(world: AgentWorld) -> None:
    """Another subscriber took it over."""
    router, rig, [conn_id] = await subscribed(world)
    queue = await rig.queue(conn_id)
    assert queue.notifier is not None
    client = await Client.connect(router.address)
    try:
        thief = await client.request(
            smp.NSUB(), queue.notifier.notifier_id, queue.notifier.auth_key
        )
        assert isinstance(thief, smp.SOK)

        async def is_ended() -> bool:
            return await rig.count_at_router("status = 'END'") == 1

        await eventually(is_ended)
    finally:
        await client.close()
    rig.clock.ahead = DAY
    await rig.ntf.wake_pending()
    await until_another_notifier(rig, conn_id, queue.notifier.notifier_id)
    await rig.until_active(1)
    await rig.notified(conn_id)


async def test_a_subscription_that_the_router_does_not_know_is_made_again(
    world: AgentWorld,
) -> None:
    _, rig, [conn_id, other] = await subscribed(world, 2)
    sub, token = await rig.sub(conn_id), await rig.token()
    assert sub is not None
    assert sub.subscription_id is not None
    assert sub.notifier_id is not None
    client = await rig.clients.ntf(token.ntf_address)
    answer = await client.request(ntf.SDEL(), sub.subscription_id, token.auth_keys.private)
    assert answer == ntf.OK()
    rig.clock.ahead = DAY
    await rig.ntf.wake_pending()
    await until_another_notifier(rig, conn_id, sub.notifier_id)
    await until_checked(rig, other)
    await rig.until_active(2)
    await rig.notified(conn_id)
    assert (await rig.token()).token_id == token.token_id


async def test_the_notification_router_loses_its_data(world: AgentWorld) -> None:
    """A check finds out; then the token and all its subscriptions come back by themselves."""
    _, rig, conn_ids = await subscribed(world, 5)
    before = await rig.token()
    world.ntf.apns.skip(rig.device)
    await world.lose_ntf_data()
    rig.clock.ahead = DAY
    await rig.ntf.wake_pending()
    assert await rig.verify() is TokenStatus.ACTIVE
    assert (await rig.token()).token_id != before.token_id
    await rig.until_subscribed(conn_ids)
    for conn_id in conn_ids:
        await rig.notified(conn_id)


async def test_the_data_was_lost_while_the_agent_was_away(world: AgentWorld) -> None:
    _, rig, conn_ids = await subscribed(world, 3)
    await rig.close()
    world.ntf.apns.skip(rig.device)
    await world.lose_ntf_data()
    await rig.open()
    await rig.verify()
    await rig.until_subscribed(conn_ids)
    await rig.notified(conn_ids[0])


# Queues and routers that change.


async def test_a_rotated_queue(world: AgentWorld) -> None:
    _, rig, [conn_id] = await subscribed(world)
    before, other = await notifier_of(rig, conn_id), await world.smp()
    old = await rig.rotate(conn_id, other)
    await rig.ntf.create([conn_id])
    await until_another_notifier(rig, conn_id, before)
    sub = await rig.sub(conn_id)
    assert sub is not None
    assert sub.smp_address == other.address
    await rig.until_active(2)  # what is still sent to the old queue is notified of too
    await rig.notified(conn_id)
    client = await rig.clients.smp(old.address)
    assert await client.request(smp.DEL(), old.rcv_id, old.recipient_key) == smp.OK()
    await rig.until_active(1)


async def test_a_queue_rotated_at_the_same_router(world: AgentWorld) -> None:
    router, rig, [conn_id] = await subscribed(world)
    before = await notifier_of(rig, conn_id)
    await rig.rotate(conn_id, router)
    await rig.ntf.create([conn_id])
    await until_another_notifier(rig, conn_id, before)
    await rig.notified(conn_id)


async def test_a_messaging_router_that_moved(world: AgentWorld) -> None:
    router, rig, conn_ids = await subscribed(world, 3)
    await world.move(router)
    await rig.moved(router)
    await rig.ntf.refresh()
    await rig.ntf.commands_stored()
    await rig.until_action(conn_ids, CHECK)
    assert {sub.smp_address for sub in await rig.ntf.subscriptions()} == {router.address}
    for conn_id in conn_ids:
        await rig.notified(conn_id)


async def test_a_messaging_router_that_moved_while_keys_were_to_be_set(world: AgentWorld) -> None:
    router, rig = await world.smp(), await world.rig()
    await rig.register()
    [conn_id] = await rig.connect(router, create=False)
    await router.stop()
    await rig.ntf.create([conn_id])
    await rig.until_action([conn_id], KEY)
    await router.start(port=0)
    await rig.moved(router)
    await rig.ntf.refresh()
    await rig.until_subscribed([conn_id])
    await rig.notified(conn_id)


# Clocks.


@pytest.mark.parametrize("days", [1000, -1000, 3650])
async def test_the_clock_jumps(world: AgentWorld, days: int) -> None:
    router, rig, [conn_id] = await subscribed(world)
    rig.clock.ahead = days * DAY
    await rig.ntf.wake_pending()
    await until_checked(rig, conn_id)
    [other] = await rig.connect(router)
    await rig.until_action([other], CHECK)
    await rig.notified(other)
    rig.clock.ahead = 0.0
    await rig.ntf.wake_pending()
    await until_checked(rig, conn_id)


async def test_the_clock_is_set_back_a_little_while_work_is_pending(world: AgentWorld) -> None:
    router, rig = await world.smp(), await world.rig()
    await rig.register()
    await world.stop_ntf()
    [conn_id] = await rig.connect(router)
    await rig.until_action([conn_id], CREATE)
    rig.clock.ahead = -3600.0
    await world.start_ntf()
    await rig.until_subscribed([conn_id])


# What is refused.


async def test_what_is_refused_for_good_is_parked_until_it_is_created_again(
    world: AgentWorld,
) -> None:
    router, rig = await world.smp(), await world.rig()
    await rig.register()
    [conn_id, other] = await rig.connect(router, 2, create=False)
    queue = await rig.queue(conn_id)
    client = await rig.clients.smp(router.address)
    assert await client.request(smp.DEL(), queue.rcv_id, queue.recipient_key) == smp.OK()
    await rig.ntf.create([conn_id, other])
    await rig.until_action([conn_id], None)
    await rig.until_action([other], CHECK)
    await rig.rotate(conn_id, router)
    await rig.ntf.create([conn_id])
    await rig.until_subscribed([conn_id, other])
    await rig.notified(conn_id)


async def test_a_router_that_cannot_now_is_asked_later(world: AgentWorld) -> None:
    world.ntf.settings = replace(world.ntf.settings, limits=NtfLimits(subscriptions_per_token=1))
    await world.stop_ntf()
    await world.start_ntf()
    router, rig = await world.smp(), await world.rig()
    await rig.register()
    conn_ids = await rig.connect(router, 3)

    async def are_refused() -> bool:
        attempts = [sub.attempts for sub in await rig.ntf.subscriptions()]
        return sorted(attempts)[:1] == [0] and all(n > 1 for n in sorted(attempts)[1:])

    await eventually(are_refused, TIMEOUT)
    world.ntf.settings = replace(world.ntf.settings, limits=NtfLimits())
    await world.stop_ntf()
    await world.start_ntf()
    await rig.until_subscribed(conn_ids)


# The supervisor.


async def test_a_deletion_overtakes_a_worker(world: AgentWorld) -> None:
    """What a worker brings back for a subscription that was changed meanwhile is void."""
    router, rig = await world.smp(), await world.rig()
    await rig.register()
    [conn_id] = await rig.connect(router, create=False)
    asked, go_on = asyncio.Event(), asyncio.Event()
    connect = rig.clients.smp

    async def slowly(*arguments: object, **options: object) -> Client:
        asked.set()
        await go_on.wait()
        return await connect(*arguments, **options)  # type: ignore[arg-type]

    rig.clients.smp = slowly  # type: ignore[method-assign]
    await rig.ntf.create([conn_id])
    await asked.wait()
    await rig.enable(conn_id, False)
    await rig.until_action([conn_id], SMP_DELETE)
    go_on.set()
    await rig.until_none([conn_id])
    assert (await rig.queue(conn_id)).notifier is None
    await rig.ntf.create([conn_id])
    await rig.until_subscribed([conn_id])


async def test_the_queue_of_commands_is_bounded(
    world: AgentWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await world.rig(settings=replace(SETTINGS, commands=2))
    await rig.register()
    gate = asyncio.Event()
    write = AgentStore.write

    async def gated(self: AgentStore, function: Callable[[Transaction], Any]) -> Any:
        await gate.wait()
        return await write(self, function)

    monkeypatch.setattr(AgentStore, "write", gated)
    for number in range(3):  # one in progress, two that wait
        await rig.ntf.create([str(number)])
        await asyncio.sleep(0)
    blocked = asyncio.create_task(rig.ntf.create(["another"]))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.1):
            await asyncio.shield(blocked)
    assert not blocked.done()
    gate.set()
    await blocked
    await rig.ntf.commands_stored()


async def test_a_failing_store_delays_a_command(
    world: AgentWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    router, rig = await world.smp(), await world.rig()
    await rig.register()
    monkeypatch.setattr("heliograph.agent.notifications.supervisor.RETRY_COMMAND", (0.01, 0.01))
    failures = [ValueError("no"), ValueError("no")]

    def failing(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return notified_queues(*arguments)

    monkeypatch.setattr(supervisor, "notified_queues", failing)
    with caplog.at_level(logging.CRITICAL):
        [conn_id] = await rig.connect(router)
        await rig.until_subscribed([conn_id])
    assert not failures


async def test_a_command_that_keeps_failing_stops_no_other(
    world: AgentWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    router, rig = await world.smp(), await world.rig()
    await rig.register()
    [bad, good] = await rig.connect(router, 2, create=False)
    monkeypatch.setattr("heliograph.agent.notifications.supervisor.RETRY_COMMAND", (0.01, 0.01))

    def failing(tx: Transaction, vault: Vault, conn_ids: Sequence[str]) -> Any:
        if bad in conn_ids:
            raise ValueError("no")
        return notified_queues(tx, vault, conn_ids)

    with monkeypatch.context() as patch:
        patch.setattr(supervisor, "notified_queues", failing)
        await rig.ntf.create([bad])
        await rig.ntf.create([good])
        await rig.until_subscribed([good])
    assert "until the next start" in caplog.text
    await rig.restart()
    await rig.until_subscribed([bad, good])


async def test_deletions_are_taken_without_a_token(world: AgentWorld) -> None:
    _, rig, [conn_id] = await subscribed(world)
    await rig.close()
    await rig.open(start=False)
    await rig.ntf.delete_token()
    sub = await rig.sub(conn_id)
    assert sub is not None
    assert sub.action is SMP_DELETE
    await rig.ntf.create([conn_id])  # not taken
    assert await rig.sub(conn_id) == sub
    await rig.restart()
    await rig.until_none([conn_id])


async def test_nothing_secret_is_logged(
    world: AgentWorld, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        _, rig, [conn_id] = await subscribed(world)
        await world.stop_ntf()
        rig.clock.ahead = DAY
        await rig.ntf.wake_pending()
        await rig.enable(conn_id, False)
        await rig.until_action([conn_id], NTF_DELETE)
        await world.start_ntf()
        await rig.until_none([conn_id])
    queue, token = await rig.queue(conn_id), await rig.token()
    assert token.token_id is not None
    records = [item for item in caplog.records if item.name.startswith("heliograph")]
    text = "\n".join(item.getMessage() for item in records)
    for secret in (token.token_id, queue.rcv_id, queue.recipient_key, token.auth_keys.private):
        assert repr(secret) not in text
        assert secret.hex() not in text
    assert rig.device.token.decode() not in text
    assert conn_id not in text


def test_a_command_names_what_it_is_about() -> None:
    assert SupervisorCommand(CommandKind.CREATE, ("a",)) != SupervisorCommand(
        CommandKind.DELETE, ("a",)
    )
