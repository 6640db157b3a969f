"""Helpers of the router's tests: a router on real sockets, its peers, and their queues."""

import asyncio
import functools
import os
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from heliograph.crypto.authorization import authorize
from heliograph.crypto.boxes import open_box_padded
from heliograph.crypto.certificates import create_authority, issue_leaf
from heliograph.crypto.errors import CryptoError
from heliograph.crypto.keys import KeyPair, dh, generate_key_pair, sign
from heliograph.smp.router import SmpRouter
from heliograph.smp.settings import SmpSettings
from heliograph.transport.client import Client, ClientConfig, ClientRequest
from heliograph.transport.errors import Disconnected, RequestRefused
from heliograph.transport.handshake import ServerIdentity, ServiceCredentials
from heliograph.transport.protocols import SMP
from heliograph.transport.server import Limits, Listener
from heliograph.wire import smp
from heliograph.wire.addresses import Scheme, ServerAddress, decode_host
from heliograph.wire.errors import ErrorCode, ErrorType
from heliograph.wire.handshakes import ServiceRole
from heliograph.wire.keys import Algorithm
from heliograph.wire.ntf.push import NMsgMeta, decode_nmsg_meta
from heliograph.wire.smp.fields import (
    MsgFlags,
    NewNtfCreds,
    QueueMode,
    QueueReqData,
    SubscriptionMode,
)
from heliograph.wire.smp.messages import RcvMessage, RcvQuota, decode_rcv_message
from heliograph.wire.transmissions import authorized_bytes, encode_transmission
from heliograph.wire.versions import VersionRange
from tests.db.postgres import shared_postgres
from tests.journal.recorder import Notes
from tests.ports import steady_port
from tests.waiting import until

NOW = time.time()
VERSION = 19
QUIET = 0.06  # longer than the router waits before it delivers or confirms
STORES = ("sqlite", "postgresql")
OK = smp.OK()
AT_ONCE = SmpSettings(ntf_delivery_interval=0)
AUTH = smp.ERR(ErrorCode.AUTH)
NO_MSG = smp.ERR(ErrorCode.NO_MSG)
PROHIBITED = smp.ERR(ErrorCode.CMD_PROHIBITED)
QUOTA = smp.ERR(ErrorCode.QUOTA)


def new_store(kind: str, directory: Path) -> str:
    """The URL of an empty store."""
    if kind == "postgresql":
        return shared_postgres().new_url()
    return f"sqlite:///{directory}/smp.db"


@functools.cache
def identity(name: str = "SMP server CA") -> ServerIdentity:
    return ServerIdentity.of(issue_leaf(create_authority(name, NOW), "127.0.0.1", NOW), NOW)


def service(name: str = "NTF server CA", role: ServiceRole = ServiceRole.NOTIFIER) -> Any:
    return ServiceCredentials(role, identity(name).credentials)


def keys(version: int = VERSION) -> KeyPair:
    """Of the kind that commands are authorized with."""
    return generate_key_pair(Algorithm.X25519 if version >= 7 else Algorithm.ED25519)


class World:
    """A router that listens, over a store that outlives it."""

    def __init__(self, url: str, settings: SmpSettings = AT_ONCE) -> None:
        self.url = url
        self.settings = settings
        self.limits = Limits()
        self.journal = Notes("smp")
        self.peers: list[Peer] = []
        self.versions: VersionRange | None = None
        self.asks_for_certificates = True
        self.router: SmpRouter
        self.listener: Listener
        self.address: ServerAddress

    async def start(self) -> None:
        self.router = await SmpRouter.start(self.url, self.settings, self.journal)
        await self.listen()

    def new_listener(self) -> Listener:
        return Listener(
            SMP,
            identity(),
            self.router,
            limits=self.limits,
            versions=self.versions,
            request_client_certificate=self.asks_for_certificates,
        )

    async def listen(self, port: int = 0) -> None:
        self.listener = self.new_listener()
        port = await self.listener.start("127.0.0.1", port or steady_port())
        host = decode_host("127.0.0.1")
        self.address = ServerAddress(Scheme.SMP, (host,), str(port), identity().fingerprint)

    async def stop(self) -> None:
        for peer in self.peers:
            await peer.close()
        self.peers.clear()
        await self.listener.close()
        await self.router.close()
        self.journal.check()

    async def restart(self) -> None:
        """With nobody connected."""
        await self.stop()
        await self.start()

    async def connect(
        self,
        version: int = VERSION,
        *,
        service: ServiceCredentials | None = None,
        use_alpn: bool = True,
    ) -> "Peer":
        config = ClientConfig(versions=VersionRange(6, version), use_alpn=use_alpn)
        peer = Peer()
        peer.client = await Client.connect(
            self.address, config, on_push=peer.received, service=service
        )
        assert peer.version == version
        self.peers.append(peer)
        return peer

    async def arrived(self) -> None:
        """Until the router knows that what it sent has arrived, and would not repeat it."""

        def confirmed() -> bool:
            self.router.delivery.remove_confirmed(at_once=True)
            return not self.router.delivery.unconfirmed_clients

        await until(confirmed)
        await self.router.store.drained()

    async def notifications(self) -> int:
        """How many are in the store."""
        return (await self.router.store.counts())[3]


