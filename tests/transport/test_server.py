"""Tests of `heliograph.transport.server`, over loopback on each network stack."""

import asyncio
import contextlib
import logging
import os
import resource
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from heliograph.crypto.certificates import SigningAlgorithm
from heliograph.crypto.keys import generate_key_pair
from heliograph.transport import loop, server as module
from heliograph.transport.client import Client, ClientConfig, ClientRequest
from heliograph.transport.errors import (
    ClientError,
    ConnectFailed,
    Disconnected,
    HandshakeFailed,
    RequestRefused,
)
from heliograph.transport.handshake import ServiceRequest
from heliograph.transport.loop import Net
from heliograph.transport.protocols import NTF, SMP, AnyProtocol
from heliograph.transport.server import Answer, Limits, Listener, ServerConnection
from heliograph.wire import ntf, smp
from heliograph.wire.errors import STORE, WireError
from heliograph.wire.keys import Algorithm
from heliograph.wire.ntf.tokens import APNSDeviceToken, PushProvider
from heliograph.wire.requests import Request
from heliograph.wire.table import OK, PING, PONG
from heliograph.wire.versions import VersionRange
from tests.transport.support import (
    ENTITY_ID,
    IDENTITY,
    OTHER_IDENTITY,
    SERVICE,
    RawPeer,
    Run,
    SampleRouter,
    SlowRouter,
    batch,
    large,
    make_identity,
    ping,
    run_on,
    serving,
    short,
)
from tests.waiting import until

CONNECTIONS = 2000
BLOCK = (b"", b"", b"ERR BLOCK")
PONG_1 = (b"1" * 24, b"", b"PONG")
VERSIONS = [(NTF, v) for v in range(1, 4)] + [(SMP, v) for v in range(6, 20)]
FAST = Limits(check_interval=0.02)

both = pytest.mark.parametrize("protocol", [NTF, SMP], ids=["ntf", "smp"])


