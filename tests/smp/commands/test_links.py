"""Link data of queues: who sets, reads and loses it."""

import asyncio
import os
from typing import Any

import pytest

from heliograph.crypto.keys import KeyPair, generate_key_pair
from heliograph.wire import smp
from heliograph.wire.keys import Algorithm
from heliograph.wire.smp.fields import QueueLink, QueueMode, QueueReqData, SubscriptionMode
from heliograph.wire.smp.links import sender_id_of
from tests.smp.support import AUTH, OK, PROHIBITED, Peer, Queue, World, create, keys

FIXED, USER = b"f" * 2048, b"u" * 13824
CONTACT, MESSAGING = QueueMode.CONTACT, QueueMode.MESSAGING


def new(
    mode: QueueMode, corr_id: bytes, link_id: bytes = b"", sender_id: bytes | None = None
) -> tuple[smp.NEW, KeyPair, KeyPair]:
    recipient, secret = keys(), generate_key_pair(Algorithm.X25519)
    link = QueueLink(link_id, sender_id or sender_id_of(corr_id), FIXED, USER)
    data = QueueReqData(mode, link)
    command = smp.NEW(recipient.public, secret.public, None, SubscriptionMode.SUBSCRIBE, data)
    return command, recipient, secret


async def create_with_link(peer: Peer, mode: QueueMode, link_id: bytes | None = None) -> Queue:
    corr_id = os.urandom(24)
    command, recipient, secret = new(mode, corr_id, link_id or os.urandom(24))
    ids = await peer.ask(command, b"", recipient.private, corr_id)
    assert isinstance(ids, smp.IDS), ids
    assert ids.snd_id == sender_id_of(corr_id)
    return Queue(recipient, secret, ids)


async def lget(peer: Peer, link_id: bytes | None) -> Any:
    return await peer.ask(smp.LGET(), link_id or b"")


async def lkey(peer: Peer, link_id: bytes | None, key: KeyPair) -> Any:
    return await peer.ask(smp.LKEY(key.public), link_id or b"", key.private)


async def lset(peer: Peer, queue: Queue, link_id: bytes, fixed: bytes, user: bytes) -> Any:
    return await queue.by_recipient(peer, smp.LSET(link_id, fixed, user))


async def test_contact_link(world: World) -> None:
    alice, bob = await world.connect(), await world.connect()
    link_id = os.urandom(24)
    queue = await create_with_link(alice, CONTACT, link_id)
    assert (queue.ids.mode, queue.ids.link_id) == (CONTACT, link_id)
    lnk = smp.LNK(queue.snd_id, FIXED, USER)
    assert await lget(bob, link_id) == lnk
    assert await lkey(bob, link_id, keys()) == AUTH
    await world.restart()
    bob = await world.connect()
    assert await lget(bob, link_id) == lnk
    for entity_id in (queue.rcv_id, queue.snd_id, os.urandom(24)):
        assert await lget(bob, entity_id) == AUTH


async def test_invitation_link(world: World) -> None:
    alice, bob = await world.connect(), await world.connect()
    queue = await create_with_link(alice, MESSAGING)
    link_id = queue.ids.link_id
    assert queue.ids.mode is MESSAGING
    assert link_id is not None
    assert await lget(bob, link_id) == AUTH
    sender = keys()
    lnk = smp.LNK(queue.snd_id, FIXED, USER)
    assert await lkey(bob, link_id, sender) == lnk
    assert await lkey(bob, link_id, sender) == lnk
    assert await lkey(bob, link_id, keys()) == AUTH
    assert await bob.ask(smp.LKEY(sender.public), link_id, keys().private) == AUTH
    assert await queue.send(bob, b"unsigned") == AUTH
    queue.sender = sender
    assert await queue.send(bob, b"hello") == OK
    assert await lkey(bob, link_id, sender) == AUTH  # the invitation was accepted
    await world.restart()
    assert await lkey(await world.connect(), link_id, sender) == AUTH


@pytest.mark.parametrize("mode", [MESSAGING, CONTACT])
async def test_unsigned_messages_keep_the_link(small_world: World, mode: QueueMode) -> None:
    alice, bob = await small_world.connect(), await small_world.connect()
    queue = await create_with_link(alice, mode)
    assert await queue.send(bob, b"hello") == OK
    read = lget(bob, queue.ids.link_id)
    if mode is MESSAGING:
        read.close()
        read = lkey(bob, queue.ids.link_id, keys())
    assert isinstance(await read, smp.LNK)


async def test_the_client_cannot_choose_another_sender_id(small_world: World) -> None:
    alice = await small_world.connect()
    for mode in (MESSAGING, CONTACT):
        corr_id = os.urandom(24)
        command, recipient, _ = new(mode, corr_id, os.urandom(24), os.urandom(24))
        assert await alice.ask(command, b"", recipient.private, corr_id) == PROHIBITED
    assert (await small_world.router.store.counts())[0] == 0


async def test_ids_in_use(world: World) -> None:
    alice = await world.connect()
    corr_id, link_id = os.urandom(24), os.urandom(24)
    command, recipient, secret = new(CONTACT, corr_id, link_id)
    ids = await alice.ask(command, b"", recipient.private, corr_id)
    queue = Queue(recipient, secret, ids)
    for _ in range(2):
        assert await alice.ask(command, b"", recipient.private, corr_id) == AUTH
        other, by, _ = new(CONTACT, other_id := os.urandom(24), link_id)
        assert await alice.ask(other, b"", by.private, other_id) == AUTH
        world.router.queues.clear()
    assert await queue.delete(alice) == OK
    assert await lget(alice, link_id) == AUTH
    again = await alice.ask(command, b"", recipient.private, corr_id)
    assert isinstance(again, smp.IDS)
    assert await lget(alice, link_id) == smp.LNK(again.snd_id, FIXED, USER)


