"""Queues that the operator blocked: what their clients see, and that it can be undone."""

import os

import pytest

from heliograph.wire import smp
from heliograph.wire.errors import BLOCKED, BlockingReason, ClientNotice, ErrorCode
from heliograph.wire.smp.fields import QueueMode
from tests.smp.commands.test_proxy import SEND
from tests.smp.sender import ProxiedSender
from tests.smp.support import AUTH, OK, World, create, create_notified

SPAM = BLOCKED(BlockingReason.SPAM, ClientNotice(86_400))
CONTENT = BLOCKED(BlockingReason.CONTENT)


async def block(world: World, entity_id: bytes, reason: BLOCKED) -> None:
    queue = await world.router.operator.find(entity_id)
    assert queue is not None
    await world.router.operator.block(queue, reason)


async def test_block_and_unblock(world: World) -> None:
    alice = await world.connect()
    queue = await create(alice)
    await block(world, queue.snd_id, SPAM)
    assert await alice.push(queue.rcv_id) == smp.ERR(SPAM)
    assert await queue.send(alice, b"hello") == smp.ERR(SPAM)
    await world.restart()
    alice = await world.connect()
    assert await queue.sub(alice) == smp.ERR(SPAM)
    await block(world, queue.snd_id, CONTENT)
    assert await queue.sub(alice) == smp.ERR(CONTENT)
    operator = world.router.operator
    found = await operator.find(queue.snd_id)
    assert found is not None
    await operator.unblock(found)
    assert await queue.sub(alice) == smp.SOK()
    assert await queue.send(alice, b"hello") == OK


async def test_by_link(small_world: World) -> None:
    alice = await small_world.connect()
    queue = await create(alice, mode=QueueMode.CONTACT)
    assert await queue.by_recipient(alice, smp.LSET(b"l" * 24, b"fixed", b"user")) == OK
    await block(small_world, b"l" * 24, SPAM)
    assert await alice.ask(smp.LGET(), b"l" * 24) == smp.ERR(SPAM)


async def test_only_sender_and_link_ids_name_a_queue(small_world: World) -> None:
    queue = await create(await small_world.connect())
    for entity_id in (queue.rcv_id, os.urandom(24)):
        assert await small_world.router.operator.find(entity_id) is None


async def test_a_blocked_queue_can_be_suspended_and_deleted(small_world: World) -> None:
    alice = await small_world.connect()
    queue = await create(alice)
    await block(small_world, queue.snd_id, SPAM)
    assert await queue.by_recipient(alice, smp.OFF()) == OK
    assert await queue.send(alice, b"hello") == AUTH
    assert await queue.delete(alice) == OK


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (8, ErrorCode.AUTH),
        (11, ErrorCode.AUTH),
        (12, BLOCKED(BlockingReason.SPAM)),
        (17, BLOCKED(BlockingReason.SPAM)),
    ],
)
async def test_by_the_version_of_a_forwarded_command(
    small_world: World, version: int, expected: ErrorCode | BLOCKED
) -> None:
    alice = await small_world.connect()
    queue = await create(alice)
    await block(small_world, queue.snd_id, SPAM)
    sender = await ProxiedSender.open(await small_world.connect(), small_world.address)
    sender.version = version
    assert await sender.ask(SEND, queue.snd_id) == smp.ERR(expected)


async def test_the_operator_deletes_a_queue(world: World) -> None:
    alice = await world.connect()
    queue = await create_notified(alice, subscribe=True)
    for _ in range(3):
        assert await queue.send(alice, b"hello") == OK
    await alice.push(queue.rcv_id)
    found = await world.router.operator.find(queue.snd_id)
    assert found is not None
    assert await world.router.operator.delete(found) == 3
    assert await alice.push(queue.rcv_id) == smp.DELD()
    assert await queue.send(alice, b"hello") == AUTH
    assert await world.router.operator.find(queue.snd_id) is None
    assert await world.router.store.counts() == (0, 0, 0, 0)
