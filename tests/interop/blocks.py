"""A client that sees blocks, as the reference's tests of its server do."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from heliograph.crypto.keys import KeyPair, dh, generate_key_pair
from heliograph.transport.protocols import SMP
from heliograph.transport.requests import ClientRequest, encode_request
from heliograph.wire import smp
from heliograph.wire.keys import Algorithm
from heliograph.wire.requests import Failure, Reply, decode_replies
from heliograph.wire.smp.fields import MsgFlags, QueueMode, QueueReqData, SubscriptionMode
from heliograph.wire.transmissions import encode_transmission
from tests.smp.support import Peer, Queue, World

SOON = 30.0

Answer = Reply[Any] | Failure


@dataclass
class Handle:
    """One connection, whose blocks are read one by one."""

    peer: Peer
    blocks: asyncio.Queue[list[Answer]]

    @classmethod
    async def open(cls, world: World, version: int = 18) -> "Handle":
        return cls.of(await world.connect(version))

    @classmethod
    def of(cls, peer: Peer) -> "Handle":
        handle = cls(peer, asyncio.Queue())
        connection = peer.client._connection  # a client itself hides how answers share blocks
        session = peer.client.established.session

        def received(content: bytes) -> None:
            handle.blocks.put_nowait(decode_replies(session, SMP.responses, content))

        connection._content_received = received  # type: ignore[method-assign]
        return handle

    def send(
        self, corr_id: bytes, command: Any, entity_id: bytes = b"", key: bytes | None = None
    ) -> None:
        self.send_many([(corr_id, command, entity_id, key)])

    def send_many(self, commands: Iterable[tuple[bytes, Any, bytes, bytes | None]]) -> None:
        """Send commands in one block, if they fit."""
        established = self.peer.client.established
        self.peer.client._connection.send(
            [
                encode_request(established, SMP, corr_id, ClientRequest(command, entity_id, key))
                for corr_id, command, entity_id, key in commands
            ]
        )

    def send_raw(self, corr_id: bytes, command: bytes, entity_id: bytes, auth: bytes) -> None:
        """Send whatever bytes as a command."""
        session = self.peer.client.established.session
        transmission = encode_transmission(session, corr_id, entity_id, command, auth)
        self.peer.client._connection.send([transmission])

    async def block(self) -> list[Any]:
        """Return what the next block holds."""
        async with asyncio.timeout(SOON):
            return await self.blocks.get()

    async def one(self) -> Any:
        """Return the only transmission of the next block."""
        [item] = await self.block()
        return item

    async def ask(
        self, corr_id: bytes, command: Any, entity_id: bytes = b"", key: bytes | None = None
    ) -> Any:
        """Return the message of the next block, which must be the answer alone."""
        self.send(corr_id, command, entity_id, key)
        answer = await self.one()
        assert (answer.corr_id, answer.entity_id) == (corr_id, entity_id), answer
        return answer.message

    async def pushed(self, entity_id: bytes) -> Any:
        """Return the message of the next block, which must be a push alone."""
        answer = await self.one()
        assert (answer.corr_id, answer.entity_id) == (b"", entity_id), answer
        return answer.message

    @property
    def is_quiet(self) -> bool:
        return self.blocks.empty()


def a_key(algorithm: Algorithm = Algorithm.ED448) -> KeyPair:
    return generate_key_pair(algorithm)


def new(
    recipient: KeyPair, secret: KeyPair, mode: QueueMode = QueueMode.MESSAGING, link: Any = None
) -> smp.NEW:
    data = QueueReqData(mode, link)
    return smp.NEW(recipient.public, secret.public, None, SubscriptionMode.SUBSCRIBE, data)


async def create(
    handle: Handle,
    mode: QueueMode = QueueMode.MESSAGING,
    algorithm: Algorithm = Algorithm.ED448,
    corr_id: bytes = b"abcd",
) -> Queue:
    recipient, secret = a_key(algorithm), a_key(Algorithm.X25519)
    ids = await handle.ask(corr_id, new(recipient, secret, mode), b"", recipient.private)
    assert isinstance(ids, smp.IDS), ids
    assert dh(ids.dh_key, secret.private)
    return Queue(recipient, secret, ids)


async def create_secured(handle: Handle, algorithm: Algorithm = Algorithm.ED25519) -> Queue:
    queue = await create(handle)
    queue.sender = a_key(algorithm)
    key = smp.KEY(queue.sender.public)
    assert await handle.ask(b"dabc", key, queue.rcv_id, queue.recipient.private) == smp.OK()
    return queue


def sending(body: bytes, *, notify: bool = False) -> smp.SEND:
    return smp.SEND(MsgFlags(notify), body)
