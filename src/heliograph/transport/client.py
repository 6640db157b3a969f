"""A client of one router: requests and their answers, pushes, keep-alive.

Requests made in one turn of the event loop leave in as few blocks as hold them. Many may be in
flight; answers are matched by correlation ID. What arrives unasked, or after its request timed out,
goes to the push handler: a late message is still a message.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TypeVar

from heliograph.opening import Closing, opening
from heliograph.transport import loop as net
from heliograph.transport.connection import BlockConnection
from heliograph.transport.dial import (
    ClientConfig,
    begin_handshake,
    dial,
    open_connection,
    tls_context,
)
from heliograph.transport.errors import (
    ClientError,
    Disconnected,
    HandshakeFailed,
    RequestTimeout,
    UnexpectedReply,
)
from heliograph.transport.handshake import (
    Established,
    Handshake,
    ServiceCredentials,
    TlsFacts,
)
from heliograph.transport.keepalive import KeepAlive
from heliograph.transport.protocols import NTF, SMP, AnyProtocol, Response
from heliograph.transport.requests import (
    AnyPending,
    ClientRequest,
    Group,
    GroupMember,
    Pending,
    Single,
    encode_request,
    response_of,
)
from heliograph.wire.addresses import Host, Scheme, ServerAddress, decode_address
from heliograph.wire.requests import Failure, Reply, decode_replies
from heliograph.wire.table import PING, Command
from heliograph.wire.transmissions import (
    MAX_BATCH,
)

__all__ = [
    "Client",
    "ClientConfig",
    "ClientRequest",
    "DisconnectHandler",
    "PushHandler",
]

logger = logging.getLogger(__name__)

R = TypeVar("R")

CORR_ID_SIZE = 24
MAX_UNDECODABLE = 1_000
"""Messages that cannot be decoded after which a connection is cut."""
SEND_AFTER = 100
"""Commands in one group: about as many as fill a block."""

PushHandler = Callable[[bytes, Response], None]
"""Called with the entity ID and the message."""

DisconnectHandler = Callable[["Client", Exception | None], None]


class Client(Closing):
    """An open connection to a router. Make one by `Client.connect`."""

    def __init__(
        self, connection: "_ClientConnection", address: ServerAddress, config: ClientConfig
    ) -> None:
        self.address = address
        self._connection = connection
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._pending: dict[bytes, AnyPending] = {}
        self._outgoing: dict[bytes, bytes] = {}
        self._flushing = False
        self._room = asyncio.Event()
        self._closed = asyncio.Event()
        self._disconnected = False
        self._undecodable = 0
        self._keep_alive = KeepAlive(
            connection,
            lambda: self.request(PING()),
            config.ping_interval,
            config.ping_failures,
        )
        self._keep_alive.start()

    @classmethod
    @opening
    async def connect(
        cls,
        address: ServerAddress | str,
        config: ClientConfig | None = None,
        *,
        on_push: PushHandler | None = None,
        on_disconnect: DisconnectHandler | None = None,
        service: ServiceCredentials | None = None,
    ) -> "Client":
        """Connect to the first host of `address` that can be reached and proves its identity.

        Await the result for a client that you close yourself, or use it as a context manager::

            async with Client.connect("ntf://...") as client:
                await client.request(ntf.PING())

        Raises `ClientError`, or `WireError` for a text that is no address.
        """
        router = decode_address(address) if isinstance(address, str) else address
        chosen = config or ClientConfig()

        async def connect(host: Host) -> Client:
            protocol = NTF if router.scheme is Scheme.NTF else SMP
            connection = await open_connection(
                lambda: _ClientConnection(
                    protocol, router, chosen, service, on_push, on_disconnect
                ),
                host,
                router.effective_port,
                chosen,
                tls_context(
                    protocol.alpn if chosen.use_alpn else None, service and service.credentials
                ),
            )
            try:
                return await connection.opened
            except BaseException:
                connection.abandon()
                raise

        return await dial(router, chosen, connect)

    @property
    def established(self) -> Established:
        established = self._connection.established
        if established is None:
            raise Disconnected("not connected")
        return established

    @property
    def is_connected(self) -> bool:
        return not self._disconnected

    @property
    def is_writable(self) -> bool:
        """Whether the router reads; if not, requests wait in this process until it does."""
        return self._connection.is_writable

    @property
    def in_flight(self) -> int:
        """Return how many requests have no answer yet."""
        return len(self._pending)

    async def request(
        self,
        command: Command[R],
        entity_id: bytes = b"",
        key: bytes | None = None,
        *,
        corr_id: bytes | None = None,
    ) -> R:
        """Send one command and return its response.

        Raises `RequestRefused` for ERR, or another `ClientError`. Without a `corr_id`, which must
        be unique, the command gets a random one.
        """
        await self._make_room(1)
        if self._disconnected:
            raise Disconnected("the connection was closed")
        corr_id = corr_id or os.urandom(CORR_ID_SIZE)
        transmission = self._encode(corr_id, ClientRequest(command, entity_id, key))
        future: asyncio.Future[R] = self._loop.create_future()
        timer = self._loop.call_later(self._config.request_timeout, self._time_out, [corr_id])
        self._send(corr_id, transmission, Single(entity_id, command.responses, future, timer))
        try:
            return await future
        except asyncio.CancelledError:
            timer.cancel()
            self._take(corr_id)
            raise

    async def request_many(self, requests: Iterable[ClientRequest[R]]) -> list[R | ClientError]:
        """Send many commands and return the response, or the `ClientError`, of each in order."""
        groups: list[Group[R]] = []
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

    def pause_reading(self) -> None:
        """Stop taking blocks: what the router sends waits in the buffers between."""
        self._connection.pause_reading()

    def resume_reading(self) -> None:
        """Take blocks again, beginning with what arrived meanwhile."""
        self._connection.resume_reading()

    async def drain(self, seconds: float) -> None:
        """Read what has arrived, also if reading was paused, for at most `seconds`."""
        self.resume_reading()
        deadline = self._loop.time() + seconds
        while self._connection.unread and self._loop.time() < deadline:  # noqa: ASYNC110  no event
            await asyncio.sleep(0.001)
        await asyncio.sleep(0)  # for the callback that resumes

    def abort(self) -> None:
        """Reset the connection, without the TLS close that would acknowledge what was sent."""
        self._connection.abort()

    async def wait_closed(self) -> None:
        """Wait until the connection has ended, at whichever end."""
        await self._closed.wait()

    async def close(self) -> None:
        """Close the connection, fail the requests in flight, and wait until it has ended."""
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

    def _send_group(self, requests: list[ClientRequest[R]]) -> Group[R]:
        random = os.urandom(CORR_ID_SIZE * len(requests))
        corr_ids = [
            random[start : start + CORR_ID_SIZE] for start in range(0, len(random), CORR_ID_SIZE)
        ]
        group: Group[R] = Group.of(corr_ids, self._loop.create_future())
        group.timer = self._loop.call_later(self._config.request_timeout, self._time_out, corr_ids)
        for place, (corr_id, request) in enumerate(zip(corr_ids, requests, strict=True)):
            try:
                if self._disconnected:
                    raise Disconnected("the connection was closed")
                transmission = self._encode(corr_id, request)
            except ClientError as exc:
                group.settle(place, exc)
            else:
                self._send(
                    corr_id,
                    transmission,
                    GroupMember(request.entity_id, request.command.responses, group, place),
                )
        return group

    def _abandon(self, group: Group[R]) -> None:
        if group.timer is not None:
            group.timer.cancel()
        for corr_id in group.corr_ids:
            self._take(corr_id)

    def _send(self, corr_id: bytes, transmission: bytes, pending: Pending[R]) -> None:
        self._pending[corr_id] = pending
        self._outgoing[corr_id] = transmission
        if not self._flushing:
            self._schedule_flush()

    def _encode(self, corr_id: bytes, request: ClientRequest[R]) -> bytes:
        return encode_request(self.established, self._connection.protocol, corr_id, request)

    def _schedule_flush(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        while self._outgoing and self._connection.is_writable:
            corr_ids = tuple(islice(self._outgoing, MAX_BATCH))
            self._connection.send([self._outgoing.pop(corr_id) for corr_id in corr_ids])

    def _take(self, corr_id: bytes) -> AnyPending | None:
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

    def _received(self, item: Reply[Response] | Failure, on_push: PushHandler | None) -> None:
        pending = self._take(item.corr_id) if item.corr_id else None
        if pending is not None:
            pending.settle(response_of(pending, item))
        elif isinstance(item, Failure):
            self._undecodable += 1
            if self._undecodable == 1:  # a hostile router could fill any log
                logger.warning("the router sent what cannot be understood")
            elif self._undecodable > MAX_UNDECODABLE:
                self._connection.abort(UnexpectedReply("too much that cannot be understood"))
        elif on_push is not None:
            try:
                on_push(item.entity_id, item.message)
            except Exception:
                logger.exception("the handler of pushes failed")

    def _lost(self, reason: Exception | None, on_disconnect: DisconnectHandler | None) -> None:
        self._disconnected = True
        self._keep_alive.stop()
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
        protocol: AnyProtocol,
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
        server, now = self._address.fingerprint, time.time()
        return begin_handshake(self.protocol, facts, server, now, self._config, self._service)

    def _ready(self, established: Established) -> None:
        if self.opened.done():
            self.abort()  # nobody waits for it any more
            return
        self._client = Client(self, self._address, self._config)
        self.opened.set_result(self._client)

    def _content_received(self, content: bytes) -> None:
        session = self.established.session  # type: ignore[union-attr]
        for item in decode_replies(session, self.protocol.responses, content):
            self._client._received(item, self._on_push)  # type: ignore[union-attr]

    def _handshake_failed(self) -> None:
        self.abort()  # a peer that is not the router might never close

    def abandon(self) -> None:
        """Abort a connection whose client was not returned to a caller."""
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
