"""Services: certificates, association of queues, NSUBS, take-over, counts and hashes."""

import hashlib
import time
from collections.abc import Sequence

import pytest

from heliograph.crypto.keys import generate_key_pair
from heliograph.smp.router import UNUSED_SERVICE_SECONDS
from heliograph.transport.errors import HandshakeFailed
from heliograph.wire import smp
from heliograph.wire.errors import ErrorCode, TransportError
from heliograph.wire.handshakes import ServiceRole
from heliograph.wire.keys import Algorithm
from heliograph.wire.smp.fields import MsgFlags
from tests.smp.support import (
    AUTH,
    OK,
    PROHIBITED,
    Peer,
    Queue,
    World,
    create_notified,
    error,
    keys,
    service,
)
from tests.waiting import until

SERVICE = error(ErrorCode.SERVICE)


def ids_hash(*queues: Queue) -> bytes:
    value = 0
    for queue in queues:
        value ^= int.from_bytes(hashlib.md5(queue.notifier_id).digest())
    return value.to_bytes(16)


@pytest.fixture
async def alice(world: World) -> Peer:
    return await world.connect()


async def test_the_same_certificate_is_the_same_service(world: World) -> None:
    first = await world.connect(service=service())
    second = await world.connect(service=service())
    assert first.service_id == second.service_id
    other = await world.connect(service=service("Another NTF server CA"))
    assert other.service_id != first.service_id
    known = first.service_id, other.service_id
    await world.restart()
    first = await world.connect(service=service())
    other = await world.connect(service=service("Another NTF server CA"))
    assert (first.service_id, other.service_id) == known


async def test_a_certificate_has_one_role(world: World) -> None:
    await world.connect(service=service())
    with pytest.raises(HandshakeFailed) as caught:
        await world.connect(service=service(role=ServiceRole.MESSAGING))
    assert caught.value.error is TransportError.HANDSHAKE_BAD_SERVICE


async def test_association(world: World, alice: Peer) -> None:
    ntf = await world.connect(service=service())
    queue = await create_notified(alice)
    assert await queue.nsub(ntf) == smp.SOK(ntf.service_id)
    assert await queue.nsub(ntf) == smp.SOK(ntf.service_id)
    await queue.send(alice, b"hello")
    await ntf.push(queue.notifier_id)
    await world.arrived()
    assert await ntf.nsubs(1, ids_hash(queue)) == smp.SOKS(1, ids_hash(queue))

    again = await world.connect(service=service())
    assert await queue.nsub(again) == smp.SOK(ntf.service_id)
    assert await ntf.push(ntf.service_id) == smp.ENDS(1, ids_hash(queue))
    await queue.send(alice, b"hello again")
    await again.push(queue.notifier_id)
    assert await ntf.is_quiet()

    assert await queue.ndel(alice) == OK
    assert await again.push(queue.notifier_id) == smp.DELD()
    await queue.send(alice, b"hello there")
    assert await again.is_quiet()
    await queue.nkey(alice)
    assert await queue.nsub(again) == smp.SOK(ntf.service_id)
    other = await create_notified(alice)
    assert await other.nsub(again) == smp.SOK(ntf.service_id)
    for each in (queue, other):
        await each.send(alice, b"hello")
        await again.push(each.notifier_id)
    await world.arrived()

    both = ids_hash(queue, other)
    assert await ntf.nsubs() == smp.SOKS(2, both)
    assert await again.push(ntf.service_id) == smp.ENDS(2, both)
    for each in (queue, other):
        await each.send(alice, b"hello")
        await ntf.push(each.notifier_id)
    assert await again.is_quiet()


async def test_what_waits_comes_after_nsubs(world: World, alice: Peer) -> None:
    ntf = await world.connect(service=service())
    queues = [await create_notified(alice) for _ in range(3)]
    for queue in queues:
        assert await queue.nsub(ntf) == smp.SOK(ntf.service_id)
    await ntf.close()
    await until(lambda: not world.router.subscribers.services)
    for queue in queues:
        await queue.send(alice, b"one")
        await queue.send(alice, b"two")
    ntf = await world.connect(service=service())
    assert await ntf.is_quiet()
    assert await ntf.nsubs(3, ids_hash(*queues)) == smp.SOKS(3, ids_hash(*queues))
    await until(lambda: len(ntf.pushes) == 6)
    assert {of for of, _ in ntf.pushes} == {queue.notifier_id for queue in queues}


async def test_twice_restarted(world: World, alice: Peer) -> None:
    ntf = await world.connect(service=service())
    queue = await create_notified(alice)
    await queue.nsub(ntf)
    for n in range(2):
        await world.restart()
        alice, ntf = await world.connect(), await world.connect(service=service())
        if n:
            await queue.send(alice, b"while nobody is subscribed")
        assert await ntf.nsubs() == smp.SOKS(1, ids_hash(queue))
        for _ in range(n + 1):
            await queue.send(alice, b"hello")
            await ntf.push(queue.notifier_id)


