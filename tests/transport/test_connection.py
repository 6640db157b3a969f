"""Tests of `heliograph.transport.connection`: blocks, back-pressure, encryption, reentrancy."""

import asyncio
import contextlib
import math
import time
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import given, strategies as st

from heliograph.crypto.chains import BlockCipher
from heliograph.crypto.keys import generate_key_pair
from heliograph.crypto.session_keys import sign_session_key
from heliograph.transport import tls
from heliograph.transport.client import Client, ClientRequest
from heliograph.transport.connection import WRITE_HIGH_WATER, BlockConnection
from heliograph.transport.errors import Disconnected, HandshakeFailed
from heliograph.transport.handshake import Established, Handshake, ServiceRequest, TlsFacts
from heliograph.transport.loop import Net
from heliograph.transport.protocols import NTF, SMP, AnyProtocol
from heliograph.transport.server import Answer, Limits, ServerConnection
from heliograph.wire import handshakes as wire, smp
from heliograph.wire.errors import TransportError
from heliograph.wire.handshakes import CertChainPubKey
from heliograph.wire.keys import Algorithm
from heliograph.wire.primitives import pad
from heliograph.wire.requests import Request
from heliograph.wire.smp.fields import MsgFlags
from heliograph.wire.table import OK, PING
from heliograph.wire.transmissions import Session
from tests.transport.support import (
    ENTITY_ID,
    IDENTITY,
    SERVICE,
    SERVICE_ID,
    Run,
    SampleRouter,
    Serving,
    SlowRouter,
    batch,
    ping,
    run_on,
    serving,
    short,
)
from tests.waiting import until

PONG_1 = (b"1" * 24, b"", b"PONG")
SOCKET_HIGH_WATER = 64 * 1024  # asyncio's own

both = pytest.mark.parametrize("protocol", [NTF, SMP], ids=["ntf", "smp"])


