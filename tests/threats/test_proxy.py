"""Private routing: a proxy and a destination that are curious, and somebody who sees both."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from heliograph.crypto.forwarding import open_forwarded, seal_forwarded
from heliograph.smp.relays import Relay
from heliograph.transport.errors import RequestRefused
from heliograph.wire import smp
from heliograph.wire.smp.fields import MsgFlags
from tests.smp.sender import ProxiedSender
from tests.smp.support import AUTH, OK, Queue, World, a_world, create, new_store

BODY = b"the content of a message"
WINDOW = 16


class Routing(NamedTuple):
    proxy: World
    destination: World
    queue: Queue


@pytest.fixture
async def routing(tmp_path: Path) -> AsyncIterator[Routing]:
    for name in ("proxy", "destination"):
        (tmp_path / name).mkdir()
    async with (
        a_world(new_store("sqlite", tmp_path / "proxy")) as proxy,
        a_world(new_store("sqlite", tmp_path / "destination")) as destination,
    ):
        yield Routing(proxy, destination, await create(await destination.connect()))


async def send(routing: Routing, sender: ProxiedSender, body: bytes = BODY) -> None:
    assert await sender.ask(smp.SEND(MsgFlags(True), body), routing.queue.snd_id) == OK


async def sender_of(routing: Routing) -> ProxiedSender:
    return await ProxiedSender.open(await routing.proxy.connect(), routing.destination.address)


def relay_of(routing: Routing) -> Relay:
    relay = routing.proxy.router.relays.connected(routing.destination.address)
    assert relay is not None
    return relay


def recorded(relay: Relay) -> list[tuple[bytes, bytes, bytes]]:
    """What the proxy exchanges with the destination: nonce, command and answer."""
    seen: list[tuple[bytes, bytes, bytes]] = []
    request = relay.client.request

    async def spy(command: smp.RFWD, *, corr_id: bytes) -> smp.RRES:
        rres = await request(command, corr_id=corr_id)
        seen.append((corr_id, command.transmission, rres.response))
        return rres

    relay.client.request = spy  # type: ignore[method-assign, assignment]
    return seen


async def test_learns_who_sends_to_which_router(routing: Routing) -> None:
    await sender_of(routing)
    [client] = routing.proxy.router.clients
    assert client.connection.peer_address == "127.0.0.1"
    assert relay_of(routing).address == routing.destination.address


async def test_does_not_learn_queue_or_content(routing: Routing) -> None:
    """Not even with its own key, and whatever the command: all have one size."""
    sender = await sender_of(routing)
    relay = relay_of(routing)
    seen = recorded(relay)
    await send(routing, sender)
    await send(routing, sender, bytes(16_000))
    assert await sender.ask(smp.LGET(), b"l" * 24) == AUTH
    opened = [open_forwarded(relay.key, nonce, command) for nonce, command, _ in seen]
    for forwarded in opened:
        assert routing.queue.snd_id not in forwarded.transmission
        assert BODY not in forwarded.transmission
    assert {len(forwarded.transmission) for forwarded in opened} == {16242}
    assert len({len(answer) for _, _, answer in seen}) == 1


async def test_destination_does_not_learn_the_sender(routing: Routing) -> None:
    """Senders share one connection, and each command has a key of its own."""
    senders = [await sender_of(routing) for _ in range(3)]
    relay = relay_of(routing)
    seen = recorded(relay)
    for sender in (*senders, *senders):
        await send(routing, sender)
    proxies = [client for client in routing.destination.router.clients if not client.subscriptions]
    assert len(proxies) == 1
    forwarded = [open_forwarded(relay.key, nonce, command) for nonce, command, _ in seen]
    assert len({item.key for item in forwarded}) == len(forwarded) == 6


async def test_observer_finds_nothing_in_common(routing: Routing) -> None:
    """What goes in and what comes out share no bytes, and sizes do not differ."""
    sender = await sender_of(routing)
    relay = relay_of(routing)
    seen = recorded(relay)
    await send(routing, sender)
    [(nonce, command, _)] = seen
    inner = open_forwarded(relay.key, nonce, command).transmission
    windows = {inner[start : start + WINDOW] for start in range(len(inner) - WINDOW)}
    assert not any(command[i : i + WINDOW] in windows for i in range(len(command) - WINDOW))


async def test_can_repeat_and_cannot_alter(routing: Routing) -> None:
    """A repeated SEND is a second message, which the recipient's agent recognises and drops."""
    sender = await sender_of(routing)
    relay = relay_of(routing)
    request = relay.client.request
    seen = recorded(relay)
    await send(routing, sender)
    [(nonce, command, _)] = seen
    await request(smp.RFWD(command), corr_id=nonce)
    forwarded = open_forwarded(relay.key, nonce, command)
    for place in (0, len(forwarded.transmission) // 2, -1):
        altered = bytearray(forwarded.transmission)
        altered[place] ^= 1
        sealed = seal_forwarded(relay.key, nonce, replace(forwarded, transmission=bytes(altered)))
        with pytest.raises(RequestRefused, match="CRYPTO"):
            await request(smp.RFWD(sealed), corr_id=nonce)
    owner = await routing.destination.connect()
    assert await routing.queue.receive_all(owner) == [BODY, BODY]
