"""Helpers of the transport tests: a router, a listener that runs, and peers that are not our code.

`RawPeer` and `raw_server` speak by plain ssl sockets and streams, so that they can misbehave.
"""

import asyncio
import contextlib
import functools
import gc
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

from heliograph.crypto.authorization import verify_authorization
from heliograph.crypto.certificates import SigningAlgorithm
from heliograph.crypto.chains import BlockCipher
from heliograph.crypto.keys import dh, generate_key_pair, verify
from heliograph.transport import loop, tls
from heliograph.transport.client import Client, ClientConfig
from heliograph.transport.handshake import ServerIdentity, ServiceCredentials, ServiceRequest
from heliograph.transport.loop import Net
from heliograph.transport.protocols import NTF, AnyProtocol
from heliograph.transport.server import Answer, Limits, Listener, ServerConnection
from heliograph.wire import ntf, smp
from heliograph.wire.addresses import ServerAddress, decode_host
from heliograph.wire.errors import ErrorCode, TransportError
from heliograph.wire.handshakes import ServiceRole
from heliograph.wire.keys import Algorithm
from heliograph.wire.ntf.tokens import TokenStatus
from heliograph.wire.requests import Request
from heliograph.wire.table import OK, PING, PONG
from heliograph.wire.versions import VersionRange
from tests.keys import fixed_credentials
from tests.waiting import block_until

NOW = time.time()
TIMEOUT = 20.0
SERVICE_ID = b"s" * 24
ENTITY_ID = b"e" * 24

_T = TypeVar("_T")

Run = Callable[[Coroutine[Any, Any, None]], None]


def run_on(net: Net, caplog: pytest.LogCaptureFixture) -> Iterator[Run]:
    """Make the fixture `run`: the coroutine of a test on one stack, for a bounded time.

    It must leave no socket open, and say nothing in the log that the test has not cleared.
    """
    before = open_sockets()
    gc.freeze()  # what was there before need not be searched: that took a tenth of a second
    yield lambda main: loop.run(asyncio.wait_for(main, TIMEOUT), net=net)
    gc.collect()  # and with it any ResourceWarning
    gc.unfreeze()
    block_until(lambda: open_sockets() <= before, TIMEOUT)  # the resolver closes on its own thread
    assert [record.getMessage() for record in caplog.records if record.levelname != "DEBUG"] == []


def open_sockets() -> set[str]:
    names = set()
    for path in Path("/proc/self/fd").glob("*"):
        with contextlib.suppress(OSError):
            names.add(os.readlink(path))
    return {name for name in names if name.startswith("socket:")}


def connected_sockets(port: int) -> Iterator[socket.socket]:
    """Both ends, as far as they are in this process, of each connection to a port."""
    for path in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError):
            if not os.readlink(path).startswith("socket:"):
                continue
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(path.name))) as sock:
            if sock.family == socket.AF_INET and port in (
                sock.getsockname()[1],
                sock.getpeername()[1],
            ):
                yield sock


def receive_buffers(port: int) -> list[int]:
    """Return the size for each socket of this process that is connected to a port."""
    return [
        sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        for sock in connected_sockets(port)
        if sock.getpeername()[1] == port
    ]


@functools.cache
def make_identity(
    leaf: SigningAlgorithm = SigningAlgorithm.ED25519,
    authority: SigningAlgorithm = SigningAlgorithm.ED25519,
    name: str = "SMP server CA",
) -> ServerIdentity:
    return ServerIdentity.of(fixed_credentials(name, leaf, authority), NOW)


IDENTITY = make_identity()
OTHER_IDENTITY = make_identity(name="Another CA")
SERVICE = ServiceCredentials(ServiceRole.NOTIFIER, make_identity(name="NTF server CA").credentials)