async def test_drifted_counts_and_hashes(world: World, alice: Peer) -> None:
    """The router says what it has; what the client believes changes nothing."""
    ntf = await world.connect(service=service())
    queues = [await create_notified(alice) for _ in range(3)]
    for queue in queues:
        await queue.nsub(ntf)
    assert await queues[0].delete(alice) == OK
    assert await ntf.push(queues[0].notifier_id) == smp.DELD()
    stranger = await world.connect()
    assert await queues[1].nsub(stranger) == smp.SOK()
    assert await ntf.push(queues[1].notifier_id) == smp.END()
    await world.restart()
    ntf = await world.connect(service=service())
    expected = smp.SOKS(1, ids_hash(queues[2]))
    assert await ntf.nsubs(3, ids_hash(*queues)) == expected
    assert await ntf.nsubs(1, ids_hash(queues[0])) == expected
    assert await ntf.nsubs(1, ids_hash(queues[2])) == expected
    assert await queues[1].nsub(ntf) == smp.SOK(ntf.service_id)
    assert await ntf.nsubs() == smp.SOKS(2, ids_hash(queues[1], queues[2]))


async def test_nobody_is_associated(world: World) -> None:
    ntf = await world.connect(service=service())
    assert await ntf.nsubs() == smp.SOKS(0, bytes(16))
    other = await world.connect(service=service())
    assert await other.nsubs() == smp.SOKS(0, bytes(16))
    assert await ntf.push(ntf.service_id) == smp.ENDS(0, bytes(16))


async def test_a_plain_subscription_ends_the_association(world: World, alice: Peer) -> None:
    ntf, plain = await world.connect(service=service()), await world.connect()
    queue = await create_notified(alice)
    await queue.nsub(ntf)
    await queue.send(alice, b"hello")
    await ntf.push(queue.notifier_id)
    await world.arrived()
    assert await queue.nsub(plain) == smp.SOK()
    assert await ntf.push(queue.notifier_id) == smp.END()
    assert await ntf.nsubs() == smp.SOKS(0, bytes(16))
    await queue.send(alice, b"hello")
    await plain.push(queue.notifier_id)
    assert await ntf.is_quiet()
    await world.arrived()
    assert await queue.nsub(ntf) == smp.SOK(ntf.service_id)
    assert await plain.push(queue.notifier_id) == smp.END()
    await queue.send(alice, b"hello")
    await ntf.push(queue.notifier_id)
    assert await plain.is_quiet()


async def test_one_service_takes_a_queue_from_another(world: World, alice: Peer) -> None:
    ntf = await world.connect(service=service())
    other = await world.connect(service=service("Another NTF server CA"))
    queue, stays = await create_notified(alice), await create_notified(alice)
    await queue.nsub(ntf)
    await stays.nsub(ntf)
    assert await queue.nsub(other) == smp.SOK(other.service_id)
    assert await ntf.push(queue.notifier_id) == smp.END()
    assert await ntf.nsubs() == smp.SOKS(1, ids_hash(stays))
    assert await other.nsubs() == smp.SOKS(1, ids_hash(queue))
    await queue.send(alice, b"hello")
    await other.push(queue.notifier_id)
    assert await ntf.is_quiet()


async def test_associated_and_taken_in_one_block(world: World, alice: Peer) -> None:
    ntf, plain = await world.connect(service=service()), await world.connect()
    queues = [await create_notified(alice) for _ in range(20)]
    requests = [queue.nsubscribing() for queue in queues]
    assert await ntf.ask_many([*requests, *requests]) == [smp.SOK(ntf.service_id)] * 40
    assert await plain.ask_many(requests[:10]) == [smp.SOK()] * 10
    assert await ntf.ask_many(requests[:5]) == [smp.SOK(ntf.service_id)] * 5
    left = [*queues[:5], *queues[10:]]
    assert await ntf.nsubs() == smp.SOKS(15, ids_hash(*left))
    await world.restart()
    ntf = await world.connect(service=service())
    assert await ntf.nsubs() == smp.SOKS(15, ids_hash(*left))


async def test_signatures(world: World, alice: Peer) -> None:
    ntf, plain = await world.connect(service=service()), await world.connect()
    queue = await create_notified(alice)
    assert queue.notifier is not None
    key = queue.notifier.auth.private
    stranger = generate_key_pair(Algorithm.ED25519).private
    session = ntf.client.established.service
    assert session is not None

    async def nsub(peer: Peer, key: bytes, service_key: bytes | None) -> object:
        return await peer.ask_as(smp.NSUB(), queue.notifier_id, key, service_key=service_key)

    assert await nsub(ntf, key, None) == SERVICE
    assert await nsub(ntf, key, stranger) == SERVICE
    assert await nsub(ntf, keys().private, session.key) == AUTH
    assert await nsub(plain, key, stranger) == SERVICE
    assert await nsub(ntf, key, session.key) == smp.SOK(ntf.service_id)
    assert await ntf.nsubs() == smp.SOKS(1, ids_hash(queue))
    for entity_id, by in ((ntf.service_id, stranger), (bytes(24), session.key)):
        assert await ntf.ask(smp.NSUBS(0), entity_id, by) == SERVICE
    assert await ntf.ask(smp.NSUBS(0), ntf.service_id, keys().private) == SERVICE
    signed_twice = smp.NSUBS(0)
    answer = await ntf.ask_as(signed_twice, ntf.service_id, session.key, service_key=session.key)
    assert answer == SERVICE
    assert await plain.ask(smp.NSUBS(0), ntf.service_id, session.key) == SERVICE