@pytest.fixture(params=list(Net))
def run(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[Run]:
    yield from run_on(request.param, caplog)


@pytest.fixture
def transports(monkeypatch: pytest.MonkeyPatch) -> dict[BlockConnection, Any]:
    """The transport of each connection of a router."""
    made: dict[BlockConnection, Any] = {}
    connection_made = ServerConnection.connection_made

    def record(connection: ServerConnection, transport: asyncio.BaseTransport) -> None:
        made[connection] = transport
        connection_made(connection, transport)

    monkeypatch.setattr(ServerConnection, "connection_made", record)
    return made


def write_buffer_size(transport: Any) -> int:
    # On asyncio the socket has a buffer of its own, below that of TLS.
    below = getattr(getattr(transport, "_ssl_protocol", None), "_transport", None)
    return transport.get_write_buffer_size() + (below.get_write_buffer_size() if below else 0)  # type: ignore[no-any-return]


def numbered(number: int) -> bytes:
    return b"%024d" % number


def pings(start: int, stop: int) -> bytes:
    return batch(*(ping(numbered(number)) for number in range(start, stop)))


def pongs(start: int, stop: int) -> list[tuple[bytes, bytes, bytes]]:
    return [(numbered(number), b"", b"PONG") for number in range(start, stop)]


async def connection_of(server: Serving) -> ServerConnection:
    await until(lambda: server.router.connections)
    (connection,) = server.router.connections
    assert isinstance(connection, ServerConnection)
    return connection


# Blocks in any pieces.


@pytest.mark.parametrize(
    ("protocol", "encrypt", "size"),
    [(NTF, False, size) for size in (1, 100, 511, 512, 513, 5000)]
    + [(SMP, encrypt, size) for encrypt in (0, 1) for size in (100, 16383, 16384, 16385, 50_000)],
)
def test_blocks_in_pieces(run: Run, protocol: AnyProtocol, encrypt: bool, size: int) -> None:
    async def main() -> None:
        async with serving(protocol) as server, await server.raw() as peer:
            await peer.shake_hands(protocol.versions.max, encrypt=encrypt)
            data = b"".join(peer.block(pings(n, n + 3)) for n in range(0, 30, 3))
            await asyncio.to_thread(peer.send_all, data, size)
            for number in range(0, 30, 3):
                assert await peer.receive_answers() == pongs(number, number + 3)

    run(main())


@both
def test_hello_and_commands_in_one_piece(run: Run, protocol: AnyProtocol) -> None:
    hello = protocol.versions.max.to_bytes(2) + short(IDENTITY.fingerprint) + b"F0"

    async def main() -> None:
        async with serving(protocol) as server, await server.raw() as peer:
            peer.version = protocol.versions.max
            await peer.send(peer.block(hello) + peer.block(pings(0, 2)) + peer.block(pings(2, 4)))
            await peer.receive_content()
            assert await peer.receive_answers() == pongs(0, 2)
            assert await peer.receive_answers() == pongs(2, 4)

    run(main())


class MemoryTransport(asyncio.Transport):
    """Keeps what is written, and nothing else."""

    def get_write_buffer_size(self) -> int:
        return 1  # it knows nothing of a peer

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False
        self.reading = True

    def write(self, data: Any) -> None:
        self.written += data

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class Recorder(BlockConnection):
    """Records what happens, and pauses reading after every so many blocks."""

    def __init__(self, pause_after: int = 0, cipher: BlockCipher | None = None) -> None:
        super().__init__(NTF, 10)
        self.contents: list[bytes] = []
        self.bad_blocks = 0
        self.losses: list[Exception | None] = []
        self.pause_after = pause_after
        self.memory = MemoryTransport()
        self._transport = self.memory
        self.established = Established(Session.ntf(b"", 3), NTF.versions, cipher)

    def _content_received(self, content: bytes) -> None:
        self.contents.append(content)
        if self.pause_after and len(self.contents) % self.pause_after == 0:
            self.pause_reading()

    def _bad_block(self) -> None:
        self.bad_blocks += 1

    def _lost(self, reason: Exception | None) -> None:
        self.losses.append(reason)


@given(data=st.data())
def test_any_pieces_and_any_pauses(data: st.DataObject) -> None:
    contents = data.draw(st.lists(st.binary(max_size=20), max_size=8))
    pause_after = data.draw(st.integers(0, 3))
    stream = b"".join(pad(content, 512) for content in contents)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))

    async def main() -> None:
        connection = Recorder(pause_after)
        for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
            connection.data_received(stream[start:stop])
            if data.draw(st.booleans()):
                connection.resume_reading()
                await asyncio.sleep(0)
        while len(connection.contents) < len(contents):
            assert not connection.memory.reading
            connection.resume_reading()
            await asyncio.sleep(0)
        connection.resume_reading()
        await asyncio.sleep(0)
        assert connection.contents == contents
        assert connection.buffered == 0
        assert connection.memory.reading

    asyncio.run(main())


def test_paused_again_before_it_was_resumed() -> None:
    async def main() -> None:
        connection = Recorder(pause_after=1)
        connection.data_received(pad(b"1", 512) * 3)
        connection.resume_reading()
        connection.pause_reading()
        await asyncio.sleep(0)
        assert connection.contents == [b"1"]
        assert not connection.memory.reading

    asyncio.run(main())


def test_bad_blocks_do_not_stop_the_next() -> None:
    async def main() -> None:
        connection = Recorder()
        connection.data_received(b"\xff" * 512 + pad(b"good", 512) + b"\xff" * 512)
        assert connection.bad_blocks == 2
        assert connection.contents == [b"good"]

    asyncio.run(main())


def test_nothing_is_taken_or_sent_once_closing() -> None:
    async def main() -> None:
        connection = Recorder()
        connection.close()
        for _ in range(3):
            connection.data_received(pad(b"late", 512))
            connection.data_received(b"half")
        connection.send([b"late"])
        assert connection.contents == []
        assert connection.buffered == 0
        assert connection.memory.written == b""
        connection.connection_lost(None)
        connection.send([b"late"])
        connection.resume_reading()
        connection.abort(OSError())
        assert connection.losses == [None]

    asyncio.run(main())