class SampleRouter:
    """Knows keys by entity, verifies what it receives, answers at once and keeps a record."""

    def __init__(self, keys: Mapping[bytes, bytes] | None = None) -> None:
        self.keys = dict(keys or {})
        self.service: bytes | TransportError = SERVICE_ID
        self.allows_disconnect = True
        self.connections: list[ServerConnection] = []
        self.requests: list[Request[Any]] = []
        self.services: list[ServiceRequest] = []
        self.lost: list[ServerConnection] = []
        self.writables: list[ServerConnection] = []

    def connected(self, connection: ServerConnection) -> None:
        self.connections.append(connection)

    def received(self, connection: ServerConnection, requests: list[Request[Any]]) -> None:
        self.requests += requests
        connection.answer([self.answer_to(connection, request) for request in requests])

    def service_requested(self, connection: ServerConnection, request: ServiceRequest) -> None:
        self.services.append(request)
        connection.answer_service(self.service)

    def disconnected(self, connection: ServerConnection) -> None:
        self.lost.append(connection)

    def writable(self, connection: ServerConnection) -> None:
        self.writables.append(connection)

    def may_disconnect(self, connection: ServerConnection) -> bool:
        return self.allows_disconnect

    def answer_to(self, connection: ServerConnection, request: Request[Any]) -> Answer:
        message: Any
        key: bytes | None
        match request.command:
            case PING():
                return Answer(request.corr_id, b"", PONG())
            case ntf.TNEW(auth_key=key):
                message = ntf.IDTKN(ENTITY_ID, request.command.dh_key)
            case smp.NEW(rcv_auth_key=key):
                message = smp.IDS(ENTITY_ID, ENTITY_ID, request.command.rcv_dh_key)
            case smp.NSUB():
                key, message = self.keys.get(request.entity_id), smp.SOK()
            case smp.NSUBS():
                key, message = self.keys.get(request.entity_id), smp.SOKS(0)
            case ntf.TCHK():
                key, message = self.keys.get(request.entity_id), ntf.TKN(TokenStatus.ACTIVE)
            case _:
                key, message = self.keys.get(request.entity_id), OK()
        if not self.is_authorized(connection, request, key):
            message = connection.listener.error(ErrorCode.AUTH)
        return Answer(request.corr_id, request.entity_id, message)

    def is_authorized(
        self, connection: ServerConnection, request: Request[Any], key: bytes | None
    ) -> bool:
        established = connection.established
        assert established is not None
        authorized = request.authorized
        service = established.service
        if service is not None and request.service_signature is not None:
            if not verify(service.key, request.service_signature, authorized):
                return False
            authorized = service.cert_hash + authorized
        private = established.session_private
        return verify_authorization(key, private, request.corr_id, authorized, request.auth)