@asynccontextmanager
async def a_world(url: str, settings: SmpSettings = AT_ONCE) -> AsyncIterator[World]:
    world = World(url, settings)
    await world.start()
    try:
        yield world
    finally:
        await world.stop()


class Peer:
    """A client that keeps what it was sent."""

    client: Client

    def __init__(self) -> None:
        self.pushes: deque[tuple[bytes, Any]] = deque()

    def received(self, entity_id: bytes, message: Any) -> None:
        self.pushes.append((entity_id, message))

    @property
    def version(self) -> int:
        return self.client.established.session.version

    @property
    def service_id(self) -> bytes:
        service = self.client.established.service
        assert service is not None
        return service.service_id

    async def ask(
        self,
        command: Any,
        entity_id: bytes = b"",
        key: bytes | None = None,
        corr_id: bytes | None = None,
    ) -> Any:
        """The answer, also if it is ERR."""
        try:
            return await self.client.request(command, entity_id, key, corr_id=corr_id)
        except RequestRefused as exc:
            return smp.ERR(exc.error)

    async def ask_many(self, requests: list[ClientRequest[Any]]) -> list[Any]:
        """The answers to commands that are sent together."""
        answers = await self.client.request_many(requests)
        for answer in answers:
            if isinstance(answer, Disconnected):
                raise answer
        return [
            smp.ERR(item.error) if isinstance(item, RequestRefused) else item for item in answers
        ]

    async def ask_as(
        self, command: Any, entity_id: bytes, key: bytes, *, service_key: bytes | None
    ) -> Any:
        """The answer to a command with this service signature, or none, whatever is right."""
        established = self.client.established
        session, service = established.session, established.service
        corr_id = os.urandom(24)
        data = SMP.commands.encode(command, session.version)
        authorized = signed = authorized_bytes(session, corr_id, entity_id, data)
        signature = None if service_key is None else sign(service_key, authorized)
        if service is not None and signature is not None:
            signed = service.cert_hash + authorized
        auth = authorize(key, established.peer_key, corr_id, signed)
        transmission = encode_transmission(session, corr_id, entity_id, data, auth, signature)
        self.client._connection.send([transmission])  # the client itself would sign it
        return await self.push(entity_id)  # the client did not ask, so it takes it for a push

    async def push(self, entity_id: bytes | None = None) -> Any:
        """The next push, which must be about this entity."""
        await until(lambda: self.pushes)
        of, message = self.pushes.popleft()
        assert entity_id in (None, of), message
        return message

    async def is_quiet(self, seconds: float = QUIET) -> bool:
        await asyncio.sleep(seconds)
        return not self.pushes

    async def nsubs(self, count: int = 0, ids_hash: bytes = bytes(16)) -> Any:
        """Subscribe to everything of this client's service."""
        service = self.client.established.service
        assert service is not None
        command = smp.NSUBS(count, ids_hash)
        try:
            return await self.client.request(command, service.service_id, service.key)
        except RequestRefused as exc:
            return smp.ERR(exc.error)

    async def close(self) -> None:
        await self.client.close()

    def vanish(self) -> None:
        """End the connection without a word."""
        self.client.abort()


@dataclass
class NotifierKeys:
    """The recipient's side of notifier credentials."""

    auth: KeyPair
    dh: KeyPair = field(default_factory=lambda: generate_key_pair(Algorithm.X25519))
    notifier_id: bytes = b""
    server_key: bytes = b""

    def decrypt(self, message: Any) -> NMsgMeta:
        assert isinstance(message, smp.NMSG), message
        secret = dh(self.server_key, self.dh.private)
        return decode_nmsg_meta(open_box_padded(secret, message.nonce, message.meta))


