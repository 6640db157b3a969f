"""The scenarios that the reference tests of services that receive messages, block by block."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID

from heliograph.crypto.authorization import authorize
from heliograph.crypto.certificates import TlsCredentials
from heliograph.smp.metrics import SmpCollector
from heliograph.transport.handshake import ServiceCredentials
from heliograph.transport.protocols import SMP
from heliograph.wire import smp
from heliograph.wire.errors import ErrorCode
from heliograph.wire.handshakes import ServiceRole
from heliograph.wire.keys import Algorithm
from heliograph.wire.smp.ids import ids_hash
from heliograph.wire.transmissions import authorized_bytes
from tests.interop.blocks import Handle, a_key, create, new, sending
from tests.smp.support import AT_ONCE, NO_MSG, OK, Queue, World, a_world, new_store
from tests.waiting import until

SERVICE = smp.ERR(ErrorCode.SERVICE)
NO_AUTH = smp.ERR(ErrorCode.CMD_NO_AUTH)
SOK = smp.SOK()
LATEST = 19


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with a_world(new_store("sqlite", tmp_path), AT_ONCE) as running:
        yield running


@pytest.fixture(scope="module")
def credentials() -> ServiceCredentials:
    """One self-signed certificate without extensions, as the reference creates for its clients."""
    key = Ed25519PrivateKey.generate()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1)
        .not_valid_before(now)
        .not_valid_after(now + timedelta(hours=2400))
        .sign(key, None)
    )
    encoding = serialization.Encoding.DER
    private = key.private_bytes(
        encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    chain = (certificate.public_bytes(encoding),)
    return ServiceCredentials(ServiceRole.MESSAGING, TlsCredentials(chain, private))


class ServiceHandle:
    """The session of a service, and what signs its commands."""

    def __init__(self, handle: Handle) -> None:
        self.handle = handle
        own = handle.peer.client.established.service
        assert own is not None
        self.service_id, self.key = own.service_id, own.key

    @classmethod
    async def open(cls, world: World, credentials: ServiceCredentials) -> "ServiceHandle":
        return cls(Handle.of(await world.connect(LATEST, service=credentials)))

    async def create(self) -> Queue:
        recipient, secret = a_key(Algorithm.ED25519), a_key(Algorithm.X25519)
        ids = await self.handle.ask(b"2", new(recipient, secret), b"", recipient.private)
        assert ids.service_id == self.service_id
        return Queue(recipient, secret, ids)

    async def ask_unsigned(self, command: Any, entity_id: bytes, key: bytes) -> Any:
        """Return the answer to a command without the signature of the service."""
        established = self.handle.peer.client.established
        data = SMP.commands.encode(command, LATEST)
        authorized = authorized_bytes(established.session, b"1", entity_id, data)
        auth = authorize(key, established.peer_key, b"1", authorized)
        self.handle.send_raw(b"1", data, entity_id, auth)
        return (await self.handle.one()).message

    async def subs(self, *queues: Queue) -> dict[bytes, smp.MSG]:
        """Subscribe all, and return what was delivered, by queue: each answer is a block."""
        found = ids_hash(queue.rcv_id for queue in queues)
        self.handle.send(b"11", smp.SUBS(len(queues), found), self.service_id, self.key)
        received: dict[bytes, smp.MSG] = {}
        others: list[Any] = []
        while len(others) < 2:
            answer = await self.handle.one()
            if isinstance(answer.message, smp.MSG):
                assert answer.corr_id == b""
                received[answer.entity_id] = answer.message
            elif isinstance(answer.message, smp.ALLS):
                assert (answer.corr_id, answer.entity_id) == (b"", b"")
                others.append(answer.message)
            else:
                assert (answer.corr_id, answer.entity_id) == (b"11", self.service_id)
                others.append(answer.message)
        assert others == [smp.SOKS(len(queues), found), smp.ALLS()]
        return received


def subscribed_queues(world: World) -> float:
    collector = SmpCollector(world.router, world.listener, 5223)
    [total] = [
        sample.value
        for metric in collector.collect()
        for sample in metric.samples
        if sample.name == "simplex_smp_subscribtion_service_subs_total"
    ]
    return total


async def secure(h: Handle, queue: Queue) -> None:
    queue.sender = a_key(Algorithm.ED25519)
    skey = smp.SKEY(queue.sender.public)
    assert await h.ask(b"3", skey, queue.snd_id, queue.sender_key) == OK


async def send(h: Handle, queue: Queue, body: bytes) -> None:
    assert await h.ask(b"4", sending(body), queue.snd_id, queue.sender_key) == OK


def ack(message: smp.MSG) -> smp.ACK:
    return smp.ACK(message.msg_id)


async def test_deliver_and_subscribe_again(world: World, credentials: ServiceCredentials) -> None:
    h, sh = await Handle.open(world, LATEST), await ServiceHandle.open(world, credentials)
    recipient, secret = a_key(Algorithm.ED25519), a_key(Algorithm.X25519)
    assert await sh.ask_unsigned(new(recipient, secret), b"", recipient.private) == SERVICE
    queue = await sh.create()
    rid, key = queue.rcv_id, queue.recipient.private
    await secure(h, queue)
    await send(h, queue, b"hello")
    await send(h, queue, b"hello 2")
    first = await sh.handle.pushed(rid)
    assert queue.body(first) == b"hello"
    second = await sh.handle.ask(b"6", ack(first), rid, key)
    assert queue.body(second) == b"hello 2"
    assert await sh.handle.ask(b"7", ack(first), rid, key) == NO_MSG
    assert await sh.handle.ask(b"8", ack(second), rid, key) == OK
    await sh.handle.peer.close()
    await send(h, queue, b"hello 3")

    sh = await ServiceHandle.open(world, credentials)
    found = ids_hash([rid])
    assert await sh.handle.ask(b"10", smp.SUBS(1, found), b"", sh.key) == NO_AUTH
    [third] = (await sh.subs(queue)).values()
    assert queue.body(third) == b"hello 3"
    assert await sh.handle.ask(b"12", ack(third), rid, key) == OK
    await send(h, queue, b"hello 4")
    fourth = await sh.handle.pushed(rid)
    assert queue.body(fourth) == b"hello 4"
    assert await sh.handle.ask(b"15", ack(fourth), rid, key) == OK
    assert sh.handle.is_quiet


async def test_become_a_service_and_back(world: World, credentials: ServiceCredentials) -> None:
    h, plain = await Handle.open(world, LATEST), await Handle.open(world, LATEST)
    queues = [await create(plain, algorithm=Algorithm.ED25519) for _ in range(3)]
    first, second, _ = queues
    for queue in queues:
        await secure(h, queue)
    await send(h, first, b"hello")
    message = await plain.pushed(first.rcv_id)
    assert await plain.ask(b"4", ack(message), first.rcv_id, first.recipient.private) == OK
    await plain.peer.close()
    await send(h, first, b"hello 2")

    sh = await ServiceHandle.open(world, credentials)
    associated = smp.SOK(sh.service_id)
    key = first.recipient.private
    assert await sh.ask_unsigned(smp.SUB(), first.rcv_id, key) == SERVICE
    sh.handle.send(b"9", smp.SUB(), first.rcv_id, key)
    sok, push = await sh.handle.block()
    assert (sok.message, push.entity_id) == (associated, first.rcv_id)
    assert first.body(push.message) == b"hello 2"
    for queue in queues[1:]:
        subscribe = (b"10", smp.SUB(), queue.rcv_id, queue.recipient.private)
        assert await sh.handle.ask(*subscribe) == associated
    assert await sh.handle.ask(b"10.1", ack(push.message), first.rcv_id, key) == OK
    await sh.handle.peer.close()
    await send(h, first, b"hello 3.1")
    await send(h, second, b"hello 3.2")

    sh = await ServiceHandle.open(world, credentials)
    received = await sh.subs(*queues)
    assert len(received) == 2
    for queue, body in ((first, b"hello 3.1"), (second, b"hello 3.2")):
        message = received[queue.rcv_id]
        assert queue.body(message) == body
        acknowledge = (ack(message), queue.rcv_id, queue.recipient.private)
        assert await sh.handle.ask(b"15", *acknowledge) == OK
    await sh.handle.peer.close()
    await send(h, first, b"hello 4")

    plain = await Handle.open(world, LATEST)
    assert await plain.ask(b"18", smp.SUBS(3, bytes(16)), sh.service_id, sh.key) == SERVICE
    plain.send(b"19", smp.SUB(), first.rcv_id, key)
    sok, push = await plain.block()
    assert (sok.message, first.body(push.message)) == (SOK, b"hello 4")
    assert await plain.ask(b"20", ack(push.message), first.rcv_id, key) == OK
    await send(h, first, b"hello 5")
    message = await plain.pushed(first.rcv_id)
    assert first.body(message) == b"hello 5"
    assert await plain.ask(b"22", ack(message), first.rcv_id, key) == OK
    assert await plain.ask(b"23", smp.SUB(), second.rcv_id, second.recipient.private) == SOK
    assert plain.is_quiet


async def test_total_of_subscriptions(world: World, credentials: ServiceCredentials) -> None:
    """Queues created by the service and those that it subscribed to later."""
    h, sh = await Handle.open(world, LATEST), await ServiceHandle.open(world, credentials)
    queues = [await sh.create() for _ in range(2)]
    await sh.handle.peer.close()
    sh = await ServiceHandle.open(world, credentials)
    assert await sh.subs(*queues) == {}
    assert subscribed_queues(world) == 2
    await sh.handle.peer.close()
    await until(lambda: not subscribed_queues(world))
    queues.append(await create(h, algorithm=Algorithm.ED25519))
    last = queues[-1]
    await secure(h, last)
    sh = await ServiceHandle.open(world, credentials)
    subscribe = (b"6", smp.SUB(), last.rcv_id, last.recipient.private)
    assert await sh.handle.ask(*subscribe) == smp.SOK(sh.service_id)
    assert await h.pushed(last.rcv_id) == smp.END()
    await sh.handle.peer.close()
    sh = await ServiceHandle.open(world, credentials)
    assert await sh.subs(*queues) == {}
    assert subscribed_queues(world) == 3
