"""Adversaries of the threat model: one that listens, and a messaging router that lies."""

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from heliograph.agent.errors import BadNotification
from heliograph.agent.notifications.opening import connections_of, open_push
from heliograph.agent.records import NotificationInfo, NotifierCredentials, RcvQueue, RcvStatus
from heliograph.crypto.keys import dh
from heliograph.sim.pong import PongRouter
from heliograph.transport.protocols import SMP
from heliograph.transport.server import Answer, Listener, ServerConnection
from heliograph.wire import ntf, smp
from heliograph.wire.addresses import Scheme, ServerAddress, SMPQueueNtf, decode_host
from heliograph.wire.ntf.push import MessagePush, Push
from heliograph.wire.ntf.tokens import SubscriptionState
from heliograph.wire.requests import Request
from tests.ntf.support import NtfWorld, Phone
from tests.smp.support import Peer, Queue, identity

HOST = "127.0.0.1"


@dataclass
class Heard:
    """What one connection after another carried, in both directions, as TLS left it."""

    sent: bytearray = field(default_factory=bytearray)
    received: bytearray = field(default_factory=bytearray)
    connections: int = 0

    @property
    def all(self) -> bytes:
        return bytes(self.sent + self.received)

    @property
    def volume(self) -> tuple[int, int]:
        return len(self.sent), len(self.received)

    def since(self, before: tuple[int, int]) -> tuple[int, int]:
        return len(self.sent) - before[0], len(self.received) - before[1]


@asynccontextmanager
async def a_tap(address: ServerAddress) -> AsyncIterator[tuple[ServerAddress, Heard]]:
    """A place on the way to a router: its address there, and what passes."""
    heard = Heard()
    tasks: list[asyncio.Task[None]] = []
    writers: list[asyncio.StreamWriter] = []

    async def copy(
        source: asyncio.StreamReader, target: asyncio.StreamWriter, into: bytearray
    ) -> None:
        with contextlib.suppress(OSError, RuntimeError):  # as uvloop calls a closed transport
            while data := await source.read(65_536):
                into += data
                target.write(data)
                await target.drain()
            target.write_eof()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.connections += 1
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        there, here = await asyncio.open_connection(HOST, int(address.port))
        writers.extend((here, writer))
        await asyncio.gather(copy(reader, here, heard.sent), copy(there, writer, heard.received))
        for each in (here, writer):
            each.close()

    server = await asyncio.start_server(connected, HOST, 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield replace(address, port=str(port)), heard
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        await asyncio.gather(*tasks)


class LyingRouter(PongRouter):
    """Takes every subscription to notifications, and tells what it likes."""

    def __init__(self) -> None:
        self.seen: list[tuple[ServerConnection, Request[Any]]] = []

    def received(self, connection: ServerConnection, requests: list[Request[Any]]) -> None:
        answers = []
        for request in requests:
            self.seen.append((connection, request))
            known = isinstance(request.command, smp.NSUB)
            answer = smp.SOK() if known else smp.PONG()
            answers.append(Answer(request.corr_id, request.entity_id, answer))
        connection.answer(answers)

    @property
    def subscriptions(self) -> list[tuple[ServerConnection, Request[Any]]]:
        return [item for item in self.seen if isinstance(item[1].command, smp.NSUB)]

    def tell(self, notifier_id: bytes, nonce: bytes, meta: bytes) -> None:
        connection = self.subscriptions[-1][0]
        connection.push([Answer(b"", notifier_id, smp.NMSG(nonce, meta))])


@asynccontextmanager
async def a_lying_router() -> AsyncIterator[tuple[ServerAddress, LyingRouter]]:
    router = LyingRouter()
    listener = Listener(SMP, identity("lying"), router)
    port = await listener.start(HOST, 0)
    fingerprint = identity("lying").fingerprint
    try:
        yield ServerAddress(Scheme.SMP, (decode_host(HOST),), str(port), fingerprint), router
    finally:
        await listener.close()


def forms(secret: bytes) -> Iterator[bytes]:
    """The ways in which something may be written down."""
    yield secret
    yield secret.hex().encode()
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        yield encode(secret).rstrip(b"=")


def mentions(where: bytes, *secrets: bytes) -> bool:
    return any(form in where for secret in secrets for form in forms(secret))


def stored(directory: Path, name: str) -> bytes:
    """All bytes of a store, its log included."""
    return b"".join(file.read_bytes() for file in sorted(directory.glob(f"{name}.db*")))


def as_agent(phone: Phone, queues: Iterable[Queue], push: Push) -> list[NotificationInfo]:
    """What the client makes of a push; nothing if it does not open."""
    assert isinstance(push, MessagePush), push
    address = phone.world.smp.address
    known = {queue.notifier_id: _record(address, queue) for queue in queues}

    def find(source: SMPQueueNtf) -> RcvQueue | None:
        return known.get(source.notifier_id) if source.server == address else None

    try:
        return connections_of(open_push(phone.secret, push.nonce, push.box), find)
    except BadNotification:
        return []


def _record(address: ServerAddress, queue: Queue) -> RcvQueue:
    assert queue.notifier is not None
    secret = dh(queue.notifier.server_key, queue.notifier.dh.private)
    return RcvQueue(
        queue_id=1,
        conn_id="connection",
        address=address,
        rcv_id=queue.rcv_id,
        snd_id=queue.snd_id,
        status=RcvStatus.ACTIVE,
        recipient_key=queue.recipient.private,
        dh_secret=dh(queue.ids.dh_key, queue.dh.private),
        e2e_key=b"",
        notifier=NotifierCredentials(queue.notifier_id, queue.notifier.auth.private, secret),
    )


async def shown(peer: Peer, queue: Queue) -> list[bytes | None]:
    """The messages that a user gets to see from a queue, fetched as the extension does."""
    bodies = []
    while isinstance(message := await queue.get(peer), smp.MSG):
        bodies.append(queue.body(message))
        await queue.ack(peer, message)
    return bodies


async def subscribed_by_way_of(world: NtfWorld, address: ServerAddress) -> tuple[Phone, Queue]:
    """A user with a queue, whose messaging router is reached at another address, such as a tap."""
    phone, queue = await world.registered(), await world.queue()
    assert queue.notifier is not None
    source = SMPQueueNtf(address, queue.notifier_id)
    answer = await phone.ask(ntf.SNEW(phone.token_id, source, queue.notifier.auth.private))
    assert isinstance(answer, ntf.IDSUB), answer
    await phone.until_state(answer.subscription_id, SubscriptionState.ACTIVE)
    return phone, queue
