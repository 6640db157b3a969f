"""Connections that break at any byte, and answers that never arrive: everything comes once."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from heliograph.agent.events import SubscriptionEnded
from heliograph.wire.addresses import ServerAddress
from tests.agent.support import Router, User, connect, settings, users
from tests.waiting import until

MESSAGES = 60
CUTS = 3


class Relay:
    """Between agents and a router. It can lose what the router says, and cut every connection."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_deaf = False
        self.cuts = 0
        self.address: ServerAddress

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.address = replace(self._router.address, port=str(port))

    async def stop(self) -> None:
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def cut(self) -> None:
        self.cuts += 1
        for writer in self._writers:
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = int(self._router.address.port)
        try:
            from_router, to_router = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, to_router}
        for source, target, is_router in ((reader, to_router, False), (from_router, writer, True)):
            task = asyncio.create_task(self._pass_on(source, target, is_router))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_on(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, is_router: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                if not (is_router and self.is_deaf):
                    target.write(data)
                    await target.drain()
        target.transport.abort()
        self._writers.discard(target)


@pytest.fixture
async def relay(router: Router) -> AsyncIterator[Relay]:
    relay = Relay(router)
    await relay.start()
    yield relay
    await relay.stop()


async def disturb(relay: Relay, seed: int) -> None:
    """For ever: let it work, lose answers for a moment, cut."""
    chance = random.Random(seed)
    while True:
        await asyncio.sleep(chance.uniform(0.1, 0.6))
        relay.is_deaf = chance.random() < 0.7
        await asyncio.sleep(chance.uniform(0.0, 0.1))
        relay.cut()
        relay.is_deaf = False


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("version", [8, 19])
async def test_lost_answers_and_cut_connections(tmp_path: Path, relay: Relay, version: int) -> None:
    """From the first command on: connecting, sending both ways, receiving, acknowledging."""
    async with users(tmp_path, "alice", "bob", settings=settings(version)) as [alice, bob]:
        at_alice, invitation = await alice.agent.create_connection(relay.address)
        at_bob = await bob.agent.join_connection(invitation)
        disturbing = asyncio.create_task(disturb(relay, version))
        try:
            sent: list[bytes] = []
            while len(sent) < MESSAGES or relay.cuts < CUTS:
                sent.append(b"%d" % len(sent))
                await alice.agent.send(at_alice, sent[-1])
                await bob.agent.send(at_bob, sent[-1])
                await asyncio.sleep(0.01)
            assert await receive_all(bob, len(sent)) == sent
            assert await receive_all(alice, len(sent)) == sent
        finally:
            disturbing.cancel()
        relay.is_deaf = False
        await alice.agent.send(at_alice, b"calm")
        assert await receive_all(bob, 1) == [b"calm"]
        for user, conn_id in ((alice, at_alice), (bob, at_bob)):
            assert (await user.agent.connection(conn_id)).failed == ()


async def receive_all(user: User, count: int) -> list[bytes]:
    bodies: list[bytes] = []
    async with asyncio.timeout(120), contextlib.aclosing(user.agent.messages()) as incoming:
        async for message in incoming:
            bodies.append(message.body)
            await user.agent.ack(message.conn_id, message.message_id)
            if len(bodies) == count:
                break
    return bodies


async def test_an_answer_that_never_comes(tmp_path: Path, relay: Relay) -> None:
    """The connection stays, and the answer to an acknowledgement is lost: it is asked again."""
    impatient = settings()
    config = replace(impatient.clients.config, request_timeout=0.3)
    impatient = replace(impatient, clients=replace(impatient.clients, config=config))
    async with users(tmp_path, "alice", "bob", settings=impatient) as [alice, bob]:
        at_alice, _ = await connect(alice, bob, relay.address)
        await alice.agent.send(at_alice, b"one")
        relay.is_deaf = True
        await asyncio.sleep(0.5)
        relay.cut()
        relay.is_deaf = False
        await alice.agent.send(at_alice, b"two")
        assert await receive_all(bob, 2) == [b"one", b"two"]


async def test_an_end_on_a_connection_that_was_abandoned(
    router: Router, alice: User, bob: User
) -> None:
    """It is about the subscription that we have taken from ourselves."""
    at_alice, _ = await connect(alice, bob, router.address)
    engine = bob.agent._engine  # the router itself sends no END on a connection that ended
    before = bob.agent.clients.connected(router.address)
    assert before is not None
    before.abort()
    await until(lambda: bob.agent.clients.connected(router.address) not in (None, before))
    rows = await router.router.store.database.read(
        lambda tx: tx.query("SELECT recipient_id FROM queues")
    )
    assert len(rows) == 2
    for (rcv_id,) in rows:
        engine.subscriptions.ended(before, rcv_id)
    await alice.agent.send(at_alice, b"still subscribed")
    assert await bob.receive() == [b"still subscribed"]
    assert not any(isinstance(event, SubscriptionEnded) for event in bob.events)
