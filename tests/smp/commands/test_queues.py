"""Queues: created, secured, suspended, deleted; who may do that, and who is notified."""

import os

import pytest

from heliograph.crypto.keys import generate_key_pair
from heliograph.smp.settings import Rules
from heliograph.transport.client import ClientRequest
from heliograph.wire import smp
from heliograph.wire.errors import ErrorCode
from heliograph.wire.keys import Algorithm
from heliograph.wire.smp.fields import MsgFlags, QueueLink, QueueMode, QueueReqData
from heliograph.wire.table import PING, PONG
from tests.smp.support import (
    AUTH,
    NO_MSG,
    OK,
    PROHIBITED,
    World,
    create,
    create_notified,
    error,
    keys,
    with_settings,
)


async def test_create_secure_send_receive_delete(world: World) -> None:
    alice, bob = await world.connect(), await world.connect()
    queue = await create(alice)
    assert queue.ids.mode is QueueMode.MESSAGING
    assert await queue.send(bob, b"hello") == OK
    message = await alice.push(queue.rcv_id)
    assert queue.body(message) == b"hello"
    assert await queue.ack(alice, message) == OK
    assert await queue.ack(alice, message) == NO_MSG

    stranger = keys()
    send = smp.SEND(MsgFlags(True), b"hello")
    assert await bob.ask(send, queue.snd_id, stranger.private) == AUTH  # not secured
    key = smp.KEY(stranger.public)
    assert await alice.ask(key, queue.rcv_id, stranger.private) == AUTH
    assert await alice.ask(key, queue.snd_id, queue.recipient.private) == AUTH
    assert await queue.secure(alice) == OK
    assert queue.sender is not None
    assert await queue.by_recipient(alice, smp.KEY(queue.sender.public)) == OK
    assert await queue.by_recipient(alice, key) == AUTH

    assert await bob.ask(send, queue.snd_id) == AUTH
    assert await bob.ask(send, queue.snd_id, stranger.private) == AUTH
    assert await queue.send(bob, b"hello again") == OK
    message = await alice.push(queue.rcv_id)
    assert queue.body(message) == b"hello again"
    assert await queue.ack(alice, message) == OK

    assert await queue.delete(alice) == OK
    assert await queue.send(bob, b"gone") == AUTH
    assert await bob.ask(send, queue.snd_id) == AUTH
    assert await queue.ack(alice, b"") == AUTH
    assert await queue.sub(alice) == AUTH
    assert await alice.is_quiet(0)
    assert (await world.router.store.counts()) == (0, 0, 0, 0)


async def test_secured_by_the_sender(world: World) -> None:
    alice, bob = await world.connect(), await world.connect()
    queue = await create(alice)
    stranger = keys()
    assert await bob.ask(smp.SKEY(stranger.public), queue.snd_id, keys().private) == AUTH
    assert await bob.ask(smp.SKEY(stranger.public), queue.rcv_id, stranger.private) == AUTH
    assert await queue.secure_by_sender(bob) == OK
    assert await bob.ask(smp.SKEY(stranger.public), queue.snd_id, stranger.private) == AUTH
    assert queue.sender is not None
    again = smp.SKEY(queue.sender.public)
    assert await bob.ask(again, queue.snd_id, queue.sender.private) == OK
    assert await bob.ask(smp.SEND(MsgFlags(False), b"unsigned"), queue.snd_id) == AUTH
    assert await queue.send(bob, b"hello") == OK
    assert queue.body(await alice.push(queue.rcv_id)) == b"hello"


@pytest.mark.parametrize("mode", [QueueMode.CONTACT, None])
async def test_a_sender_may_not_secure_what_was_not_made_for_it(
    small_world: World, mode: QueueMode | None
) -> None:
    alice = await small_world.connect()
    queue = await create(alice, mode=mode)
    assert queue.ids.mode is mode
    assert await queue.secure_by_sender(alice) == AUTH
    queue.sender = None
    assert await queue.send(alice, b"hello") == OK
    assert await queue.secure(alice) == OK


