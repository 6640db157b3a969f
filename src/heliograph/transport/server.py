"""A listener of one protocol, and the connections it accepted.

It answers malformed input itself and hands commands to a `Router`, which answers each of them
once. A peer that does not read, or asks faster than it is answered, is not read from.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol as Interface, TypeVar

from heliograph.crypto.keys import generate_key_pair
from heliograph.opening import Closing
from heliograph.tasks import TaskScope
from heliograph.transport import accepting, loop as net
from heliograph.transport.connection import BlockConnection
from heliograph.transport.errors import HandshakeFailed
from heliograph.transport.handshake import (
    Established,
    Handshake,
    ServerIdentity,
    ServiceRequest,
    TlsFacts,
    serve_ntf,
    serve_smp,
)
from heliograph.transport.protocols import NTF, AnyProtocol, Protocol, Response
from heliograph.transport.tls import server_context
from heliograph.transport.window import RequestWindow
from heliograph.wire import ntf, smp
from heliograph.wire.errors import ErrorCode, ErrorType, TransportError, WireError
from heliograph.wire.keys import Algorithm
from heliograph.wire.requests import Failure, Request, decode_requests, encode_reply
from heliograph.wire.transmissions import max_transmission_size
from heliograph.wire.versions import VersionRange

logger = logging.getLogger(__name__)

C = TypeVar("C")
R = TypeVar("R")

THROTTLE_SECONDS = 1.0
"""Seconds for which what is throttled keeps its place among the unanswered commands."""
RELEASE_AFTER = 100
"""Closed connections and failed handshakes before memory is returned to the system."""


class Answer(NamedTuple):
    corr_id: bytes
    entity_id: bytes
    message: Response


class Router(Interface[C]):
    """What a router does with its connections. Nothing here may block.

    If one of these raises, that is logged and costs the connection it was about, and no other.
    """

    def connected(self, connection: "ServerConnection") -> None: ...

    def received(self, connection: "ServerConnection", requests: list[Request[C]]) -> None:
        """Answer each, now or later, by `ServerConnection.answer`."""

    def service_requested(self, connection: "ServerConnection", request: ServiceRequest) -> None:
        """Answer by `ServerConnection.answer_service`."""

    def disconnected(self, connection: "ServerConnection") -> None: ...

    def writable(self, connection: "ServerConnection") -> None:
        """Handle a client that reads again after it did not."""

    def may_disconnect(self, connection: "ServerConnection") -> bool:
        """Whether an inactive connection may be closed."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What connections may cost. Times in seconds; `inactive_after` None never disconnects."""

    max_connections: int = 100_000
    handshake_timeout: float = 30.0
    write_timeout: float = 60.0
    block_timeout: float = 60.0
    """For a block to arrive whole, once it has begun."""
    inactive_after: float | None = None
    check_interval: float = 10.0
    max_unanswered: int = 1024