async def test_ids_reused_within_a_batch_do_not_fail_the_batch(world: World) -> None:
    """Created, deleted and created again before any of it is durable."""
    alice = await world.connect()
    bystander = await create(alice)
    corr_id = os.urandom(24)
    command, recipient, _ = new(CONTACT, corr_id, os.urandom(24))
    ids = await alice.ask(command, b"", recipient.private, corr_id)
    queue = Queue(recipient, recipient, ids)
    deleted, made, sent = await asyncio.gather(
        alice.ask(smp.DEL(), queue.rcv_id, recipient.private),
        alice.ask(command, b"", recipient.private, corr_id),
        bystander.send(alice, b"hello"),
    )
    assert (deleted, sent) == (OK, OK)
    assert made == AUTH or isinstance(made, smp.IDS)
    assert not world.router.store.is_failing


async def test_lset(world: World) -> None:
    alice, bob = await world.connect(), await world.connect()
    queue = await create(alice, mode=CONTACT)
    link_id = os.urandom(24)
    assert await lset(alice, queue, link_id, b"fixed", b"one") == OK
    assert await lget(bob, link_id) == smp.LNK(queue.snd_id, b"fixed", b"one")
    assert await lset(alice, queue, link_id, b"fixed", b"two") == OK
    assert await lset(alice, queue, link_id, b"fixed", b"two") == OK
    assert await lset(alice, queue, link_id, b"other", b"three") == AUTH
    assert await lset(alice, queue, os.urandom(24), b"fixed", b"three") == AUTH
    stranger = smp.LSET(link_id, b"fixed", b"three")
    assert await bob.ask(stranger, queue.rcv_id, keys().private) == AUTH
    assert await lget(bob, link_id) == smp.LNK(queue.snd_id, b"fixed", b"two")
    assert await queue.secure(alice) == OK
    assert await lset(alice, queue, link_id, b"fixed", b"four") == OK
    assert await lget(bob, link_id) == smp.LNK(queue.snd_id, b"fixed", b"four")


async def test_lset_takes_no_foreign_link_id(world: World) -> None:
    alice, eve = await world.connect(), await world.connect()
    queue = await create_with_link(alice, CONTACT)
    intruder = await create(eve, mode=CONTACT)
    link_id = queue.ids.link_id
    assert link_id is not None
    for _ in range(2):
        assert await lset(eve, intruder, link_id, b"fixed", b"user") == AUTH
        assert await lget(eve, link_id) == smp.LNK(queue.snd_id, FIXED, USER)
        world.router.queues.clear()


@pytest.mark.parametrize("mode", [MESSAGING, None])
async def test_lset_of_a_secured_queue(small_world: World, mode: QueueMode | None) -> None:
    alice = await small_world.connect()
    queue = await create(alice, mode=mode)
    assert await lset(alice, queue, os.urandom(24), b"fixed", b"user") == OK
    assert await queue.secure(alice) == OK
    assert await lset(alice, queue, os.urandom(24), b"fixed", b"user") == AUTH


async def test_ldel(world: World) -> None:
    alice = await world.connect()
    queue, other = await create_with_link(alice, CONTACT), await create(alice, mode=CONTACT)
    link_id = queue.ids.link_id
    assert link_id is not None
    assert await queue.by_recipient(alice, smp.LDEL()) == OK
    assert await queue.by_recipient(alice, smp.LDEL()) == OK
    assert await lget(alice, link_id) == AUTH
    assert await lset(alice, other, link_id, b"fixed", b"user") == OK
    assert await lget(alice, link_id) == smp.LNK(other.snd_id, b"fixed", b"user")
    assert await lset(alice, queue, os.urandom(24), b"other", b"user") == OK
    await world.restart()
    assert await lget(await world.connect(), link_id) == smp.LNK(other.snd_id, b"fixed", b"user")


async def test_a_suspended_queue_still_has_its_link(small_world: World) -> None:
    alice = await small_world.connect()
    queue = await create_with_link(alice, CONTACT)
    assert await queue.by_recipient(alice, smp.OFF()) == OK
    assert isinstance(await lget(alice, queue.ids.link_id), smp.LNK)


async def test_sizes(small_world: World) -> None:
    """Nothing limits the data but the block."""
    alice = await small_world.connect()
    for link_id, fixed, user in ((b"l", b"", b""), (b"m" * 255, b"f" * 100, b"u" * 15_800)):
        queue = await create(alice, mode=CONTACT)
        assert await lset(alice, queue, link_id, fixed, user) == OK
        assert await lget(alice, link_id) == smp.LNK(queue.snd_id, fixed, user)


@pytest.mark.parametrize("version", [8, 9, 14, 15, 18])
async def test_every_version_reads_links(small_world: World, version: int) -> None:
    alice = await small_world.connect(version)
    queue = await create(alice, mode=CONTACT)
    link_id = os.urandom(24)
    assert await lset(alice, queue, link_id, b"fixed", b"user") == OK
    assert await lget(alice, link_id) == smp.LNK(queue.snd_id, b"fixed", b"user")
