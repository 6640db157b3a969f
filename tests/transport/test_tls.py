"""Tests of `heliograph.transport.tls`, over loopback on each network stack."""

import _ssl
import asyncio
import contextlib
import importlib.util
import os
import socket
import ssl
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from heliograph.crypto.certificates import (
    CertificateError,
    SigningAlgorithm,
    TlsCredentials,
    create_authority,
    fingerprint,
    identity_of,
    issue_leaf,
)
from heliograph.transport import accepting, loop, tls
from tests.transport.echo import Run

NOW = time.time()
AUTHORITY = create_authority("SMP server CA", NOW)
SERVER = issue_leaf(AUTHORITY, "127.0.0.1", NOW)
SERVICE = issue_leaf(create_authority("NTF server CA", NOW), "127.0.0.1", NOW)
ALPN = ["smp/1", "ntf/1"]
TIMEOUT = 10

needs_libssl = pytest.mark.skipif(not tls.LIBSSL_REACHED, reason="libssl is out of reach")


class Peer(asyncio.Protocol):
    """Either end: keeps the transport and counts what arrives."""

    def __init__(self) -> None:
        self.connected: asyncio.Future[asyncio.Transport] = (
            asyncio.get_running_loop().create_future()
        )
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.received = 0
        self.progress = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.connected.set_result(cast(asyncio.Transport, transport))

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        self.progress.set()

    async def receive(self, length: int) -> None:
        while self.received < length:
            self.progress.clear()
            await self.progress.wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)


class Listener:
    """A server on a free port that hands over its peers as they come."""

    def __init__(self) -> None:
        self.accepted: asyncio.Queue[Peer] = asyncio.Queue()
        self.peers: list[Peer] = []
        self.port = 0

    def accept(self) -> Peer:
        peer = Peer()
        self.peers.append(peer)
        self.accepted.put_nowait(peer)
        return peer

    async def connect(self, context: ssl.SSLContext) -> tuple[asyncio.Transport, Peer]:
        sock = await loop.connect_tcp("127.0.0.1", self.port)
        transport, peer = await loop.create_connection(Peer, sock, ssl=context)
        self.peers.append(peer)
        return transport, peer

    async def join(self, context: ssl.SSLContext) -> tuple[asyncio.Transport, asyncio.Transport]:
        """Connect, and return the transports of both ends."""
        client, _ = await self.connect(context)
        return client, await (await self.accepted.get()).connected

    async def close(self) -> None:
        for peer in self.peers:
            if peer.connected.done() and not peer.connected.cancelled():
                peer.connected.result().abort()
                await peer.lost


@contextlib.asynccontextmanager
async def listening(context: ssl.SSLContext) -> AsyncIterator[Listener]:
    listener = Listener()
    server = await accepting.create_server(listener.accept, "127.0.0.1", 0, ssl=context)
    listener.port = server.sockets[0].getsockname()[1]
    try:
        yield listener
    finally:
        server.close()
        await listener.close()


def server_context(
    credentials: TlsCredentials = SERVER,
    alpn: Sequence[str] = ALPN,
    *,
    request_client_certificate: bool = True,
) -> ssl.SSLContext:
    return tls.server_context(
        credentials, alpn, request_client_certificate=request_client_certificate
    )


def test_session_ids_are_equal_and_differ_by_connection(run: Run) -> None:
    async def main() -> None:
        context = tls.client_context(ALPN)
        async with listening(server_context()) as listener:
            ids = set()
            for _ in range(3):
                client, server = await listener.join(context)
                assert tls.session_id(client) == tls.session_id(server)
                assert len(tls.session_id(client)) == 32
                ids.add(tls.session_id(client))
                client.abort()
            assert len(ids) == 3

    run(main())


def test_data_flows_both_ways(run: Run) -> None:
    async def main() -> None:
        async with listening(server_context()) as listener:
            client, client_peer = await listener.connect(tls.client_context(ALPN))
            server_peer = await listener.accepted.get()
            server = await server_peer.connected
            client.write(b"a" * 16384 * 20)
            server.write(b"b" * 512)
            await server_peer.receive(16384 * 20)
            await client_peer.receive(512)
            client.close()
            assert await server_peer.lost is None
            assert await client_peer.lost is None

    run(main())


@pytest.mark.parametrize("leaf", list(SigningAlgorithm))
@pytest.mark.parametrize("authority", list(SigningAlgorithm))
def test_server_identity(run: Run, leaf: SigningAlgorithm, authority: SigningAlgorithm) -> None:
    ca = create_authority("SMP server CA", NOW, authority)
    credentials = issue_leaf(ca, "127.0.0.1", NOW, leaf)

    async def main() -> None:
        async with listening(server_context(credentials)) as listener:
            client, _ = await listener.join(tls.client_context(ALPN))
            assert tls.peer_chain(client) == credentials.chain
            assert identity_of(tls.peer_chain(client), NOW).fingerprint == fingerprint(ca.chain[0])

    run(main())


