"""What a peer that does not read, or that sends garbage, makes a router keep or log."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest

from heliograph.sim.pong import PongRouter
from heliograph.transport.client import Client, ClientConfig, ClientRequest
from heliograph.transport.protocols import SMP
from heliograph.transport.server import Answer, Listener, ServerConnection
from heliograph.wire import ntf, smp
from heliograph.wire.addresses import Scheme, ServerAddress, SMPQueueNtf, decode_host
from heliograph.wire.requests import Request
from heliograph.wire.smp.fields import QueueMode
from tests.ntf.support import NtfWorld
from tests.smp.support import create, create_notified, identity, keys
from tests.waiting import until

MAX_BUFFERED = 1024 * 1024


async def unread(world: NtfWorld, requests: list[ClientRequest[Any]], *, is_smp: bool) -> int:
    """Send requests without reading the answers; return the most bytes that the router kept."""
    listener = world.smp.listener if is_smp else world.listener
    address = world.smp.address if is_smp else world.address
    before = {*listener.connections}
    client = await Client.connect(address, ClientConfig(receive_buffer=64 * 1024))
    [connection] = {*listener.connections} - before
    client.pause_reading()
    asking = asyncio.create_task(client.request_many(requests))
    kept = 0
    for _ in range(10):
        await asyncio.sleep(0.05)
        kept = max(kept, connection.unsent)
    asking.cancel()
    client.abort()
    await client.wait_closed()
    return kept


class GarbageRouter(PongRouter):
    """Answers NSUB, and then sends events about queues that nobody subscribed."""

    def __init__(self, event: Any) -> None:
        self.event = event
        self.sent = 0
        self.lost = 0

    def received(self, connection: ServerConnection, requests: list[Request[Any]]) -> None:
        for request in requests:
            is_nsub = isinstance(request.command, smp.NSUB)
            answer = smp.SOK() if is_nsub else smp.PONG()
            connection.answer([Answer(request.corr_id, request.entity_id, answer)])
            if is_nsub:
                self.flood(connection)

    def flood(self, connection: ServerConnection) -> None:
        if connection.is_writable and self.sent < 10_000:
            connection.push([Answer(b"", os.urandom(24), self.event) for _ in range(100)])
            self.sent += 100
        if not connection.is_closing and self.sent < 10_000:
            asyncio.get_running_loop().call_later(0.001, self.flood, connection)

    def disconnected(self, connection: ServerConnection) -> None:
        self.lost += 1


@pytest.fixture(params=[smp.END(), smp.DELD(), smp.NMSG(bytes(24), bytes(144))], ids=type)
async def garbage(
    request: pytest.FixtureRequest,
) -> AsyncIterator[tuple[GarbageRouter, ServerAddress]]:
    router = GarbageRouter(request.param)
    listener = Listener(SMP, identity("garbage"), router)
    port = await listener.start("127.0.0.1", 0)
    fingerprint = identity("garbage").fingerprint
    address = ServerAddress(Scheme.SMP, (decode_host("127.0.0.1"),), str(port), fingerprint)
    yield router, address
    for connection in (*listener.connections,):
        connection.abort()
    await listener.close()


async def test_log_bytes_per_peer_byte(
    small_world: NtfWorld,
    garbage: tuple[GarbageRouter, ServerAddress],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A flood of worthless events is counted, and logged by a few lines at most."""
    caplog.set_level(logging.INFO)
    router, address = garbage
    phone = await small_world.registered()
    honest = await small_world.queue()
    await phone.subscribe(honest)
    caplog.clear()
    queue = SMPQueueNtf(address, os.urandom(24))
    assert isinstance(await phone.ask(ntf.SNEW(phone.token_id, queue, keys().private)), ntf.IDSUB)
    stats = small_world.router.stats
    await until(lambda: stats.worthless_events.get("other", 0) >= 2000)
    logged = sum(len(record.getMessage()) for record in caplog.records)
    sent = router.sent * 50
    assert logged < sent / 100
    # Beyond the budget nothing is read, and the connection stays for a while.
    [rogue] = [one for one in small_world.router.subscribers.values() if one.address == address]
    await until(lambda: "budget" in rogue._pauses.reasons)
    assert not router.lost
    await small_world.send(honest)
    await phone.notified_of(honest)


ANSWERS = ("MSG", "LNK", "INFO", "ERR", "PONG")


@pytest.mark.parametrize("answer", ANSWERS)
async def test_bytes_buffered_at_the_messaging_router(small_world: NtfWorld, answer: str) -> None:
    queue = await create_notified(small_world.sender)
    assert await queue.send(small_world.sender, b"x" * 16_000) == smp.OK()
    key = queue.recipient.private
    contact = await create(small_world.sender, mode=QueueMode.CONTACT)
    link = smp.LSET(b"c" * 24, b"f" * 2048, b"u" * 13824)
    assert await contact.by_recipient(small_world.sender, link) == smp.OK()
    request: ClientRequest[Any] = {
        "LNK": ClientRequest(smp.LGET(), link.link_id),
        "MSG": ClientRequest(smp.GET(), queue.rcv_id, key),
        "INFO": ClientRequest(smp.QUE(), queue.rcv_id, key),
        "ERR": ClientRequest(smp.SUB(), os.urandom(24), key),
        "PONG": ClientRequest(smp.PING()),
    }[answer]
    assert await unread(small_world, [request] * 5000, is_smp=True) < MAX_BUFFERED


@pytest.mark.parametrize("answer", ["TKN", "ERR", "PONG"])
async def test_bytes_buffered_at_the_notification_router(
    small_world: NtfWorld, answer: str
) -> None:
    phone = await small_world.registered()
    request: ClientRequest[Any] = {
        "TKN": ClientRequest(ntf.TCHK(), phone.token_id, phone.keys.private),
        "ERR": ClientRequest(ntf.TCHK(), os.urandom(24), phone.keys.private),
        "PONG": ClientRequest(ntf.PING()),
    }[answer]
    assert await unread(small_world, [request] * 20_000, is_smp=False) < MAX_BUFFERED
