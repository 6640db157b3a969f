"""Tests of `heliograph.transport.client`, over loopback on each network stack."""

import asyncio
import contextlib
import gc
import logging
import random
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from heliograph.crypto.authorization import verify_authenticator
from heliograph.crypto.certificates import TlsCredentials, fingerprint
from heliograph.crypto.keys import generate_key_pair, verify
from heliograph.crypto.session_keys import sign_session_key
from heliograph.transport import loop, tls
from heliograph.transport.client import Client, ClientConfig, ClientRequest
from heliograph.transport.errors import (
    ClientError,
    ConnectFailed,
    Disconnected,
    HandshakeFailed,
    RequestRefused,
    RequestTimeout,
    UnexpectedReply,
)
from heliograph.transport.handshake import ServiceCredentials
from heliograph.transport.loop import Net
from heliograph.transport.protocols import NTF, SMP, AnyProtocol
from heliograph.transport.server import Answer, Limits, Listener, ServerConnection
from heliograph.wire import handshakes as wire, ntf, smp
from heliograph.wire.addresses import Host, HostKind, ServerAddress, decode_host
from heliograph.wire.errors import ErrorCode, TransportError, WireError
from heliograph.wire.handshakes import ServiceRole
from heliograph.wire.keys import Algorithm
from heliograph.wire.requests import Request
from heliograph.wire.smp.fields import MsgFlags
from heliograph.wire.table import OK, PING, PONG
from heliograph.wire.transmissions import max_transmission_size
from tests.keys import fixed_key_pair
from tests.transport.support import (
    ENTITY_ID,
    IDENTITY,
    OTHER_IDENTITY,
    SERVICE,
    SERVICE_ID,
    Behaviour,
    RawServerPeer,
    Run,
    SampleRouter,
    Serving,
    SlowRouter,
    batch,
    raw_server,
    receive_buffers,
    run_on,
    serving,
    short,
)
from tests.waiting import until

KEY = fixed_key_pair(Algorithm.ED25519, "client")

both = pytest.mark.parametrize("protocol", [NTF, SMP], ids=["ntf", "smp"])
needs_libssl = pytest.mark.skipif(not tls.LIBSSL_REACHED, reason="libssl is out of reach")