def test_forged_chain_is_let_through_and_then_refused(run: Run) -> None:
    attacker = issue_leaf(create_authority("SMP server CA", NOW), "127.0.0.1", NOW)
    forged = TlsCredentials((attacker.chain[0], AUTHORITY.chain[0]), attacker.private_key)

    async def main() -> None:
        async with listening(server_context(forged)) as listener:
            client, _ = await listener.join(tls.client_context(ALPN))
            chain = tls.peer_chain(client)
            assert fingerprint(chain[1]) == fingerprint(AUTHORITY.chain[0])
            with pytest.raises(CertificateError):
                identity_of(chain, NOW)

    run(main())


@pytest.mark.parametrize(
    ("made", "seen"),
    [(NOW + 3600, NOW), (NOW, NOW + 1_000_000 * 86_400)],
    ids=["not yet valid", "expired"],
)
def test_dates_are_let_through_and_then_refused(run: Run, made: float, seen: float) -> None:
    credentials = issue_leaf(create_authority("SMP server CA", made), "127.0.0.1", made)

    async def main() -> None:
        async with listening(server_context(credentials)) as listener:
            client, _ = await listener.join(tls.client_context(ALPN))
            with pytest.raises(CertificateError):
                identity_of(tls.peer_chain(client), seen)

    run(main())


def test_no_client_certificate(run: Run) -> None:
    async def main() -> None:
        async with listening(server_context()) as listener:
            client, server = await listener.join(tls.client_context(ALPN))
            assert tls.peer_chain(server) == ()
            assert not tls.certificate_sent(client)
            assert not tls.certificate_sent(server)

    run(main())


CLIENTS = {
    "two certificates": SERVICE,
    "Ed448": issue_leaf(create_authority("CA", NOW), "host", NOW, SigningAlgorithm.ED448),
    "self-signed": create_authority("service", NOW),
    "leaf alone": TlsCredentials(SERVICE.chain[:1], SERVICE.private_key),
    "not valid yet": create_authority("service", NOW + 86_400),
}


@needs_libssl
@pytest.mark.parametrize("credentials", CLIENTS.values(), ids=CLIENTS)
def test_client_certificate_from_anyone(run: Run, credentials: TlsCredentials) -> None:
    async def main() -> None:
        async with listening(server_context()) as listener:
            client, server = await listener.join(tls.client_context(ALPN, credentials))
            assert tls.peer_chain(server) == credentials.chain
            assert tls.certificate_sent(client)

    run(main())


@needs_libssl
def test_certificate_sent_is_about_one_connection(run: Run) -> None:
    async def main() -> None:
        context = tls.client_context(ALPN, SERVICE)
        async with (
            listening(server_context()) as asks,
            listening(server_context(request_client_certificate=False)) as does_not_ask,
        ):
            asked, _ = await asks.join(context)
            not_asked, server = await does_not_ask.join(context)
            assert tls.certificate_sent(asked)
            assert tls.certificate_sent(asked)
            assert not tls.certificate_sent(not_asked)
            assert tls.peer_chain(server) == ()

    run(main())


@needs_libssl
def test_client_without_the_key_of_its_certificate_is_refused(run: Run) -> None:
    stolen = TlsCredentials(SERVICE.chain, SERVER.private_key)
    with pytest.raises(ssl.SSLError, match=r"(?i)key.values.mismatch"):
        tls.client_context(ALPN, stolen)


@pytest.mark.parametrize(
    ("offered", "selected"),
    [
        ([], None),
        (["smp/1"], "smp/1"),
        (["ntf/1"], "ntf/1"),
        (["h2", "ntf/1", "smp/1"], "ntf/1"),
    ],
)
def test_alpn(run: Run, offered: list[str], selected: str | None) -> None:
    async def main() -> None:
        async with listening(server_context()) as listener:
            client, server = await listener.join(tls.client_context(offered))
            assert tls.negotiated_alpn(client) == selected
            assert tls.negotiated_alpn(server) == selected

    run(main())


@needs_libssl
@pytest.mark.parametrize("offered", [["h2"], ["h2", "http/1.1"], ["smp/12"], ["smp"]])
def test_unknown_alpn_gets_an_alert(run: Run, offered: list[str]) -> None:
    async def main() -> None:
        async with listening(server_context()) as listener:
            with pytest.raises(ssl.SSLError, match=r"(?i)no.application.protocol"):
                await listener.connect(tls.client_context(offered))

    run(main())


