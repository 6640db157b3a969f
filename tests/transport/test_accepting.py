"""Tests of `heliograph.transport.accepting`, over loopback on each network stack."""

import asyncio
import contextlib
import errno
import gc
import logging
import os
import socket
import struct
import weakref
from typing import Any

import pytest

from heliograph.transport import accepting, loop
from tests.transport.echo import (
    CLIENT_CONTEXT,
    SERVER_CONTEXT,
    TIMEOUT,
    Client,
    Echo,
    Run,
    check,
    echoing,
)
from tests.waiting import until


def test_all_addresses(run: Run) -> None:
    async def main() -> None:
        async with echoing(None) as (_, port):
            await check(port, None)
            if socket.has_dualstack_ipv6():
                await check(port, None, "::1")

    run(main())


def test_all_addresses_without_ipv6(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)

    async def main() -> None:
        async with echoing(None) as (server, port):
            assert server.sockets[0].family is socket.AF_INET
            await check(port, None)

    run(main())


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6")
def test_ipv6(run: Run) -> None:
    async def main() -> None:
        async with echoing("::1") as (_, port):
            await check(port, None, "::1")

    run(main())


def test_reuse_port(run: Run) -> None:
    async def main() -> None:
        async with echoing(reuse_port=True) as (_, port):
            server = await accepting.create_server(
                Echo, "127.0.0.1", port, ssl=None, reuse_port=True
            )
            server.close()
            with pytest.raises(OSError, match="in use"):
                await accepting.create_server(Echo, "127.0.0.1", port, ssl=None)

    run(main())


async def hung_up(sock: socket.socket) -> None:
    """Wait until the peer of a blocking socket closes it."""
    sock.settimeout(TIMEOUT)
    with contextlib.suppress(ConnectionResetError):
        assert await asyncio.to_thread(sock.recv, 1) == b""


def test_server_times_out_on_a_silent_client(run: Run) -> None:
    async def main() -> None:
        async with echoing(context=SERVER_CONTEXT, handshake_timeout=0.1) as (_, port):
            with socket.create_connection(("127.0.0.1", port)) as sock:
                await hung_up(sock)
            await check(port, CLIENT_CONTEXT)

    run(main())


@pytest.mark.parametrize("limit", [1, 3])
def test_silent_clients_keep_nobody_out(run: Run, limit: int) -> None:
    """Handshakes in progress are bounded; the oldest is closed first."""

    async def main() -> None:
        async with echoing(context=SERVER_CONTEXT, max_handshakes=limit) as (_, port):
            with contextlib.ExitStack() as stack:
                silent = [
                    stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                    for _ in range(2 * limit)
                ]
                for sock in silent[:limit]:
                    await hung_up(sock)
                await check(port, CLIENT_CONTEXT)
                await hung_up(silent[limit])
                for sock in silent[limit + 1 :]:
                    sock.setblocking(False)
                    with pytest.raises(BlockingIOError):
                        sock.recv(1)

    run(main())


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\n\r\n"])
def test_failed_handshakes_leave_nothing_to_the_garbage_collector(run: Run, sent: bytes) -> None:
    made: list[weakref.ref[Echo]] = []

    def accept() -> Echo:
        protocol = Echo()
        made.append(weakref.ref(protocol))
        return protocol

    async def main() -> None:
        server = await accepting.create_server(accept, "127.0.0.1", 0, ssl=SERVER_CONTEXT)
        port = server.sockets[0].getsockname()[1]
        gc.disable()
        try:
            for _ in range(3):
                with socket.create_connection(("127.0.0.1", port)) as sock:
                    sock.sendall(sent)
                    await asyncio.sleep(0.02)
            await until(lambda: len(made) == 3 and not any(protocol() for protocol in made))
        finally:
            gc.enable()
            server.close()
            await server.wait_closed()

    run(main())


@pytest.mark.parametrize("head_start", [0, 0.05])
def test_close_ends_handshakes(run: Run, head_start: float) -> None:
    async def main() -> None:
        async with echoing(context=SERVER_CONTEXT) as (server, port):
            with socket.create_connection(("127.0.0.1", port)) as sock:
                await asyncio.sleep(head_start)
                server.close()
                await server.wait_closed()
                await hung_up(sock)

    run(main())


def test_connections_outlive_their_server(run: Run) -> None:
    async def main() -> None:
        async with echoing(context=SERVER_CONTEXT) as (server, port):
            sock = await loop.connect_tcp("127.0.0.1", port)
            _, client = await loop.create_connection(Client, sock, ssl=CLIENT_CONTEXT)
            await client.exchange()
            server.close()
            await server.wait_closed()
            await client.check()

    run(main())


@pytest.mark.parametrize("method", ["accept", "dup"])
def test_server_survives_running_out_of_descriptors(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    monkeypatch.setattr(accepting, "ACCEPT_RETRY_DELAY", 0.05)
    original = getattr(socket.socket, method)
    failures = [OSError(errno.EMFILE, os.strerror(errno.EMFILE))]

    def fail_once(self: socket.socket) -> Any:
        if failures:
            raise failures.pop()
        return original(self)

    async def main() -> None:
        async with echoing(context=SERVER_CONTEXT) as (_, port):
            monkeypatch.setattr(socket.socket, method, fail_once)
            with socket.create_connection(("127.0.0.1", port)):
                await asyncio.sleep(0.1)
            await check(port, CLIENT_CONTEXT)

    run(main())
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "127.0.0.1" not in caplog.text


def test_closing_a_server_that_waits_for_descriptors(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: socket.socket) -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def main() -> None:
        async with echoing() as (_, port):
            monkeypatch.setattr(socket.socket, "accept", fail)
            with socket.create_connection(("127.0.0.1", port)):
                await asyncio.sleep(0.05)

    run(main())


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01", b"GET / HTTP/1.1\r\n\r\n", bytes(600)])
def test_server_survives_aborted_handshakes(
    run: Run, caplog: pytest.LogCaptureFixture, sent: bytes
) -> None:
    async def main() -> None:
        async with echoing(context=SERVER_CONTEXT) as (_, port):
            for reset in (True, False):
                with socket.create_connection(("127.0.0.1", port)) as sock:
                    sock.sendall(sent)
                    await asyncio.sleep(0.02)
                    if reset:
                        linger = struct.pack("ii", 1, 0)
                        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            await asyncio.sleep(0.02)
            await check(port, CLIENT_CONTEXT)

    with caplog.at_level(logging.INFO, logger="heliograph"):
        run(main())
    assert [record for record in caplog.records if record.name.startswith("heliograph")] == []
