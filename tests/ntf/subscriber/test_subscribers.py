"""Subscribers begin with the first subscription at a messaging router and end with the last."""

import asyncio

import pytest

from heliograph.ntf.subscriber import subscribers
from heliograph.wire import ntf
from tests.ntf.support import OK, NtfWorld
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
