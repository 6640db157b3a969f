"""Notifications: credentials, delivery, take-over, what waits, what is removed."""

import asyncio
import time
from typing import Any

import pytest

from heliograph.journal.hashing import notification_id
from heliograph.transport.client import ClientRequest
from heliograph.wire import smp
from tests.smp.support import (
    AUTH,
    OK,
    QUIET,
    Peer,
    Queue,
    World,
    create,
    create_notified,
    keys,
    with_settings,
)
from tests.waiting import until


async def msg_ids(peer: Peer, queue: Queue, count: int) -> list[bytes]:
    """Of the messages that the next notifications are about."""
    assert queue.notifier is not None
    return [queue.notifier.decrypt(await peer.push(queue.notifier_id)).msg_id for _ in range(count)]


def by_recipient(queue: Queue, command: Any) -> ClientRequest[Any]:
    return ClientRequest(command, queue.rcv_id, queue.recipient.private)


async def send(world: World, queue: Queue, *bodies: bytes) -> list[bytes]:
    """Send, receive and acknowledge; the result are the IDs of the messages."""
    bob, alice = await world.connect(), await world.connect()
    ids = []
    for body in bodies:
        assert await queue.send(bob, body) == OK
        message = await queue.get(alice)
        assert queue.body(message) == body
        ids.append(message.msg_id)
        assert await queue.ack(alice, message) == OK
    return ids


async def test_the_recipients_secret_decrypts_a_notification(world: World) -> None:
    alice, bob, ntf = [await world.connect() for _ in range(3)]
    queue = await create_notified(alice, subscribe=True)
    assert await queue.nsub(ntf) == smp.SOK()
    assert await queue.send(bob, b"hello") == OK
    message = await alice.push(queue.rcv_id)
    nmsg = await ntf.push(queue.notifier_id)
    assert queue.notifier is not None
    meta = queue.notifier.decrypt(nmsg)
    assert meta.msg_id == message.msg_id
    assert meta.timestamp == queue.decrypt(message).timestamp
    assert len(nmsg.meta) == 144
    await until(lambda: world.journal.of("notification_delivered"))
    for kind in ("notification_stored", "notification_delivered"):
        [event] = world.journal.of(kind)
        assert event.notification == notification_id(nmsg.nonce)


async def test_only_messages_with_the_flag_notify(world: World) -> None:
    alice, ntf = await world.connect(), await world.connect()
    queue = await create_notified(alice)
    await queue.nsub(ntf)
    await queue.send(alice, b"quiet", notify=False)
    assert await ntf.is_quiet()
    await queue.send(alice, b"loud")
    await ntf.push(queue.notifier_id)
    assert await ntf.is_quiet()


async def test_take_over(world: World) -> None:
    alice, first, second = [await world.connect() for _ in range(3)]
    queue = await create_notified(alice)
    assert await queue.nsub(first) == smp.SOK()
    assert await queue.nsub(first) == smp.SOK()
    assert await queue.nsub(second) == smp.SOK()
    assert await first.push(queue.notifier_id) == smp.END()
    ids = await send(world, queue, b"hello")
    assert await msg_ids(second, queue, 1) == ids
    assert await first.is_quiet()


async def test_credentials_are_replaced(world: World) -> None:
    alice, first, second = [await world.connect() for _ in range(3)]
    queue = await create_notified(alice)
    await send(world, queue, b"for the old credentials")
    assert await world.notifications() == 1
    old = await queue.nkey(alice)
    assert await world.notifications() == 0
    await queue.nsub(first)
    await send(world, queue, b"for the second")
    await first.push(old.notifier_id)
    new = await queue.nkey(alice)
    assert new.notifier_id != old.notifier_id
    assert await first.push(old.notifier_id) == smp.DELD()
    assert await first.ask(smp.NSUB(), old.notifier_id, old.auth.private) == AUTH
    assert await first.ask(smp.NSUB(), new.notifier_id, old.auth.private) == AUTH
    assert await queue.nsub(second) == smp.SOK()
    ids = await send(world, queue, b"for the new")
    assert await msg_ids(second, queue, 1) == ids
    assert await first.is_quiet()