@pytest.fixture(params=list(Net))
def run(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[Run]:
    yield from run_on(request.param, caplog)


class Losses(list[Exception | None]):
    """The arguments of `on_disconnect`."""

    def __call__(self, client: Client, reason: Exception | None) -> None:
        assert not client.is_connected
        self.append(reason)


class Pushes(list[tuple[bytes, Any]]):
    """The arguments of `on_push`."""

    def __call__(self, entity_id: bytes, message: Any) -> None:
        self.append((entity_id, message))


async def connection_of(server: Serving) -> ServerConnection:
    await until(lambda: server.router.connections)
    connection = server.router.connections[-1]
    assert isinstance(connection, ServerConnection)
    return connection


# Requests and answers.


class EchoRouter(SampleRouter):
    """Answers each request with its entity, in random order and at random times."""

    def received(self, connection: ServerConnection, requests: list[Request[Any]]) -> None:
        self.requests += requests
        answers = [
            Answer(request.corr_id, request.entity_id, smp.MSG(request.entity_id, b""))
            for request in requests
        ]
        random.shuffle(answers)
        event_loop = asyncio.get_running_loop()
        while answers:
            some = [answers.pop() for _ in range(min(len(answers), random.randint(1, 50)))]
            event_loop.call_later(random.random() / 20, connection.answer, some)


@pytest.mark.parametrize("encrypt", [False, True])
def test_many_requests_in_flight(run: Run, encrypt: bool) -> None:
    entities = [b"%024d" % number for number in range(1500)]

    async def main() -> None:
        config = ClientConfig(encrypt_blocks=encrypt)
        async with serving(SMP, EchoRouter()) as server, server.client(config) as client:
            assert (client.established.cipher is not None) == encrypt
            single = [client.request(smp.SUB(), entity, KEY.private) for entity in entities[:500]]
            many = [ClientRequest(smp.SUB(), entity, KEY.private) for entity in entities[500:]]
            answers, more = await asyncio.gather(asyncio.gather(*single), client.request_many(many))
            received = [a.msg_id for a in [*answers, *more] if isinstance(a, smp.MSG)]
            assert received == entities
            assert client.in_flight == 0

    run(main())


def test_requests_of_one_turn_share_blocks(run: Run) -> None:
    blocks = []

    class Counting(SampleRouter):
        def received(self, connection: ServerConnection, requests: list[Request[Any]]) -> None:
            blocks.append(len(requests))
            super().received(connection, requests)

    async def main() -> None:
        async with serving(SMP, Counting()) as server, server.client() as client:
            await asyncio.gather(*(client.request(PING()) for _ in range(300)))
            assert sum(blocks) == 300
            assert len(blocks) == 2

    run(main())


def test_request_many_has_errors_in_their_place(run: Run) -> None:
    async def main() -> None:
        router = SampleRouter({ENTITY_ID: KEY.public})
        async with serving(SMP, router) as server, server.client() as client:
            requests: list[ClientRequest[object]] = [
                ClientRequest(smp.SUB(), ENTITY_ID, KEY.private),
                ClientRequest(smp.SUB(), b"unknown", KEY.private),
                ClientRequest(smp.SEND(MsgFlags(False), b"x" * 17_000), ENTITY_ID),
                ClientRequest(smp.SUB(), b"x" * 256, KEY.private),
                ClientRequest(smp.SUB(), ENTITY_ID, b"not a key"),
                ClientRequest(PING()),
            ]
            results = await client.request_many(requests)
            assert results[0] == OK()
            assert isinstance(results[1], RequestRefused)
            assert results[1].error is ErrorCode.AUTH
            assert [type(result) for result in results[2:5]] == [ClientError] * 3
            assert results[5] == PONG()
            assert await client.request_many([]) == []
            assert client.in_flight == 0

    run(main())


@both
def test_oversize_command_is_refused_before_it_is_sent(run: Run, protocol: AnyProtocol) -> None:
    async def main() -> None:
        command: Any = smp.SEND(MsgFlags(True), b"x" * 16_380)
        if protocol is NTF:
            command = ntf.TVFY(b"c" * 255)
        async with serving(protocol) as server, server.client() as client:
            with pytest.raises(ClientError, match="does not fit"):
                await client.request(command, b"e" * 255)
            assert client.in_flight == 0
            assert await client.request(PING()) == PONG()
            assert len(server.router.requests) == 1

    run(main())


def test_largest_command(run: Run) -> None:
    async def main() -> None:
        async with serving(SMP) as server, server.client() as client:
            overhead = 1 + 25 + 25 + len("SEND T ")
            size = max_transmission_size(client.established.session) - overhead
            with pytest.raises(RequestRefused):  # not authorized, but it arrived
                await client.request(smp.SEND(MsgFlags(True), b"x" * size), ENTITY_ID)
            with pytest.raises(ClientError, match="does not fit"):
                await client.request(smp.SEND(MsgFlags(True), b"x" * (size + 1)), ENTITY_ID)

    run(main())


def test_refusal(run: Run) -> None:
    async def main() -> None:
        async with serving(NTF) as server, server.client() as client:
            with pytest.raises(RequestRefused, match="CMD NO_AUTH") as info:
                await client.request(ntf.TCHK(), ENTITY_ID)
            assert info.value.error is ErrorCode.CMD_NO_AUTH

    run(main())


def test_timeout_and_late_answer(run: Run) -> None:
    async def main() -> None:
        router, pushes = SlowRouter(), Pushes()
        config = ClientConfig(request_timeout=0.1)
        async with (
            serving(NTF, router) as server,
            server.client(config, on_push=pushes) as client,
        ):
            with pytest.raises(RequestTimeout):
                await client.request(PING())
            assert client.in_flight == 0
            router.answer_all()
            await until(lambda: pushes)
            assert pushes == [(b"", PONG())]
            request = asyncio.create_task(client.request(PING()))
            await until(lambda: router.waiting)
            router.answer_all()
            assert await request == PONG()
            assert len(pushes) == 1

    run(main())


def test_pushes(run: Run) -> None:
    async def main() -> None:
        pushes = Pushes()
        async with serving(SMP) as server:
            async with server.client(on_push=pushes) as client:
                connection = await connection_of(server)
                connection.push([Answer(b"", b"%d" % n, smp.END()) for n in range(600)])
                assert await client.request(PING()) == PONG()
                assert pushes == [(b"%d" % n, smp.END()) for n in range(600)]
            async with server.client() as client:  # nobody listens
                connection = await connection_of(server)
                connection.push([Answer(b"", b"e", smp.END())])
                assert await client.request(PING()) == PONG()

    run(main())


def test_handlers_that_fail(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    pushes = Pushes()

    def on_push(entity_id: bytes, message: Any) -> None:
        pushes(entity_id, message)
        raise RuntimeError("push failed")

    def on_disconnect(client: Client, reason: Exception | None) -> None:
        raise RuntimeError("disconnect failed")

    async def main() -> None:
        async with serving(SMP) as server:
            handlers: dict[str, Any] = {"on_push": on_push, "on_disconnect": on_disconnect}
            async with server.client(None, **handlers) as client:
                connection = await connection_of(server)
                connection.push([Answer(b"", b"%d" % n, smp.END()) for n in range(3)])
                assert await client.request(PING()) == PONG()
                assert len(pushes) == 3

    run(main())
    assert caplog.text.count("RuntimeError: push failed") == 3
    assert caplog.text.count("RuntimeError: disconnect failed") == 1
    caplog.clear()


def test_max_in_flight(run: Run) -> None:
    async def main() -> None:
        router = SlowRouter()
        config = ClientConfig(max_in_flight=10)
        async with serving(NTF, router) as server, server.client(config) as client:
            tasks = [asyncio.create_task(client.request(PING())) for _ in range(35)]
            answered = 0
            while answered < 35:
                expected = min(10, 35 - answered)
                await until(lambda expected=expected: len(router.waiting) == expected)  # type: ignore[misc]
                await asyncio.sleep(0.01)
                assert len(router.waiting) == client.in_flight == expected
                answered += expected
                router.answer_all()
            assert await asyncio.gather(*tasks) == [PONG()] * 35
            # Room is made by what is cancelled, too.
            first = [asyncio.create_task(client.request(PING())) for _ in range(10)]
            await until(lambda: len(router.waiting) == 10)
            last = asyncio.create_task(client.request(PING()))
            await asyncio.sleep(0.01)
            first[0].cancel()
            await until(lambda: len(router.waiting) == 11)
            router.answer_all()
            assert await last == PONG()
            await asyncio.gather(*first[1:])

    run(main())


def test_waiting_for_room_ends_with_the_connection(run: Run) -> None:
    async def main() -> None:
        router = SlowRouter()
        config = ClientConfig(max_in_flight=1)
        async with serving(NTF, router) as server:
            client = await Client.connect(server.address(), config)
            tasks = [asyncio.create_task(client.request(PING())) for _ in range(3)]
            many = asyncio.create_task(client.request_many([ClientRequest(PING())] * 3))
            await until(lambda: router.waiting)
            await client.close()
            for task in tasks:
                with pytest.raises(Disconnected):
                    await task
            assert [type(result) for result in await many] == [Disconnected] * 3

    run(main())


# Cancellation.


def test_cancelled_requests_leave_nothing(run: Run) -> None:
    async def main() -> None:
        router = SlowRouter()
        async with serving(NTF, router) as server, server.client() as client:
            sent = asyncio.create_task(client.request(PING()))
            await until(lambda: router.waiting)
            sent.cancel()
            leaving = asyncio.create_task(client.request(PING()))
            await asyncio.sleep(0)
            leaving.cancel()
            many = asyncio.create_task(client.request_many([ClientRequest(PING())] * 5))
            await until(lambda: len(router.waiting) == 7)
            many.cancel()
            await asyncio.wait([sent, leaving, many])
            assert all(task.cancelled() for task in (sent, leaving, many))
            assert client.in_flight == 0
            router.answer_all()  # to nobody
            last = asyncio.create_task(client.request(PING()))
            await until(lambda: router.waiting)
            router.answer_all()
            assert await last == PONG()

    run(main())


@pytest.mark.parametrize("cancel", [True, False])
def test_request_many_that_ends_early_leaves_nothing(run: Run, cancel: bool) -> None:
    def requests() -> Iterator[ClientRequest[Any]]:
        yield from [ClientRequest(PING())] * 5
        raise RuntimeError("no more")

    async def main() -> None:
        router = SlowRouter()
        config = ClientConfig(max_in_flight=3 if cancel else 100)
        async with serving(NTF, router) as server, server.client(config) as client:
            many = asyncio.create_task(client.request_many(requests()))
            if cancel:
                await until(lambda: len(router.waiting) == 3)
                many.cancel()
            await asyncio.wait([many])
            assert many.cancelled() or isinstance(many.exception(), RuntimeError)
            await asyncio.sleep(0)
            assert client.in_flight == 0

    run(main())
    gc.collect()


# The end of a connection.


@both
def test_disconnection_is_reported_once(run: Run, protocol: AnyProtocol) -> None:
    async def main() -> None:
        router, losses = SlowRouter(), Losses()
        async with serving(protocol, router) as server:
            client = await Client.connect(server.address(), on_disconnect=losses)
            tasks = [asyncio.create_task(client.request(PING())) for _ in range(20)]
            await until(lambda: len(router.waiting) == 20)
            assert client.is_connected
            (await connection_of(server)).abort()
            for task in tasks:
                with pytest.raises(Disconnected):
                    await task
            assert len(losses) == 1
            assert not client.is_connected
            assert client.in_flight == 0
            with pytest.raises(Disconnected):
                await client.request(PING())
            assert [type(r) for r in await client.request_many([ClientRequest(PING())])] == [
                Disconnected
            ]
            await client.close()
            await client.close()
            await asyncio.sleep(0.02)
            assert len(losses) == 1

    run(main())


@both
def test_close_during_requests(run: Run, protocol: AnyProtocol) -> None:
    async def main() -> None:
        router, losses = SlowRouter(), Losses()
        async with serving(protocol, router) as server:
            client = await Client.connect(server.address(), on_disconnect=losses)
            tasks = [asyncio.create_task(client.request(PING())) for _ in range(20)]
            await until(lambda: len(router.waiting) == 20)
            unsent = asyncio.create_task(client.request(PING()))
            await asyncio.sleep(0)
            await asyncio.gather(client.close(), client.close())
            for task in (*tasks, unsent):
                with pytest.raises(Disconnected):
                    await task
            assert losses == [None]
            await until(lambda: router.lost)
            router.answer_all()

    run(main())


def test_request_while_closing(run: Run) -> None:
    async def main() -> None:
        async with serving(NTF) as server:
            client = await Client.connect(server.address())
            closing = asyncio.create_task(client.close())
            await asyncio.sleep(0)
            with pytest.raises(Disconnected):
                await client.request(PING())
            await closing

    run(main())


def test_close_with_a_router_that_never_closes(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "SHUTDOWN_TIMEOUT", 0.2)

    async def behave(peer: RawServerPeer) -> None:
        await serve_hello(peer)
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(10)

    async def main() -> None:
        losses = Losses()
        async with raw_server(NTF, behave) as address:
            client = await Client.connect(address, on_disconnect=losses)
            started = time.monotonic()
            await client.close()
            assert time.monotonic() - started < 8
            assert len(losses) == 1

    run(main())


# Keep-alive.


def pings(router: SampleRouter) -> int:
    return sum(request.command == PING() for request in router.requests)


def test_ping_when_idle(run: Run) -> None:
    async def main() -> None:
        config = ClientConfig(ping_interval=0.05)
        async with serving(NTF) as server, server.client(config) as client:
            await until(lambda: pings(server.router) >= 4)
            assert client.is_connected

    run(main())


def test_no_ping_when_not_idle(run: Run) -> None:
    async def main() -> None:
        config = ClientConfig(ping_interval=1.0)
        async with serving(SMP) as server, server.client(config):
            connection = await connection_of(server)
            for _ in range(75):
                connection.push([Answer(b"", b"e", smp.END())])
                await asyncio.sleep(0.02)
            assert pings(server.router) == 0
            await until(lambda: pings(server.router))

    run(main())


def test_disconnect_after_missed_pings(run: Run) -> None:
    async def main() -> None:
        router, losses = SlowRouter(), Losses()
        config = ClientConfig(ping_interval=0.03, request_timeout=0.03, ping_failures=3)
        async with serving(NTF, router) as server:
            client = await Client.connect(server.address(), config, on_disconnect=losses)
            await until(lambda: losses)
            assert isinstance(losses[0], TimeoutError)
            assert pings(router) == 3
            await asyncio.sleep(0.1)
            assert len(losses) == 1
            assert pings(router) == 3
            await client.close()

    run(main())


def test_pings_go_on_after_an_error(run: Run) -> None:
    class Grumpy(SampleRouter):
        def answer_to(self, connection: ServerConnection, request: Request[Any]) -> Answer:
            return Answer(request.corr_id, b"", ntf.ERR(ErrorCode.INTERNAL))

    async def main() -> None:
        config = ClientConfig(ping_interval=0.02)
        async with serving(NTF, Grumpy()) as server, server.client(config) as client:
            await until(lambda: pings(server.router) >= 3)
            assert client.is_connected

    run(main())


# Connecting.


@contextlib.asynccontextmanager
async def two_routers() -> Any:
    """Listeners of the same port on two addresses, the second with another identity."""
    first, second = SampleRouter(), SampleRouter()
    async with serving(NTF, first) as server:
        other = Listener(NTF, OTHER_IDENTITY, second)
        await other.start("127.0.0.2", server.port)
        try:
            yield server
        finally:
            await other.close()


def test_hosts_are_tried_in_order(run: Run) -> None:
    async def main() -> None:
        async with two_routers() as server:
            for hosts, chosen in (
                (("127.0.0.3", "127.0.0.1"), IDENTITY),  # refused
                (("127.0.0.2", "127.0.0.1"), IDENTITY),  # another identity
                (("127.0.0.2", "127.0.0.1"), OTHER_IDENTITY),
                (("no-such-host.invalid", "127.0.0.1"), IDENTITY),
                (("x" * 70 + ".example", "127.0.0.1"), IDENTITY),  # not a name at all
                (("abc.onion", "127.0.0.1"), IDENTITY),  # no proxy
            ):
                address = server.address(chosen.fingerprint, hosts)
                client = await Client.connect(address)
                assert await client.request(PING()) == PONG()
                assert client.address == address
                await client.close()

    run(main())


def test_last_failure_is_raised(run: Run) -> None:
    async def main() -> None:
        async with two_routers() as server:
            with pytest.raises(ConnectFailed, match=r"^127\.0\.0\.3"):
                await Client.connect(server.address(hosts=("127.0.0.2", "127.0.0.3")))
            with pytest.raises(HandshakeFailed, match="IDENTITY"):
                await Client.connect(server.address(hosts=("127.0.0.3", "127.0.0.2")))

    run(main())


@pytest.mark.parametrize("host", ["no-such-host.invalid", "x" * 70, "a..b", "\0"])
def test_names_that_do_not_resolve(run: Run, host: str) -> None:
    address = ServerAddress(NTF.scheme, (Host(HostKind.DOMAIN, host),), "443", bytes(32))

    async def main() -> None:
        with pytest.raises(ConnectFailed):
            await Client.connect(address)

    run(main())


@pytest.mark.parametrize("port", ["99999", "http", "-1"])
def test_port_that_cannot_be(run: Run, port: str) -> None:
    address = ServerAddress(NTF.scheme, (decode_host("127.0.0.1"),), port, bytes(32))

    async def main() -> None:
        with pytest.raises(ConnectFailed):
            await Client.connect(address)

    run(main())


def test_not_tls(run: Run) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        address = ServerAddress(NTF.scheme, (decode_host("127.0.0.1"),), str(port), bytes(32))
        with pytest.raises(ConnectFailed):
            await Client.connect(address)
        server.close()
        await asyncio.sleep(0.01)

    run(main())


async def silent_connect(config: ClientConfig) -> Client:
    """Connect to what accepts and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        address = ServerAddress(NTF.scheme, (decode_host("127.0.0.1"),), str(port), bytes(32))
        return await Client.connect(address, config)


@pytest.mark.parametrize(
    "config",
    [ClientConfig(connect_timeout=0.1), ClientConfig(handshake_timeout=0.1)],
    ids=["connect", "handshake"],
)
def test_silent_peer_in_tls(run: Run, config: ClientConfig) -> None:
    async def main() -> None:
        with pytest.raises(ConnectFailed):
            await silent_connect(config)

    run(main())


@pytest.mark.parametrize("delay", [0, 0.001, 0.05])
def test_cancelled_in_tls(run: Run, delay: float) -> None:
    async def main() -> None:
        task = asyncio.create_task(silent_connect(ClientConfig()))
        await asyncio.sleep(delay)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main())


def hello_of(peer: RawServerPeer) -> bytes:
    keys = generate_key_pair(Algorithm.X25519)
    signed = sign_session_key(IDENTITY.credentials.private_key, keys.public)
    if peer.protocol is NTF:
        return wire.encode_ntf_server(
            wire.NtfServerHandshake(NTF.versions, peer.session_id, signed)
        )
    auth = wire.CertChainPubKey(IDENTITY.credentials.chain, signed)
    return wire.encode_smp_server(wire.SmpServerHandshake(SMP.versions, peer.session_id, auth))


async def serve_hello(peer: RawServerPeer) -> None:
    peer.send_content(hello_of(peer))
    await peer.receive_content()


async def say_nothing(peer: RawServerPeer) -> None:
    await peer.wait_closed()


async def close_at_once(peer: RawServerPeer) -> None:
    pass


async def close_after_half_a_hello(peer: RawServerPeer) -> None:
    peer.writer.write(b"\0\x10" + b"x" * 100)
    await peer.writer.drain()
    peer.writer.close()


async def send_garbage(peer: RawServerPeer) -> None:
    peer.writer.write(b"\xff" * peer.protocol.block_size)
    await peer.wait_closed()


async def send_a_short_hello(peer: RawServerPeer) -> None:
    peer.send_content(hello_of(peer)[:20])
    await peer.wait_closed()


async def send_another_session(peer: RawServerPeer) -> None:
    peer.send_content(hello_of(peer).replace(peer.session_id, b"i" * 32))
    await peer.wait_closed()


async def send_a_bad_signature(peer: RawServerPeer) -> None:
    hello = hello_of(peer)
    peer.send_content(hello[:-1] + bytes((hello[-1] ^ 1,)))
    await peer.wait_closed()


FAULTS: list[tuple[Behaviour, type[ClientError], str]] = [
    (say_nothing, HandshakeFailed, "too long"),
    (close_at_once, Disconnected, "closed the connection"),
    (close_after_half_a_hello, Disconnected, "closed the connection"),
    (send_garbage, HandshakeFailed, "PARSE"),
    (send_a_short_hello, HandshakeFailed, "PARSE"),
    (send_another_session, HandshakeFailed, "SESSION"),
    (send_a_bad_signature, HandshakeFailed, "BAD_AUTH"),
]


@both
@pytest.mark.parametrize(
    ("behave", "error", "text"), FAULTS, ids=[fault[0].__name__ for fault in FAULTS]
)
def test_router_with_faults_in_the_handshake(
    run: Run, protocol: AnyProtocol, behave: Behaviour, error: type[ClientError], text: str
) -> None:
    async def main() -> None:
        losses = Losses()
        config = ClientConfig(handshake_timeout=0.3)
        async with raw_server(protocol, behave) as address:
            started = time.monotonic()
            with pytest.raises(error, match=text):
                await Client.connect(address, config, on_disconnect=losses)
            assert time.monotonic() - started < 8
        assert losses == []

    run(main())


@both
def test_timeout_in_the_handshake(run: Run, protocol: AnyProtocol) -> None:
    async def main() -> None:
        async with raw_server(protocol, say_nothing) as address:
            with pytest.raises(ConnectFailed, match="in time"):
                await Client.connect(address, ClientConfig(connect_timeout=0.2))

    run(main())


def test_cancelled_at_any_time(run: Run) -> None:
    """A connection that was cancelled is closed, and no handler is called."""

    async def main() -> None:
        losses = Losses()
        async with serving(SMP) as server:
            connected = 0
            for turns in range(60):
                task = asyncio.ensure_future(Client.connect(server.address(), on_disconnect=losses))
                for _ in range(turns):
                    await asyncio.sleep(0)
                if turns % 3 == 0:
                    await asyncio.sleep(turns / 20_000)
                task.cancel()
                try:
                    client = await task
                except asyncio.CancelledError:
                    assert losses == []
                else:
                    connected += 1
                    await client.close()
                    assert losses == [None]
                    losses.clear()
            await until(lambda: not server.listener.connections)
            assert connected < 60

    run(main())


def test_cancelled_when_already_connected(run: Run) -> None:
    async def main() -> None:
        losses, pushes = Losses(), Pushes()

        class Eager(SampleRouter):
            def connected(self, connection: ServerConnection) -> None:
                super().connected(connection)
                tasks[0].cancel()
                connection.push([Answer(b"", b"e", smp.END())])

        tasks: list[asyncio.Task[Client]] = []
        async with serving(SMP, Eager()) as server:
            connecting = Client.connect(server.address(), on_push=pushes, on_disconnect=losses)
            tasks.append(asyncio.ensure_future(connecting))
            await asyncio.wait(tasks)
            if not tasks[0].cancelled():
                await tasks[0].result().close()
            else:
                assert losses == []
            await until(lambda: server.router.lost)

    run(main())


# Routers with faults after the handshake.


def misbehave(*answers: Callable[[bytes], bytes]) -> Behaviour:
    """Answer each request by a function of its correlation ID."""

    async def behave(peer: RawServerPeer) -> None:
        await serve_hello(peer)
        for answer in answers:
            content = await peer.receive_content()
            corr_id = content[5 : 5 + 24]  # after the count, the length and no authorization
            peer.send_content(answer(corr_id))
        await peer.wait_closed()

    return behave


def answer_with(command: bytes, entity_id: bytes = b"") -> Callable[[bytes], bytes]:
    return lambda corr_id: batch(b"\0" + short(corr_id) + short(entity_id) + command)


good = answer_with(b"PONG")


@pytest.mark.parametrize(
    "answer",
    [
        answer_with(b"WHAT"),
        answer_with(b"PONG", b"e"),
        answer_with(b"OK", b"another"),
        answer_with(b""),
        lambda corr_id: batch(short(b"a" * 63) + short(corr_id) + b"\0PONG"),
    ],
    ids=["unknown", "surplus entity", "another entity", "empty", "authorization"],
)
def test_answer_that_makes_no_sense(run: Run, answer: Callable[[bytes], bytes]) -> None:
    async def main() -> None:
        async with raw_server(NTF, misbehave(answer, good)) as address:
            client = await Client.connect(address)
            with pytest.raises(UnexpectedReply):
                await client.request(PING())
            assert await client.request(PING()) == PONG()
            await client.close()

    run(main())


@pytest.mark.parametrize(
    "answer",
    [lambda _: b"", lambda _: b"\0", lambda _: batch(b"\xff"), lambda _: b"\1\xff\xff"],
    ids=["empty", "zero count", "garbage", "length"],
)
def test_block_that_makes_no_sense(
    run: Run, answer: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        config = ClientConfig(request_timeout=0.1)
        async with raw_server(NTF, misbehave(answer, good)) as address:
            client = await Client.connect(address, config)
            with pytest.raises(RequestTimeout):
                await client.request(PING())
            assert await client.request(PING()) == PONG()
            await client.close()

    run(main())
    assert "cannot be understood" in caplog.text
    caplog.clear()


def test_block_of_garbage_ends_the_connection(run: Run) -> None:
    async def behave(peer: RawServerPeer) -> None:
        await serve_hello(peer)
        await peer.receive_content()
        await send_garbage(peer)

    async def main() -> None:
        losses = Losses()
        for protocol in (NTF, SMP):
            async with raw_server(protocol, behave) as address:
                client = await Client.connect(address, on_disconnect=losses)
                with pytest.raises(Disconnected):
                    await client.request(PING())
                await client.close()
        assert [type(reason) for reason in losses] == [UnexpectedReply] * 2

    run(main())


def test_a_flood_of_garbage_costs_no_log(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    """What arrived with the first block of garbage finds an aborted connection."""

    async def behave(peer: RawServerPeer) -> None:
        await serve_hello(peer)
        await peer.receive_content()
        peer.writer.write(b"\xff" * (500 * NTF.block_size))
        await peer.writer.drain()

    async def main() -> None:
        async with raw_server(NTF, behave) as address:
            client = await Client.connect(address)
            with pytest.raises(Disconnected):
                await client.request(PING())
            await client.close()

    run(main())
    assert not caplog.records


def test_same_answer_twice(run: Run) -> None:
    def twice(corr_id: bytes) -> bytes:
        return batch(*[b"\0" + short(corr_id) + b"\0PONG"] * 2)

    async def main() -> None:
        pushes = Pushes()
        async with raw_server(NTF, misbehave(twice, good)) as address:
            client = await Client.connect(address, on_push=pushes)
            assert await client.request(PING()) == PONG()
            assert await client.request(PING()) == PONG()
            assert pushes == [(b"", PONG())]
            await client.close()

    run(main())


def test_router_that_stops_reading(run: Run) -> None:
    """Requests that time out while they wait for room are not kept, and never sent."""
    reads = asyncio.Event()
    received: list[bytes] = []

    async def behave(peer: RawServerPeer) -> None:
        await serve_hello(peer)
        transport: Any = peer.writer.transport
        transport.pause_reading()
        await reads.wait()
        transport.resume_reading()
        while True:
            received.append(await peer.receive_content())

    async def main() -> None:
        config = ClientConfig(request_timeout=0.1, max_in_flight=200, encrypt_blocks=False)
        early = ClientRequest(smp.SEND(MsgFlags(True), b"early".ljust(16_000)), ENTITY_ID)
        late = ClientRequest(smp.SEND(MsgFlags(True), b"late".ljust(16_000)), ENTITY_ID)
        async with raw_server(SMP, behave) as address:
            client = await Client.connect(address, config)
            full = 0
            while full < 3:
                await client.request_many([early] * 100)
                full = 0 if client.is_writable else full + 1
            for _ in range(3):
                results = await client.request_many([late] * 300)
                assert {type(result) for result in results} == {RequestTimeout}
                assert client.in_flight == 0
            reads.set()
            while not received or not received[-1].endswith(b"PING"):
                with pytest.raises(RequestTimeout):  # the first ones may wait for room, too
                    await client.request(PING())
            assert received[0].find(b"early") > 0
            assert not [content for content in received if b"late" in content]
            client.abort()
            await client.close()

    run(main())


def test_router_that_reads_late(run: Run) -> None:
    """What waits for room in the client leaves when there is some, in order."""

    async def main() -> None:
        router = SlowRouter()
        commands = [smp.SEND(MsgFlags(True), b"%d" % n + b"x" * 16_000) for n in range(800)]
        requests = [ClientRequest(command, ENTITY_ID) for command in commands]
        async with (
            serving(SMP, router, limits=Limits(max_unanswered=1)) as server,
            server.client() as client,
        ):
            many = asyncio.create_task(client.request_many(requests))
            await until(lambda: client.in_flight == 800)
            assert not client.is_writable
            late = asyncio.create_task(client.request(PING()))
            while not late.done():
                router.answer_all()
                await asyncio.sleep(0)
            assert [type(result) for result in await many] == [RequestRefused] * 800
            assert [request.command for request in router.requests] == [*commands, PING()]

    run(main())


# Services.


def assert_service_signatures(
    request: Request[Any], connection: ServerConnection, algorithm: Algorithm, public: bytes
) -> None:
    """As the protocol says, and not as our code does."""
    established = connection.established
    assert established is not None
    assert established.service is not None
    cert_hash = fingerprint(SERVICE.credentials.chain[1])
    authorized = (
        short(established.session.session_id) + short(request.corr_id) + short(ENTITY_ID) + b"NSUB"
    )
    assert len(request.corr_id) == 24
    assert request.authorized == authorized
    assert request.service_signature is not None
    assert verify(established.service.key, request.service_signature, authorized)
    if algorithm is Algorithm.X25519:
        assert verify_authenticator(
            public,
            established.session_private or b"",
            request.corr_id,
            cert_hash + authorized,
            request.auth,
        )
    else:
        assert verify(public, request.auth, cert_hash + authorized)


@needs_libssl
@pytest.mark.parametrize("algorithm", Algorithm)
def test_service_session(run: Run, algorithm: Algorithm) -> None:
    pair = generate_key_pair(algorithm)

    async def main() -> None:
        router = SampleRouter({ENTITY_ID: pair.public})
        async with (
            serving(SMP, router, request_client_certificate=True) as server,
            server.client(service=SERVICE) as client,
        ):
            service = client.established.service
            assert service is not None
            assert (service.service_id, service.role) == (SERVICE_ID, ServiceRole.NOTIFIER)
            connection = await connection_of(server)
            assert connection.established is not None
            assert connection.established.service is not None
            router.keys[SERVICE_ID] = connection.established.service.key
            assert await client.request(smp.NSUB(), ENTITY_ID, pair.private) == smp.SOK()
            assert_service_signatures(router.requests[-1], connection, algorithm, pair.public)
            assert await client.request(smp.DEL(), ENTITY_ID, pair.private) == OK()
            assert router.requests[-1].service_signature is None
            assert await client.request(smp.NSUBS(), SERVICE_ID, service.key) == smp.SOKS(0)
            assert router.requests[-1].service_signature is None
            assert await client.request(PING()) == PONG()
            other = generate_key_pair(algorithm)
            with pytest.raises(RequestRefused, match="AUTH"):
                await client.request(smp.NSUB(), ENTITY_ID, other.private)
            (request,) = router.services
            assert request.fingerprint == fingerprint(SERVICE.credentials.chain[1])
            assert request.role is ServiceRole.NOTIFIER

    run(main())


def test_service_is_not_offered_if_not_asked_for(run: Run) -> None:
    async def main() -> None:
        router = SampleRouter({ENTITY_ID: KEY.public})
        async with serving(SMP, router) as server, server.client(service=SERVICE) as client:
            assert client.established.service is None
            assert await client.request(smp.NSUB(), ENTITY_ID, KEY.private) == smp.SOK()
            assert router.requests[-1].service_signature is None
            assert router.services == []

    run(main())


@needs_libssl
def test_client_without_a_service_where_one_may_have_it(run: Run) -> None:
    async def main() -> None:
        async with (
            serving(SMP, request_client_certificate=True) as server,
            server.client() as client,
        ):
            assert client.established.service is None
            assert await client.request(PING()) == PONG()

    run(main())


@needs_libssl
def test_service_refused(run: Run) -> None:
    async def main() -> None:
        router = SampleRouter()
        router.service = TransportError.HANDSHAKE_BAD_SERVICE
        async with serving(SMP, router, request_client_certificate=True) as server:
            started = time.monotonic()
            with pytest.raises(HandshakeFailed, match="BAD_SERVICE"):
                await Client.connect(server.address(), service=SERVICE)
            assert time.monotonic() - started < 8
            assert router.connections == router.lost == []

    run(main())


def test_credentials_that_cannot_be_used(run: Run) -> None:
    broken = ServiceCredentials(ServiceRole.NOTIFIER, TlsCredentials((b"not a certificate",), b""))

    async def main() -> None:
        async with serving(SMP) as server:
            with pytest.raises(Exception, match="certificate"):
                await Client.connect(server.address(), service=broken)
            await until(lambda: not server.listener.connections)

    run(main())


def test_no_secrets_in_what_is_printed() -> None:
    assert KEY.private.hex() not in repr(ClientRequest(PING(), b"", KEY.private))
    assert repr(KEY.private) not in repr(ClientRequest(PING(), b"", KEY.private))
    assert logging.getLogger("heliograph").handlers == []


# The life of a client.


def test_connected_for_the_time_of_a_block(run: Run) -> None:
    async def main() -> None:
        losses = Losses()
        async with serving(NTF) as server:
            address = server.address()
            for target in (address, str(address)):
                async with Client.connect(target, on_disconnect=losses) as client:
                    assert await client.request(PING()) == PONG()
                assert not client.is_connected
            async with Client.connect(address, on_disconnect=losses) as client:
                assert client.is_connected
            assert losses == [None] * 3

    run(main())


def test_text_that_is_no_address(run: Run) -> None:
    async def main() -> None:
        with pytest.raises(WireError):
            await Client.connect("https://example.com")

    run(main())


def test_a_client_that_pauses_reading(run: Run) -> None:
    async def main() -> None:
        pushes = Pushes()
        async with (
            serving(SMP) as server,
            Client.connect(server.address(), on_push=pushes) as client,
        ):
            connection = await connection_of(server)
            client.pause_reading()
            connection.push([Answer(b"", ENTITY_ID, smp.END())])
            await asyncio.sleep(0.1)
            assert pushes == []
            client.resume_reading()
            await until(lambda: pushes == [(ENTITY_ID, smp.END())])

    run(main())


def test_abort_sends_no_close_notify(run: Run) -> None:
    async def main() -> None:
        losses = Losses()
        async with serving(SMP) as server:
            client = await Client.connect(server.address(), on_disconnect=losses)
            connection = await connection_of(server)
            client.abort()
            await client.wait_closed()
            assert losses == [None]
            await until(lambda: not server.listener.connections)
            assert not connection.left_in_order

    run(main())


def test_receive_buffer(run: Run) -> None:
    async def main() -> None:
        config = ClientConfig(receive_buffer=64 * 1024)
        async with serving(SMP) as server, server.client(config) as client:
            assert await client.request(PING()) == PONG()
            [size] = receive_buffers(server.port)
            assert size <= 2 * 64 * 1024  # the kernel doubles it for its own accounts

    run(main())


def test_response_of_another_command(run: Run) -> None:
    class Wrong(SampleRouter):
        def answer_to(self, connection: ServerConnection, request: Request[Any]) -> Answer:
            return Answer(request.corr_id, b"", ntf.IDSUB(ENTITY_ID))

    async def main() -> None:
        async with serving(NTF, Wrong()) as server, server.client() as client:
            with pytest.raises(UnexpectedReply, match="IDSUB is no answer to this"):
                await client.request(ntf.TCHK(), ENTITY_ID, KEY.private)

    run(main())
