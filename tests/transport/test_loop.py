"""Tests of `heliograph.transport.loop`, over loopback on each network stack."""

import asyncio
import contextlib
import ctypes
import errno
import logging
import platform
import socket
import ssl
import struct
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from ipaddress import ip_address
from typing import Any

import pytest

from heliograph.crypto.certificates import (
    certificates_to_pem,
    private_key_to_pem,
)
from heliograph.net.public import Address
from heliograph.transport import accepting, loop
from heliograph.transport.loop import Net
from tests.transport.echo import (
    CLIENT_CONTEXT,
    SERVER,
    SERVER_CONTEXT,
    TIMEOUT,
    Client,
    Echo,
    Run,
    check,
    echoing,
)
from tests.waiting import until

nets = pytest.mark.parametrize("net", list(Net))


@contextlib.contextmanager
def silent_server() -> Iterator[socket.socket]:
    """A socket whose connections nobody accepts or answers."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock


def test_default_net(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HELIOGRAPH_NET", raising=False)
    assert loop.chosen_net() is Net.AIOFASTNET
    monkeypatch.setenv("HELIOGRAPH_NET", "")
    assert loop.chosen_net() is Net.AIOFASTNET


@nets
def test_net_from_the_environment(monkeypatch: pytest.MonkeyPatch, net: Net) -> None:
    monkeypatch.setenv("HELIOGRAPH_NET", net.value)
    assert loop.chosen_net() is net
    assert loop.chosen_net(Net.ASYNCIO) is Net.ASYNCIO
    assert loop.chosen_net("uvloop") is Net.UVLOOP


def test_unknown_net(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELIOGRAPH_NET", "trio")
    with pytest.raises(ValueError, match="trio"):
        loop.chosen_net()


@pytest.mark.parametrize(
    ("net", "loop_module", "transport_module"),
    [
        (Net.AIOFASTNET, "uvloop", "aiofastnet.ssl_transport"),
        (Net.UVLOOP, "uvloop", "uvloop.loop"),
        (Net.ASYNCIO, "asyncio.unix_events", "asyncio.sslproto"),
    ],
)
def test_stack_is_the_chosen_one(net: Net, loop_module: str, transport_module: str) -> None:
    async def main() -> str:
        assert type(asyncio.get_running_loop()).__module__ == loop_module
        async with echoing(context=SERVER_CONTEXT) as (_, port):
            sock = await loop.connect_tcp("127.0.0.1", port)
            transport, client = await loop.create_connection(Client, sock, ssl=CLIENT_CONTEXT)
            await client.check()
            return type(transport).__module__

    assert loop.run(main(), net=net) == transport_module


def test_loop_made_elsewhere_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELIOGRAPH_NET", "aiofastnet")

    async def main() -> str:
        async with echoing(context=SERVER_CONTEXT) as (_, port):
            sock = await loop.connect_tcp("127.0.0.1", port)
            transport, client = await loop.create_connection(Client, sock, ssl=CLIENT_CONTEXT)
            await client.check()
            return type(transport).__module__

    assert asyncio.run(main()) == "aiofastnet.ssl_transport"


@pytest.mark.parametrize("tls_used", [True, False])
def test_echo(run: Run, tls_used: bool) -> None:
    async def main() -> None:
        async with echoing(context=SERVER_CONTEXT if tls_used else None) as (_, port):
            for _ in range(3):
                await check(port, CLIENT_CONTEXT if tls_used else None)

    run(main())


def test_tcp_options_of_both_ends(run: Run) -> None:
    async def main() -> None:
        servers = []

        class Recorder(Echo):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                super().connection_made(transport)
                servers.append(self)

        server = await accepting.create_server(Recorder, "127.0.0.1", 0, ssl=SERVER_CONTEXT)
        sock = await loop.connect_tcp("127.0.0.1", server.sockets[0].getsockname()[1])
        _, client = await loop.create_connection(Client, sock, ssl=CLIENT_CONTEXT)
        await client.exchange()
        for end in (client, *servers):
            connected = end.transport.get_extra_info("socket")
            assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == 4
        server.close()
        for end in (client, *servers):
            end.transport.abort()
            await end.lost

    run(main())


def test_connection_refused(run: Run) -> None:
    with silent_server() as sock:
        port = sock.getsockname()[1]

    async def main() -> None:
        with pytest.raises(ConnectionRefusedError):
            await loop.connect_tcp("127.0.0.1", port)

    run(main())


def resolving_to(*addresses: str) -> Callable[[str], Awaitable[list[Address]]]:
    async def resolve(_: str) -> list[Address]:
        return [ip_address(address) for address in addresses]

    return resolve


def test_next_address_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with echoing() as (_, port):
            monkeypatch.setattr(loop, "resolve", resolving_to("127.0.0.2", "127.0.0.1"))
            await check(port, None, "example.org")

    loop.run(main(), net=Net.ASYNCIO)


def test_host_without_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setattr(loop, "resolve", resolving_to())
        with pytest.raises(OSError, match="no address"):
            await loop.connect_tcp("example.org", 1)

    loop.run(main(), net=Net.ASYNCIO)


def test_cancelled_connect_closes_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    async def main() -> None:
        async def never(sock: socket.socket, _: Any) -> None:
            opened.append(sock)
            await asyncio.Event().wait()

        monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", never)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(loop.connect_tcp("127.0.0.1", 1), 0.05)

    loop.run(main(), net=Net.ASYNCIO)
    assert [sock.fileno() for sock in opened] == [-1]


def test_client_times_out_on_a_silent_server(run: Run) -> None:
    async def main() -> None:
        with silent_server() as server:
            sock = await loop.connect_tcp(*server.getsockname())
            with pytest.raises(OSError):  # noqa: PT011 - the stacks have different messages
                await loop.create_connection(
                    Client, sock, ssl=CLIENT_CONTEXT, handshake_timeout=0.1
                )
            await closed(sock)

    run(main())


def test_client_of_a_server_that_hangs_up(run: Run) -> None:
    async def main() -> None:
        with silent_server() as server:
            sock = await loop.connect_tcp(*server.getsockname())
            server.accept()[0].close()
            with pytest.raises(OSError):  # noqa: PT011 - the stacks have different messages
                await loop.create_connection(Client, sock, ssl=CLIENT_CONTEXT)
            await closed(sock)

    run(main())


def test_client_of_a_server_without_tls(run: Run) -> None:
    async def main() -> None:
        async with echoing() as (_, port):
            sock = await loop.connect_tcp("127.0.0.1", port)
            with pytest.raises(ssl.SSLError):
                await loop.create_connection(Client, sock, ssl=CLIENT_CONTEXT)
            await closed(sock)

    run(main())


async def closed(sock: socket.socket) -> None:
    """Wait until a transport has released its socket."""
    deadline = time.monotonic() + TIMEOUT
    while sock.fileno() >= 0:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("net", [Net.AIOFASTNET, Net.ASYNCIO])  # uvloop itself leaks it
def test_a_socket_that_was_reset_before_tls_is_closed(net: Net) -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            sock = await loop.connect_tcp("127.0.0.1", listening.getsockname()[1])
            peer, _ = listening.accept()
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.close()
            with pytest.raises(OSError):  # noqa: PT011  each stack has its own
                await loop.create_connection(Echo, sock, ssl=CLIENT_CONTEXT)
            await until(lambda: sock.fileno() == -1)

    loop.run(asyncio.wait_for(main(), TIMEOUT), net=net)


def test_no_server_name_is_sent(run: Run, tmp_path_factory: pytest.TempPathFactory) -> None:
    credentials = tmp_path_factory.mktemp("tls") / "server.pem"
    credentials.write_bytes(
        certificates_to_pem(SERVER.chain) + private_key_to_pem(SERVER.private_key)
    )
    names: list[str | None] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(credentials)
    context.sni_callback = lambda _, name, __: names.append(name)

    def serve(listener: socket.socket) -> None:
        sock, _ = listener.accept()
        with context.wrap_socket(sock, server_side=True) as connection:
            connection.sendall(connection.recv(5))

    async def main() -> None:
        with silent_server() as listener:
            thread = threading.Thread(target=serve, args=(listener,), daemon=True)
            thread.start()
            sock = await loop.connect_tcp(*listener.getsockname())
            _, client = await loop.create_connection(Client, sock, ssl=CLIENT_CONTEXT)
            await client.check()
            thread.join(TIMEOUT)

    run(main())
    assert names == [None]


@pytest.mark.parametrize(
    ("exception", "level"),
    [
        (ConnectionResetError, "DEBUG"),  # a class, as aiofastnet 1.2 passes it
        (ConnectionResetError(), "DEBUG"),
        (ssl.SSLError("bad"), "DEBUG"),
        (TimeoutError(), "DEBUG"),
        (OSError(errno.EMFILE, "too many open files"), "WARNING"),
        (ZeroDivisionError(), "ERROR"),
        (None, "ERROR"),
    ],
)
@nets
def test_exception_handler(
    caplog: pytest.LogCaptureFixture, net: Net, exception: Any, level: str
) -> None:
    async def main() -> None:
        context = {"message": "it failed", "exception": exception, "transport": "192.0.2.1"}
        asyncio.get_running_loop().call_exception_handler(context)

    with caplog.at_level(logging.DEBUG, logger="heliograph"):
        loop.run(main(), net=net)
    records = [record for record in caplog.records if record.name.startswith("heliograph")]
    assert [record.levelname for record in records] == [level]
    assert "it failed" in caplog.text
    assert "192.0.2.1" not in caplog.text


def test_exception_without_a_message(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_exception_handler({"exception": ZeroDivisionError()})

    loop.run(main(), net=Net.ASYNCIO)
    assert "unhandled exception" in caplog.text


@pytest.mark.parametrize("libc", ["glibc", ""])
@nets
def test_malloc_threshold(monkeypatch: pytest.MonkeyPatch, net: Net, libc: str) -> None:
    calls: list[tuple[int, int]] = []

    class Libc:
        @staticmethod
        def mallopt(parameter: int, value: int) -> None:
            calls.append((parameter, value))

    monkeypatch.setattr(platform, "libc_ver", lambda: (libc, ""))
    monkeypatch.setattr(ctypes, "CDLL", lambda _: Libc)
    loop.new_event_loop(net).close()
    assert calls == ([(-3, 4 << 20)] if net is Net.UVLOOP and libc else [])