@pytest.mark.parametrize("algorithm", list(Algorithm))
async def test_every_kind_of_key(small_world: World, algorithm: Algorithm) -> None:
    peer = await small_world.connect()
    recipient, other = generate_key_pair(algorithm), generate_key_pair(algorithm)
    new = smp.NEW(recipient.public, generate_key_pair(Algorithm.X25519).public)
    assert await peer.ask(new, b"", other.private) == AUTH
    ids = await peer.ask(new, b"", recipient.private)
    assert await peer.ask(smp.SUB(), ids.rcv_id, recipient.private) == smp.SOK()
    assert await peer.ask(smp.SUB(), ids.rcv_id, other.private) == AUTH
    for wrong_kind in set(Algorithm) - {algorithm}:
        key = generate_key_pair(wrong_kind).private
        assert await peer.ask(smp.SUB(), ids.rcv_id, key) == AUTH
        assert await peer.ask(smp.SUB(), os.urandom(24), key) == AUTH


async def test_off_refuses_senders_and_keeps_messages(world: World) -> None:
    alice, bob = await world.connect(), await world.connect()
    queue = await create(alice)
    await queue.secure(alice)
    await queue.send(bob, b"one")
    await queue.send(bob, b"two")
    assert queue.body(await alice.push(queue.rcv_id)) == b"one"
    assert await alice.ask(smp.OFF(), queue.rcv_id, keys().private) == AUTH
    assert await alice.ask(smp.OFF(), queue.snd_id, queue.recipient.private) == AUTH
    assert await queue.by_recipient(alice, smp.OFF()) == OK
    assert await queue.send(bob, b"three") == AUTH
    assert await bob.ask(smp.SEND(MsgFlags(False), b"three"), queue.snd_id) == AUTH
    assert await queue.by_recipient(alice, smp.OFF()) == OK
    assert await queue.sub(alice) == smp.SOK()
    message = await alice.push(queue.rcv_id)
    assert queue.body(message) == b"one"
    message = await queue.ack(alice, message)
    assert queue.body(message) == b"two"
    assert await queue.ack(alice, message) == OK
    await world.restart()
    assert await queue.send(await world.connect(), b"three") == AUTH


async def test_deleting_notifies_only_the_subscriber(world: World) -> None:
    alice, phone, bob = [await world.connect() for _ in range(3)]
    queue = await create(alice)
    assert await queue.delete(alice) == OK
    other = await create(alice)
    await other.send(bob, b"waiting")
    await alice.push(other.rcv_id)
    assert await other.sub(phone) == smp.SOK()
    assert await alice.push(other.rcv_id) == smp.END()
    assert other.body(await phone.push(other.rcv_id)) == b"waiting"
    assert await other.delete(alice) == OK
    assert await phone.push(other.rcv_id) == smp.DELD()
    assert await other.sub(phone) == AUTH
    assert await alice.is_quiet()
    assert await phone.is_quiet(0)


async def test_what_que_says(world: World) -> None:
    alice, bob = await world.connect(), await world.connect()
    queue = await create(alice, subscribe=False)

    async def info() -> smp.INFO:
        answer = await queue.by_recipient(alice, smp.QUE())
        assert isinstance(answer, smp.INFO)
        return answer

    new = (await info()).info
    assert (new.snd, new.ntf, new.size, new.sub, new.msg) == (False, False, 0, None, None)
    await queue.secure(alice)
    await queue.nkey(alice)
    await queue.send(bob, b"one")
    await queue.send(bob, b"two")
    full = (await info()).info
    assert (full.snd, full.ntf, full.size, full.sub) == (True, True, 2, None)
    assert full.msg is not None
    assert full.msg["msgType"] == "message"
    message = await queue.get(alice)
    by_get = (await info()).info.sub
    assert by_get is not None
    assert by_get["qSubThread"] == "prohibitSub"
    assert by_get["qDelivered"] == full.msg["msgId"]
    await queue.ack(alice, message)
    assert (await info()).info.size == 1
    phone = await world.connect()
    await queue.sub(phone)
    answer = await queue.by_recipient(phone, smp.QUE())
    assert answer.info.sub["qSubThread"] == "noSub"


async def test_create_only_does_not_subscribe(world: World) -> None:
    alice = await world.connect()
    queue = await create(alice, subscribe=False)
    await queue.send(alice, b"hello")
    assert await alice.is_quiet()
    assert await queue.receive_all(alice) == [b"hello"]


