"""The HTTP clients with servers that break the rules; tests of providers run with both, too."""

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import RequestReceived

from heliograph.crypto.certificates import (
    SigningAlgorithm,
    certificates_to_pem,
    create_authority,
    issue_leaf,
    private_key_to_pem,
)
from heliograph.push.connecting import HttpConnections
from heliograph.push.h2_client import MAX_INFORMATIONAL, H2Connections
from heliograph.push.http import Connections, HttpSettings, NoAnswer
from heliograph.runtime.authority import Authority
from tests.waiting import until

Answering = Callable[[H2Connection, int], None]


@contextlib.asynccontextmanager
async def a_server(
    directory: Path,
    answer: Answering,
    transports: list[asyncio.WriteTransport] | None = None,
    context: ssl.SSLContext | None = None,
) -> AsyncIterator[tuple[str, HttpSettings]]:
    """Serve HTTP/2 without checking what is sent."""
    authority = Authority(directory)
    if context is None:
        context = authority.server_context("127.0.0.1")
        context.set_alpn_protocols(["h2"])

    connected: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connected[task] = writer
        if transports is not None:
            transports.append(writer.transport)
        config = H2Configuration(
            client_side=False, validate_outbound_headers=False, normalize_outbound_headers=False
        )
        connection = H2Connection(config)
        connection.initiate_connection()
        with contextlib.suppress(OSError):
            writer.write(connection.data_to_send())
            while data := await reader.read(65_536):
                for event in connection.receive_data(data):
                    if isinstance(event, RequestReceived) and event.stream_id:
                        answer(connection, event.stream_id)
                writer.write(connection.data_to_send())
        writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    settings = HttpSettings(connections=1, timeout=10.0, ca=authority.file.read_bytes())
    try:
        yield f"https://127.0.0.1:{port}/push", settings
    finally:
        server.close()
        for writer in connected.values():
            writer.transport.abort()
        await asyncio.gather(*connected)


Made = Callable[[HttpSettings], HttpConnections]


async def post(url: str, settings: HttpSettings, make: Made = H2Connections) -> int:
    connections = make(settings)
    try:
        return (await connections.post(url, {}, b"body")).status
    finally:
        connections.close()


async def reason(url: str, settings: HttpSettings) -> str:
    with pytest.raises(NoAnswer) as failure:
        await post(url, settings)
    return failure.value.reason


@pytest.mark.parametrize("make", [Connections, H2Connections])
async def test_a_share_of_the_connections(tmp_path: Path, make: Made) -> None:
    """Other processes have the rest; what exceeds a smaller share is closed."""
    peers: list[asyncio.WriteTransport] = []
    share = 3

    def answer(connection: H2Connection, stream: int) -> None:
        connection.send_headers(stream, [(":status", "200"), ("x", "y")], end_stream=True)

    async def at_once(connections: HttpConnections, url: str) -> None:
        await asyncio.gather(*(connections.post(url, {}, b"") for _ in range(6)))

    async with a_server(tmp_path, answer, transports=peers) as (url, settings):
        shared = replace(settings, connections=3, share_of=lambda number: min(share, number))
        connections = make(shared)
        await at_once(connections, url)
        assert len(peers) == 3
        share = 1
        await at_once(connections, url)
        await until(lambda: sum(not peer.is_closing() for peer in peers) == 1)
        assert len(peers) == 3
        connections.close()


async def test_an_answer(tmp_path: Path) -> None:
    def answer(connection: H2Connection, stream: int) -> None:
        connection.send_headers(stream, [(":status", "201")], end_stream=True)

    async with a_server(tmp_path, answer) as (url, settings):
        assert await post(url, settings) == 201


async def test_an_answer_without_a_status_is_none(tmp_path: Path) -> None:
    def answer(connection: H2Connection, stream: int) -> None:
        connection.send_headers(stream, [("apns-id", "1")], end_stream=True)

    async with a_server(tmp_path, answer) as (url, settings):
        assert await reason(url, settings) in ("ProtocolError", "NoStatus")


@pytest.mark.parametrize("make", [Connections, H2Connections])
async def test_an_answer_without_a_status_after_one_that_had_it(tmp_path: Path, make: Made) -> None:
    """wreq takes it for 200; it lacks the headers that answers of this host have."""
    answers = [
        [(":status", "200"), ("server", "a"), ("apns-id", "1")],
        [(":status", "200"), ("apns-id", "2")],
        [("server", "a")],
        [("x-other", "1")],
        [(":status", "200"), ("apns-id", "3")],
    ]

    def answer(connection: H2Connection, stream: int) -> None:
        connection.send_headers(stream, answers.pop(0), end_stream=True)

    async with a_server(tmp_path, answer) as (url, settings):
        connections = make(settings)
        found: list[int | str] = []
        while answers:
            try:
                found.append((await connections.post(url, {}, b"body")).status)
            except NoAnswer as exc:
                found.append(exc.reason)
                connections.refresh()
        connections.close()
    assert {*found} <= {200, "NoStatus", "ProtocolError"}
    assert [item == 200 for item in found] == [True, True, False, False, True]


async def test_answers_without_headers_are_answers(tmp_path: Path) -> None:
    def answer(connection: H2Connection, stream: int) -> None:
        connection.send_headers(stream, [(":status", "200")], end_stream=True)

    async with a_server(tmp_path, answer) as (url, settings):
        connections = Connections(settings)
        for _ in range(2):
            assert (await connections.post(url, {}, b"body")).status == 200
        connections.close()


async def test_100_continue_without_end(tmp_path: Path) -> None:
    def answer(connection: H2Connection, stream: int) -> None:
        for _ in range(MAX_INFORMATIONAL + 1):
            connection.send_headers(stream, [(":status", "100")])

    async with a_server(tmp_path, answer) as (url, settings):
        assert await reason(url, settings) == "TooManyInformational"


async def test_a_server_without_http_2(tmp_path: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    authority = Authority(tmp_path)
    context = authority.server_context("127.0.0.1")
    context.set_alpn_protocols(["http/1.1"])
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/push"
    settings = HttpSettings(connections=1, timeout=10.0, ca=authority.file.read_bytes())
    assert await reason(url, settings) in ("ProtocolError", "ConnectionLost")
    server.close()


async def test_a_server_like_the_reference_simulates(tmp_path: Path) -> None:
    """Without ALPN, with an Ed448 certificate that has its host name as a common name only."""

    def answer(connection: H2Connection, stream: int) -> None:
        connection.send_headers(stream, [(":status", "200")], end_stream=True)

    now = time.time()
    authority = create_authority("SMP server CA", now, SigningAlgorithm.ED448)
    leaf = issue_leaf(authority, "localhost", now, SigningAlgorithm.ED448)
    file = tmp_path / "server.pem"
    file.write_bytes(private_key_to_pem(leaf.private_key) + certificates_to_pem(leaf.chain))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    async with a_server(tmp_path, answer, context=context) as (url, settings):
        settings = replace(settings, ca=certificates_to_pem(authority.chain))
        assert await post(url.replace("127.0.0.1", "localhost"), settings) == 200
        assert await reason(url, settings) == "ConnectFailed"