class SlowRouter(SampleRouter):
    """Keeps requests until `answer` is called."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[tuple[ServerConnection, Request[Any]]] = []

    def received(self, connection: ServerConnection, requests: list[Request[Any]]) -> None:
        self.requests += requests
        self.waiting += [(connection, request) for request in requests]

    def answer_all(self) -> None:
        waiting, self.waiting = self.waiting, []
        for connection, request in waiting:
            connection.answer([self.answer_to(connection, request)])


@dataclass
class Serving:
    """A listener on a free port, and the router behind it."""

    listener: Listener
    router: Any
    port: int

    def address(
        self, fingerprint: bytes | None = None, hosts: tuple[str, ...] = ("127.0.0.1",)
    ) -> ServerAddress:
        protocol, identity = self.listener.protocol, self.listener.identity
        return ServerAddress(
            protocol.scheme,
            tuple(decode_host(host) for host in hosts),
            str(self.port),
            fingerprint or identity.fingerprint,
        )

    @contextlib.asynccontextmanager
    async def client(
        self, config: ClientConfig | None = None, **options: Any
    ) -> AsyncIterator[Client]:
        client = await Client.connect(self.address(), config, **options)
        try:
            yield client
        finally:
            await client.close()

    async def raw(self, **options: Any) -> "RawPeer":
        """A raw peer after TLS, before the handshake."""
        return await RawPeer.connect(self.listener.protocol, self.port, **options)


@contextlib.asynccontextmanager
async def serving(
    protocol: AnyProtocol,
    router: Any = None,
    *,
    identity: ServerIdentity = IDENTITY,
    limits: Limits | None = None,
    versions: VersionRange | None = None,
    request_client_certificate: bool = False,
    grace: float = 1.0,
) -> AsyncIterator[Serving]:
    router = SampleRouter() if router is None else router
    listener = Listener(
        protocol,
        identity,
        router,
        limits=limits,
        versions=versions,
        request_client_certificate=request_client_certificate,
    )
    port = await listener.start("127.0.0.1", 0)
    try:
        yield Serving(listener, router, port)
    finally:
        await listener.close(grace)


def short(data: bytes) -> bytes:
    return bytes((len(data),)) + data


def large(data: bytes) -> bytes:
    return len(data).to_bytes(2) + data


def batch(*transmissions: bytes) -> bytes:
    return bytes((len(transmissions),)) + b"".join(map(large, transmissions))


def ping(corr_id: bytes = b"1" * 24) -> bytes:
    return b"\0" + short(corr_id) + b"\0PING"


@dataclass
class RawPeer:
    """A client made of an ssl socket, with a thread for each call.

    OpenSSL does not allow two threads at a time, so each waits without the lock.
    """

    sock: ssl.SSLSocket
    protocol: AnyProtocol
    version: int = 0
    cipher: BlockCipher | None = None
    unread: bytearray = field(default_factory=bytearray)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    async def connect(
        cls,
        protocol: AnyProtocol,
        port: int,
        *,
        alpn: bool = True,
        context: ssl.SSLContext | None = None,
        receive_buffer: int = 0,
    ) -> "RawPeer":
        if context is None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            if alpn:
                context.set_alpn_protocols([protocol.alpn])

        def connect() -> ssl.SSLSocket:
            sock = socket.socket()
            try:
                sock.settimeout(TIMEOUT)
                if receive_buffer:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
                sock.connect(("127.0.0.1", port))
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                wrapped = context.wrap_socket(sock)
                wrapped.setblocking(False)
                return wrapped
            except BaseException:
                sock.close()
                raise

        return cls(await asyncio.to_thread(connect), protocol)

    async def __aenter__(self) -> "RawPeer":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.sock.close()

    @property
    def session_id(self) -> bytes:
        return self.sock.get_channel_binding("tls-unique") or b""

    async def send(self, data: bytes) -> None:
        await asyncio.to_thread(self.send_all, data)

    def send_all(self, data: bytes, size: int = 16384) -> None:
        for start in range(0, len(data), size):
            piece = data[start : start + size]
            while piece:
                piece = piece[self._attempt(self.sock.send, piece) :]

    def _attempt(self, call: Callable[[Any], _T], argument: Any) -> _T:
        while True:
            try:
                with self.lock:
                    return call(argument)
            except ssl.SSLWantReadError:
                event = select.POLLIN
            except ssl.SSLWantWriteError:
                event = select.POLLOUT
            poll = select.poll()  # select() takes no descriptor above 1023
            poll.register(self.sock, event)
            if not poll.poll(TIMEOUT * 1000):
                raise TimeoutError

    async def receive(self, size: int) -> bytes:
        return await asyncio.to_thread(self._receive, size)

    def _receive(self, size: int) -> bytes:
        while len(self.unread) < size:
            data = self._attempt(self.sock.recv, 65536)
            if not data:
                raise EOFError(bytes(self.unread))
            self.unread += data
        data, self.unread = bytes(self.unread[:size]), self.unread[size:]
        return data

    async def is_closed(self) -> bool:
        """Whether the server closes, gracefully or not, without another byte."""
        try:
            await self.receive(1)
        except (EOFError, ConnectionError, ssl.SSLError):
            return True
        return False

    def block(self, content: bytes) -> bytes:
        size = self.protocol.block_size
        if self.cipher is not None:
            return self.cipher.encrypt(content, size)
        return (large(content)).ljust(size, b"#")

    async def send_content(self, content: bytes) -> None:
        await self.send(self.block(content))

    async def receive_content(self) -> bytes:
        block = await self.receive(self.protocol.block_size)
        if self.cipher is not None:
            return self.cipher.decrypt(block)
        return block[2 : 2 + int.from_bytes(block[:2])]

    async def shake_hands(
        self, version: int, fingerprint: bytes = IDENTITY.fingerprint, *, encrypt: bool = False
    ) -> bytes:
        """Answer the server's hello; the result is that hello."""
        hello = await self.receive_content()
        self.version = version
        content = version.to_bytes(2) + short(fingerprint)
        keys = generate_key_pair(Algorithm.X25519)
        if self.protocol is not NTF:
            content += short(keys.public) if encrypt else b""
            content += b"F" if version >= 14 else b""
            content += b"0" if version >= 16 else b""
        await self.send_content(content)
        if encrypt:
            # The server's key is the one X25519 key in its hello.
            start = hello.index(bytes.fromhex("302a300506032b656e032100"))
            secret = dh(hello[start : start + 44], keys.private)
            self.cipher = BlockCipher.client(self.session_id, secret)
        return hello

    async def receive_answers(self) -> list[tuple[bytes, bytes, bytes]]:
        """Correlation ID, entity ID and command of each transmission in the next block."""
        content = await self.receive_content()
        if self.protocol is NTF and self.version == 1:
            return [self._split(content)]
        answers = []
        count, content = content[0], content[1:]
        for _ in range(count):
            size = int.from_bytes(content[:2])
            answers.append(self._split(content[2 : 2 + size]))
            content = content[2 + size :]
        assert content == b""
        return answers

    def _split(self, data: bytes) -> tuple[bytes, bytes, bytes]:
        fields = []
        assert data[0] == 0
        data = data[1:]
        if self.version == (1 if self.protocol is NTF else 6):
            assert data[: 1 + data[0]] == short(self.session_id)
            data = data[1 + data[0] :]
        for _ in range(2):
            fields.append(data[1 : 1 + data[0]])
            data = data[1 + data[0] :]
        return fields[0], fields[1], data

    async def exchange(self, content: bytes) -> list[tuple[bytes, bytes, bytes]]:
        await self.send_content(content)
        return await self.receive_answers()