async def test_created_with_notifier_credentials(world: World) -> None:
    alice, ntf = await world.connect(), await world.connect()
    queue = await create(alice, with_notifier=True, subscribe=False)
    assert await queue.nsub(ntf) == smp.SOK()
    assert await queue.send(alice, b"hello") == OK
    message = await queue.get(alice)
    assert queue.notifier is not None
    assert queue.notifier.decrypt(await ntf.push(queue.notifier_id)).msg_id == message.msg_id


@pytest.mark.parametrize("settings", [with_settings(rules=Rules(password=b"secret"))])
async def test_a_password_for_creating_queues(small_world: World) -> None:
    for version in (6, 8, 9, 19):
        peer = await small_world.connect(version)
        with pytest.raises(AssertionError, match="AUTH"):
            await create(peer)
        with pytest.raises(AssertionError, match="AUTH"):
            await create(peer, password=b"wrong")
        await create(peer, password=b"secret")


@pytest.mark.parametrize("settings", [with_settings(rules=Rules(allow_new_queues=False))])
async def test_no_new_queues(small_world: World) -> None:
    peer = await small_world.connect()
    with pytest.raises(AssertionError, match="AUTH"):
        await create(peer)


async def test_no_new_queues_and_the_others_stay(small_world: World) -> None:
    alice = await small_world.connect()
    queue = await create(alice, subscribe=False)
    small_world.settings = with_settings(rules=Rules(allow_new_queues=False))
    await small_world.restart()
    alice = await small_world.connect()
    with pytest.raises(AssertionError, match="AUTH"):
        await create(alice)
    assert await queue.send(alice, b"hello") == OK
    assert await queue.receive_all(alice) == [b"hello"]
    assert isinstance(await alice.ask(smp.PRXY(small_world.address)), smp.PKEY)


async def test_what_the_router_does_not_do(small_world: World) -> None:
    peer = await small_world.connect()
    recipient, secret = keys(), generate_key_pair(Algorithm.X25519)
    link = QueueLink(b"", os.urandom(24), b"fixed", b"user")
    data = QueueReqData(QueueMode.MESSAGING, link)
    new = smp.NEW(recipient.public, secret.public, queue_data=data)
    assert await peer.ask(new, b"", recipient.private) == PROHIBITED
    ed25519 = generate_key_pair(Algorithm.ED25519).private
    assert await peer.ask(smp.SUBS(0), os.urandom(24), ed25519) == error(ErrorCode.SERVICE)
    assert await peer.ask(smp.NSUBS(0), os.urandom(24), ed25519) == error(ErrorCode.SERVICE)


async def test_many_commands_in_one_block(world: World) -> None:
    alice, bob = await world.connect(), await world.connect()
    queues = [await create(alice, subscribe=False) for _ in range(3)]
    requests = [queue.sending(b"%d" % n) for n in range(10) for queue in queues]
    requests.insert(7, ClientRequest(PING()))
    requests.insert(9, ClientRequest(smp.SUB(), os.urandom(24), keys().private))
    answers = await bob.ask_many(requests)
    assert answers.pop(9) == AUTH
    assert answers.pop(7) == PONG()
    assert answers == [OK] * 30
    for queue in queues:
        assert await queue.receive_all(alice) == [b"%d" % n for n in range(10)]


async def test_a_queue_made_used_and_deleted_in_one_block(world: World) -> None:
    """Each command sees what those before it decided, though nothing is durable yet."""
    alice = await world.connect()
    queue = await create_notified(alice)
    requests = [
        queue.sending(b"one"),
        ClientRequest(smp.KEY(keys().public), queue.rcv_id, queue.recipient.private),
        queue.sending(b"two"),
        ClientRequest(smp.OFF(), queue.rcv_id, queue.recipient.private),
        ClientRequest(smp.NDEL(), queue.rcv_id, queue.recipient.private),
        ClientRequest(smp.DEL(), queue.rcv_id, queue.recipient.private),
        ClientRequest(smp.DEL(), queue.rcv_id, queue.recipient.private),
    ]
    assert await alice.ask_many(requests) == [OK, OK, AUTH, OK, OK, OK, AUTH]
    assert await world.router.store.counts() == (0, 0, 0, 0)