async def test_roles(world: World, alice: Peer) -> None:
    ntf = await world.connect(service=service())
    other = await world.connect(
        service=service("A messaging service CA", role=ServiceRole.MESSAGING)
    )
    queue = await create_notified(alice)
    assert await queue.sub(ntf) == PROHIBITED
    assert await queue.get(ntf) == PROHIBITED
    assert await queue.send(ntf, b"hello") == PROHIBITED
    assert await ntf.ask(smp.SUBS(0), ntf.service_id, keys().private) == PROHIBITED
    assert await ntf.ask(smp.SEND(MsgFlags(True), b""), bytes(24)) == AUTH
    assert await queue.nsub(other) == PROHIBITED
    assert await other.nsubs() == PROHIBITED
    assert await queue.sub(other) == smp.SOK(other.service_id)
    assert await other.ask(smp.RFWD(b"")) == PROHIBITED
    assert await ntf.ask(smp.PING()) == smp.PONG()


@pytest.mark.parametrize("version", [16, 18])
async def test_without_hash(world: World, alice: Peer, version: int) -> None:
    ntf = await world.connect(version, service=service())
    queue = await create_notified(alice)
    assert await queue.nsub(ntf) == smp.SOK(ntf.service_id)
    assert await ntf.nsubs() == smp.SOKS(1)
    other = await world.connect(version, service=service())
    assert await other.nsubs() == smp.SOKS(1)
    assert await ntf.push(ntf.service_id) == smp.ENDS(1)
    await queue.send(alice, b"hello")
    await other.push(queue.notifier_id)


async def test_before_services_a_certificate_is_ignored(world: World, alice: Peer) -> None:
    ntf = await world.connect(15, service=service())
    assert ntf.client.established.service is None
    queue = await create_notified(alice)
    assert await queue.nsub(ntf) == OK


async def test_a_service_that_is_gone_is_not_the_subscriber(world: World, alice: Peer) -> None:
    ntf = await world.connect(service=service())
    queue = await create_notified(alice)
    await queue.nsub(ntf)
    ntf.vanish()
    await until(lambda: not world.router.subscribers.services)
    await queue.send(alice, b"hello")
    ntf = await world.connect(service=service())
    await ntf.nsubs()
    await ntf.push(queue.notifier_id)


async def test_services_that_are_not_used_are_removed(world: World, alice: Peer) -> None:
    used = await world.connect(service=service())
    queue = await create_notified(alice)
    await queue.nsub(used)
    await used.close()
    connected = await world.connect(service=service("A connected NTF server CA"))
    for number in range(3):
        stranger = await world.connect(service=service(f"Stranger {number}"))
        await stranger.close()
    await until(lambda: len(world.router.clients) == 2)
    assert len(world.router.services) == 5
    known = {used.service_id, connected.service_id}
    now = time.time()
    await world.router.expire(now)
    returned = await world.connect(service=service("Stranger 2"))
    await returned.close()
    await until(lambda: len(world.router.clients) == 2)
    await world.router.expire(now + UNUSED_SERVICE_SECONDS)
    assert {*world.router.services} == {*known, returned.service_id}
    await world.router.expire(now + 2 * UNUSED_SERVICE_SECONDS)
    assert {*world.router.services} == known
    await world.restart()
    await world.router.expire(now)
    assert {*world.router.services} == known
    await world.router.expire(now + 2 * UNUSED_SERVICE_SECONDS)
    assert {*world.router.services} == {used.service_id}
    ntf = await world.connect(service=service())
    assert await ntf.nsubs() == smp.SOKS(1, ids_hash(queue))
    again = await world.connect(service=service("Stranger 0"))
    alice = await world.connect()
    assert await queue.nsub(again) == smp.SOK(again.service_id)


async def test_a_service_that_comes_back_while_it_is_removed(world: World, alice: Peer) -> None:
    ntf = await world.connect(service=service())
    queue = await create_notified(alice)
    await ntf.close()
    await until(lambda: len(world.router.clients) == 1)
    delete = world.router.store.delete_services

    async def deleting(service_ids: Sequence[bytes]) -> list[bytes]:
        deleted = await delete(service_ids)
        again = await world.connect(service=service())
        assert again.service_id == ntf.service_id
        return deleted

    world.router.store.delete_services = deleting  # type: ignore[method-assign]
    await world.router.expire(time.time())
    await world.router.expire(time.time() + UNUSED_SERVICE_SECONDS)
    await world.router.store.drained()
    again = world.peers[-1]
    assert await queue.nsub(again) == smp.SOK(ntf.service_id)
    await world.restart()
    again = await world.connect(service=service())
    assert await again.nsubs() == smp.SOKS(1, ids_hash(queue))
