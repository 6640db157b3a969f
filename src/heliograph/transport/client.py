"""A client of one router: requests and their answers, pushes, keep-alive.

Requests made in one turn of the event loop leave in as few blocks as hold them. Many may be in
flight; answers are matched by correlation ID. Whatever arrives unasked, or after its request was
given up, goes to the push handler: a late message is still a message.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import ip_address
from itertools import islice
from ssl import SSLContext
from typing import Any

from heliograph.crypto.authorization import authorize
from heliograph.crypto.certificates import Credentials
from heliograph.crypto.errors import CryptoError
from heliograph.crypto.keys import generate_key_pair, sign
from heliograph.transport import loop as net
from heliograph.transport.connection import BlockConnection
from heliograph.transport.errors import (
    AddressRefused,
    ClientError,
    ConnectFailed,
    Disconnected,
    HandshakeFailed,
    RequestRefused,
    RequestTimeout,
    SocksError,
    UnexpectedReply,
)
from heliograph.transport.handshake import (
    Established,
    Handshake,
    ServiceCredentials,
    TlsFacts,
    connect_ntf,
    connect_smp,
)
from heliograph.transport.pending import Group, Member, Pending, Single
from heliograph.transport.protocols import NTF, SMP, Protocol
from heliograph.transport.socks import SocksProxy, connect_through
from heliograph.transport.tls import client_context
from heliograph.wire import ntf, smp
from heliograph.wire.addresses import Host, HostKind, Scheme, ServerAddress
from heliograph.wire.errors import WireError
from heliograph.wire.keys import Algorithm
from heliograph.wire.requests import Failure, Reply, decode_replies
from heliograph.wire.table import PING
from heliograph.wire.transmissions import (
    MAX_BATCH,
    authorized_bytes,
    encode_transmission,
    max_transmission_size,
)
from heliograph.wire.versions import VersionRange

logger = logging.getLogger(__name__)

CORR_ID_SIZE = 24
SEND_AFTER = 100
"""So many commands fill a block, more or less."""

PushHandler = Callable[[bytes, Any], None]
"""Called with the entity ID and the message."""

DisconnectHandler = Callable[["Client", Exception | None], None]


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Times in seconds. `versions` narrows what is offered; `use_alpn` off is a legacy client.

    `allow` judges the addresses that a host's name stands for; a proxy resolves names by itself.
    """

    connect_timeout: float = 25.0
    handshake_timeout: float = 20.0
    request_timeout: float = 30.0
    ping_interval: float = 300.0
    ping_failures: int = 3
    max_in_flight: int = 16_384
    socks: SocksProxy | None = None
    allow: net.Allow | None = None
    versions: VersionRange | None = None
    use_alpn: bool = True
    encrypt_blocks: bool = True


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A command for an entity, authorized with `key` (PKCS#8 DER) if the command needs it."""

    command: Any
    entity_id: bytes = b""
    key: bytes | None = field(default=None, repr=False)


class Client:
    """An open connection to a router. Make one by `Client.connect`."""

    def __init__(
        self, connection: "_ClientConnection", address: ServerAddress, config: ClientConfig
    ) -> None:
        self.address = address
        self._connection = connection
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._pending: dict[bytes, Pending] = {}
        self._outgoing: dict[bytes, bytes] = {}
        self._flushing = False
        self._room = asyncio.Event()
        self._closed = asyncio.Event()
        self._missed_pings = 0
        self._ping_timer: asyncio.TimerHandle | None = None
        self._ping_task: asyncio.Task[None] | None = None
        self._disconnected = False

    @classmethod
    async def connect(
        cls,
        address: ServerAddress,
        config: ClientConfig | None = None,
        *,
        on_push: PushHandler | None = None,
        on_disconnect: DisconnectHandler | None = None,
        service: ServiceCredentials | None = None,
    ) -> "Client":
        """Connect to the first host of `address` that can be reached and proves its identity."""
        config = config or ClientConfig()
        failure: ClientError | None = None
        for host in _reachable(address, config.socks):
            try:
                async with asyncio.timeout(config.connect_timeout):
                    return await cls._connect(
                        address, host, config, on_push, on_disconnect, service
                    )
            except TimeoutError:
                failure = ConnectFailed(f"{host} did not answer in time")
            except (OSError, SocksError, WireError, UnicodeError) as exc:
                failure = ConnectFailed(f"{host}: {exc}")  # also a port or name that cannot be
            except AddressRefused as exc:
                failure = failure or exc  # what happened at another host says more
            except ClientError as exc:
                failure = exc
        raise failure or ConnectFailed(
            "the address has only onion hosts, and no SOCKS proxy is set"
        )

    @classmethod
    async def _connect(
        cls,
        address: ServerAddress,
        host: Host,
        config: ClientConfig,
        on_push: PushHandler | None,
        on_disconnect: DisconnectHandler | None,
        service: ServiceCredentials | None,
    ) -> "Client":
        protocol = NTF if address.scheme is Scheme.NTF else SMP
        context = _context(
            protocol.alpn if config.use_alpn else None, service and service.credentials
        )
        sock = await _open(host, address.effective_port, config)
        _, connection = await net.create_connection(
            lambda: _ClientConnection(protocol, address, config, service, on_push, on_disconnect),
            sock,
            ssl=context,
            handshake_timeout=config.handshake_timeout,
        )
        try:
            return await connection.opened
        except BaseException:
            connection.abandon()
            raise

    @property
    def established(self) -> Established:
        established = self._connection.established
        if established is None:
            raise Disconnected("not connected")
        return established

    @property
    def is_connected(self) -> bool:
        return not self._disconnected

    async def request(
        self,
        command: Any,
        entity_id: bytes = b"",
        key: bytes | None = None,
    ) -> Any:
        """The answer to one command. Raises `RequestRefused` for ERR, or another `ClientError`."""
        await self._make_room(1)
        if self._disconnected:
            raise Disconnected("the connection was closed")
        corr_id = os.urandom(CORR_ID_SIZE)
        transmission = self._encode(corr_id, ClientRequest(command, entity_id, key))
        future = self._loop.create_future()
        timer = self._loop.call_later(self._config.request_timeout, self._time_out, [corr_id])
        self._send(corr_id, transmission, Single(entity_id, future, timer))
        try:
            return await future
        except asyncio.CancelledError:
            timer.cancel()
            self._take(corr_id)
            raise

    async def request_many(self, requests: Iterable[ClientRequest]) -> list[Any]:
        """The answer to each command in order, or the `ClientError` in its place."""
        groups: list[Group] = []
        waiting = iter(requests)
        size = min(SEND_AFTER, self._config.max_in_flight)
        try:
            while True:
                await self._make_room(size)
                some = list(islice(waiting, size))
                if not some:
                    break
                groups.append(self._send_group(some))
                await asyncio.sleep(0)  # let the router work on these while the next are signed
            for group in groups:
                await group.future
        except BaseException:
            for group in groups:
                self._abandon(group)
            raise
        return [answer for group in groups for answer in group.answers]

    async def close(self) -> None:
        """Close, failing what is in flight, and wait until the connection is gone."""
        self._connection.close()
        try:
            async with asyncio.timeout(net.SHUTDOWN_TIMEOUT):
                await self._closed.wait()
        except TimeoutError:
            self._connection.abort()
            await self._closed.wait()

    async def _make_room(self, count: int) -> None:
        limit = self._config.max_in_flight - count
        while len(self._pending) > limit and not self._disconnected:
            self._room.clear()
            await self._room.wait()

    def _send_group(self, requests: list[ClientRequest]) -> Group:
        random = os.urandom(CORR_ID_SIZE * len(requests))
        corr_ids = [
            random[start : start + CORR_ID_SIZE] for start in range(0, len(random), CORR_ID_SIZE)
        ]
        group = Group.of(corr_ids, self._loop.create_future())
        group.timer = self._loop.call_later(self._config.request_timeout, self._time_out, corr_ids)
        for place, (corr_id, request) in enumerate(zip(corr_ids, requests, strict=True)):
            try:
                if self._disconnected:
                    raise Disconnected("the connection was closed")
                transmission = self._encode(corr_id, request)
            except ClientError as exc:
                group.settle(place, exc)
            else:
                self._send(corr_id, transmission, Member(request.entity_id, group, place))
        return group

    def _abandon(self, group: Group) -> None:
        if group.timer is not None:
            group.timer.cancel()
        for corr_id in group.corr_ids:
            self._take(corr_id)

    def _send(self, corr_id: bytes, transmission: bytes, pending: Pending) -> None:
        self._pending[corr_id] = pending
        self._outgoing[corr_id] = transmission
        if not self._flushing:
            self._schedule_flush()

    def _encode(self, corr_id: bytes, request: ClientRequest) -> bytes:
        established = self.established
        session, protocol = established.session, self._connection.protocol
        entity_id = request.entity_id
        auth, service_signature = b"", None
        try:
            command = protocol.commands.encode(request.command, session.version)
            if request.key is not None:
                authorized = authorized_bytes(session, corr_id, entity_id, command)
                service = established.service
                if service is not None and type(request.command) in protocol.service_commands:
                    service_signature = sign(service.key, authorized)
                    authorized = service.cert_hash + authorized
                auth = authorize(request.key, established.peer_key, corr_id, authorized)
            data = encode_transmission(
                session, corr_id, entity_id, command, auth, service_signature
            )
        except (WireError, CryptoError) as exc:
            raise ClientError(str(exc)) from exc
        if len(data) > max_transmission_size(session):
            raise ClientError("the command does not fit in a block")
        return data

    def _schedule_flush(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        while self._outgoing and self._connection.is_writable:
            corr_ids = tuple(islice(self._outgoing, MAX_BATCH))
            self._connection.send([self._outgoing.pop(corr_id) for corr_id in corr_ids])

    def _take(self, corr_id: bytes) -> Pending | None:
        pending = self._pending.pop(corr_id, None)
        if pending is not None:
            self._outgoing.pop(corr_id, None)
            self._room.set()
        return pending

    def _time_out(self, corr_ids: list[bytes]) -> None:
        for corr_id in corr_ids:
            pending = self._take(corr_id)
            if pending is not None:
                pending.settle(RequestTimeout("the router did not answer in time"))

    # From the connection.

    def _received(self, item: Reply | Failure, on_push: PushHandler | None) -> None:
        pending = self._take(item.corr_id) if item.corr_id else None
        if pending is not None:
            self._answer(pending, item)
        elif isinstance(item, Failure):
            logger.warning("the router sent what cannot be understood")
        elif on_push is not None:
            try:
                on_push(item.entity_id, item.message)
            except Exception:
                logger.exception("the handler of pushes failed")

    def _answer(self, pending: Pending, item: Reply | Failure) -> None:
        if isinstance(item, Failure):
            pending.settle(UnexpectedReply("the answer cannot be understood"))
        elif isinstance(item.message, ntf.ERR | smp.ERR):
            pending.settle(RequestRefused(item.message.error))
        elif item.entity_id and item.entity_id != pending.entity_id:
            pending.settle(UnexpectedReply("the answer is about another entity"))
        else:
            pending.settle(item.message)

    def _ping_after(self, wait: float) -> None:
        if not self._disconnected:
            self._ping_timer = self._loop.call_later(wait, self._ping_if_idle)

    def _ping_if_idle(self) -> None:
        idle = self._loop.time() - self._connection.received_at
        wait = self._config.ping_interval - idle
        if wait > 0:
            self._missed_pings = 0
            self._ping_after(wait)
        else:
            self._ping_task = self._loop.create_task(self._ping())

    async def _ping(self) -> None:
        try:
            await self.request(PING())
        except RequestTimeout:
            self._missed_pings += 1
            if self._missed_pings >= self._config.ping_failures:
                self._connection.abort(TimeoutError("the router does not answer"))
                return
        except ClientError:
            self._missed_pings = 0  # an answer all the same, unless there is no connection
        else:
            self._missed_pings = 0
        self._ping_after(self._config.ping_interval)

    def _lost(self, reason: Exception | None, on_disconnect: DisconnectHandler | None) -> None:
        self._disconnected = True
        if self._ping_timer is not None:
            self._ping_timer.cancel()
        self._outgoing.clear()
        for corr_id in tuple(self._pending):
            pending = self._take(corr_id)
            if pending is not None:
                pending.settle(Disconnected("the connection ended"))
        self._room.set()
        self._closed.set()
        if on_disconnect is not None:
            try:
                on_disconnect(self, reason)
            except Exception:
                logger.exception("the handler of disconnections failed")


class _ClientConnection(BlockConnection):
    """A connection to a router, at a client. `opened` is the client, or why there is none."""

    def __init__(
        self,
        protocol: Protocol,
        address: ServerAddress,
        config: ClientConfig,
        service: ServiceCredentials | None,
        on_push: PushHandler | None,
        on_disconnect: DisconnectHandler | None,
    ) -> None:
        super().__init__(protocol, config.handshake_timeout)
        self.opened: asyncio.Future[Client] = self._loop.create_future()
        self._address = address
        self._config = config
        self._service = service
        self._on_push = on_push
        self._on_disconnect = on_disconnect
        self._client: Client | None = None

    def _begin(self, facts: TlsFacts, alpn: str | None) -> Handshake:
        server = self._address.fingerprint
        versions = self._config.versions or self.protocol.versions
        now = time.time()
        if self.protocol is NTF:
            return connect_ntf(facts, server, versions, now)
        keys = generate_key_pair(Algorithm.X25519) if self._config.encrypt_blocks else None
        return connect_smp(facts, server, versions, now, keys=keys, service=self._service)

    def _ready(self, established: Established) -> None:
        if self.opened.done():
            self.abort()  # nobody waits for it any more
            return
        self._client = Client(self, self._address, self._config)
        self._client._ping_after(self._config.ping_interval)
        self.opened.set_result(self._client)

    def _content_received(self, content: bytes) -> None:
        session = self.established.session  # type: ignore[union-attr]
        for item in decode_replies(session, self.protocol.responses, content):
            self._client._received(item, self._on_push)  # type: ignore[union-attr]

    def _handshake_failed(self) -> None:
        self.abort()  # a peer that is not the router might never close

    def abandon(self) -> None:
        """End a connection whose client nobody has got."""
        self._on_push = self._on_disconnect = None
        self.abort()

    def _bad_block(self) -> None:
        self.abort(UnexpectedReply("a block that cannot be understood"))

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._client is not None:
            self._client._schedule_flush()

    def _lost(self, reason: Exception | None) -> None:
        if self._client is not None:
            self._client._lost(reason, self._on_disconnect)
        elif not self.opened.done():
            if not isinstance(reason, HandshakeFailed):
                reason = Disconnected("the router closed the connection during the handshake")
            self.opened.set_exception(reason)


def _reachable(address: ServerAddress, socks: SocksProxy | None) -> list[Host]:
    """Hosts in the order to try: with a proxy onion hosts first, without one they cannot be."""
    if socks is None:
        return [host for host in address.hosts if host.kind is not HostKind.ONION]
    return sorted(address.hosts, key=lambda host: host.kind is not HostKind.ONION)


async def _open(host: Host, port: int, config: ClientConfig) -> Any:
    socks, allow = config.socks, config.allow
    if socks is None or not socks.serves(host):
        return await net.connect_tcp(host.text, port, allow)
    is_address = host.kind in (HostKind.IPV4, HostKind.IPV6)
    if allow is not None and is_address and not allow(ip_address(host.text)):
        raise AddressRefused(f"{host} may not be connected to")
    return await connect_through(socks, host, port)


@lru_cache(maxsize=64)
def _context(alpn: str | None, credentials: Credentials | None) -> SSLContext:
    return client_context([alpn] if alpn else [], credentials)
