"""Private routing end to end: a sender, its proxy and the destination, over real sockets."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from heliograph.smp.commands import proxy
from heliograph.smp.settings import ProxySettings, Rules
from heliograph.wire import smp
from heliograph.wire.addresses import ServerAddress, decode_host
from heliograph.wire.errors import (
    PROXY,
    BrokerError,
    ErrorCode,
    ProxyFailure,
    ProxyProtocolError,
    TransportError,
)
from heliograph.wire.requests import Reply
from heliograph.wire.smp.fields import MsgFlags, QueueMode
from heliograph.wire.transmissions import pack
from heliograph.wire.versions import VersionRange
from tests.smp.sender import ProxiedSender
from tests.smp.support import (
    AUTH,
    OK,
    PROHIBITED,
    Peer,
    World,
    a_world,
    create,
    create_notified,
    keys,
    new_store,
    with_settings,
)
from tests.waiting import until

NETWORK = smp.ERR(PROXY(BrokerError("NETWORK")))
TIMEOUT = smp.ERR(PROXY(BrokerError("TIMEOUT")))
NO_SESSION = smp.ERR(PROXY(ProxyFailure.NO_SESSION))
BASIC_AUTH = smp.ERR(PROXY(ProxyFailure.BASIC_AUTH))
SEND = smp.SEND(MsgFlags(True), b"hello")


@pytest.fixture
async def destination(tmp_path: Path) -> AsyncIterator[World]:
    (tmp_path / "destination").mkdir()
    async with a_world(new_store("sqlite", tmp_path / "destination")) as world:
        yield world


async def sender_of(world: World, destination: World) -> ProxiedSender:
    return await ProxiedSender.open(await world.connect(), destination.address)


async def test_send_and_secure(small_world: World, destination: World) -> None:
    bob = await destination.connect()
    queue = await create_notified(bob, subscribe=True)
    ntf = await destination.connect()
    assert await queue.nsub(ntf) == smp.SOK()
    sender = await sender_of(small_world, destination)
    assert sender.pkey.versions == VersionRange(8, 17)
    assert await sender.ask(SEND, queue.snd_id) == OK
    message = await bob.push(queue.rcv_id)
    assert queue.body(message) == b"hello"
    await ntf.push(queue.notifier_id)
    assert await queue.ack(bob, message) == OK
    queue.sender = keys()
    secure = smp.SKEY(queue.sender.public)
    assert await sender.ask(secure, queue.snd_id, queue.sender.private) == OK
    assert await sender.ask(SEND, queue.snd_id) == AUTH
    assert await sender.ask(SEND, queue.snd_id, queue.sender.private) == OK
    assert await sender.ask(SEND, os.urandom(24), queue.sender.private) == AUTH
    counters = small_world.router.observer.counters
    assert counters.relay_commands.all.total() == 5
    assert destination.router.observer.counters.forwarded_received == 5


async def test_links(small_world: World, destination: World) -> None:
    bob = await destination.connect()
    contact, invitation = await create(bob, mode=QueueMode.CONTACT), await create(bob)
    for queue, link_id in ((contact, b"c" * 24), (invitation, b"i" * 24)):
        data = smp.LSET(link_id, b"f" * 2048, b"u" * 13824)
        assert await queue.by_recipient(bob, data) == OK
    sender = await sender_of(small_world, destination)
    lnk = smp.LNK(contact.snd_id, b"f" * 2048, b"u" * 13824)
    assert await sender.ask(smp.LGET(), b"c" * 24) == lnk
    assert await sender.ask(smp.LGET(), b"i" * 24) == AUTH
    key = keys()
    answer = await sender.ask(smp.LKEY(key.public), b"i" * 24, key.private)
    assert isinstance(answer, smp.LNK)


async def test_link_data_that_fits_only_in_a_direct_answer(
    small_world: World, destination: World
) -> None:
    """As with the reference: a forwarded answer has less room than a block."""
    bob = await destination.connect()
    queue = await create(bob, mode=QueueMode.CONTACT)
    sender = await sender_of(small_world, destination)
    for size, fits in ((16_137, True), (16_138, False)):
        user = b"u" * (size - 100)
        assert await queue.by_recipient(bob, smp.LSET(b"c" * 24, b"f" * 100, user)) == OK
        lnk = smp.LNK(queue.snd_id, b"f" * 100, user)
        assert await bob.ask(smp.LGET(), b"c" * 24) == lnk
        answer = await sender.ask(smp.LGET(), b"c" * 24)
        assert answer == (lnk if fits else smp.ERR(PROXY(ProxyProtocolError(ErrorCode.BLOCK))))
    assert await sender.peer.ask(smp.PING()) == smp.PONG()


async def test_commands_that_may_not_be_forwarded(small_world: World, destination: World) -> None:
    queue = await create(await destination.connect())
    sender = await sender_of(small_world, destination)
    by = queue.recipient.private
    assert await sender.ask(smp.SUB(), queue.rcv_id, by) == PROHIBITED
    assert await sender.ask(smp.DEL(), queue.rcv_id, by) == PROHIBITED
    assert await sender.ask(smp.PING(), b"") == PROHIBITED


async def test_sizes_by_version(small_world: World, destination: World) -> None:
    queue = await create(await destination.connect())
    sender = await sender_of(small_world, destination)
    large = smp.ERR(ErrorCode.LARGE_MSG)
    for version, size in ((8, 16064), (10, 16064), (11, 16048), (17, 16048)):
        sender.version = version
        longest = smp.SEND(MsgFlags(False), bytes(size))
        assert await sender.ask(longest, queue.snd_id) == OK
        longer = smp.SEND(MsgFlags(False), bytes(size + 1))
        assert await sender.ask(longer, queue.snd_id) == large


async def test_malformed_contents(small_world: World, destination: World) -> None:
    queue = await create(await destination.connect())
    sender = await sender_of(small_world, destination)
    corr_id = os.urandom(24)
    transmission = sender.transmission(corr_id, SEND, queue.snd_id, None)
    [content] = pack(sender.session, [transmission])
    block = Reply(b"", b"", smp.ERR(ErrorCode.BLOCK))
    for malformed in (b"", b"\0", b"\1\0\5x", content + b"x"):
        assert await sender.forward(corr_id, malformed) == block
    [two] = pack(sender.session, [transmission, transmission])
    outer = smp.ERR(PROXY(ProxyProtocolError(ErrorCode.BLOCK)))
    assert await sender.forward(corr_id, two) == outer
    good = await sender.forward(corr_id, content)
    assert good == Reply(corr_id, queue.snd_id, OK)
    assert await queue.size(await destination.connect()) == 1


async def test_a_box_that_does_not_open(small_world: World, destination: World) -> None:
    sender = await sender_of(small_world, destination)
    command = smp.PFWD(17, keys().public, bytes(16242))
    answer = await sender.peer.ask(command, sender.pkey.session_id)
    assert answer == smp.ERR(PROXY(ProxyProtocolError(ErrorCode.CRYPTO)))
    assert await sender.peer.ask(smp.PING()) == smp.PONG()


async def test_oversized(small_world: World, destination: World) -> None:
    sender = await sender_of(small_world, destination)
    command = smp.PFWD(17, keys().public, bytes(16252))
    answer = await sender.peer.ask(command, sender.pkey.session_id)
    assert answer == smp.ERR(PROXY(BrokerError("TRANSPORT", TransportError.LARGE_MSG)))


async def test_replayed_commands_are_executed_again(small_world: World, destination: World) -> None:
    """As the reference does: it is void in another session only."""
    bob = await destination.connect()
    queue = await create(bob, subscribe=False)
    sender = await sender_of(small_world, destination)
    corr_id = os.urandom(24)
    [content] = pack(sender.session, [sender.transmission(corr_id, SEND, queue.snd_id, None)])
    for _ in range(2):
        assert (await sender.forward(corr_id, content)).message == OK
    assert await queue.size(bob) == 2


async def test_sessions_are_shared(small_world: World, destination: World) -> None:
    senders = await asyncio.gather(*(sender_of(small_world, destination) for _ in range(10)))
    assert len({sender.pkey.session_id for sender in senders}) == 1
    assert len(destination.router.clients) == 1
    stranger = ProxiedSender(await small_world.connect(), senders[0].pkey, 17)
    queue = await create(await destination.connect())
    assert await stranger.ask(SEND, queue.snd_id) == OK


async def test_a_session_that_ended(small_world: World, destination: World) -> None:
    queue = await create(await destination.connect(), subscribe=False)
    sender = await sender_of(small_world, destination)
    for client in tuple(destination.router.clients):
        client.connection.abort()
    await until(lambda: small_world.router.relays.find(sender.pkey.session_id) is None)
    assert await sender.ask(SEND, queue.snd_id) == NO_SESSION
    again = await ProxiedSender.open(sender.peer, destination.address)
    assert again.pkey.session_id != sender.pkey.session_id
    assert await again.ask(SEND, queue.snd_id) == OK
    assert await sender.ask(SEND, queue.snd_id) == NO_SESSION


async def test_an_unreachable_destination(small_world: World, destination: World) -> None:
    alice = await small_world.connect()
    await destination.listener.close()
    for _ in range(2):
        assert await alice.ask(smp.PRXY(destination.address)) == NETWORK
    assert await alice.ask(smp.PING()) == smp.PONG()
    unknown = await alice.ask(SEND, b"s" * 32)
    assert unknown == AUTH
    assert await alice.ask(smp.PFWD(17, keys().public, b"box"), b"s" * 32) == NO_SESSION


async def test_another_certificate(small_world: World, destination: World) -> None:
    alice = await small_world.connect()
    address = destination.address
    wrong = ServerAddress(address.scheme, address.hosts, address.port, bytes(32))
    assert await alice.ask(smp.PRXY(wrong)) == NETWORK


@pytest.mark.parametrize(
    "settings", [with_settings(rules=Rules(password=b"secret"))], ids=["password"]
)
async def test_password(small_world: World, destination: World) -> None:
    alice = await small_world.connect()
    for password in (None, b"", b"other"):
        assert await alice.ask(smp.PRXY(destination.address, password)) == BASIC_AUTH
    assert isinstance(await alice.ask(smp.PRXY(destination.address, b"secret")), smp.PKEY)


@pytest.mark.parametrize("settings", [with_settings(proxy=ProxySettings(enabled=False))])
async def test_disabled(small_world: World, destination: World) -> None:
    alice = await small_world.connect()
    assert await alice.ask(smp.PRXY(destination.address)) == BASIC_AUTH


@pytest.mark.parametrize(
    "settings", [with_settings(proxy=ProxySettings(allow=lambda address: False))]
)
async def test_refused_addresses(small_world: World, destination: World) -> None:
    alice = await small_world.connect()
    host = smp.ERR(PROXY(BrokerError("HOST")))
    assert await alice.ask(smp.PRXY(destination.address)) == host
    address = destination.address
    onion = ServerAddress(address.scheme, (decode_host("x.onion"),), "", address.fingerprint)
    assert await alice.ask(smp.PRXY(onion)) == host


@pytest.mark.parametrize(
    "settings", [with_settings(proxy=ProxySettings(request_timeout=0.2, connect_timeout=0.5))]
)
async def test_a_slow_destination_slows_nobody_else(
    small_world: World, destination: World, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    async with a_world(new_store("sqlite", tmp_path / "other")) as other:
        queue = await create(await other.connect())
        sender = await sender_of(small_world, destination)
        healthy = await ProxiedSender.open(sender.peer, other.address)
        destination.router.received = lambda connection, requests: None  # type: ignore[method-assign]
        slow = [sender.ask(SEND, b"s" * 24) for _ in range(20)]
        waiting = asyncio.gather(*slow)
        await asyncio.sleep(0)
        assert await healthy.ask(SEND, queue.snd_id) == OK
        assert await sender.peer.ask(smp.PING()) == smp.PONG()
        assert await waiting == [TIMEOUT] * 20
        with socket.create_server(("127.0.0.1", 0)) as silent:
            address = replace(other.address, port=str(silent.getsockname()[1]))
            connecting = asyncio.create_task(sender.peer.ask(smp.PRXY(address)))
            assert await healthy.ask(SEND, queue.snd_id) == OK
            assert not connecting.done()
            assert await connecting == NETWORK


@pytest.mark.parametrize("settings", [with_settings(proxy=ProxySettings(max_connections=1))])
async def test_the_number_of_sessions_is_bounded(
    small_world: World, destination: World, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    async with a_world(new_store("sqlite", tmp_path / "other")) as other:
        first = await sender_of(small_world, destination)
        second = await ProxiedSender.open(first.peer, other.address)
        assert len(small_world.router.relays) == 1
        assert await first.ask(SEND, b"s" * 24) == NO_SESSION
        assert await second.ask(SEND, b"s" * 24) == AUTH


@pytest.mark.parametrize(
    "settings", [with_settings(proxy=ProxySettings(max_in_flight_each=2, request_timeout=0.3))]
)
async def test_commands_in_flight_are_bounded(small_world: World, destination: World) -> None:
    sender = await sender_of(small_world, destination)
    destination.router.received = lambda connection, requests: None  # type: ignore[method-assign]
    answers = await asyncio.gather(*(sender.ask(SEND, b"s" * 24) for _ in range(5)))
    assert answers == [TIMEOUT] * 5
    assert len(destination.router.clients) == 1
    assert small_world.router.relays.in_flight == 0


def is_silent(world: World) -> None:
    """From now on the router answers no command."""
    world.router.received = lambda connection, requests: None  # type: ignore[method-assign]


async def from_address(world: World, address: str) -> Peer:
    """A peer that the router takes to come from this address."""
    before = {*world.router.clients}
    peer = await world.connect()
    await until(lambda: world.router.clients - before)
    [client] = world.router.clients - before
    client.address = address
    return peer


@pytest.mark.parametrize("settings", [with_settings(proxy=ProxySettings(max_connections=1))])
async def test_a_destination_that_never_answers_makes_room(
    small_world: World, destination: World, tmp_path: Path
) -> None:
    """Also while commands wait for it: else one sender could occupy all sessions."""
    (tmp_path / "other").mkdir()
    async with a_world(new_store("sqlite", tmp_path / "other")) as other:
        queue = await create(await other.connect())
        rogue = await sender_of(small_world, destination)
        is_silent(destination)
        waiting = asyncio.create_task(rogue.ask(SEND, b"s" * 24))
        await until(lambda: small_world.router.relays.in_flight)
        honest = await sender_of(small_world, other)
        assert await waiting == NETWORK
        assert await honest.ask(SEND, queue.snd_id) == OK
        assert len(small_world.router.relays) == 1


@pytest.mark.parametrize("settings", [with_settings(proxy=ProxySettings(max_in_flight=4))])
async def test_of_too_many_commands_the_oldest_times_out(
    small_world: World, destination: World, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    async with a_world(new_store("sqlite", tmp_path / "other")) as other:
        queue = await create(await other.connect())
        rogue = await sender_of(small_world, destination)
        honest = await ProxiedSender.open(rogue.peer, other.address)
        is_silent(destination)
        waiting = [asyncio.create_task(rogue.ask(SEND, b"s" * 24)) for _ in range(4)]
        await until(lambda: small_world.router.relays.in_flight == 4)
        assert await honest.ask(SEND, queue.snd_id) == OK
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert [task.result() for task in done] == [TIMEOUT]
        assert small_world.router.relays.in_flight == 3
        for client in tuple(destination.router.clients):
            client.connection.abort()
        assert [task.result() for task in (await asyncio.wait(waiting))[0] - done] == [NETWORK] * 3


@pytest.mark.parametrize("settings", [with_settings(proxy=ProxySettings(max_in_flight_of_one=2))])
async def test_the_senders_of_one_address_share_what_they_have_in_flight(
    small_world: World, destination: World
) -> None:
    peers = [await from_address(small_world, f"192.0.2.{last}") for last in (1, 1, 2)]
    first, second, other = [await ProxiedSender.open(peer, destination.address) for peer in peers]
    is_silent(destination)
    waiting = [asyncio.create_task(one.ask(SEND, b"s" * 24)) for one in (first, second, other)]
    await until(lambda: small_world.router.relays.in_flight == 3)
    assert await second.ask(SEND, b"s" * 24) == TIMEOUT
    for client in tuple(destination.router.clients):
        client.connection.abort()
    assert await asyncio.gather(*waiting) == [NETWORK] * 3
    again = await ProxiedSender.open(first.peer, destination.address)
    asking = asyncio.create_task(again.ask(SEND, b"s" * 24))
    await until(lambda: small_world.router.relays.in_flight == 1)
    asking.cancel()


@pytest.mark.parametrize("settings", [with_settings(proxy=ProxySettings(max_connections=8))])
async def test_destinations_that_are_silent_close_no_session(
    small_world: World, destination: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 8 sessions, 2 may be dialed at a time, and by the senders of one address 1."""
    monkeypatch.setattr(proxy, "MAX_CONNECTING", 1)
    queue = await create(await destination.connect())
    sender = await sender_of(small_world, destination)
    attackers = [await from_address(small_world, f"192.0.2.{last}") for last in (1, 1, 2, 3)]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = str(silent.getsockname()[1])

        def dial(peer: Peer) -> "asyncio.Task[object]":
            address = replace(destination.address, port=port, fingerprint=os.urandom(32))
            return asyncio.create_task(peer.ask(smp.PRXY(address)))

        first, second, other, last = [dial(peer) for peer in attackers]
        assert await second == TIMEOUT
        assert await last == NETWORK
        assert not first.done()
        assert not other.done()
        assert await sender.ask(SEND, queue.snd_id) == OK
        for task in (first, other):
            task.cancel()


async def test_a_router_is_its_own_destination(small_world: World) -> None:
    alice = await small_world.connect()
    queue = await create(alice)
    sender = await ProxiedSender.open(alice, small_world.address)
    assert await sender.ask(SEND, queue.snd_id) == OK
    assert queue.body(await alice.push(queue.rcv_id)) == b"hello"
