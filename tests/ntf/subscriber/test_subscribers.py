"""Subscribers begin with the first subscription at a messaging router and end with the last."""

import asyncio
import os
from dataclasses import replace
from typing import Any

import pytest

from heliograph.ntf.store.subscriptions.servers import ServerRecord
from heliograph.ntf.subscriber import subscribers
from heliograph.wire import ntf
from tests.ntf.support import OK, NtfWorld
from tests.ports import steady_port
from tests.waiting import eventually, until


@pytest.fixture(autouse=True)
def quick_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscribers, "SWEEP_INTERVAL", 0.05)


async def server_rows(world: NtfWorld) -> int:
    [[count]] = await world.read(lambda tx: tx.query("SELECT COUNT(*) FROM servers"))
    return int(count)


@pytest.mark.parametrize("token", [False, True])
async def test_a_subscriber_ends_with_the_last_subscription(world: NtfWorld, token: bool) -> None:
    phone = await world.registered()
    queues = await world.queues(2)
    for queue in queues:
        await phone.subscribe(queue)
    assert len(world.router.subscribers) == 1
    if token:
        assert await phone.ask(ntf.TDEL(), phone.token_id) == OK
    else:
        assert await phone.ask(ntf.SDEL(), phone.subscriptions[0]) == OK
        await asyncio.sleep(0.3)
        assert len(world.router.subscribers) == 1
        assert await phone.ask(ntf.SDEL(), phone.subscriptions[1]) == OK
    await until(lambda: not world.router.subscribers)
    await until(lambda: len(world.smp.router.clients) == 1)  # the sender
    assert world.router.subscribers.dials.in_flight == 0

    async def is_forgotten() -> bool:
        return await server_rows(world) == 0

    await eventually(is_forgotten)


async def test_a_subscription_made_while_the_last_one_ends_is_served(world: NtfWorld) -> None:
    phone = await world.registered()
    queue = await world.queue()
    for turn in range(15):
        subscription = await phone.subscribe(queue)
        assert await phone.ask(ntf.SDEL(), subscription) == OK
        await asyncio.sleep(turn * 0.01)
    await phone.subscribe(queue)
    await world.send(queue)
    await phone.notified_of(queue)


async def test_a_new_router_is_not_taken_for_one_whose_last_subscription_ended(
    small_world: NtfWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That ended while unused routers were looked for: its subscriber runs until the next look."""
    phone = await small_world.registered()
    queue = await small_world.queue()
    address = replace(small_world.smp.address, port=str(steady_port()))
    last = await phone.snew(queue, address=address)
    first = await phone.snew(queue, address=replace(address, fingerprint=os.urandom(32)))
    store = small_world.router.store.servers
    read, delete = store.servers, store.delete_unused_servers
    deleted = asyncio.Event()

    async def reading() -> list[ServerRecord]:
        found = await read()
        if len(found) == 1 and not deleted.is_set():
            assert await phone.ask(ntf.SDEL(), last.subscription_id) == OK
        return found

    async def deleting(*arguments: Any) -> None:
        await delete(*arguments)
        if not deleted.is_set():
            await phone.snew(queue)
            deleted.set()

    monkeypatch.setattr(store, "servers", reading)
    monkeypatch.setattr(store, "delete_unused_servers", deleting)
    assert await phone.ask(ntf.SDEL(), first.subscription_id) == OK
    await until(deleted.is_set)
    await small_world.send(queue)
    await phone.notified_of(queue)
