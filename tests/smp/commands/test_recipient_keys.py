"""Queues with several recipient keys: RKEY."""

import pytest

from heliograph.crypto.keys import generate_key_pair
from heliograph.wire import smp
from heliograph.wire.keys import Algorithm
from heliograph.wire.smp.fields import QueueMode
from tests.smp.support import AUTH, OK, World, create

SOK = smp.SOK()


async def test_any_key_authorizes(world: World) -> None:
    alice = await world.connect()
    queue = await create(alice, mode=QueueMode.CONTACT, subscribe=False)
    pairs = [
        generate_key_pair(algorithm)
        for algorithm in (Algorithm.ED25519, Algorithm.ED448, Algorithm.X25519)
    ]
    first = queue.recipient
    publics = (first.public, *(pair.public for pair in pairs))
    assert await queue.by_recipient(alice, smp.RKEY(publics)) == OK
    await world.restart()
    alice = await world.connect()
    for pair in (first, *pairs):
        assert await alice.ask(smp.QUE(), queue.rcv_id, pair.private) == smp.INFO(
            (await queue.by_recipient(alice, smp.QUE())).info
        )
    kept = pairs[1]
    assert await alice.ask(smp.RKEY((kept.public,)), queue.rcv_id, pairs[0].private) == OK
    assert await alice.ask(smp.SUB(), queue.rcv_id, first.private) == AUTH
    assert await alice.ask(smp.SUB(), queue.rcv_id, kept.private) == SOK


async def test_a_subscription_outlives_its_key(small_world: World) -> None:
    alice = await small_world.connect()
    queue = await create(alice, mode=QueueMode.CONTACT)
    old, queue.recipient = queue.recipient, generate_key_pair(Algorithm.X25519)
    assert await alice.ask(smp.RKEY((queue.recipient.public,)), queue.rcv_id, old.private) == OK
    assert await queue.send(alice, b"hello") == OK
    message = await alice.push(queue.rcv_id)
    assert queue.body(message) == b"hello"
    assert await alice.ask(smp.ACK(message.msg_id), queue.rcv_id, old.private) == AUTH
    assert await queue.ack(alice, message) == OK


@pytest.mark.parametrize("mode", [QueueMode.MESSAGING, None])
async def test_only_contact_queues(small_world: World, mode: QueueMode | None) -> None:
    alice = await small_world.connect()
    queue = await create(alice, mode=mode)
    key = generate_key_pair(Algorithm.X25519).public
    assert await queue.by_recipient(alice, smp.RKEY((key,))) == AUTH
    assert await queue.sub(alice) == SOK
