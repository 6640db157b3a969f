"""Services that receive messages: association, SUBS, ALLS, and who is replaced."""

from typing import Any

import pytest

from heliograph.wire import smp
from heliograph.wire.errors import ErrorCode
from heliograph.wire.handshakes import ServiceRole
from heliograph.wire.smp.fields import SubscriptionMode
from heliograph.wire.smp.ids import ids_hash
from tests.smp.support import (
    OK,
    PROHIBITED,
    Peer,
    Queue,
    World,
    create,
    error,
    keys,
    service,
)

NO_SERVICE = error(ErrorCode.SERVICE)


async def connect(world: World, version: int = 19) -> Peer:
    credentials = service("A messaging service CA", ServiceRole.MESSAGING)
    return await world.connect(version, service=credentials)


async def subs(peer: Peer) -> Any:
    session = peer.client.established.service
    assert session is not None
    return await peer.ask(smp.SUBS(0), session.service_id, session.key)


def hash_of(*queues: Queue) -> bytes:
    return ids_hash(queue.rcv_id for queue in queues)


async def test_queues_are_associated(world: World) -> None:
    alice, receiver = await world.connect(), await connect(world)
    made, other = await create(receiver), await create(alice)
    assert made.ids.service_id == receiver.service_id
    assert await other.sub(receiver) == smp.SOK(receiver.service_id)
    assert await alice.push(other.rcv_id) == smp.END()
    for queue in (made, other):
        assert await queue.send(alice, b"hello") == OK
        message = await receiver.push(queue.rcv_id)
        assert queue.body(message) == b"hello"
        assert await queue.ack(receiver, message) == OK
    assert await subs(receiver) == smp.SOKS(2, hash_of(made, other))
    assert await receiver.push(b"") == smp.ALLS()
    await world.restart()
    receiver = await connect(world)
    assert await subs(receiver) == smp.SOKS(2, hash_of(made, other))


async def test_waiting_messages_come_before_alls(world: World) -> None:
    alice, receiver = await world.connect(), await connect(world)
    queues = [await create(receiver) for _ in range(5)]
    await receiver.close()
    world.peers.remove(receiver)
    for queue in queues[:3]:
        for body in (b"first", b"second"):
            assert await queue.send(alice, body) == OK
    receiver = await connect(world)
    assert (await subs(receiver)).count == 5
    received = {}
    while (push := await receiver.push()) != smp.ALLS():
        [queue] = [item for item in queues if item.body_or_none(push) is not None]
        received[queue.rcv_id] = push
    assert set(received) == {queue.rcv_id for queue in queues[:3]}
    for queue in queues[:3]:
        assert queue.body(received[queue.rcv_id]) == b"first"
        assert queue.body(await queue.ack(receiver, received[queue.rcv_id])) == b"second"
    assert await queues[4].send(alice, b"later") == OK
    assert queues[4].body(await receiver.push(queues[4].rcv_id)) == b"later"


async def test_another_session_replaces_the_first(world: World) -> None:
    alice, first = await world.connect(), await connect(world)
    queue = await create(first)
    second = await connect(world)
    assert await subs(second) == smp.SOKS(1, hash_of(queue))
    assert await first.push(first.service_id) == smp.ENDS(1, hash_of(queue))
    assert await second.push(b"") == smp.ALLS()
    assert await queue.send(alice, b"hello") == OK
    assert queue.body(await second.push(queue.rcv_id)) == b"hello"
    assert await first.is_quiet()


async def test_a_plain_subscription_dissociates(world: World) -> None:
    alice, receiver = await world.connect(), await connect(world)
    queue = await create(receiver)
    assert await queue.sub(alice) == smp.SOK()
    assert await receiver.push(queue.rcv_id) == smp.END()
    assert await queue.send(alice, b"hello") == OK
    assert queue.body(await alice.push(queue.rcv_id)) == b"hello"
    assert await subs(receiver) == smp.SOKS(0, bytes(16))


async def test_deleted_queues(world: World) -> None:
    alice, receiver = await world.connect(), await connect(world)
    queue = await create(receiver)
    assert await queue.delete(alice) == OK
    assert await receiver.push(queue.rcv_id) == smp.DELD()
    assert await subs(receiver) == smp.SOKS(0, bytes(16))


@pytest.mark.parametrize("version", [16, 17, 18])
async def test_before_19_only_single_queues(small_world: World, version: int) -> None:
    receiver = await connect(small_world, version)
    queue = await create(receiver)
    assert queue.ids.service_id == receiver.service_id
    assert await subs(receiver) == PROHIBITED
    assert await queue.sub(receiver) == smp.SOK(receiver.service_id)


async def test_refused(small_world: World) -> None:
    receiver, alice = await connect(small_world), await small_world.connect()
    owner = keys()
    command = smp.NEW(owner.public, owner.public, mode=SubscriptionMode.CREATE_ONLY)
    assert await receiver.ask(command, b"", owner.private) == PROHIBITED
    queue = await create(alice)
    unsigned = await receiver.ask_as(
        smp.SUB(), queue.rcv_id, queue.recipient.private, service_key=None
    )
    assert unsigned == NO_SERVICE
    assert await receiver.ask(smp.SUBS(0), receiver.service_id, owner.private) == NO_SERVICE
    assert await alice.ask(smp.SUBS(0), receiver.service_id, owner.private) == NO_SERVICE
