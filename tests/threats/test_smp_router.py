"""A messaging router, honest but curious, or lying."""

import os

from heliograph.wire import ntf, smp
from heliograph.wire.addresses import ServerAddress, SMPQueueNtf
from heliograph.wire.ntf.push import MessagePush
from heliograph.wire.ntf.tokens import SubscriptionState
from tests.ntf.support import NtfWorld, Phone
from tests.smp.support import Queue, keys
from tests.threats.support import LyingRouter, a_lying_router, as_agent, mentions, stored


async def subscribed_to(
    world: NtfWorld, address: ServerAddress, phone: Phone, notifier_id: bytes
) -> bytes:
    command = ntf.SNEW(phone.token_id, SMPQueueNtf(address, notifier_id), keys().private)
    answer = await phone.ask(command)
    assert isinstance(answer, ntf.IDSUB)
    await phone.until_state(answer.subscription_id, SubscriptionState.ACTIVE)
    return answer.subscription_id


async def test_learns_which_messages_notify(small_world: NtfWorld) -> None:
    queue = await small_world.queue()
    for notify in (True, False):
        assert await queue.send(small_world.sender, b"hello", notify=notify) == smp.OK()
    rows = await small_world.smp.router.store.database.read(
        lambda tx: tx.query("SELECT notification FROM messages ORDER BY seq")
    )
    assert rows == [(1,), (0,)]


async def test_learns_the_address_of_the_notification_router(small_world: NtfWorld) -> None:
    phone = await small_world.registered()
    async with a_lying_router() as (address, router):
        await subscribed_to(small_world, address, phone, os.urandom(24))
        [(connection, _)] = router.subscriptions
        assert connection.peer_address == "127.0.0.1"  # of the router, not of the phone


async def test_drops_notifications(small_world: NtfWorld) -> None:
    """Nobody notices: the subscription is as it was."""
    phone = await small_world.registered()
    async with a_lying_router() as (address, _):
        subscription = await subscribed_to(small_world, address, phone, os.urandom(24))
        assert await phone.is_quiet()
        assert (await phone.schk(subscription)).state is SubscriptionState.ACTIVE


async def test_spams_with_notifications_that_open_to_nothing(small_world: NtfWorld) -> None:
    phone = await small_world.registered()
    queue = await small_world.queue()
    async with a_lying_router() as (address, router):
        await subscribed_to(small_world, address, phone, queue.notifier_id)
        router.tell(queue.notifier_id, os.urandom(24), os.urandom(144))
        push = await small_world.apns.push(phone.device)
        assert isinstance(push, MessagePush)
        assert as_agent(phone, [queue], push) == []  # it is about no queue of this router
        # Of queues that it was not asked about it cannot speak at all.
        router.tell(os.urandom(24), os.urandom(24), os.urandom(144))
        assert await phone.is_quiet()


async def test_does_not_learn_the_device_token(small_world: NtfWorld) -> None:
    world = small_world
    phone, queue = await world.registered(), await world.queue()
    await phone.subscribe(queue)
    await world.send(queue)
    await phone.notified_of(queue)
    secrets = (phone.device.token, phone.token_id, *phone.subscriptions, phone.keys.public)
    assert not mentions(stored(world.directory, "smp"), *secrets)
    assert mentions(stored(world.directory, "smp"), queue.notifier_id)  # it does look there
    async with a_lying_router() as (address, router):
        await subscribed_to(world, address, phone, os.urandom(24))
        assert not mentions(everything(router), *secrets)


async def test_does_not_learn_which_queues_belong_together(small_world: NtfWorld) -> None:
    """All queues of all users come by one connection, each with a key of its own."""
    world = small_world
    phones = [await world.registered(), await world.registered()]
    async with a_lying_router() as (address, router):
        ids = [os.urandom(24) for _ in range(4)]
        for number, notifier_id in enumerate(ids):
            await subscribed_to(world, address, phones[number % 2], notifier_id)
        seen = router.subscriptions
        assert {request.entity_id for _, request in seen} == set(ids)
        assert len({id(connection) for connection, _ in seen}) == 1
        assert {repr(request.command) for _, request in seen} == {"NSUB()"}
        assert not mentions(everything(router), *(phone.token_id for phone in phones))


def everything(router: LyingRouter) -> bytes:
    """What it was ever sent."""
    return b"".join(
        request.corr_id + request.entity_id + repr(request).encode() for _, request in router.seen
    )


async def test_queue_keys_differ(small_world: NtfWorld) -> None:
    first, second = await small_world.queue(), await small_world.queue()
    assert credentials(first).isdisjoint(credentials(second))


def credentials(queue: Queue) -> set[bytes]:
    assert queue.notifier is not None
    return {queue.notifier_id, queue.notifier.auth.public, queue.notifier.dh.public, queue.rcv_id}