@pytest.fixture(params=list(Net))
def run(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[Run]:
    yield from run_on(request.param, caplog)


def newest(protocol: AnyProtocol) -> int:
    return protocol.versions.max


# What works.


@pytest.mark.parametrize(("protocol", "version"), VERSIONS)
def test_each_version_and_key(run: Run, protocol: AnyProtocol, version: int) -> None:
    keys = {b"%d" % i * 24: generate_key_pair(algorithm) for i, algorithm in enumerate(Algorithm)}
    other = generate_key_pair(Algorithm.ED25519)
    command = ntf.TDEL() if protocol is NTF else smp.DEL()
    oldest = protocol.versions.min

    async def main() -> None:
        router = SampleRouter({entity: pair.public for entity, pair in keys.items()})
        config = ClientConfig(versions=VersionRange(oldest, version))
        async with serving(protocol, router) as server, server.client(config) as client:
            assert client.established.session.version == version
            assert await client.request(PING()) == PONG()
            for entity_id, pair in keys.items():
                if protocol is SMP and version < 7 and pair is keys[b"0" * 24]:
                    with pytest.raises(ClientError, match="no session key"):
                        await client.request(command, entity_id, pair.private)
                    continue
                assert await client.request(command, entity_id, pair.private) == OK()
                for wrong in (other, *keys.values()):
                    if wrong is pair or (wrong is keys[b"0" * 24] and version == 6):
                        continue
                    with pytest.raises(RequestRefused, match="AUTH"):
                        await client.request(command, entity_id, wrong.private)
                with pytest.raises(RequestRefused, match="AUTH"):
                    await client.request(command, b"unknown", pair.private)
            assert await client.request(PING()) == PONG()
        (connection,) = router.connections
        assert router.lost == [connection]

    run(main())


@both
@pytest.mark.parametrize("leaf", SigningAlgorithm)
@pytest.mark.parametrize("authority", SigningAlgorithm)
def test_each_certificate(
    run: Run, protocol: AnyProtocol, leaf: SigningAlgorithm, authority: SigningAlgorithm
) -> None:
    async def main() -> None:
        identity = make_identity(leaf, authority)
        async with serving(protocol, identity=identity) as server, server.client() as client:
            assert await client.request(PING()) == PONG()

    run(main())


def test_commands_that_carry_their_key(run: Run) -> None:
    pair, dh = (generate_key_pair(Algorithm.X25519) for _ in range(2))

    async def main() -> None:
        async with serving(NTF) as server, server.client() as client:
            token = APNSDeviceToken(PushProvider.APNS_TEST, b"ab")
            answer = await client.request(
                ntf.TNEW(token, pair.public, dh.public), b"", pair.private
            )
            assert answer == ntf.IDTKN(ENTITY_ID, dh.public)
        async with serving(SMP) as server, server.client() as client:
            ids = await client.request(smp.NEW(pair.public, dh.public), b"", pair.private)
            assert ids == smp.IDS(ENTITY_ID, ENTITY_ID, dh.public)

    run(main())


@both
def test_no_alpn_gets_the_legacy_version(run: Run, protocol: AnyProtocol) -> None:
    async def main() -> None:
        config = ClientConfig(use_alpn=False)
        async with serving(protocol) as server, server.client(config) as client:
            assert client.established.session.version == protocol.legacy_versions.max
            assert await client.request(PING()) == PONG()

    run(main())


@both
def test_no_alpn_and_no_legacy_version(run: Run, protocol: AnyProtocol) -> None:
    async def main() -> None:
        versions = VersionRange(newest(protocol), newest(protocol))
        async with serving(protocol, versions=versions) as server:
            with pytest.raises(ClientError):
                await Client.connect(server.address(), ClientConfig(use_alpn=False))
            async with await server.raw(alpn=False) as peer:
                assert await peer.is_closed()
            async with server.client() as client:
                assert await client.request(PING()) == PONG()

    run(main())


@both
def test_unknown_alpn(run: Run, protocol: AnyProtocol) -> None:
    other = SMP if protocol is NTF else NTF

    async def main() -> None:
        async with serving(protocol) as server:
            with pytest.raises(ssl.SSLError):
                await RawPeer.connect(other, server.port)

    run(main())


# Handshakes that fail.


@both
def test_client_refuses_another_router(run: Run, protocol: AnyProtocol) -> None:
    async def main() -> None:
        async with serving(protocol) as server:
            with pytest.raises(HandshakeFailed, match="IDENTITY"):
                await Client.connect(server.address(OTHER_IDENTITY.fingerprint))
            await until(lambda: not server.listener.connections)
            assert server.router.connections == []

    run(main())


@both
def test_server_closes_on_another_fingerprint(run: Run, protocol: AnyProtocol) -> None:
    async def main() -> None:
        async with serving(protocol) as server, await server.raw() as peer:
            await peer.shake_hands(newest(protocol), OTHER_IDENTITY.fingerprint)
            assert await peer.is_closed()
            assert server.router.connections == []

    run(main())


@both
@pytest.mark.parametrize("version", [0, 5, 20, 65535])
def test_server_closes_on_another_version(run: Run, protocol: AnyProtocol, version: int) -> None:
    async def main() -> None:
        async with serving(protocol) as server, await server.raw() as peer:
            await peer.shake_hands(version)
            assert await peer.is_closed()
            assert server.router.connections == []

    run(main())


@both
def test_no_common_version(run: Run, protocol: AnyProtocol) -> None:
    async def main() -> None:
        async with serving(protocol) as server:
            config = ClientConfig(versions=VersionRange(50, 60))
            with pytest.raises(HandshakeFailed, match="VERSION"):
                await Client.connect(server.address(), config)

    run(main())


@both
@pytest.mark.parametrize("garbage", [b"\xff\xff", b"\0\0", b"\0\x05\0\x03", b"#"])
def test_garbage_instead_of_a_hello(run: Run, protocol: AnyProtocol, garbage: bytes) -> None:
    async def main() -> None:
        async with serving(protocol) as server, await server.raw() as peer:
            await peer.receive_content()
            await peer.send(garbage.ljust(protocol.block_size, b"#"))
            assert await peer.is_closed()
            assert server.router.connections == []

    run(main())


@both
def test_hello_with_trailing_bytes(run: Run, protocol: AnyProtocol) -> None:
    hello = newest(protocol).to_bytes(2) + short(IDENTITY.fingerprint) + b"F0later"

    async def main() -> None:
        async with serving(protocol) as server, await server.raw() as peer:
            await peer.receive_content()
            await peer.send_content(hello)
            peer.version = newest(protocol)
            assert await peer.exchange(batch(ping())) == [PONG_1]

    run(main())


@both
@pytest.mark.parametrize("sent", [0, 1, 100])
def test_abort_in_the_middle_of_the_handshake(run: Run, protocol: AnyProtocol, sent: int) -> None:
    async def main() -> None:
        async with serving(protocol) as server:
            async with await server.raw() as peer:
                await peer.receive_content()
                await peer.send(b"x" * sent)
                await until(lambda: server.listener.connections)
            await until(lambda: not server.listener.connections)
            async with server.client() as client:
                assert await client.request(PING()) == PONG()

    run(main())


def test_abort_in_the_middle_of_tls(run: Run) -> None:
    async def main() -> None:
        async with serving(NTF) as server:
            for data in (b"", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n\r\n"):
                with socket.create_connection(("127.0.0.1", server.port)) as sock:
                    sock.sendall(data)
                    await asyncio.sleep(0.02)
            async with server.client() as client:
                assert await client.request(PING()) == PONG()

    run(main())


# Blocks that do not parse: ERR BLOCK, and the connection stays usable.

MALFORMED = {
    "padding": b"\xff\xff",
    "empty": large(b""),
    "zero count": large(b"\0"),
    "only a count": large(b"\1"),
    "count too high": large(b"\2" + batch(ping())[1:]),
    "trailing byte": large(batch(ping()) + b"x"),
    "truncated": large(batch(ping())[:-1]),
    "length": large(b"\1\xff\xff" + ping()),
    "garbage": b"\x00\x20" + bytes(range(100, 132)),
    "batch of garbage": large(batch(b"\xff\xff")),
    "empty transmission": large(batch(b"")),
}


@both
@pytest.mark.parametrize("start", MALFORMED.values(), ids=MALFORMED)
def test_malformed_block(
    run: Run, protocol: AnyProtocol, start: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "THROTTLE_SECONDS", 0.01)

    async def main() -> None:
        async with serving(protocol) as server, await server.raw() as peer:
            await peer.shake_hands(newest(protocol))
            for _ in range(3):
                await peer.send(start.ljust(protocol.block_size, b"#"))
                assert await peer.receive_answers() == [BLOCK]
                assert await peer.exchange(batch(ping())) == [PONG_1]
            connection = server.listener.connections.pop()
            await until(lambda: not connection.unanswered)

    run(main())


@both
@pytest.mark.parametrize("kind", ["batch of garbage", "garbage"])
def test_a_flood_of_malformed_blocks(
    run: Run, protocol: AnyProtocol, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No faster than commands are answered that take as long: others must not wait for it."""
    monkeypatch.setattr(module, "THROTTLE_SECONDS", 0.2)
    block = MALFORMED[kind].ljust(protocol.block_size, b"#")

    async def main() -> None:
        async with (
            serving(protocol, limits=Limits(max_unanswered=10)) as server,
            await server.raw() as peer,
        ):
            await peer.shake_hands(newest(protocol))
            started = time.monotonic()
            sending = asyncio.create_task(peer.send(block * 40))
            for _ in range(40):
                assert await peer.receive_answers() == [BLOCK]
            assert time.monotonic() - started > 0.5
            await sending
            assert await peer.exchange(batch(ping())) == [PONG_1]

    run(main())


def test_malformed_encrypted_block(run: Run) -> None:
    async def main() -> None:
        async with serving(SMP) as server, await server.raw() as peer:
            await peer.shake_hands(19, encrypt=True)
            assert peer.cipher is not None
            for block in (os.urandom(16384), bytes(16384)):
                await peer.send(block)
                peer.cipher.encrypt(b"", 16384)  # the chain of the server moved on, too
                assert await peer.receive_answers() == [BLOCK]
                assert await peer.exchange(batch(ping())) == [PONG_1]
            assert await peer.exchange(b"\0") == [BLOCK]
            assert await peer.exchange(batch(ping())) == [PONG_1]

    run(main())


@both
def test_one_bad_transmission_in_a_sound_batch(run: Run, protocol: AnyProtocol) -> None:
    async def main() -> None:
        async with serving(protocol) as server, await server.raw() as peer:
            await peer.shake_hands(newest(protocol))
            await peer.send_content(batch(ping(), b"\xff", ping(b"2" * 24)))
            answers = await peer.receive_answers() + await peer.receive_answers()
            assert sorted(answers) == sorted([BLOCK, PONG_1, (b"2" * 24, b"", b"PONG")])
            assert await peer.exchange(batch(ping())) == [PONG_1]

    run(main())


@both
def test_malformed_transmissions(run: Run, protocol: AnyProtocol) -> None:
    corr, entity = b"c" * 24, b"e" * 24
    head = short(corr) + short(entity)
    signature = short(b"s" * 64) + (b"0" if protocol is SMP else b"")
    unknown_length = short(b"s" * 63) + (b"0" if protocol is SMP else b"")
    command = b"TDEL" if protocol is NTF else b"DEL"

    async def main() -> None:
        async with serving(protocol) as server, await server.raw() as peer:
            await peer.shake_hands(newest(protocol))
            for transmission, answer in (
                (unknown_length + head + command, (corr, b"", b"ERR BLOCK")),
                (b"\0" + head, (corr, entity, b"ERR CMD UNKNOWN")),
                (b"\0" + head + b"WHAT", (corr, entity, b"ERR CMD UNKNOWN")),
                (b"\0" + head + b"PING x", (corr, entity, b"ERR CMD SYNTAX")),
                (b"\0" + head + command, (corr, entity, b"ERR CMD NO_AUTH")),
                (b"\0" + head + b"PING", (corr, entity, b"ERR CMD HAS_AUTH")),
                (signature + head + command, (corr, entity, b"ERR AUTH")),
                (ping(b""), (b"", b"", b"PONG")),
                (ping(b"c" * 255), (b"c" * 255, b"", b"PONG")),
            ):
                assert await peer.exchange(batch(transmission)) == [answer]
            assert await peer.exchange(batch(ping())) == [PONG_1]

    run(main())


def test_answer_that_does_not_fit_because_of_the_ids(run: Run, caplog: Any) -> None:
    async def main() -> None:
        async with serving(NTF) as server, await server.raw() as peer:
            await peer.shake_hands(3)
            transmission = b"\0" + short(b"c" * 255) + short(b"e" * 240) + b"WHAT"
            answer = (b"c" * 255, b"", b"ERR INTERNAL")
            assert await peer.exchange(batch(transmission)) == [answer]
            assert await peer.exchange(batch(ping())) == [PONG_1]

    caplog.set_level(logging.WARNING)
    run(main())


def test_foreign_session(run: Run) -> None:
    async def main() -> None:
        async with serving(NTF) as server, await server.raw() as peer:
            await peer.shake_hands(1)
            own = b"\0" + short(peer.session_id) + ping()[1:]
            foreign = b"\0" + short(b"f" * 32) + ping()[1:]
            for _ in range(3):
                assert await peer.exchange(foreign) == [(b"1" * 24, b"", b"ERR SESSION")]
                assert await peer.exchange(own) == [PONG_1]
            assert await peer.exchange(b"\xff") == [BLOCK]
            assert await peer.exchange(b"") == [BLOCK]
            assert await peer.exchange(own) == [PONG_1]

    run(main())


@both
@pytest.mark.parametrize("share", [1, 2])
def test_truncated_block(run: Run, protocol: AnyProtocol, share: int) -> None:
    async def main() -> None:
        async with serving(protocol) as server:
            async with await server.raw() as peer:
                await peer.shake_hands(newest(protocol))
                assert await peer.exchange(batch(ping())) == [PONG_1]
                half = peer.block(batch(ping()))[: protocol.block_size // 2 - share]
                await peer.send(half)
            await until(lambda: server.router.lost)
            assert len(server.router.requests) == 1
            assert not server.listener.connections

    run(main())


# Routers.


class FaultyRouter(SampleRouter):
    """Raises in one of its methods while it is configured to."""

    def __init__(self, method: str) -> None:
        super().__init__()
        self.method: str | None = method

    def fail(self, method: str) -> None:
        if self.method == method:
            raise RuntimeError(f"{method} failed")

    def connected(self, connection: ServerConnection) -> None:
        super().connected(connection)
        self.fail("connected")

    def received(self, connection: ServerConnection, requests: list[Request[Any]]) -> None:
        self.fail("received")
        super().received(connection, requests)

    def service_requested(self, connection: ServerConnection, request: ServiceRequest) -> None:
        self.fail("service_requested")
        super().service_requested(connection, request)

    def disconnected(self, connection: ServerConnection) -> None:
        super().disconnected(connection)
        self.fail("disconnected")

    def may_disconnect(self, connection: ServerConnection) -> bool:
        self.fail("may_disconnect")
        return self.allows_disconnect


@both
@pytest.mark.parametrize("method", ["connected", "received", "disconnected", "may_disconnect"])
def test_router_that_fails(
    run: Run, protocol: AnyProtocol, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        router = FaultyRouter("")
        limits = Limits(check_interval=0.02, inactive_after=0.2)
        async with serving(protocol, router, limits=limits) as server:
            router.allows_disconnect = False
            async with server.client() as neighbour:
                assert await neighbour.request(PING()) == PONG()
                router.method = method
                lost: list[Exception | None] = []
                client = await Client.connect(
                    server.address(), on_disconnect=lambda _, reason: lost.append(reason)
                )
                if method == "disconnected":
                    await client.close()
                elif method == "received":
                    with pytest.raises(Disconnected):
                        await client.request(PING())
                await until(lambda: lost)
                await until(lambda: router.lost)
                assert len(lost) == 1
                router.method = None
                if method != "may_disconnect":  # which was asked about both
                    assert await neighbour.request(PING()) == PONG()
            async with server.client() as client:
                assert await client.request(PING()) == PONG()
            await until(lambda: not server.listener.connections)

    run(main())
    assert f"{method} failed" in caplog.text
    caplog.clear()


class LaterRouter(SampleRouter):
    """Answers in a later turn of the loop, one by one, backwards."""

    def received(self, connection: ServerConnection, requests: list[Request[Any]]) -> None:
        loop = asyncio.get_running_loop()
        for request in reversed(requests):
            answer = self.answer_to(connection, request)
            loop.call_soon(loop.call_soon, connection.answer, [answer])


@both
def test_answers_in_another_order(run: Run, protocol: AnyProtocol) -> None:
    async def main() -> None:
        async with serving(protocol, LaterRouter()) as server, await server.raw() as peer:
            await peer.shake_hands(newest(protocol))
            await peer.send_content(batch(ping(), ping(b"2" * 24)))
            assert await peer.receive_answers() == [(b"2" * 24, b"", b"PONG")]
            assert await peer.receive_answers() == [PONG_1]

    run(main())


@both
def test_answers_and_pushes_after_the_disconnection(run: Run, protocol: AnyProtocol) -> None:
    async def main() -> None:
        router = SlowRouter()
        async with serving(protocol, router, limits=Limits(max_unanswered=1)) as server:
            async with await server.raw() as peer:
                await peer.shake_hands(newest(protocol))
                await peer.send_content(batch(ping()))
                await until(lambda: router.waiting)
            (connection,) = router.connections
            connection.abort()
            await until(lambda: router.lost)
            router.answer_all()
            connection.push([Answer(b"", b"", PONG())])
            connection.answer([])
            connection.answer_service(b"")
            connection.close()
            connection.abort()
            connection.pause_reading()
            connection.resume_reading()
            assert connection.is_closing
            assert not connection.is_writable
            await until(lambda: router.lost == [connection])

    run(main())


class ClosingRouter(SampleRouter):
    """Closes in the middle of a batch."""

    def received(self, connection: ServerConnection, requests: list[Request[Any]]) -> None:
        self.requests += requests
        for request in requests:
            connection.answer([self.answer_to(connection, request)])
            connection.close()


@both
def test_router_that_closes_while_it_receives(run: Run, protocol: AnyProtocol) -> None:
    async def main() -> None:
        router = ClosingRouter()
        async with serving(protocol, router) as server, await server.raw() as peer:
            await peer.shake_hands(newest(protocol))
            # Blocks the event loop, so that everything has arrived before the router closes.
            peer.send_all(peer.block(batch(ping(), ping())) + peer.block(batch(ping())) * 3)
            assert await peer.receive_answers() == [PONG_1]
            assert await peer.is_closed()
            assert len(router.requests) == 2

    run(main())


def test_answer_that_cannot_be_sent(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    class Verbose(SampleRouter):
        def answer_to(self, connection: ServerConnection, request: Request[Any]) -> Answer:
            if request.corr_id == b"1":
                error = connection.listener.error(STORE("x" * 600))
                return Answer(request.corr_id, b"", error)
            if request.corr_id == b"2":
                return Answer(request.corr_id, b"e" * 256, OK())
            return super().answer_to(connection, request)

    async def main() -> None:
        async with serving(NTF, Verbose()) as server, await server.raw() as peer:
            await peer.shake_hands(3)
            await peer.send_content(batch(ping(b"1"), ping(b"2"), ping(b"3")))
            assert await peer.receive_answers() == [
                (b"1", b"", b"ERR INTERNAL"),
                (b"2", b"", b"ERR INTERNAL"),
                (b"3", b"", b"PONG"),
            ]
            (connection,) = server.listener.connections
            with pytest.raises(WireError):
                connection.push([Answer(b"", b"e" * 256, OK())])
            assert await peer.exchange(batch(ping())) == [PONG_1]

    caplog.set_level(logging.WARNING)
    run(main())


@both
def test_pushes_arrive(run: Run, protocol: AnyProtocol) -> None:
    async def main() -> None:
        async with serving(protocol) as server, await server.raw() as peer:
            await peer.shake_hands(newest(protocol))
            await until(lambda: server.router.connections)
            (connection,) = server.router.connections
            assert connection.is_writable
            connection.push([Answer(b"", ENTITY_ID, OK()), Answer(b"", ENTITY_ID, OK())])
            assert await peer.receive_answers() == [(b"", ENTITY_ID, b"OK")] * 2

    run(main())


# Limits.


@both
def test_max_connections(run: Run, protocol: AnyProtocol) -> None:
    async def main() -> None:
        async with serving(protocol, limits=Limits(max_connections=2)) as server:
            async with server.client() as one, server.client() as two:
                for _ in range(3):
                    with pytest.raises(ClientError):
                        await Client.connect(server.address())
                async with await server.raw() as peer:
                    assert await peer.is_closed()
                assert server.listener.refused_connections == 4
                assert len(server.listener.connections) == 2
                assert await one.request(PING()) == await two.request(PING()) == PONG()
            await until(lambda: not server.listener.connections)
            async with server.client() as client:
                assert await client.request(PING()) == PONG()

    run(main())


@both
@pytest.mark.parametrize("sent", [0, 300])
def test_silent_peer_in_the_handshake(run: Run, protocol: AnyProtocol, sent: int) -> None:
    async def main() -> None:
        async with serving(protocol, limits=Limits(handshake_timeout=0.1)) as server:
            async with await server.raw() as peer:
                started = time.monotonic()
                await peer.receive_content()
                await peer.send(b"#" * sent)
                assert await peer.is_closed()
                assert time.monotonic() - started < 20
            assert server.router.connections == []
            await until(lambda: not server.listener.connections)

    run(main())


def test_silent_peer_in_tls(run: Run) -> None:
    async def main() -> None:
        async with serving(NTF, limits=Limits(handshake_timeout=0.1)) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    run(main())


def test_silent_peer_after_the_handshake_is_not_timed_out(run: Run) -> None:
    async def main() -> None:
        limits = Limits(handshake_timeout=0.1)
        async with serving(NTF, limits=limits) as server, server.client() as client:
            await asyncio.sleep(0.2)
            assert await client.request(PING()) == PONG()

    run(main())


@both
def test_inactive_clients_go_if_the_router_agrees(run: Run, protocol: AnyProtocol) -> None:
    class Picky(SampleRouter):
        asked: set[ServerConnection]

        def may_disconnect(self, connection: ServerConnection) -> bool:
            assert connection in self.connections
            self.asked.add(connection)
            return connection is not self.connections[0]

    async def main() -> None:
        router = Picky()
        router.asked = set()
        limits = Limits(check_interval=0.02, inactive_after=0.1)
        async with (
            serving(protocol, router, limits=limits) as server,
            server.client() as kept,
            server.client() as dropped,
            await server.raw() as stranger,  # has not shaken hands
        ):
            assert await kept.request(PING()) == await dropped.request(PING()) == PONG()
            async with server.client() as active:
                while not (router.lost and len(router.asked) > 1):
                    assert await active.request(PING()) == PONG()
                    await asyncio.sleep(0.01)
                assert router.lost == [router.connections[1]]
            await stranger.shake_hands(newest(protocol))
            assert await stranger.exchange(batch(ping())) == [PONG_1]
            assert await kept.request(PING()) == PONG()
            await until(lambda: not dropped.is_connected)

    run(main())


@both
def test_close_ends_everything(run: Run, protocol: AnyProtocol) -> None:
    async def main() -> None:
        router = SlowRouter()
        async with serving(protocol, router, limits=Limits(max_unanswered=1)) as server:
            clients = [await Client.connect(server.address()) for _ in range(3)]
            mute = await server.raw()  # never shakes hands
            held = await server.raw()  # is not read from, and never closes
            await held.shake_hands(newest(protocol))
            await held.send_content(batch(ping()))
            await until(lambda: router.waiting)
            opening = socket.create_connection(("127.0.0.1", server.port))  # never speaks TLS
            await asyncio.sleep(0.02)
            started = time.monotonic()
            await server.listener.close(grace=0.3)
            assert time.monotonic() - started < 20
            assert not server.listener.connections
            assert len(router.lost) == 4
            for client in clients:
                await until(lambda client=client: not client.is_connected)  # type: ignore[misc]
                with pytest.raises(Disconnected):
                    await client.request(PING())
            with pytest.raises(ConnectFailed):
                await Client.connect(server.address())
            for peer in (mute, held):
                peer.sock.close()
            opening.close()

    run(main())


def test_close_lets_answers_leave(run: Run) -> None:
    async def main() -> None:
        router = SlowRouter()
        async with serving(NTF, router) as server, server.client() as client:
            task = asyncio.create_task(client.request(PING()))
            await until(lambda: router.waiting)
            router.answer_all()
            await server.listener.close()
            assert await task == PONG()

    run(main())


def test_close_of_what_was_never_started(run: Run) -> None:
    async def main() -> None:
        listener = Listener(NTF, IDENTITY, SampleRouter())
        await listener.close()
        await listener.close()

    run(main())


def test_no_connection_is_admitted_while_closing(run: Run) -> None:
    async def main() -> None:
        async with serving(NTF) as server:
            connection = ServerConnection(server.listener)
            assert server.listener.admit(connection)
            server.listener.forget(connection)
            await server.listener.close()
            assert not server.listener.admit(connection)

    run(main())


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Grows when memory is given back: after two that are gone."""
    released: list[bool] = []
    monkeypatch.setattr(module, "RELEASE_AFTER", 2)
    monkeypatch.setattr(loop, "release_memory", lambda: released.append(True))
    return released


def test_memory_of_closed_connections_is_given_back(run: Run, released: list[bool]) -> None:
    async def main() -> None:
        async with serving(NTF, limits=FAST) as server:
            for _ in range(2):
                assert released == []
                async with server.client() as client:
                    assert await client.request(PING()) == PONG()
            await until(lambda: released)

    run(main())
    assert len(released) == 1


def test_memory_of_failed_handshakes_is_given_back(run: Run, released: list[bool]) -> None:
    async def main() -> None:
        async with serving(NTF, limits=FAST) as server:
            for _ in range(2):
                with socket.create_connection(("127.0.0.1", server.port)) as sock:
                    sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
            await until(lambda: released)

    run(main())


# Services.


def test_service_router_that_fails(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        router = FaultyRouter("service_requested")
        async with serving(SMP, router, request_client_certificate=True) as server:
            with pytest.raises(Disconnected):
                await Client.connect(server.address(), service=SERVICE)
            router.method = None
            async with server.client(service=SERVICE) as client:
                assert client.established.service is not None

    run(main())
    assert "service_requested failed" in caplog.text
    caplog.clear()


# Many.

_HOLD_OPEN = """
import asyncio, sys
from heliograph.transport import loop
from heliograph.transport import server as module
from heliograph.transport.client import Client, ClientConfig
from heliograph.wire.addresses import decode_address
from heliograph.wire.table import PING

async def main(address, count):
    config = ClientConfig(connect_timeout=60, handshake_timeout=60)
    gate = asyncio.Semaphore(100)
    async def connect():
        async with gate:
            return await Client.connect(address, config)
    clients = await asyncio.gather(*(connect() for _ in range(count)))
    print("connected", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await asyncio.gather(*(client.request(PING()) for client in clients))
    print("answered", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await asyncio.gather(*(client.close() for client in clients))

loop.run(main(decode_address(sys.argv[1]), int(sys.argv[2])))
"""


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
@pytest.mark.parametrize("net", list(Net))
def test_many_connections(net: Net, capsys: pytest.CaptureFixture[str]) -> None:
    _, hard = limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < CONNECTIONS + 200:
        pytest.skip("too few file descriptors")

    async def main() -> None:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        async with serving(NTF) as server:
            before = resident_bytes()
            helper = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-c", _HOLD_OPEN, str(server.address()), str(CONNECTIONS)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
            )
            assert helper.stdin is not None
            assert helper.stdout is not None
            try:
                assert await helper.stdout.readline() == b"connected\n"
                assert len(server.listener.connections) == CONNECTIONS
                each = (resident_bytes() - before) / CONNECTIONS / 1024
                helper.stdin.write(b"\n")
                assert await helper.stdout.readline() == b"answered\n"
                assert len(server.router.requests) == CONNECTIONS
                helper.stdin.write(b"\n")
                assert await helper.wait() == 0
                await until(lambda: not server.listener.connections)
                assert len(server.router.lost) == CONNECTIONS
            finally:
                if helper.returncode is None:
                    helper.kill()
                    await helper.wait()
        with capsys.disabled():
            sys.stdout.write(f"\n{net}: {CONNECTIONS} connections, {each:.0f} KiB each\n")
        assert each < 1024

    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        started = time.monotonic()
        loop.run(asyncio.wait_for(main(), 50), net=net)
        assert time.monotonic() - started < 50
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_bytes_queued_for_a_client_that_does_not_read_are_bounded(run: Run) -> None:
    """A GET of a few bytes is answered by a block: the answers must not pile up."""
    body = b"x" * 16_000

    class Heavy(SampleRouter):
        def answer_to(self, connection: ServerConnection, request: Request[Any]) -> Answer:
            return Answer(request.corr_id, request.entity_id, smp.MSG(b"m" * 24, body))

    async def main() -> None:
        config = ClientConfig(receive_buffer=64 * 1024)
        key = generate_key_pair(Algorithm.ED25519).private
        gets = [ClientRequest(smp.GET(), ENTITY_ID, key)] * 1000
        async with serving(SMP, Heavy()) as server, server.client(config) as client:
            (connection,) = server.listener.connections
            client.pause_reading()
            asking = asyncio.create_task(client.request_many(gets))
            await until(lambda: connection.write_paused_at is not None)
            await asyncio.sleep(0.1)
            assert 0 < connection.unsent < 768 * 1024
            client.resume_reading()
            answers = await asking
            assert [type(answer) for answer in answers] == [smp.MSG] * 1000
            assert connection.unanswered == 0

    run(main())
