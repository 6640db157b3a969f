"""Receiving: once each, in order, from either way of asking, and not more than there is room."""

import asyncio
from pathlib import Path

import pytest

from heliograph.agent.connections import queues
from heliograph.agent.errors import MessageTooLong, RouterError, UnknownMessage
from heliograph.agent.events import QueueGone, SubscriptionEnded
from heliograph.agent.messages import store as stored
from heliograph.agent.messages.envelope import MAX_BODY
from heliograph.agent.messages.inbox import Arrival, receive
from heliograph.transport.client import Client
from heliograph.wire import smp
from tests.agent.places import BOTH_STORES
from tests.agent.support import SETTINGS, Router, User, connect, settings, users
from tests.waiting import eventually, until

pytestmark = BOTH_STORES


async def test_in_order_and_once(router: Router, alice: User, bob: User) -> None:
    at_alice, _ = await connect(alice, bob, router.address)
    sent = [b"%d" % number for number in range(100)]
    for body in sent:
        await alice.agent.send(at_alice, body)
    assert await bob.receive(100) == sent


async def test_any_body_that_fits(router: Router, alice: User, bob: User) -> None:
    at_alice, _ = await connect(alice, bob, router.address)
    bodies = [b"", bytes(range(256)), b"\xff" * MAX_BODY]
    for body in bodies:
        await alice.agent.send(at_alice, body)
    assert await bob.receive(3) == bodies
    with pytest.raises(MessageTooLong, match=str(MAX_BODY)):
        await alice.agent.send(at_alice, bytes(MAX_BODY + 1))


async def test_what_is_not_acknowledged_comes_again_after_a_restart(
    router: Router, alice: User, bob: User
) -> None:
    at_alice, _ = await connect(alice, bob, router.address)
    for body in (b"one", b"two", b"three"):
        await alice.agent.send(at_alice, body)
    first, second, _ = await bob.receive_messages(3, ack=False)
    await bob.agent.ack(second.conn_id, second.message_id)
    await bob.restart()
    await bob.agent.subscribe()
    assert await bob.receive(2) == [b"one", b"three"]
    assert first.message_id < second.message_id


async def test_a_message_is_acknowledged_by_its_id(router: Router, alice: User, bob: User) -> None:
    at_alice, at_bob = await connect(alice, bob, router.address)
    await alice.agent.send(at_alice, b"one")
    [message] = await bob.receive_messages(1)
    await bob.agent.ack(at_bob, message.message_id)
    with pytest.raises(UnknownMessage):
        await bob.agent.ack(at_bob, message.message_id + 1)
    with pytest.raises(UnknownMessage):
        await bob.agent.ack("none", message.message_id)


async def test_a_router_that_repeats_does_no_harm(router: Router, alice: User, bob: User) -> None:
    """Its acknowledgement never reached the router, as far as the router knows."""
    at_alice, at_bob = await connect(alice, bob, router.address)
    await bob.close()
    await alice.agent.send(at_alice, b"once")
    await bob.open()
    message = await bob.agent.get_message(at_bob)
    assert message is not None
    vault, store = bob.agent.store.vault, bob.agent.store
    [queue] = await store.read(lambda tx: queues.rcv_queues_of(tx, vault, [at_bob]))
    arrival = Arrival(queue.address.fingerprint, queue.rcv_id, message.broker_id, b"whatever")
    receipt = await store.write(lambda tx: receive(tx, vault, arrival, 0, 10))
    assert receipt is not None
    assert (receipt.acknowledge, receipt.changes) == (True, frozenset())
    assert await store.read(lambda tx: stored.count_unhandled(tx, at_bob)) == 1


async def test_a_sender_that_repeats_does_no_harm(router: Router, alice: User, bob: User) -> None:
    """As it does when the router's answer was lost: the same number, another ID at the router."""
    at_alice, _ = await connect(alice, bob, router.address)
    await bob.close()
    await alice.agent.send(at_alice, b"once")

    async def is_sent() -> bool:
        return (await alice.agent.connection(at_alice)).to_send == 0

    await eventually(is_sent)
    await alice.agent.store.write(
        lambda tx: tx.execute("UPDATE connections SET next_number = next_number - 1")
    )
    await alice.agent.send(at_alice, b"once")
    await alice.agent.send(at_alice, b"last")
    await bob.open()
    await bob.agent.subscribe()
    assert await bob.receive(2) == [b"once", b"last"]


async def test_get_message(router: Router, alice: User, bob: User) -> None:
    at_alice, at_bob = await connect(alice, bob, router.address)
    await bob.restart()  # it is no longer subscribed
    assert await bob.agent.get_message(at_bob) is None
    for body in (b"one", b"two"):
        await alice.agent.send(at_alice, body, notification=body == b"two")

    async def is_there() -> bool:
        return await bob.agent.get_message(at_bob) is not None

    await eventually(is_there)
    message = await bob.agent.get_message(at_bob)
    assert message is not None
    assert (message.body, message.notification, len(message.broker_id)) == (b"one", False, 24)
    await bob.agent.ack(at_bob, message.message_id)
    message = await bob.agent.get_message(at_bob)
    assert message is not None
    assert (message.body, message.notification) == (b"two", True)
    await bob.agent.ack(at_bob, message.message_id)
    assert await bob.agent.get_message(at_bob) is None
    await bob.agent.subscribe()
    await alice.agent.send(at_alice, b"three")
    assert await bob.receive() == [b"three"]