async def test_credentials_are_removed(world: World) -> None:
    alice, ntf = await world.connect(), await world.connect()
    queue = await create_notified(alice)
    await queue.nsub(ntf)
    assert await queue.ndel(alice) == OK
    assert await ntf.push(queue.notifier_id) == smp.DELD()
    assert await queue.ndel(alice) == OK
    assert await queue.nsub(ntf) == AUTH
    await send(world, queue, b"hello")
    assert await ntf.is_quiet()
    assert await world.notifications() == 0
    await queue.nkey(alice)
    assert await queue.nsub(ntf) == smp.SOK()
    ids = await send(world, queue, b"hello")
    assert await msg_ids(ntf, queue, 1) == ids


async def test_what_waits_is_removed_with_the_credentials(world: World) -> None:
    alice = await world.connect()
    queues = [await create_notified(alice) for _ in range(2)]
    for queue in queues:
        await send(world, queue, b"one", b"two")
    assert await world.notifications() == 4
    assert await queues[0].ndel(alice) == OK
    assert await world.notifications() == 2
    assert await queues[1].delete(alice) == OK
    assert await world.notifications() == 0


async def test_deleting_a_queue_notifies_the_notifier(world: World) -> None:
    alice, ntf = await world.connect(), await world.connect()
    queue = await create_notified(alice)
    await queue.nsub(ntf)
    assert await queue.delete(alice) == OK
    assert await ntf.push(queue.notifier_id) == smp.DELD()
    assert await queue.nsub(ntf) == AUTH
    assert await ntf.is_quiet()


async def test_they_wait_while_nobody_subscribes(world: World) -> None:
    alice = await world.connect()
    queue = await create_notified(alice)
    ids = await send(world, queue, b"one", b"two", b"three")
    ntf = await world.connect()
    assert await queue.nsub(ntf) == smp.SOK()
    assert await msg_ids(ntf, queue, 3) == ids
    await world.arrived()
    assert await world.notifications() == 0


async def test_they_survive_a_restart(world: World) -> None:
    alice = await world.connect()
    queue = await create_notified(alice)
    ids = await send(world, queue, b"one")
    await world.restart()
    ids += await send(world, queue, b"two")
    await world.restart()
    ids += await send(world, queue, b"three")
    ntf = await world.connect()
    assert await queue.nsub(ntf) == smp.SOK()
    assert await msg_ids(ntf, queue, 3) == ids


async def test_what_arrived_is_not_sent_again(world: World) -> None:
    alice, ntf = await world.connect(), await world.connect()
    queue = await create_notified(alice)
    await queue.nsub(ntf)
    await send(world, queue, b"one", b"two")
    await msg_ids(ntf, queue, 2)
    await world.arrived()
    await world.restart()
    ntf = await world.connect()
    await queue.nsub(ntf)
    assert await ntf.is_quiet()


@pytest.mark.parametrize("settings", [with_settings(notification_ttl=100, message_ttl=10_000)])
async def test_they_expire_before_messages_do(world: World) -> None:
    alice, ntf = await world.connect(), await world.connect()
    queue = await create_notified(alice)
    await queue.send(alice, b"hello")
    await world.router.expire(time.time() + 1000)
    assert await queue.nsub(ntf) == smp.SOK()
    assert await ntf.is_quiet()
    assert await queue.receive_all(alice) == [b"hello"]


@pytest.mark.parametrize(
    ("settings", "interval"),
    [(with_settings(ntf_delivery_interval=interval), interval) for interval in (0, 0.1, 600)],
)
async def test_delivery_interval(small_world: World, interval: float) -> None:
    alice, ntf = await small_world.connect(), await small_world.connect()
    queues = [await create_notified(alice) for _ in range(5)]
    for queue in queues:
        await queue.nsub(ntf)
    await alice.ask_many([queue.sending(b"hello") for queue in queues])
    if interval > 1:
        assert await ntf.is_quiet()
    else:
        await until(lambda: len(ntf.pushes) == 5)