@dataclass
class RawServerPeer:
    """What a raw server sees of one client."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    protocol: AnyProtocol
    session_id: bytes

    def send_content(self, content: bytes) -> None:
        self.writer.write(large(content).ljust(self.protocol.block_size, b"#"))

    async def receive_content(self) -> bytes:
        block = await self.reader.readexactly(self.protocol.block_size)
        return block[2 : 2 + int.from_bytes(block[:2])]

    async def wait_closed(self) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await self.reader.read()


Behaviour = Callable[[RawServerPeer], Awaitable[None]]


@contextlib.asynccontextmanager
async def raw_server(
    protocol: AnyProtocol, behave: Behaviour, identity: ServerIdentity = IDENTITY
) -> AsyncIterator[ServerAddress]:
    """A TLS server that does as it likes with each client, one `behave` for each."""
    tasks = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        ssl_object = writer.get_extra_info("ssl_object")
        session_id = ssl_object.get_channel_binding("tls-unique")
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await behave(RawServerPeer(reader, writer, protocol, session_id))
        finally:
            writer.transport.abort()

    context = tls.server_context(
        identity.credentials, [protocol.alpn], request_client_certificate=False
    )
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    host = decode_host("127.0.0.1")
    try:
        yield ServerAddress(protocol.scheme, (host,), str(port), identity.fingerprint)
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await asyncio.sleep(0.01)  # until the aborted transports are gone