@dataclass
class Queue:
    """A queue as its recipient and its sender know it."""

    recipient: KeyPair
    dh: KeyPair
    ids: smp.IDS
    sender: KeyPair | None = None
    notifier: NotifierKeys | None = None

    @property
    def rcv_id(self) -> bytes:
        return self.ids.rcv_id

    @property
    def snd_id(self) -> bytes:
        return self.ids.snd_id

    @property
    def notifier_id(self) -> bytes:
        assert self.notifier is not None
        return self.notifier.notifier_id

    @property
    def sender_key(self) -> bytes | None:
        return self.sender and self.sender.private

    def decrypt(self, message: Any) -> RcvMessage | RcvQuota:
        assert isinstance(message, smp.MSG), message
        secret = dh(self.ids.dh_key, self.dh.private)
        return decode_rcv_message(open_box_padded(secret, message.msg_id, message.body))

    def body(self, message: Any) -> bytes | None:
        """What was sent, or None for the mark of a full queue."""
        content = self.decrypt(message)
        return content.body if isinstance(content, RcvMessage) else None

    def body_or_none(self, message: Any) -> bytes | None:
        """What was sent, or None if the message is of another queue."""
        try:
            return self.body(message)
        except CryptoError:
            return None

    # Commands, from any sender.

    async def by_recipient(self, peer: Peer, command: Any) -> Any:
        return await peer.ask(command, self.rcv_id, self.recipient.private)

    async def sub(self, peer: Peer) -> Any:
        return await self.by_recipient(peer, smp.SUB())

    async def get(self, peer: Peer) -> Any:
        return await self.by_recipient(peer, smp.GET())

    async def ack(self, peer: Peer, message: Any) -> Any:
        msg_id = message.msg_id if isinstance(message, smp.MSG) else message
        return await self.by_recipient(peer, smp.ACK(msg_id))

    async def delete(self, peer: Peer) -> Any:
        return await self.by_recipient(peer, smp.DEL())

    async def send(self, peer: Peer, body: bytes, *, notify: bool = True) -> Any:
        return await peer.ask(smp.SEND(MsgFlags(notify), body), self.snd_id, self.sender_key)

    def sending(self, body: bytes, *, notify: bool = True) -> ClientRequest[Any]:
        return ClientRequest(smp.SEND(MsgFlags(notify), body), self.snd_id, self.sender_key)

    async def secure(self, peer: Peer) -> Any:
        """By the recipient."""
        self.sender = keys(peer.version)
        return await self.by_recipient(peer, smp.KEY(self.sender.public))

    async def secure_by_sender(self, peer: Peer) -> Any:
        self.sender = keys(peer.version)
        return await peer.ask(smp.SKEY(self.sender.public), self.snd_id, self.sender.private)

    async def nkey(self, peer: Peer) -> NotifierKeys:
        notifier = NotifierKeys(keys(peer.version))
        answer = await self.by_recipient(peer, smp.NKEY(notifier.auth.public, notifier.dh.public))
        assert isinstance(answer, smp.NID), answer
        notifier.notifier_id, notifier.server_key = answer.notifier_id, answer.dh_key
        self.notifier = notifier
        return notifier

    async def ndel(self, peer: Peer) -> Any:
        return await self.by_recipient(peer, smp.NDEL())

    async def nsub(self, peer: Peer) -> Any:
        assert self.notifier is not None
        return await peer.ask(smp.NSUB(), self.notifier_id, self.notifier.auth.private)

    def nsubscribing(self) -> ClientRequest[Any]:
        assert self.notifier is not None
        return ClientRequest(smp.NSUB(), self.notifier_id, self.notifier.auth.private)

    async def size(self, peer: Peer) -> int:
        answer = await self.by_recipient(peer, smp.QUE())
        assert isinstance(answer, smp.INFO), answer
        return answer.info.size

    async def receive_all(self, peer: Peer) -> list[bytes | None]:
        """Subscribe, and receive and acknowledge everything."""
        answer = await self.sub(peer)
        assert answer == smp.SOK() or answer == OK, answer
        bodies: list[bytes | None] = []
        message: Any = OK
        if await self.size(peer):
            message = await peer.push(self.rcv_id)
        while isinstance(message, smp.MSG):
            bodies.append(self.body(message))
            message = await self.ack(peer, message)
        assert message == OK
        return bodies


async def create(
    peer: Peer,
    *,
    mode: QueueMode | None = QueueMode.MESSAGING,
    subscribe: bool = True,
    password: bytes | None = None,
    with_notifier: bool = False,
) -> Queue:
    recipient, secret = keys(peer.version), generate_key_pair(Algorithm.X25519)
    notifier = NotifierKeys(keys(peer.version)) if with_notifier else None
    command = smp.NEW(
        recipient.public,
        secret.public,
        password,
        SubscriptionMode.SUBSCRIBE if subscribe else SubscriptionMode.CREATE_ONLY,
        mode and QueueReqData(mode),
        None if notifier is None else NewNtfCreds(notifier.auth.public, notifier.dh.public),
    )
    ids = await peer.ask(command, b"", recipient.private)
    assert isinstance(ids, smp.IDS), ids
    if notifier is not None:
        assert ids.ntf_creds is not None
        notifier.notifier_id, notifier.server_key = ids.ntf_creds.notifier_id, ids.ntf_creds.dh_key
    return Queue(recipient, secret, ids, notifier=notifier)


async def create_notified(peer: Peer, *, subscribe: bool = False) -> Queue:
    """A queue with notifier credentials, that nobody but the test receives from."""
    queue = await create(peer, subscribe=subscribe)
    await queue.nkey(peer)
    return queue


def error(code: ErrorType) -> smp.ERR:
    return smp.ERR(code)


def with_settings(**changes: Any) -> SmpSettings:
    return replace(AT_ONCE, **changes)