def test_first_reason_is_the_one_reported() -> None:
    async def main() -> None:
        connection = Recorder()
        first = TimeoutError()
        connection.abort(first)
        connection.abort(OSError())
        connection.connection_lost(ConnectionError())
        assert connection.losses == [first]

    asyncio.run(main())


def test_several_blocks_leave_at_once() -> None:
    async def main() -> None:
        connection = Recorder()
        connection.send([b"x" * 300, b"y" * 300])
        assert connection.memory.written == pad(batch(b"x" * 300), 512) + pad(
            batch(b"y" * 300), 512
        )
        connection.memory.written = b""
        connection.send([])
        assert connection.memory.written == b""

    asyncio.run(main())


class Starting(Recorder):
    """Begins a handshake of one's own."""

    def __init__(self, handshake: Handshake) -> None:
        super().__init__()
        self.established = None
        self._handshake = handshake

    def start(self) -> None:
        """Begin the handshake, as is done once TLS has made the connection."""
        self._advance(None)


def test_hello_that_does_not_fit_in_a_block() -> None:
    def handshake() -> Generator[Any, Any, Established]:
        yield b"x" * 511
        raise AssertionError

    async def main() -> None:
        connection = Starting(handshake())
        connection.start()
        connection.connection_lost(None)
        (reason,) = connection.losses
        assert isinstance(reason, HandshakeFailed)
        assert reason.error is TransportError.LARGE_MSG

    asyncio.run(main())


def test_service_is_refused_where_nobody_is_asked() -> None:
    answers = []

    def handshake() -> Generator[Any, Any, Established]:
        answers.append((yield ServiceRequest(SERVICE.role, b"", ())))
        return Established(Session.ntf(b"", 3), NTF.versions)

    async def main() -> None:
        connection = Starting(handshake())
        connection.start()
        assert answers == [TransportError.HANDSHAKE_BAD_SERVICE]
        assert connection.established is not None
        connection.answer_service(b"late")
        await asyncio.sleep(0)
        assert connection.memory.reading

    asyncio.run(main())


def test_lost_in_the_handshake() -> None:
    closed = []

    def handshake() -> Generator[Any, Any, Established]:
        try:
            yield None
        finally:
            closed.append(True)
        raise AssertionError

    async def main() -> None:
        connection = Starting(handshake())
        connection.start()
        connection.connection_lost(None)
        assert closed == [True]
        assert connection.losses == [None]

    asyncio.run(main())


def test_not_a_tls_connection() -> None:
    async def main() -> None:
        connection = Recorder()
        connection.connection_made(connection.memory)
        assert connection.memory.closed
        connection.connection_lost(None)
        (reason,) = connection.losses
        assert isinstance(reason, ValueError)

    asyncio.run(main())


class Silent(BlockConnection):
    """A subclass that says nothing."""

    def open(self, transport: asyncio.Transport) -> None:
        """Begin in vain, as no handshake is known, and go on without one."""
        with pytest.raises(NotImplementedError):
            self._begin(TlsFacts(b"", ()), None)
        self._transport = transport
        self.established = Established(Session.ntf(b"", 3), NTF.versions)
        self._ready(self.established)


def test_what_a_subclass_must_say() -> None:
    async def main() -> None:
        connection = Silent(NTF, 10)
        assert connection.is_closing
        connection.close()
        connection.abort()
        connection.pause_reading()
        connection.open(MemoryTransport())
        connection.data_received(pad(b"ignored", 512))
        connection.data_received(b"\xff" * 512)
        assert connection.eof_received() is False
        connection.connection_lost(None)

    asyncio.run(main())


# Block encryption.