def test_server_without_alpn_ignores_it(run: Run) -> None:
    async def main() -> None:
        async with listening(server_context(alpn=[])) as listener:
            client, server = await listener.join(tls.client_context(ALPN))
            assert tls.negotiated_alpn(client) is None
            assert tls.negotiated_alpn(server) is None

    run(main())


@needs_libssl
def test_cipher_is_chacha20(run: Run) -> None:
    async def main() -> None:
        async with listening(server_context()) as listener:
            for end in await listener.join(tls.client_context(ALPN)):
                name, version, _ = end.get_extra_info("cipher")
                assert (name, version) == ("TLS_CHACHA20_POLY1305_SHA256", "TLSv1.3")

    run(main())


def handshake(port: int, context: ssl.SSLContext) -> ssl.SSLSocket:
    """A handshake by the standard library, on a thread, as any other client would do it."""
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port), TIMEOUT) as sock:
        return context.wrap_socket(sock)


def test_no_session_tickets(run: Run) -> None:
    async def main() -> None:
        async with listening(server_context()) as listener:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            sock = await asyncio.to_thread(handshake, listener.port, context)
            server = await (await listener.accepted.get()).connected
            server.write(b"x")  # tickets would come before it
            with sock:
                assert await asyncio.to_thread(sock.recv, 1) == b"x"
                assert sock.session is None or not sock.session.has_ticket

    run(main())


def only_tls_1_2(context: ssl.SSLContext) -> None:
    context.maximum_version = ssl.TLSVersion.TLSv1_2


def only_p256(context: ssl.SSLContext) -> None:
    context.set_ecdh_curve("prime256v1")


@pytest.mark.parametrize("limit", [only_tls_1_2, only_p256])
def test_other_algorithms_are_refused(run: Run, limit: Callable[[ssl.SSLContext], None]) -> None:
    async def main() -> None:
        async with listening(server_context()) as listener:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            limit(context)
            with pytest.raises(ssl.SSLError):
                await asyncio.to_thread(handshake, listener.port, context)

    run(main())


def test_without_libssl(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "_libssl", None)

    async def main() -> None:
        async with listening(server_context()) as listener:
            client, server = await listener.join(tls.client_context(["ntf/1"], SERVICE))
            assert tls.session_id(client) == tls.session_id(server)
            assert tls.peer_chain(client) == SERVER.chain
            assert tls.negotiated_alpn(server) == "ntf/1"
            assert tls.peer_chain(server) == ()
            assert not tls.certificate_sent(client)
            _, server = await listener.join(tls.client_context(["h2"]))
            assert tls.negotiated_alpn(server) is None

    run(main())


@needs_libssl
def test_openssl_without_the_algorithms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "CIPHER_SUITES", b"TLS_NONE")
    with pytest.raises(ssl.SSLError, match="lacks an algorithm"):
        tls.client_context(ALPN)


@pytest.mark.parametrize("attribute", ["SSL_CTX_set_ciphersuites", None])
def test_libssl_out_of_reach(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, attribute: str | None
) -> None:
    if attribute is None:
        monkeypatch.delattr(_ssl, "__file__")
    else:
        monkeypatch.setattr(_ssl, "__file__", str(tmp_path / "none.so"))
    spec = importlib.util.find_spec("heliograph.transport.tls")
    assert spec is not None
    assert spec.loader is not None
    fresh = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fresh)
    assert not fresh.LIBSSL_REACHED


def test_credentials_load_without_memory_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    written = []
    load_cert_chain = ssl.SSLContext.load_cert_chain

    def spy(self: ssl.SSLContext, path: str, password: bytes) -> None:
        written.append(Path(path).read_bytes())
        load_cert_chain(self, path, password=password)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", spy)
    server_context()
    assert b"ENCRYPTED PRIVATE KEY" in written[0]
    assert list(tmp_path.iterdir()) == []


def test_not_a_tls_connection(run: Run) -> None:
    async def main() -> None:
        left, right = socket.socketpair()
        with right:
            transport, peer = await loop.create_connection(Peer, left, ssl=None)
            for read in (
                tls.peer_chain,
                tls.session_id,
                tls.negotiated_alpn,
                tls.certificate_sent,
            ):
                with pytest.raises(ValueError, match="not a TLS connection"):
                    read(transport)
            transport.abort()
            await peer.lost

    run(main())


def test_session_id_before_the_handshake() -> None:
    class Early(asyncio.BaseTransport):
        def get_extra_info(self, name: str, default: Any = None) -> Any:
            return tls.client_context(ALPN).wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO())

    with pytest.raises(ValueError, match="not complete"):
        tls.session_id(Early())


def test_tcp_options() -> None:
    with socket.socket() as sock:
        tls.set_tcp_options(sock)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 15
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == 4
        if hasattr(socket, "TCP_KEEPIDLE"):
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
