"""Connections that a peer reset right after it had sent something: every stack has to notice."""

import contextlib
import errno
import os
import select
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from heliograph.transport import hangups, tls
from heliograph.transport.client import Client
from heliograph.transport.loop import Net
from heliograph.transport.protocols import NTF, SMP, AnyProtocol
from heliograph.wire.addresses import ServerAddress, decode_host
from heliograph.wire.handshakes import NtfServerHandshake, encode_ntf_server
from heliograph.wire.primitives import pad
from heliograph.wire.table import PING, PONG
from heliograph.wire.versions import NTF_LEGACY_VERSIONS
from tests.transport.support import IDENTITY, TIMEOUT, Run, open_sockets, run_on, serving
from tests.waiting import until

RECORD = b"\x17\x03\x03"  # the beginning of a TLS record


@pytest.fixture(params=Net)
def run(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[Run]:
    yield from run_on(request.param, caplog)


def count_epolls() -> int:
    """Return how many epoll descriptors are open in this process."""
    count = 0
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            count += os.readlink(path) == "anon_inode:[eventpoll]"
    return count


def send_and_reset(sock: socket.socket, data: bytes) -> None:
    """So that both are there when the other end looks."""
    with socket.socket(fileno=os.dup(sock.fileno())) as plain:
        plain.setblocking(True)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        plain.sendall(data)
    sock.close()


def test_reset_in_the_middle_of_tls(run: Run) -> None:
    async def main() -> None:
        async with serving(NTF) as server:
            before = open_sockets()
            for _ in range(10):
                sock = socket.create_connection(("127.0.0.1", server.port))
                send_and_reset(sock, b"\x16\x03\x01")
            async with server.client() as client:
                assert await client.request(PING()) == PONG()
            await until(lambda: open_sockets() <= before)

    run(main())


@pytest.mark.parametrize("protocol", [NTF, SMP], ids=["ntf", "smp"])
@pytest.mark.parametrize("established", [False, True])
def test_reset_of_a_client(run: Run, protocol: AnyProtocol, established: bool) -> None:
    async def main() -> None:
        async with serving(protocol) as server:
            peer = await server.raw()
            if established:
                await peer.shake_hands(protocol.versions.max)
                await until(lambda: server.router.connections)
            else:
                await until(lambda: server.listener.connections)
            send_and_reset(peer.sock, RECORD)
            await until(lambda: not server.listener.connections)
            assert server.router.lost == server.router.connections
            assert len(server.router.lost) == established

    run(main())


def serve_and_reset(listening: socket.socket, now: threading.Event) -> None:
    context = tls.server_context(IDENTITY.credentials, [NTF.alpn], request_client_certificate=False)
    accepted, _ = listening.accept()
    with context.wrap_socket(accepted, server_side=True) as sock:
        session_id = sock.get_channel_binding("tls-unique") or b""
        hello = encode_ntf_server(NtfServerHandshake(NTF_LEGACY_VERSIONS, session_id))
        sock.sendall(pad(hello, NTF.block_size))
        sock.recv(NTF.block_size)
        assert now.wait(TIMEOUT)
        send_and_reset(sock, RECORD)


def test_reset_of_a_router(run: Run) -> None:
    async def main() -> None:
        ended: list[Client] = []
        now = threading.Event()
        with socket.create_server(("127.0.0.1", 0)) as listening:
            router = threading.Thread(target=serve_and_reset, args=(listening, now))
            router.start()
            port = str(listening.getsockname()[1])
            host = decode_host("127.0.0.1")
            await Client.connect(
                ServerAddress(NTF.scheme, (host,), port, IDENTITY.fingerprint),
                on_disconnect=lambda client, _: ended.append(client),
            )
            now.set()
            router.join(TIMEOUT)  # the loop stands still: it must find both at once
            await until(lambda: ended)
            assert len(ended) == 1

    run(main())


def test_nothing_is_left(run: Run) -> None:
    async def main() -> None:
        before = count_epolls()
        async with serving(NTF) as server:
            for _ in range(3):
                async with server.client() as client:
                    assert await client.request(PING()) == PONG()
            await until(lambda: not server.listener.connections)
            assert count_epolls() == before

    run(main())


async def test_forgotten_before_it_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hangups, "GRACE_SECONDS", 0.01)
    reported: list[str] = []
    before = count_epolls()
    here, there = socket.socketpair()
    with here, there:
        hangups.watch(here.fileno(), lambda: reported.append("here"))
        hangups.watch(there.fileno(), lambda: reported.append("there"))
        here.shutdown(socket.SHUT_RDWR)
        hangups.forget(here.fileno())
        await until(lambda: reported)
        hangups.forget(there.fileno())
        hangups.forget(there.fileno())
    assert reported == ["there"]
    assert count_epolls() == before


async def test_without_epoll(monkeypatch: pytest.MonkeyPatch) -> None:
    before = count_epolls()
    monkeypatch.delattr(select, "epoll")
    hangups.watch(0, lambda: None)
    hangups.forget(0)
    assert count_epolls() == before


def test_out_of_descriptors(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def main() -> None:
        monkeypatch.setattr(select, "epoll", fail)
        async with serving(NTF) as server, server.client() as client:
            assert await client.request(PING()) == PONG()

    run(main())


async def test_socket_that_cannot_be_watched() -> None:
    before = count_epolls()
    with socket.socket() as closed:
        descriptor = closed.fileno()
    hangups.watch(descriptor, lambda: None)
    hangups.forget(descriptor)
    assert count_epolls() == before