def test_many_encrypted_blocks_both_ways(run: Run) -> None:
    bodies = [bytes((number % 256,)) * (number * 37 % 16000) for number in range(150)]
    key = generate_key_pair(Algorithm.ED25519)

    async def main() -> None:
        router = SampleRouter({ENTITY_ID: key.public})
        pushed: list[Any] = []
        async with serving(SMP, router) as server:
            on_push = lambda entity, message: pushed.append(message)  # noqa: E731
            async with server.client(on_push=on_push) as client:
                assert client.established.cipher is not None
                connection = await connection_of(server)
                commands = [smp.SEND(MsgFlags(True), body) for body in bodies]
                requests = [ClientRequest(command, ENTITY_ID, key.private) for command in commands]
                messages = [smp.MSG(b"%d" % number, body) for number, body in enumerate(bodies)]
                for message in messages:
                    connection.push([Answer(b"", ENTITY_ID, message)])
                assert await client.request_many(requests) == [OK()] * len(bodies)
                for command in commands[:20]:
                    assert await client.request(command, ENTITY_ID, key.private) == OK()
                assert [r.command for r in router.requests] == commands + commands[:20]
                assert pushed == messages

    run(main())


def test_raw_peer_with_encryption(run: Run) -> None:
    async def main() -> None:
        async with serving(SMP) as server, await server.raw() as peer:
            await peer.shake_hands(19, encrypt=True)
            for number in range(0, 300, 3):
                assert await peer.exchange(pings(number, number + 3)) == pongs(number, number + 3)

    run(main())


# Back-pressure.