async def test_many_notifiers_at_once(small_world: World) -> None:
    """All that waits comes, once each, in the order of each queue."""
    alice, ntf = await small_world.connect(), await small_world.connect()
    queues = [await create_notified(alice) for _ in range(20)]
    requests = [queue.sending(b"%d" % n) for n in range(20) for queue in queues]
    assert await alice.ask_many(requests) == [OK] * 400
    sending = asyncio.create_task(alice.ask_many([queue.sending(b"more") for queue in queues]))
    answers = await ntf.ask_many([queue.nsubscribing() for queue in queues])
    assert answers == [smp.SOK()] * 20
    assert await sending == [OK] * 20
    await until(lambda: len(ntf.pushes) >= 420)
    await asyncio.sleep(QUIET)
    assert len(ntf.pushes) == 420
    received: dict[bytes, list[bytes]] = {}
    by_id = {queue.notifier_id: queue for queue in queues}
    for entity_id, nmsg in ntf.pushes:
        notifier = by_id[entity_id].notifier
        assert notifier is not None
        received.setdefault(entity_id, []).append(notifier.decrypt(nmsg).msg_id)
    for _ in range(21):
        messages = await alice.ask_many([by_recipient(queue, smp.GET()) for queue in queues])
        expected = [received[queue.notifier_id].pop(0) for queue in queues]
        assert [message.msg_id for message in messages] == expected
        acks = [by_recipient(queue, smp.ACK(b"")) for queue in queues]
        assert await alice.ask_many(acks) == [OK] * 20


async def test_sent_and_subscribed_in_one_block(world: World) -> None:
    """A subscription that races with a message must not put the newer notification first."""
    alice = await world.connect()
    queue = await create_notified(alice)
    old = await send(world, queue, b"one", b"two")
    requests = [queue.sending(b"three"), queue.nsubscribing(), queue.sending(b"four")]
    assert await alice.ask_many(requests) == [OK, smp.SOK(), OK]
    received = await msg_ids(alice, queue, 4)
    assert received[:2] == old
    first = await queue.get(alice)
    await queue.ack(alice, first)
    second = await queue.get(alice)
    assert received[2:] == [first.msg_id, second.msg_id]
    assert await alice.is_quiet()


async def test_removed_and_sent_in_one_block(world: World) -> None:
    alice, ntf = await world.connect(), await world.connect()
    queue = await create_notified(alice)
    await queue.nsub(ntf)
    requests = [
        queue.sending(b"one"),
        by_recipient(queue, smp.NDEL()),
        queue.sending(b"two"),
    ]
    assert await alice.ask_many(requests) == [OK, OK, OK]
    pushes = [await ntf.push(queue.notifier_id)]
    if pushes[0] != smp.DELD():
        pushes.append(await ntf.push(queue.notifier_id))
    assert pushes[-1] == smp.DELD()
    assert await ntf.is_quiet()
    assert await world.notifications() == 0


async def test_wrong_keys_and_unknown_notifiers(world: World) -> None:
    alice, ntf = await world.connect(), await world.connect()
    queue = await create_notified(alice)
    assert queue.notifier is not None
    notifier_key = queue.notifier.auth.private
    for entity_id, key in (
        (queue.notifier_id, keys().private),
        (queue.notifier_id, keys(6).private),
        (queue.rcv_id, notifier_key),
        (queue.snd_id, notifier_key),
        (bytes(24), notifier_key),
    ):
        assert await ntf.ask(smp.NSUB(), entity_id, key) == AUTH
    plain = await create(alice)
    assert await ntf.ask(smp.NSUB(), plain.rcv_id, notifier_key) == AUTH
