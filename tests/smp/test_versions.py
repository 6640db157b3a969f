"""What each version of the protocol is answered."""

import pytest

from heliograph.wire import smp
from heliograph.wire.errors import ErrorCode
from heliograph.wire.smp.fields import QueueMode
from tests.smp.support import (
    AUTH,
    OK,
    Queue,
    World,
    create,
    create_notified,
    error,
    keys,
    service,
)

VERSIONS = (6, 7, 8, 11, 15, 16, 17, 18, 19)
EVERY_VERSION = pytest.mark.parametrize("version", VERSIONS)


def sok(version: int) -> smp.SOK | smp.OK:
    return smp.SOK() if version >= 16 else OK


def deld(version: int) -> smp.DELD | smp.END:
    return smp.DELD() if version >= 10 else smp.END()


@EVERY_VERSION
async def test_a_queue_from_new_to_del(small_world: World, version: int) -> None:
    alice, phone, bob, ntf, other = [await small_world.connect(version) for _ in range(5)]
    queue = await create(alice)
    assert await queue.secure(alice) == OK
    await queue.nkey(alice)
    assert await queue.nsub(ntf) == sok(version)
    assert await queue.send(bob, b"hello") == OK
    message = await alice.push(queue.rcv_id)
    assert queue.body(message) == b"hello"
    assert queue.notifier is not None
    nmsg = await ntf.push(queue.notifier_id)
    assert queue.notifier.decrypt(nmsg).msg_id == message.msg_id
    await small_world.arrived()
    assert await queue.sub(phone) == sok(version)
    assert await alice.push(queue.rcv_id) == smp.END()
    assert await phone.push(queue.rcv_id) == message
    assert await queue.ack(phone, message) == OK
    assert await queue.nsub(other) == sok(version)
    assert await ntf.push(queue.notifier_id) == smp.END()
    assert await queue.delete(alice) == OK
    assert await phone.push(queue.rcv_id) == deld(version)
    assert await other.push(queue.notifier_id) == deld(version)
    assert await queue.send(bob, b"gone") == AUTH
    assert await alice.ask(smp.PING()) == smp.PONG()


@EVERY_VERSION
async def test_blocks_are_encrypted_from_11_on(small_world: World, version: int) -> None:
    peer = await small_world.connect(version)
    assert await peer.ask(smp.PING()) == smp.PONG()
    [connection] = small_world.listener.connections
    for established in (peer.client.established, connection.established):
        assert established is not None
        assert (established.cipher is not None) is (version >= 11)


@EVERY_VERSION
async def test_what_ids_says(small_world: World, version: int) -> None:
    alice = await small_world.connect(version)
    modes = {}
    for mode in (QueueMode.MESSAGING, QueueMode.CONTACT, None):
        queue = await create(alice, mode=mode)
        modes[mode] = queue.ids.mode
        assert (queue.ids.link_id, queue.ids.service_id, queue.ids.ntf_creds) == (None,) * 3
    if version >= 15:
        assert modes == {mode: mode for mode in modes}
    elif version >= 9:
        contact = QueueMode.CONTACT
        assert modes == {QueueMode.MESSAGING: QueueMode.MESSAGING, contact: contact, None: contact}
    else:
        assert set(modes.values()) == {None}


@EVERY_VERSION
async def test_notifier_credentials_with_new(small_world: World, version: int) -> None:
    alice = await small_world.connect(version)
    if version >= 17:
        queue = await create(alice, with_notifier=True)
        assert queue.ids.ntf_creds is not None
        assert await queue.nsub(alice) == smp.SOK()
    else:
        with pytest.raises(AssertionError):
            await create(alice, with_notifier=True)


@EVERY_VERSION
async def test_secured_by_the_sender(small_world: World, version: int) -> None:
    alice = await small_world.connect(version)
    queue = await create(alice)
    expected = OK if version >= 9 else AUTH
    assert await queue.secure_by_sender(alice) == expected


@pytest.mark.parametrize("version", [version for version in VERSIONS if version < 16])
async def test_service_commands_before_services(small_world: World, version: int) -> None:
    alice = await small_world.connect(version, service=service())
    assert alice.client.established.service is None
    key = keys(6).private
    assert await alice.ask(smp.NSUBS(), bytes(24), key) == error(ErrorCode.SERVICE)


@pytest.mark.parametrize("version", [version for version in VERSIONS if version >= 16])
async def test_service_commands(small_world: World, version: int) -> None:
    alice = await small_world.connect(version)
    queue = await create_notified(alice)
    ntf = await small_world.connect(version, service=service())
    assert await queue.nsub(ntf) == smp.SOK(ntf.service_id)
    subscribed = await ntf.nsubs()
    assert subscribed.count == 1
    assert (subscribed.ids_hash != bytes(16)) is (version >= 19)
    other = await small_world.connect(version, service=service())
    assert await other.nsubs() == subscribed
    ended = await ntf.push(ntf.service_id)
    assert ended == smp.ENDS(subscribed.count, subscribed.ids_hash)


async def test_old_and_new_share_queues(small_world: World) -> None:
    """Events depend on the version of the client that gets them."""
    peers = {version: await small_world.connect(version) for version in VERSIONS}
    queues: list[Queue] = []
    for version, peer in peers.items():
        queue = await create(peer)
        queues.append(queue)
        await queue.nkey(peer)
        assert await queue.nsub(peer) == sok(version)
    other = await small_world.connect()
    for queue in queues:
        assert await queue.send(other, b"hello", notify=False) == OK
        assert await queue.delete(other) == OK
    for version, queue in zip(VERSIONS, queues, strict=True):
        pushes = [await peers[version].push() for _ in range(3)]
        assert queue.body(pushes[0]) == b"hello"
        assert pushes[1:] == [deld(version)] * 2


async def test_without_alpn_it_is_version_6(small_world: World) -> None:
    peer = await small_world.connect(6, use_alpn=False)
    queue = await create(peer)
    assert await queue.send(peer, b"hello") == OK
    assert queue.body(await peer.push(queue.rcv_id)) == b"hello"