@both
def test_peer_that_stops_reading(
    run: Run, protocol: AnyProtocol, transports: dict[BlockConnection, Any]
) -> None:
    limits = Limits(write_timeout=0.3, check_interval=0.05)
    count = 1 if protocol is SMP else 15

    async def main() -> None:
        async with (
            serving(protocol, limits=limits) as server,
            await server.raw(receive_buffer=4096) as peer,
        ):
            await peer.shake_hands(protocol.versions.max)
            connection = await connection_of(server)
            data = peer.block(pings(0, count)) * (64 * 16384 // protocol.block_size)

            def flood() -> None:
                with contextlib.suppress(OSError):
                    while True:
                        peer.send_all(data)

            flooding = asyncio.create_task(asyncio.to_thread(flood))
            largest = buffered = 0
            paused_at = math.inf
            while not server.router.lost:
                largest = max(largest, write_buffer_size(transports[connection]))
                buffered = max(buffered, connection.buffered)
                paused_at = connection.write_paused_at or paused_at
                assert connection.unanswered <= 255
                await asyncio.sleep(0.001)
            await flooding
            assert largest <= WRITE_HIGH_WATER + SOCKET_HIGH_WATER + 3 * protocol.block_size
            assert buffered <= 1024 * 1024
            lost_at = asyncio.get_running_loop().time()
            assert lost_at - paused_at > limits.write_timeout
            assert not server.listener.connections

    run(main())


def test_peer_that_reads_slowly_is_served(run: Run) -> None:
    limits = Limits(write_timeout=10, check_interval=0.05)
    count = 900

    async def main() -> None:
        async with (
            serving(SMP, limits=limits) as server,
            await server.raw(receive_buffer=4096) as peer,
        ):
            await peer.shake_hands(19)
            connection = await connection_of(server)
            data = b"".join(peer.block(pings(n, n + 1)) for n in range(count))
            sending = asyncio.create_task(peer.send(data))
            await until(lambda: connection.write_paused_at is not None)
            assert not connection.is_writable
            await asyncio.sleep(0.1)
            for number in range(count):
                assert await peer.receive_answers() == pongs(number, number + 1)
            await sending
            assert connection.is_writable
            assert set(server.router.writables) == {connection}
            assert connection.unanswered == 0
            assert connection.buffered == 0
            assert not server.router.lost

    run(main())


@both
def test_peer_that_asks_faster_than_it_is_answered(run: Run, protocol: AnyProtocol) -> None:
    count, each = 300, 5
    limit = 20

    async def main() -> None:
        router = SlowRouter()
        async with (
            serving(protocol, router, limits=Limits(max_unanswered=limit)) as server,
            await server.raw() as peer,
        ):
            await peer.shake_hands(protocol.versions.max)
            connection = await connection_of(server)
            data = b"".join(peer.block(pings(n, n + each)) for n in range(0, count, each))
            sending = asyncio.create_task(peer.send(data))
            answered = 0
            while answered < count:
                expected = min(limit, count - answered)
                await until(lambda expected=expected: len(router.waiting) >= expected)  # type: ignore[misc]
                await asyncio.sleep(0.005)
                assert len(router.waiting) == connection.unanswered <= limit
                asked = [request.corr_id for _, request in router.waiting]
                assert asked == [numbered(answered + n) for n in range(len(asked))]
                router.answer_all()
                for number in range(answered, answered + len(asked)):
                    assert await peer.receive_answers() == pongs(number, number + 1)
                answered += len(asked)
            await sending
            assert connection.unanswered == 0
            last = asyncio.create_task(peer.exchange(pings(count, count + 1)))
            await until(lambda: router.waiting)
            router.answer_all()
            assert await last == pongs(count, count + 1)

    run(main())


def test_malformed_requests_count_as_answered(run: Run) -> None:
    async def main() -> None:
        async with (
            serving(NTF, limits=Limits(max_unanswered=1)) as server,
            await server.raw() as peer,
        ):
            await peer.shake_hands(3)
            for _ in range(5):
                await peer.send(b"\xff" * 512 + peer.block(b"\0") + peer.block(batch(b"", b"")))
                assert [len(await peer.receive_answers()) for _ in range(3)] == [1, 1, 2]
            assert await peer.exchange(batch(ping())) == [PONG_1]

    run(main())


def test_pushes_wait_for_a_slow_peer(run: Run, transports: dict[BlockConnection, Any]) -> None:
    async def main() -> None:
        async with serving(SMP) as server, await server.raw(receive_buffer=4096) as peer:
            await peer.shake_hands(19)
            connection = await connection_of(server)
            sent = 0
            while connection.is_writable:
                connection.push([Answer(b"", ENTITY_ID, smp.MSG(b"%d" % sent, b"x" * 16000))])
                sent += 1
                if sent % 16 == 0:
                    await asyncio.sleep(0)
            assert write_buffer_size(transports[connection]) <= 2 * WRITE_HIGH_WATER
            for number in range(sent):
                ((_, _, command),) = await peer.receive_answers()
                assert command.startswith(b"MSG " + short(b"%d" % number))
            await until(lambda: connection.is_writable)

    run(main())


def test_what_has_arrived(run: Run) -> None:
    async def main() -> None:
        async with serving(SMP) as server, await server.raw(receive_buffer=4096) as peer:
            await peer.shake_hands(19)
            assert await peer.exchange(batch(ping())) == [PONG_1]
            connection = await connection_of(server)
            await until(lambda: connection.has_arrived)
            while connection.is_writable:
                connection.push([Answer(b"", ENTITY_ID, smp.MSG(b"", b"x" * 16000))])
            assert not connection.has_arrived
            connection.abort()
            await until(lambda: server.router.lost)
            assert not connection.has_arrived

    run(main())


def test_held_connection_closes_promptly(run: Run) -> None:
    async def main() -> None:
        router = SlowRouter()
        async with serving(NTF, router, limits=Limits(max_unanswered=1), grace=10) as server:
            client = await Client.connect(server.address())
            requests = [asyncio.create_task(client.request(PING())) for _ in range(50)]
            await until(lambda: router.waiting)
            started = time.monotonic()
            await server.listener.close(grace=10)
            assert time.monotonic() - started < 8
            for result in await asyncio.gather(*requests, return_exceptions=True):
                assert isinstance(result, Disconnected)
            await client.close()

    run(main())


def test_abort_after_close(run: Run) -> None:
    async def main() -> None:
        async with serving(NTF) as server, await server.raw() as peer:
            await peer.shake_hands(3)
            connection = await connection_of(server)
            connection.close()
            connection.close()
            await asyncio.sleep(0.02)
            assert not server.router.lost  # for the peer has not closed
            connection.abort()
            await until(lambda: server.router.lost == [connection])

    run(main())


# Services: a router may take its time, and its client does not answer in its place.


class PonderingRouter(SampleRouter):
    def service_requested(self, connection: ServerConnection, request: ServiceRequest) -> None:
        self.services.append(request)
        self.connections.append(connection)

    def connected(self, connection: ServerConnection) -> None:
        assert connection in self.connections

    def received(self, connection: ServerConnection, requests: list[Request[Any]]) -> None:
        assert connection.established is not None
        super().received(connection, requests)


def service_hello() -> bytes:
    signed = sign_session_key(
        SERVICE.credentials.private_key, generate_key_pair(Algorithm.ED25519).public
    )
    auth = CertChainPubKey(SERVICE.credentials.chain, signed)
    hello = wire.SmpClientHandshake(
        19, IDENTITY.fingerprint, service=wire.ClientService(SERVICE.role, auth)
    )
    return wire.encode_smp_client(hello)


@contextlib.asynccontextmanager
async def service_peer(server: Serving) -> Any:
    context = tls.client_context(["smp/1"], SERVICE.credentials)
    async with await server.raw(context=context) as peer:
        await peer.receive_content()
        await peer.send_content(service_hello())
        peer.version = 19
        await until(lambda: server.router.services)
        yield peer


@pytest.mark.skipif(not tls.LIBSSL_REACHED, reason="libssl is out of reach")
def test_client_that_does_not_wait_for_its_service(run: Run) -> None:
    async def main() -> None:
        router = PonderingRouter()
        async with (
            serving(SMP, router, request_client_certificate=True) as server,
            service_peer(server) as peer,
        ):
            sending = asyncio.create_task(peer.send(peer.block(pings(0, 1)) * 1000))
            connection = await connection_of(server)
            await asyncio.sleep(0.1)
            assert connection.established is None
            assert connection.buffered < 1024 * 1024
            connection.answer([])  # as a router must not, and must not matter
            connection.push([])
            connection.resume_writing()
            await asyncio.sleep(0.02)
            assert connection.established is None
            connection.answer_service(SERVICE_ID)
            connection.answer_service(b"again")
            assert await peer.receive_content() == b"R" + short(SERVICE_ID)
            for _ in range(1000):
                assert await peer.receive_answers() == pongs(0, 1)
            await sending
            assert connection.established is not None
            assert connection.established.service is not None
            assert connection.established.service.service_id == SERVICE_ID

    run(main())


@pytest.mark.skipif(not tls.LIBSSL_REACHED, reason="libssl is out of reach")
@pytest.mark.parametrize("answer", [TransportError.HANDSHAKE_BAD_SERVICE, TransportError.NO_AUTH])
def test_refused_service_learns_why(run: Run, answer: TransportError) -> None:
    async def main() -> None:
        router = PonderingRouter()
        async with (
            serving(SMP, router, request_client_certificate=True) as server,
            service_peer(server) as peer,
        ):
            connection = await connection_of(server)
            connection.answer_service(answer)
            assert await peer.receive_content() == b"E" + answer.value.encode()
            assert await peer.is_closed()
            assert router.lost == []

    run(main())


@pytest.mark.skipif(not tls.LIBSSL_REACHED, reason="libssl is out of reach")
def test_router_that_ponders_too_long(run: Run) -> None:
    async def main() -> None:
        router = PonderingRouter()
        limits = Limits(handshake_timeout=0.2)
        async with (
            serving(SMP, router, limits=limits, request_client_certificate=True) as server,
            service_peer(server) as peer,
        ):
            connection = await connection_of(server)
            assert await peer.is_closed()
            connection.answer_service(SERVICE_ID)
            await until(lambda: not server.listener.connections)
            assert connection.established is None
            assert router.lost == []

    run(main())
