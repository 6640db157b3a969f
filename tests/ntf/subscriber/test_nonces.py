"""Notifications that a messaging router sends again, one by one."""

import os
from collections.abc import AsyncIterator
from typing import Any

import pytest

from heliograph.ntf.subscriber import nonces
from heliograph.ntf.subscriber.nonces import RecentNonces
from heliograph.sim.pong import PongRouter
from heliograph.transport.protocols import SMP
from heliograph.transport.server import Answer, Listener, ServerConnection
from heliograph.wire import ntf, smp
from heliograph.wire.addresses import Scheme, ServerAddress, SMPQueueNtf, decode_host
from heliograph.wire.requests import Request
from tests.keys import fixed_bytes
from tests.ntf.support import NtfWorld
from tests.smp.support import identity, keys
from tests.waiting import until

NOTIFIER_ID = fixed_bytes("notifier", 24)


def test_the_last_nonces_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nonces, "MAX_NONCES", 3)
    recent = RecentNonces()
    assert [recent.is_repeat(item) for item in (b"1", b"2", b"3", b"1")] == [False] * 3 + [True]
    assert not recent.is_repeat(b"4")
    assert not recent.is_repeat(b"1")  # forgotten
    assert [recent.is_repeat(item) for item in (b"3", b"4")] == [True, True]


class RepeatingRouter(PongRouter):
    """Asks for confirmations, as Heliograph's router does, and takes none of them."""

    def __init__(self) -> None:
        self.connections: list[ServerConnection] = []

    def received(self, connection: ServerConnection, requests: list[Request[Any]]) -> None:
        for request in requests:
            if isinstance(request.command, smp.NSUB):
                self.connections.append(connection)
                answer: Any = smp.SOK()
            else:
                connection.push([Answer(b"", b"", smp.PONG())])
                answer = smp.PONG()
            connection.answer([Answer(request.corr_id, request.entity_id, answer)])

    def notify(self, nonce: bytes) -> None:
        message = smp.NMSG(nonce, os.urandom(144))
        self.connections[-1].push([Answer(b"", NOTIFIER_ID, message)])


@pytest.fixture
async def repeating() -> AsyncIterator[tuple[RepeatingRouter, ServerAddress]]:
    router = RepeatingRouter()
    listener = Listener(SMP, identity("repeating"), router)
    port = await listener.start("127.0.0.1", 0)
    fingerprint = identity("repeating").fingerprint
    address = ServerAddress(Scheme.SMP, (decode_host("127.0.0.1"),), str(port), fingerprint)
    yield router, address
    await listener.close()


async def test_several_of_one_queue_are_recognized_in_batches_of_their_own(
    small_world: NtfWorld, repeating: tuple[RepeatingRouter, ServerAddress]
) -> None:
    router, address = repeating
    phone = await small_world.registered()
    command = ntf.SNEW(phone.token_id, SMPQueueNtf(address, NOTIFIER_ID), keys().private)
    assert isinstance(await phone.ask(command), ntf.IDSUB)
    await until(lambda: router.connections)
    sent = [os.urandom(24) for _ in range(3)]

    def count(event: str) -> int:
        return sum(item.kind == event for item in small_world.events)

    for number, nonce in enumerate(sent, 1):
        router.notify(nonce)
        await until(lambda number=number: count("nmsg_stored") == number)  # type: ignore[misc]
    await small_world.until_none_pending()
    router.connections[0].abort()
    await until(lambda: len(router.connections) == 2)
    for number, nonce in enumerate(sent, 1):
        router.notify(nonce)
        await until(lambda number=number: count("nmsg_repeated") == number)  # type: ignore[misc]
    newest = os.urandom(24)
    router.notify(newest)
    while newest not in {item.nonce for item in await phone.notified()}:
        pass
    assert count("nmsg_stored") == 4