class ServerConnection(BlockConnection):
    """A client's connection, at a router."""

    def __init__(self, listener: "Listener") -> None:
        super().__init__(listener.protocol, listener.limits.handshake_timeout)
        self.listener = listener
        self.state: Any = None
        """For the router to keep what it knows of this client, in a type of its own."""
        self.unanswered = 0
        """Commands that were received and have no answer yet."""
        # Of the protocol's commands, which are known at run time.
        self._window: RequestWindow[Any] = RequestWindow(listener.protocol.bulky_commands)
        self._dispatching = False

    def answer(self, answers: Sequence[Answer]) -> None:
        """Answer received commands, in one block if they fit."""
        self.send_all(answers, len(answers))

    def send_all(self, messages: Sequence[Answer], answered: int) -> None:
        """Send answers and pushes together; `answered` of them are answers."""
        self.unanswered -= answered
        if self.established is not None and not self.is_closing:
            try:
                self.push(messages)
            except WireError:
                limit = max_transmission_size(self.established.session)
                self.send([self._encode(message, limit) for message in messages])
        if self._window.waiting:
            self._dispatch()
        if self._paused and self._has_room():
            self.resume_reading()

    def throttle(self, count: int) -> None:
        """Let `count` commands count as unanswered for a second: a flood is read no faster."""
        if count:
            self.unanswered += count
            self._loop.call_later(THROTTLE_SECONDS, self.send_all, (), count)

    def push(self, messages: Sequence[Answer]) -> None:
        """Send messages that answer no command. Check `is_writable` first: this does not wait."""
        if self.established is not None:
            session, responses = self.established.session, self.protocol.responses
            self.send([encode_reply(session, responses, *message) for message in messages])

    def _encode(self, answer: Answer, limit: int) -> bytes:
        session = self.established.session  # type: ignore[union-attr]
        try:
            data = encode_reply(session, self.protocol.responses, *answer)
            if len(data) <= limit:
                return data
        except WireError:
            pass
        # The IDs that a client chose may leave no room for the answer either.
        logger.info("an answer does not fit: %s", type(answer.message).__name__)
        error = self.listener.error(ErrorCode.INTERNAL)
        return encode_reply(session, self.protocol.responses, answer.corr_id, b"", error)

    def _has_room(self) -> bool:
        return (
            self.established is not None
            and self.write_paused_at is None
            and not self._window.waiting
            and self.unanswered < self.listener.limits.max_unanswered
        )

    def _begin(self, facts: TlsFacts, alpn: str | None) -> Handshake:
        return self.listener.handshake(facts, alpn)

    def _ready(self, established: Established) -> None:
        self._call(self.listener.router.connected, self)

    def _service_requested(self, request: ServiceRequest) -> None:
        self._call(self.listener.router.service_requested, self, request)

    def _content_received(self, content: bytes) -> None:
        session = self.established.session  # type: ignore[union-attr]
        items = decode_requests(session, self.protocol.commands, content)
        requests = [item for item in items if isinstance(item, Request)]
        self.unanswered += len(items)
        if len(requests) != len(items):
            self._refuse([item for item in items if isinstance(item, Failure)])
        if requests and self._window.admits(requests):
            self._call(self.listener.router.received, self, requests)
        elif requests:
            self._window.add(requests)
            self._dispatch()
        if not self._has_room():
            self.pause_reading()

    def _dispatch(self) -> None:
        """Hand requests to the router, as far as their answers may be queued."""
        if self._dispatching:
            return  # an answer given at once: the loop below goes on
        self._dispatching = True
        while self._window.waiting and self.is_writable:
            requests = self._window.release(self.unanswered - len(self._window.waiting))
            if not requests:
                break
            self._call(self.listener.router.received, self, requests)
        self._dispatching = False

    def close_if_agreed(self) -> None:
        """Close, unless the router wants this client to stay."""
        self._call(self._close_if_agreed)

    def _close_if_agreed(self) -> None:
        if self.listener.router.may_disconnect(self):
            self.close()

    def _bad_block(self) -> None:
        self.unanswered += 1
        self._refuse([Failure(b"", b"", ErrorCode.BLOCK)])
        if not self._has_room():
            self.pause_reading()

    def _refuse(self, failures: list[Failure]) -> None:
        """Answer malformed input, and throttle it: no router limits it."""
        self.throttle(len(failures))
        self.answer([self._refusal(failure) for failure in failures])

    def _refusal(self, failure: Failure) -> Answer:
        return Answer(failure.corr_id, failure.entity_id, self.listener.error(failure.error))

    def pause_writing(self) -> None:
        super().pause_writing()
        self.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._dispatch()
        if self._has_room():
            self.resume_reading()
        if self.established is not None:
            self._call(self.listener.router.writable, self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not self.listener.admit(self):
            transport.abort()  # type: ignore[attr-defined]
            return
        super().connection_made(transport)

    def _lost(self, reason: Exception | None) -> None:
        self.listener.forget(self)
        self._window.clear()
        if self.established is not None:
            self._call(self.listener.router.disconnected, self)
        elif reason is not None:
            logger.debug("connection refused: %s", reason)

    def _call(self, callback: Callable[..., None], *arguments: object) -> None:
        try:
            callback(*arguments)
        except Exception as exc:
            logger.exception("the router failed on a connection")
            self.abort(exc)


class Listener(Closing):
    """One listening socket of one protocol."""

    def __init__(
        self,
        protocol: Protocol[C, R],
        identity: ServerIdentity,
        router: Router[C],
        *,
        limits: Limits | None = None,
        versions: VersionRange | None = None,
        request_client_certificate: bool = False,
        share_of: Callable[[int], int] = int,
    ) -> None:
        """`share_of` returns how many of `Limits.max_connections` this process may have."""
        self.protocol: AnyProtocol = protocol
        self.identity = identity
        self.router: Router[Any] = router  # of the protocol's commands, as __init__ demands
        self.limits = limits or Limits()
        self._share_of = share_of
        self.versions = versions or protocol.versions
        self.connections: set[ServerConnection] = set()
        self.refused_connections = 0
        self.accepted_connections = 0
        self._context = server_context(
            identity.credentials,
            [protocol.alpn],
            request_client_certificate=request_client_certificate,
        )
        self._error = ntf.ERR if protocol is NTF else smp.ERR
        self._empty = asyncio.Event()
        self._empty.set()
        self._closing = False
        self._forgotten = 0
        self._failed = 0
        self._server: accepting.Server | None = None
        self._tasks = TaskScope()

    async def start(self, host: str | None, port: int, *, reuse_port: bool = False) -> int:
        """Listen; the result is the port, which matters if it was given as 0.

        With `reuse_port`, other processes that do so share the port.
        """
        server = await accepting.create_server(
            lambda: ServerConnection(self),
            host,
            port,
            ssl=self._context,
            handshake_timeout=self.limits.handshake_timeout,
            reuse_port=reuse_port,
        )
        self._server = server
        self._tasks.spawn(self._sweep(), name="connection sweep")
        bound: int = server.sockets[0].getsockname()[1]
        return bound

    async def close(self, grace: float = 5.0) -> None:
        """Stop accepting, flush what was sent, and end every connection within `grace`."""
        self._closing = True
        await self._tasks.close()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
        for connection in tuple(self.connections):
            connection.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await self._empty.wait()
        for connection in tuple(self.connections):
            connection.abort()
        await self._empty.wait()

    def admit(self, connection: ServerConnection) -> bool:
        limit = self._share_of(self.limits.max_connections)
        if self._closing or len(self.connections) >= limit:
            self.refused_connections += 1
            return False
        self.connections.add(connection)
        self.accepted_connections += 1
        self._empty.clear()
        return True

    def forget(self, connection: ServerConnection) -> None:
        self.connections.discard(connection)
        self._forgotten += 1
        if not self.connections:
            self._empty.set()

    def error(self, error: ErrorType) -> ntf.ERR | smp.ERR:
        return self._error(error)

    def handshake(self, facts: TlsFacts, alpn: str | None) -> Handshake:
        offered = self.protocol.offered(alpn)
        versions = VersionRange(
            max(offered.min, self.versions.min), min(offered.max, self.versions.max)
        )
        if versions.min > versions.max:
            raise HandshakeFailed(TransportError.VERSION, "the client has no ALPN")
        keys = generate_key_pair(Algorithm.X25519)
        if self.protocol is NTF:
            return serve_ntf(facts, self.identity, versions, keys)
        return serve_smp(facts, self.identity, versions, keys, time.time())

    async def _sweep(self) -> None:
        """End connections that do not read, and inactive ones where the router agrees."""
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(self.limits.check_interval)
            now = clock()
            for connection in tuple(self.connections):
                paused, begun = connection.write_paused_at, connection.unfinished_since
                if paused is not None and now - paused > self.limits.write_timeout:
                    connection.abort(TimeoutError("the peer does not read"))
                elif begun is not None and now - begun > self.limits.block_timeout:
                    connection.abort(TimeoutError("the peer does not finish its block"))
                elif self._is_inactive(connection, now):
                    connection.close_if_agreed()
            self._release_memory()

    def _release_memory(self) -> None:
        failed = self._server.failed_handshakes if self._server is not None else 0
        if self._forgotten + failed - self._failed >= RELEASE_AFTER:
            self._forgotten, self._failed = 0, failed
            net.release_memory()

    def _is_inactive(self, connection: ServerConnection, now: float) -> bool:
        limit = self.limits.inactive_after
        return (
            limit is not None
            and connection.established is not None
            and now - connection.received_at > limit
        )
