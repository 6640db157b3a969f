"""HTTP/2 connections to a provider with the library h2, instead of wreq.

Slower, pure Python and independent of wreq: for the day that one of them has a defect. It speaks
HTTP/2 only, so a Web Push service that does not is out of its reach. An answer without `:status`
is no answer.
"""

import asyncio
import logging
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address
from typing import cast
from urllib.parse import urlsplit

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    Event,
    InformationalResponseReceived,
    RemoteSettingsChanged,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import H2Error

from heliograph.net.resolver import resolve
from heliograph.push import http
from heliograph.push.http import MAX_ANSWER, HttpAnswer, HttpSettings, NoAnswer

__all__ = ["H2Connections"]

MAX_TRIES = 6
"""A GOAWAY stops all requests of a connection, and each must have its turn again."""
FRAME_HEADER = 9
MAX_FRAME = FRAME_HEADER + 16_384
GOAWAY_TYPE = 7
MAX_INFORMATIONAL = 100
"""Answers such as 100 Continue, after which a request fails."""

logging.getLogger("hpack").setLevel(logging.WARNING)  # it logs headers, and with them secrets


class _NotProcessed(Exception):
    """The server has not looked at the request, or it never left."""


@dataclass(eq=False, slots=True)
class _Exchange:
    """One request and its answer."""

    done: "asyncio.Future[HttpAnswer]"
    status: int = 0
    headers: dict[str, bytes] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    informational: int = 0

    def fail(self, failure: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(failure)


class _H2Protocol(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.is_usable = True
        self.created_at = time.monotonic()
        self.ready: asyncio.Future[None] = loop.create_future()
        self._h2 = H2Connection(H2Configuration(client_side=True, header_encoding=None))
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._exchanges: dict[int, _Exchange] = {}
        self._changed = asyncio.Event()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._h2.initiate_connection()
        self._flush()

    def data_received(self, data: bytes) -> None:
        try:
            for event in self._h2.receive_data(self._without_go_away(data)):
                self._handle(event)
        except H2Error:
            self.abort("ProtocolError")
        self._flush()

    def _without_go_away(self, data: bytes) -> bytes:
        """Return the complete frames but GOAWAY: after it h2 would refuse the answers in flight."""
        self._received += data
        frames = bytearray()
        while len(self._received) >= FRAME_HEADER:
            size = FRAME_HEADER + int.from_bytes(self._received[:3])
            if len(self._received) < size:
                if size > MAX_FRAME:
                    self.abort("ProtocolError")
                break
            frame = self._received[:size]
            del self._received[:size]
            if frame[3] == GOAWAY_TYPE and size >= FRAME_HEADER + 8:
                self._go_away(
                    int.from_bytes(frame[9:13]) & 0x7FFFFFFF, int.from_bytes(frame[13:17])
                )
            else:
                frames += frame
        return bytes(frames)

    def connection_lost(self, exc: Exception | None) -> None:
        self.abort("ConnectionLost")

    # Requests.

    async def request(self, headers: list[tuple[str, str]], body: bytes) -> HttpAnswer:
        await self.ready  # the server's limit of streams
        while self.is_usable and not self._has_room():
            self._changed.clear()
            await self._changed.wait()
        if not self.is_usable:
            raise _NotProcessed
        try:
            stream = self._h2.get_next_available_stream_id()
            self._h2.send_headers(stream, headers, end_stream=not body)
        except H2Error:
            self.is_usable = False
            raise _NotProcessed from None
        exchange = _Exchange(asyncio.get_running_loop().create_future())
        self._exchanges[stream] = exchange
        try:
            await self._send_body(stream, exchange, body)
            return await exchange.done
        finally:
            if self._exchanges.pop(stream, None) is not None and not exchange.done.done():
                self._reset(stream)
            self._changed.set()
            if not self.is_usable:
                self.retire()

    def _has_room(self) -> bool:
        limit = self._h2.remote_settings.max_concurrent_streams
        return self._h2.open_outbound_streams < limit

    async def _send_body(self, stream: int, exchange: _Exchange, body: bytes) -> None:
        rest = memoryview(body)
        while rest and not exchange.done.done():
            try:
                room = self._h2.local_flow_control_window(stream)
                size = min(room, self._h2.max_outbound_frame_size, len(rest))
                if size:
                    self._h2.send_data(stream, bytes(rest[:size]), end_stream=size == len(rest))
            except H2Error:
                exchange.fail(NoAnswer("ConnectionReset"))
                break
            self._flush()
            rest = rest[size:]
            if not size:
                self._changed.clear()
                await self._changed.wait()
        self._flush()

    def _reset(self, stream: int) -> None:
        try:
            self._h2.reset_stream(stream, ErrorCodes.CANCEL)
        except H2Error:
            return
        self._flush()

    def abort(self, reason: str) -> None:
        """Fail what is in flight and close."""
        self.is_usable = False
        if not self.ready.done():
            self.ready.set_exception(NoAnswer(reason))
            self.ready.exception()  # those who wait have it
        for exchange in self._exchanges.values():
            exchange.fail(NoAnswer(reason))
        self._changed.set()
        if self._transport is not None:
            self._transport.abort()

    def retire(self) -> None:
        """Take no more requests, and close once those in flight have ended."""
        self.is_usable = False
        if not self._exchanges and self._transport is not None:
            self._transport.abort()

    def _flush(self) -> None:
        data = self._h2.data_to_send()
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    # Events.

    def _handle(self, event: Event) -> None:
        match event:
            case RemoteSettingsChanged():
                if not self.ready.done():
                    self.ready.set_result(None)
                self._changed.set()
            case WindowUpdated():
                self._changed.set()
            case DataReceived():
                size = event.flow_controlled_length or 0
                self._h2.acknowledge_received_data(size, event.stream_id)
        stream = getattr(event, "stream_id", None)
        exchange = self._exchanges.get(stream) if stream is not None else None
        if exchange is not None:
            self._handle_answer(event, exchange)

    def _handle_answer(self, event: Event, exchange: _Exchange) -> None:
        match event:
            case InformationalResponseReceived():
                exchange.informational += 1
                if exchange.informational > MAX_INFORMATIONAL:
                    exchange.fail(NoAnswer("TooManyInformational"))
            case ResponseReceived():
                headers = dict(event.headers or ())
                status = headers.get(b":status", b"")
                if len(status) != 3 or not status.isdigit():
                    exchange.fail(NoAnswer("NoStatus"))
                    return
                exchange.status = int(status)
                exchange.headers = {
                    name.decode("latin-1").lower(): value for name, value in headers.items()
                }
            case DataReceived():
                room = MAX_ANSWER - len(exchange.body)
                exchange.body += (event.data or b"")[:room]
            case StreamEnded() if not exchange.done.done():
                body = bytes(exchange.body)
                exchange.done.set_result(HttpAnswer(exchange.status, body, exchange.headers))
            case StreamReset():
                refused = event.error_code == ErrorCodes.REFUSED_STREAM
                exchange.fail(_NotProcessed() if refused else NoAnswer("ConnectionLost"))

    def _go_away(self, last: int, error: int) -> None:
        self.is_usable = False
        for stream, exchange in self._exchanges.items():
            if stream > last:
                exchange.fail(_NotProcessed())
            elif error != ErrorCodes.NO_ERROR:
                exchange.fail(NoAnswer("ConnectionLost"))
        self._changed.set()


class H2Connections:
    """Several connections to one host; each request takes the one with the fewest in flight."""

    def __init__(
        self,
        settings: HttpSettings,
        pin: tuple[str, Sequence[IPv4Address | IPv6Address]] | None = None,
    ) -> None:
        self._settings = settings
        self._pin = pin
        self._context = _context(settings)
        self._slots: list[_H2Protocol | None] = [None] * settings.connections
        self._connecting = [asyncio.Lock() for _ in self._slots]
        self._loads = [0] * settings.connections
        self._closed = False

    async def post(
        self, url: str, headers: Mapping[str, str], body: bytes, *, read: bool = False
    ) -> HttpAnswer:
        """Send a request. Raises `NoAnswer`, and nothing else but `asyncio.CancelledError`."""
        host, port, path = self._parse(url)
        authority = host if port == 443 else f"{host}:{port}"
        pseudo = ((":method", "POST"), (":scheme", "https"), (":authority", authority))
        listed = [
            *pseudo,
            (":path", path),
            *((name.lower(), text) for name, text in headers.items()),
        ]
        listed.append(("content-length", str(len(body))))
        try:
            async with asyncio.timeout(self._settings.timeout):
                answer = await self._try(host, port, listed, body)
        except TimeoutError:
            raise NoAnswer("Timeout") from None
        if answer.status == 200 and not read:
            return HttpAnswer(200, b"", answer.headers)
        return answer

    def refresh(self) -> None:
        """Replace the connections, but not again those that are new and did not fail."""
        now = time.monotonic()
        for index, connection in enumerate(self._slots):
            if connection is None:
                continue
            if not connection.is_usable or now - connection.created_at >= http.REFRESH_INTERVAL:
                connection.retire()
                self._slots[index] = None

    def close(self) -> None:
        self._closed = True
        for connection in self._slots:
            if connection is not None:
                connection.abort("Closed")

    def _parse(self, url: str) -> tuple[str, int, str]:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port or 443
        except ValueError:
            raise NoAnswer("ConnectFailed") from None
        if parts.scheme != "https" or not host:
            raise NoAnswer("ConnectFailed")
        if self._pin is not None and host != self._pin[0]:
            raise NoAnswer("NotPinned")
        query = f"?{parts.query}" if parts.query else ""
        return host, port, f"{parts.path or '/'}{query}"

    async def _try(
        self, host: str, port: int, headers: list[tuple[str, str]], body: bytes
    ) -> HttpAnswer:
        for _ in range(MAX_TRIES):
            index = self._choose()
            self._loads[index] += 1
            try:
                connection = await self._connection(index, host, port)
                return await self._request(connection, headers, body)
            except _NotProcessed:
                continue
            finally:
                self._loads[index] -= 1
        raise NoAnswer("ConnectionLost")

    def _choose(self) -> int:
        """Return the least busy connection; retire those beyond this process's share."""
        share = self._settings.share_of(len(self._slots))
        for index in range(share, len(self._slots)):
            if (spare := self._slots[index]) is not None:
                spare.retire()
                self._slots[index] = None
        return min(range(share), key=self._loads.__getitem__)

    async def _request(
        self, connection: _H2Protocol, headers: list[tuple[str, str]], body: bytes
    ) -> HttpAnswer:
        try:
            return await connection.request(headers, body)
        except (NoAnswer, asyncio.CancelledError):
            connection.retire()  # a time-out, too: the connection may be dead
            raise

    async def _connection(self, index: int, host: str, port: int) -> _H2Protocol:
        async with self._connecting[index]:
            connection = self._slots[index]
            if connection is None or not connection.is_usable:
                if self._closed:
                    raise NoAnswer("Closed")
                if connection is not None:
                    connection.retire()
                connection = self._slots[index] = await self._connect(host, port)
        return connection

    async def _connect(self, host: str, port: int) -> _H2Protocol:
        loop = asyncio.get_running_loop()
        try:
            addresses = await resolve(host) if self._pin is None else self._pin[1]
        except (OSError, UnicodeError):
            raise NoAnswer("NameNotResolved") from None
        for address in addresses:
            try:
                async with asyncio.timeout(self._settings.connect_timeout):
                    _, protocol = await loop.create_connection(
                        _H2Protocol, str(address), port, ssl=self._context, server_hostname=host
                    )
            except TimeoutError:
                continue
            except OSError:
                continue  # also a certificate that is not trusted
            return protocol  # without ALPN, too, which the reference's simulated APNs lacks
        raise NoAnswer("ConnectFailed")


def _context(settings: HttpSettings) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if settings.ca is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=settings.ca.decode())
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    return context