@pytest.mark.parametrize("version", [8, 19])
async def test_a_connection_is_made_by_fetching_alone(
    tmp_path: Path, router: Router, version: int
) -> None:
    """As an extension does, that never subscribes."""
    async with users(tmp_path, "alice", "bob", settings=settings(version)) as [alice, bob]:
        at_alice, invitation = await alice.agent.create_connection(router.address)
        await alice.restart()
        at_bob = await bob.agent.join_connection(invitation)
        await bob.agent.send(at_bob, b"hello")

        bodies = []

        async def is_ready() -> bool:
            message = await alice.agent.get_message(at_alice)
            if message is not None:
                bodies.append(message.body)
                await alice.agent.ack(at_alice, message.message_id)
            return bool(bodies) and (await alice.agent.connection(at_alice)).is_ready

        await eventually(is_ready)
        assert bodies == [b"hello"]
        await alice.agent.send(at_alice, b"hi")
        assert await bob.receive() == [b"hi"]


async def test_get_message_without_a_router(router: Router, alice: User, bob: User) -> None:
    _, at_bob = await connect(alice, bob, router.address)
    await router.stop()
    with pytest.raises(RouterError) as failure:
        await bob.agent.get_message(at_bob)
    assert failure.value.temporary


async def test_no_more_than_there_is_room_for(tmp_path: Path, router: Router) -> None:
    few = settings(max_unhandled=3)
    async with (
        users(tmp_path, "alice") as [alice],
        users(tmp_path, "bob", settings=few) as [bob],
    ):
        at_alice, at_bob = await connect(alice, bob, router.address)
        sent = [b"%d" % number for number in range(10)]
        for body in sent:
            await alice.agent.send(at_alice, body)
        found = await bob.receive_messages(3, ack=False)
        await until(lambda: bob.agent._engine._held)  # nothing else shows that a fourth waits
        assert (await bob.agent.connection(at_bob)).unhandled == 3
        for message in found:
            await bob.agent.ack(at_bob, message.message_id)
        assert [m.body for m in found] + await bob.receive(7) == sent


async def test_a_lost_connection_is_made_again(router: Router, alice: User, bob: User) -> None:
    at_alice, at_bob = await connect(alice, bob, router.address)
    for number in range(3):
        await router.restart()
        await alice.agent.send(at_alice, b"%d" % number)
        assert await bob.receive() == [b"%d" % number]
    await bob.agent.send(at_bob, b"back")
    assert await alice.receive() == [b"back"]


async def test_another_takes_the_subscription(router: Router, alice: User, bob: User) -> None:
    """It is said, and not taken back until it is asked for."""
    at_alice, at_bob = await connect(alice, bob, router.address)
    other = await User(bob.directory, SETTINGS).open()
    assert await other.agent.subscribe() == {at_bob: None}
    ended = await bob.has(SubscriptionEnded)
    assert ended.conn_id == at_bob
    await alice.agent.send(at_alice, b"to the other")
    assert await other.receive(ack=False) == [b"to the other"]
    # It is one store, so the first hears of it too.
    assert await bob.receive() == [b"to the other"]
    assert await bob.agent.subscribe() == {at_bob: None}
    assert (await other.has(SubscriptionEnded)).conn_id == at_bob
    await alice.agent.send(at_alice, b"to the first")
    assert await bob.receive() == [b"to the first"]
    await other.close()


@pytest.mark.parametrize("version", [9, 19])
async def test_a_queue_is_deleted_at_its_router(
    tmp_path: Path, router: Router, version: int
) -> None:
    """By somebody else with its key."""
    async with users(tmp_path, "alice", "bob", settings=settings(version)) as [alice, bob]:
        _, at_bob = await connect(alice, bob, router.address)
        await bob.agent.subscribe()
        store = bob.agent.store
        [queue] = await store.read(lambda tx: queues.rcv_queues_of(tx, store.vault, [at_bob]))
        async with Client.connect(queue.address, config=bob.settings.clients.config) as other:
            await other.request(smp.DEL(), queue.rcv_id, queue.recipient_key)
        if version >= 10:
            assert (await bob.has(QueueGone)).conn_id == at_bob
        else:
            await bob.has(SubscriptionEnded)  # older routers say no more than this
            assert await bob.agent.get_message(at_bob) is None
        assert (await bob.agent.connection(at_bob)).routers == ()


async def test_a_subscription_that_must_wait_is_made_later(
    router: Router, alice: User, bob: User
) -> None:
    at_alice, at_bob = await connect(alice, bob, router.address)
    await router.stop()
    await bob.restart()
    outcome = (await bob.agent.subscribe())[at_bob]
    assert isinstance(outcome, RouterError)
    assert outcome.temporary
    await router.start()
    await alice.agent.send(at_alice, b"at last")
    assert await bob.receive() == [b"at last"]


async def test_two_iterators_see_the_same(router: Router, alice: User, bob: User) -> None:
    at_alice, _ = await connect(alice, bob, router.address)
    both = asyncio.gather(bob.receive(2, ack=False), bob.receive(2, ack=False))
    await alice.agent.send(at_alice, b"one")
    await alice.agent.send(at_alice, b"two")
    assert list(await both) == [[b"one", b"two"]] * 2
