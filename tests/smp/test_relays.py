"""What a proxy makes of its destinations: versions, wrong answers, broken connections."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from heliograph.smp import relays
from heliograph.smp.counters import RelayOutcome
from heliograph.smp.settings import ProxySettings
from heliograph.transport.client import Client
from heliograph.transport.server import Answer, ServerConnection
from heliograph.wire import smp
from heliograph.wire.addresses import ServerAddress
from heliograph.wire.errors import (
    PROXY,
    BrokerError,
    ErrorCode,
    ProxyProtocolError,
    TransportError,
)
from heliograph.wire.smp import SmpResponse
from heliograph.wire.smp.fields import MsgFlags
from heliograph.wire.versions import VersionRange
from tests.smp.sender import ProxiedSender
from tests.smp.support import OK, World, a_world, create, new_store, with_settings
from tests.waiting import until

SEND = smp.SEND(MsgFlags(True), b"hello")
VERSION = smp.ERR(PROXY(BrokerError("TRANSPORT", TransportError.VERSION)))
NETWORK = smp.ERR(PROXY(BrokerError("NETWORK")))


@pytest.fixture
async def destination(tmp_path: Path) -> AsyncIterator[World]:
    (tmp_path / "destination").mkdir()
    async with a_world(new_store("sqlite", tmp_path / "destination")) as world:
        yield world


@pytest.mark.parametrize(
    ("newest", "expected"), [(8, 8), (9, 9), (10, 10), (13, 10), (14, 14), (16, 16), (18, 17)]
)
async def test_versions(small_world: World, destination: World, newest: int, expected: int) -> None:
    queue = await create(await destination.connect(min(newest, 19)))
    destination.listener.versions = VersionRange(6, newest)
    sender = await ProxiedSender.open(await small_world.connect(), destination.address)
    assert sender.pkey.versions == VersionRange(8, expected)
    assert await sender.ask(SEND, queue.snd_id) == OK


async def test_no_common_version(small_world: World, destination: World) -> None:
    alice = await small_world.connect()
    destination.listener.versions = VersionRange(6, 7)
    assert await alice.ask(smp.PRXY(destination.address)) == VERSION
    assert small_world.router.observer.counters.relay_sessions.all == {RelayOutcome.COMPAT: 1}


Router = Callable[[ServerConnection, list[Any]], None]


def answering(response: SmpResponse, entity_id: bytes = b"") -> Router:
    def received(connection: ServerConnection, requests: list[Any]) -> None:
        connection.answer([Answer(item.corr_id, entity_id, response) for item in requests])

    return received


def hanging_up(connection: ServerConnection, requests: list[Any]) -> None:
    connection.abort()


@pytest.mark.parametrize(
    ("router", "expected"),
    [
        (
            answering(smp.ERR(ErrorCode.CMD_UNKNOWN)),
            PROXY(ProxyProtocolError(ErrorCode.CMD_UNKNOWN)),
        ),
        (answering(smp.OK()), PROXY(BrokerError("RESPONSE", "CMD NO_ENTITY"))),
        (answering(smp.RRES(bytes(100))), ErrorCode.CRYPTO),
        (hanging_up, NETWORK.error),
    ],
    ids=["refused", "malformed", "does not open", "hangs up"],
)
async def test_wrong_answers(
    small_world: World, destination: World, router: Router, expected: Any
) -> None:
    sender = await ProxiedSender.open(await small_world.connect(), destination.address)
    destination.router.received = router  # type: ignore[method-assign, assignment]
    assert await sender.ask(SEND, b"s" * 24) == smp.ERR(expected)
    assert await sender.peer.ask(smp.PING()) == smp.PONG()


async def test_an_unexpected_answer(small_world: World, destination: World) -> None:
    sender = await ProxiedSender.open(await small_world.connect(), destination.address)
    destination.router.received = answering(smp.PONG())  # type: ignore[method-assign, assignment]
    answer = await sender.ask(SEND, b"s" * 24)
    assert isinstance(answer.error, PROXY)
    assert isinstance(answer.error.error, BrokerError)
    assert answer.error.error.tag == "UNEXPECTED"


@pytest.mark.parametrize("settings", [with_settings(proxy=ProxySettings(retry_after=0.2))])
async def test_a_destination_that_comes_back(
    small_world: World, destination: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One attempt for all senders, and a new one after a while."""
    attempts = 0
    connect = Client.connect

    def counting(address: ServerAddress, *arguments: Any, **options: Any) -> Any:
        nonlocal attempts
        attempts += address == destination.address
        return connect(address, *arguments, **options)

    monkeypatch.setattr(Client, "connect", counting)
    port = int(destination.address.port)
    await destination.listener.close()
    peers = [await small_world.connect() for _ in range(5)]
    requests = [peer.ask(smp.PRXY(destination.address)) for peer in peers]
    assert await asyncio.gather(*requests) == [NETWORK] * 5
    assert await peers[0].ask(smp.PRXY(destination.address)) == NETWORK
    assert attempts == 1
    await destination.listen(port)
    await asyncio.sleep(0.25)
    assert isinstance(await peers[0].ask(smp.PRXY(destination.address)), smp.PKEY)
    assert attempts == 2


async def test_a_dead_destination_is_tried_ever_more_seldom(
    small_world: World, destination: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default: 1, 2, 4 ... 30 seconds; a router that comes back is found soon."""
    now = 1000.0
    monkeypatch.setattr(relays, "time", SimpleNamespace(monotonic=lambda: now))
    port = int(destination.address.port)
    await destination.listener.close()
    alice = await small_world.connect()
    attempts = []
    connect = Client.connect

    def recording(address: ServerAddress, *arguments: Any, **options: Any) -> Any:
        attempts.append(now)
        return connect(address, *arguments, **options)

    monkeypatch.setattr(Client, "connect", recording)
    while now < 1100:
        assert await alice.ask(smp.PRXY(destination.address)) == NETWORK
        now += 1
    assert attempts == [1000, 1001, 1003, 1007, 1015, 1031, 1061, 1091]
    await destination.listen(port)
    now = 1121
    assert isinstance(await alice.ask(smp.PRXY(destination.address)), smp.PKEY)
    await destination.listener.close()
    now += 1
    await until(lambda: not len(small_world.router.relays))
    assert await alice.ask(smp.PRXY(destination.address)) == NETWORK
    now += 1
    assert await alice.ask(smp.PRXY(destination.address)) == NETWORK
    assert attempts[-3:] == [1121, 1122, 1123]


async def test_a_destination_that_sends_what_was_not_asked_for_is_left(
    small_world: World, destination: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relays, "MAX_UNASKED", 300)
    sender = await ProxiedSender.open(await small_world.connect(), destination.address)
    [client] = destination.router.clients
    for _ in range(3):
        client.connection.push([Answer(b"", b"e" * 24, smp.END())] * 100)
    queue = await create(await destination.connect())
    assert await sender.ask(SEND, queue.snd_id) == OK
    client.connection.push([Answer(b"", b"e" * 24, smp.END())] * 100)
    await until(lambda: not len(small_world.router.relays))
    assert await sender.peer.ask(smp.PRXY(destination.address)) == NETWORK
