"""The scenarios that the reference tests of private routing and services, on real sockets."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from heliograph.smp.settings import ProxySettings, Rules, SmpSettings
from heliograph.transport.errors import Disconnected
from heliograph.transport.handshake import ServiceCredentials
from heliograph.wire import smp
from heliograph.wire.addresses import decode_host
from heliograph.wire.errors import PROXY, BrokerError, ErrorCode, ProxyFailure
from heliograph.wire.keys import Algorithm
from tests.interop.blocks import Handle, a_key, create, create_secured, sending
from tests.smp.sender import ProxiedSender
from tests.smp.support import OK, Peer, Queue, World, a_world, new_store, service, with_settings
from tests.waiting import eventually, until

CURRENT = 18
SERVICE = smp.ERR(ErrorCode.SERVICE)
BASIC_AUTH = smp.ERR(PROXY(ProxyFailure.BASIC_AUTH))
NO_SESSION = smp.ERR(PROXY(ProxyFailure.NO_SESSION))
NETWORK = smp.ERR(PROXY(BrokerError("NETWORK")))
MAX_BODY = b"-" * smp.max_message_length(CURRENT)
AT_ONCE = SmpSettings(ntf_delivery_interval=0)


@pytest.fixture
def settings() -> SmpSettings:
    return AT_ONCE


@pytest.fixture
async def proxy(tmp_path: Path, settings: SmpSettings) -> AsyncIterator[World]:
    async with a_world(new_store("sqlite", tmp_path), settings) as running:
        yield running


@pytest.fixture
async def relay(tmp_path: Path) -> AsyncIterator[World]:
    (tmp_path / "relay").mkdir()
    async with a_world(new_store("sqlite", tmp_path / "relay"), AT_ONCE) as running:
        yield running


async def receive(r: Handle, queue: Queue, body: bytes) -> None:
    message = await r.pushed(queue.rcv_id)
    assert queue.body(message) == body
    ack = smp.ACK(message.msg_id)
    assert await r.ask(b"1", ack, queue.rcv_id, queue.recipient.private) == OK


@pytest.mark.parametrize("body", [b"hello", MAX_BODY], ids=["short", "longest"])
@pytest.mark.parametrize("algorithm", [Algorithm.ED448, Algorithm.ED25519, Algorithm.X25519])
async def test_deliver_through_a_proxy(
    proxy: World, relay: World, algorithm: Algorithm, body: bytes
) -> None:
    r, peer = await Handle.open(relay), await proxy.connect(CURRENT)
    queue = await create(r, algorithm=algorithm)
    sender = await ProxiedSender.open(peer, relay.address)
    assert (await ProxiedSender.open(peer, relay.address)).pkey == sender.pkey
    assert await sender.ask(sending(body), queue.snd_id) == OK
    bad = replace(sender, pkey=replace(sender.pkey, session_id=b"bad session"))
    assert await bad.ask(sending(body), queue.snd_id) == NO_SESSION
    await receive(r, queue, body)
    keys = a_key(algorithm)
    secure = smp.KEY(keys.public)
    assert await r.ask(b"2", secure, queue.rcv_id, queue.recipient.private) == OK
    assert await sender.ask(sending(body), queue.snd_id, keys.private) == OK
    await receive(r, queue, body)


async def test_deliver_in_parallel(proxy: World, relay: World) -> None:
    """Each queue gets its messages once and in order."""

    async def deliver(count: int) -> None:
        r, peer = await Handle.open(relay), await proxy.connect(CURRENT)
        queue = await create_secured(r, Algorithm.ED448)
        sender = await ProxiedSender.open(peer, relay.address)
        for number in range(count):
            body = b"%d" % number
            assert await sender.ask(sending(body), queue.snd_id, queue.sender_key) == OK
            await receive(r, queue, body)

    await asyncio.gather(*(deliver(10) for _ in range(5)))


async def test_a_dead_relay_again_and_again(proxy: World, relay: World) -> None:
    peer = await proxy.connect(8)
    await relay.listener.close()
    for _ in range(100):
        assert await peer.ask(smp.PRXY(relay.address, b"correct")) == NETWORK


@pytest.mark.parametrize("settings", [with_settings(proxy=ProxySettings(enabled=False))])
async def test_no_proxy_unless_enabled(proxy: World, relay: World) -> None:
    assert await (await proxy.connect(8)).ask(smp.PRXY(relay.address)) == BASIC_AUTH


@pytest.mark.parametrize("settings", [with_settings(rules=Rules(password=b"correct"))])
async def test_a_password_for_the_proxy(proxy: World, relay: World) -> None:
    peer = await proxy.connect(8)
    assert await peer.ask(smp.PRXY(relay.address, b"wrong")) == BASIC_AUTH
    assert isinstance(await peer.ask(smp.PRXY(relay.address, b"correct")), smp.PKEY)


async def test_a_relay_that_was_restarted(proxy: World, relay: World) -> None:
    """A sender that meets NO_SESSION asks for a new session, and goes on."""
    peer, r = await proxy.connect(CURRENT), await Handle.open(relay)
    queue = await create(r)
    first = await ProxiedSender.open(peer, relay.address)
    await relay.restart()
    await until(lambda: not len(proxy.router.relays))
    assert await first.ask(sending(b"hello"), queue.snd_id) == NO_SESSION
    again = await ProxiedSender.open(peer, relay.address)
    assert again.pkey.session_id != first.pkey.session_id
    assert await again.ask(sending(b"hello"), queue.snd_id) == OK


async def test_one_relay_by_two_names(proxy: World, relay: World) -> None:
    """Two addresses are two sessions, as with the reference."""
    peer = await proxy.connect(CURRENT)
    named = replace(relay.address, hosts=(decode_host("localhost"), *relay.address.hosts))
    found = [(await ProxiedSender.open(peer, address)).pkey for address in (relay.address, named)]
    assert found[0].session_id != found[1].session_id


@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize("settings", [with_settings(proxy=ProxySettings(connect_timeout=1.0))])
async def test_a_relay_that_stalled(proxy: World, relay: World, leaves: bool) -> None:
    """It is connected to once it answers, also if the sender left during the first attempt."""
    port = int(relay.address.port)
    await relay.listener.close()
    stalled: list[asyncio.StreamWriter] = []
    stalling = await asyncio.start_server(
        lambda _, writer: stalled.append(writer), "127.0.0.1", port
    )
    sender = await proxy.connect(8)
    asking = asyncio.ensure_future(sender.ask(smp.PRXY(relay.address)))
    if leaves:
        await until(lambda: stalled)
        await sender.close()
        proxy.peers.remove(sender)
        with contextlib.suppress(Disconnected):
            await asking
    else:
        assert await asking == NETWORK
    stalling.close()
    for writer in stalled:
        writer.transport.abort()
    await relay.listen(port)
    other = await proxy.connect(8)

    async def is_connected() -> bool:
        answer = await other.ask(smp.PRXY(relay.address))
        assert isinstance(answer, smp.PKEY) or answer == NETWORK
        return isinstance(answer, smp.PKEY)

    await eventually(is_connected)


# Services.


async def service_handle(world: World, credentials: ServiceCredentials) -> Handle:
    return Handle.of(await world.connect(CURRENT, service=credentials))


async def nsub(handle: Handle, peer: Peer, notifier_id: bytes, key: bytes) -> bytes:
    answer = await handle.ask(b"2b", smp.NSUB(), notifier_id, key)
    assert answer == smp.SOK(peer.service_id)
    return peer.service_id


async def test_notifications_of_a_service(relay: World) -> None:
    rh, sh = await Handle.open(relay), await Handle.open(relay)
    credentials = service()

    async def notified() -> tuple[Queue, bytes, bytes]:
        queue, keys = await create_secured(rh), a_key(Algorithm.ED25519)
        nkey = smp.NKEY(keys.public, a_key(Algorithm.X25519).public)
        nid = await rh.ask(b"1", nkey, queue.rcv_id, queue.recipient.private)
        return queue, nid.notifier_id, keys.private

    async def deliver(nh: Handle, queue: Queue, nid: bytes) -> None:
        send = sending(b"hello", notify=True)
        assert await sh.ask(b"msg-1", send, queue.snd_id, queue.sender_key) == OK
        await receive(rh, queue, b"hello")
        assert isinstance(await nh.pushed(nid), smp.NMSG)

    queue, nid, key = await notified()
    nh1 = await service_handle(relay, credentials)
    for _ in range(2):
        service_id = await nsub(nh1, nh1.peer, nid, key)
    await deliver(nh1, queue, nid)
    nh2 = await service_handle(relay, credentials)
    assert await nsub(nh2, nh2.peer, nid, key) == service_id
    ended = await nh1.pushed(service_id)
    assert (type(ended), ended.count) == (smp.ENDS, 1)
    await deliver(nh2, queue, nid)
    assert nh1.is_quiet
    other, other_nid, other_key = await notified()
    await nsub(nh2, nh2.peer, other_nid, other_key)
    await deliver(nh2, other, other_nid)
    own = nh1.peer.client.established.service
    assert own is not None
    soks = await nh1.ask(b"12", smp.NSUBS(), service_id, own.key)
    assert (type(soks), soks.count) == (smp.SOKS, 2)
    ended = await nh2.pushed(service_id)
    assert (type(ended), ended.count) == (smp.ENDS, 2)
    await deliver(nh1, queue, nid)
    await deliver(nh1, other, other_nid)
    delete = smp.NDEL()
    assert await rh.ask(b"6", delete, queue.rcv_id, queue.recipient.private) == OK
    assert await nh1.pushed(nid) == smp.DELD()


async def test_service_signatures(relay: World) -> None:
    """Needed in the session of a service, and refused in any other."""
    rh, plain = await Handle.open(relay), await relay.connect(CURRENT)
    queue, keys = await create_secured(rh), a_key(Algorithm.ED25519)
    nkey = smp.NKEY(keys.public, a_key(Algorithm.X25519).public)
    nid = (await rh.ask(b"1", nkey, queue.rcv_id, queue.recipient.private)).notifier_id
    stranger = a_key(Algorithm.ED25519).private
    refused = await plain.ask_as(smp.NSUB(), nid, keys.private, service_key=stranger)
    assert refused == SERVICE
    peer = await relay.connect(CURRENT, service=service())
    assert await peer.ask_as(smp.NSUB(), nid, keys.private, service_key=None) == SERVICE
