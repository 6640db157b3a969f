"""An HTTP/2 server that controls its frames, so that it can misbehave like push providers.

It is independent of providers: a handler decides what to answer, and how (`Act`). It follows the
rules of HTTP/2, and counts when a client does not (`violations`).
"""

import asyncio
import contextlib
import functools
import logging
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import cast

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    Event,
    RequestReceived,
    StreamEnded,
    StreamReset,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings
from hpack import hpack
from hpack.huffman_table import decode_huffman

from heliograph.transport import accepting

logger = logging.getLogger(__name__)

MAX_STREAMS = 1000
MAX_BODY = 64 * 1024
WINDOW = 16 * 1024 * 1024
GOAWAY_TYPE = b"\x07"
GOAWAY_REASON = b'{"reason":"Shutdown"}'  # the value of APNs


class Act(StrEnum):
    """What to do with a request."""

    ANSWER = "answer"
    GOAWAY = "goaway"  # close the connection; answer the request if there is a status
    RESET_STREAM = "reset_stream"
    RESET = "reset"  # abort the whole connection, as in a crash
    SILENCE = "silence"  # never answer


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One complete request."""

    connection: int
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    received_at: float


@dataclass(frozen=True, slots=True)
class HttpReply:
    """An answer. Without a status the request counts as not processed."""

    status: int | None = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    act: Act = Act.ANSWER
    delay: float = 0.0


# Every request has the same authorization; decoding it took a quarter of the time.
setattr(hpack, "decode_huffman", functools.lru_cache(1024)(decode_huffman))  # noqa: B010

# Headers are not checked, for speed: each service checks those that matter to it.
_CONFIG = H2Configuration(
    client_side=False,
    header_encoding="utf-8",
    validate_inbound_headers=False,
    normalize_inbound_headers=False,
    validate_outbound_headers=False,
    normalize_outbound_headers=False,
)

Handler = Callable[[HttpRequest], HttpReply]


@dataclass(slots=True)
class _Stream:
    headers: dict[str, str]
    body: bytearray = field(default_factory=bytearray)


class Http2Server:
    def __init__(self, handler: Handler, context: ssl.SSLContext) -> None:
        self.handler = handler
        self.accepted = 0
        """Number of connections so far."""

        self.violations = 0
        """Connections closed because the client violated HTTP/2 or its stream limit."""

        self.goaways = 0
        self.most_streams = 0
        """Maximum number of concurrent requests on one connection."""

        self.connections: set[_Connection] = set()
        self._context = context
        self._max_streams = MAX_STREAMS
        self._server: accepting.Server | None = None

    async def start(self, host: str, port: int) -> int:
        self._context.set_alpn_protocols(["h2"])
        self._server = await accepting.create_server(
            lambda: _Connection(self), host, port, ssl=self._context
        )
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
        for connection in tuple(self.connections):
            connection.abort()

    @property
    def max_streams(self) -> int:
        return self._max_streams

    @max_streams.setter
    def max_streams(self, value: int) -> None:
        """Send the new limit to all clients, which follow it once they acknowledge it."""
        self._max_streams = value
        for connection in self.connections:
            connection.set_max_streams(value)

    def go_away(self) -> None:
        """Ask all clients to reconnect; requests in flight are answered."""
        for connection in tuple(self.connections):
            connection.go_away()

    def reset(self) -> None:
        """Abort all connections and their requests in flight."""
        for connection in tuple(self.connections):
            connection.abort()


class _Connection(asyncio.Protocol):
    def __init__(self, server: Http2Server) -> None:
        self.server = server
        self._transport: asyncio.Transport | None = None
        self._streams: dict[int, _Stream] = {}
        self._open: set[int] = set()
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._last: int | None = None  # after GOAWAY: the last stream that is served
        self._newest = 0
        self._served = 0
        self._h2 = H2Connection(_CONFIG)
        values = {
            SettingCodes.MAX_CONCURRENT_STREAMS: server.max_streams,
            SettingCodes.INITIAL_WINDOW_SIZE: MAX_BODY,
            SettingCodes.MAX_HEADER_LIST_SIZE: 16 * 1024,
        }
        self._h2.local_settings = Settings(client=False, initial_values=values)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.server.accepted += 1
        self._number = self.server.accepted
        self.server.connections.add(self)
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(WINDOW)
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.server.connections.discard(self)
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def data_received(self, data: bytes) -> None:
        if self._transport is None:
            return
        try:
            events = self._h2.receive_data(data)
        except ProtocolError as exc:
            self.server.violations += 1
            logger.warning("the client violated HTTP/2: %s", type(exc).__name__)
            self._flush()
            self.abort()
            return
        for event in events:
            self._handle(event)
        self._flush()

    def set_max_streams(self, value: int) -> None:
        self._h2.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: value})
        self._flush()

    def go_away(self, last: int | None = None) -> None:
        if self._transport is None or self._last is not None:
            return
        self._last = self._newest if last is None else last
        self.server.goaways += 1
        # By hand: h2 would refuse to answer the requests in flight.
        payload = self._last.to_bytes(4) + ErrorCodes.NO_ERROR.to_bytes(4) + GOAWAY_REASON
        frame = len(payload).to_bytes(3) + GOAWAY_TYPE + bytes(5) + payload
        self._transport.write(self._h2.data_to_send() + frame)
        self._close_if_done()

    def abort(self) -> None:
        if self._transport is not None:
            # Not within data_received: aiofastnet 1.2 would continue to read.
            asyncio.get_running_loop().call_soon(self._transport.abort)
            self._transport = None

    def _handle(self, event: Event) -> None:
        match event:
            case RequestReceived(stream_id=int(number), headers=list(headers)):
                if self._last is not None and number > self._last:
                    return  # not served, and the client knows
                self._newest = number
                self._streams[number] = _Stream(dict(headers))  # type: ignore[arg-type]
                self._open.add(number)
                self.server.most_streams = max(self.server.most_streams, len(self._open))
            case DataReceived(stream_id=int(number), data=bytes(data)):
                self._h2.acknowledge_received_data(event.flow_controlled_length or 0, number)
                stream = self._streams.get(number)
                if stream is not None and len(stream.body) <= MAX_BODY:
                    stream.body += data
            case StreamEnded(stream_id=int(number)) if number in self._streams:
                stream = self._streams.pop(number)
                if self._last is None or number <= self._last:
                    self._request(number, stream)
            case StreamReset(stream_id=int(number)):
                self._streams.pop(number, None)
                self._forget(number)

    def _request(self, number: int, stream: _Stream) -> None:
        headers = stream.headers
        method, path = headers.pop(":method", ""), headers.pop(":path", "")
        request = HttpRequest(self._number, method, path, headers, bytes(stream.body), time.time())
        reply = self.server.handler(request)
        if reply.status is not None:
            self._served = max(self._served, number)
        if reply.delay:
            running = asyncio.get_running_loop()
            self._timers[number] = running.call_later(reply.delay, self._later, number, reply)
        else:
            self._perform(number, reply)

    def _later(self, number: int, reply: HttpReply) -> None:
        del self._timers[number]
        self._perform(number, reply)
        self._flush()

    def _perform(self, number: int, reply: HttpReply) -> None:
        match reply.act:
            case Act.RESET:
                self._flush()
                self.abort()
                return
            case Act.SILENCE:
                return
            case Act.RESET_STREAM:
                self._h2.reset_stream(number, ErrorCodes.INTERNAL_ERROR)
                self._forget(number)
                return
            case Act.GOAWAY if reply.status is None:
                if self._served > number:  # too late to omit it
                    self._h2.reset_stream(number, ErrorCodes.REFUSED_STREAM)
                self._forget(number)
                self.go_away(max(number - 2, self._served))
                return
            case Act.GOAWAY:
                self.go_away(max(number, self._newest))
        self._answer(number, reply)

    def _answer(self, number: int, reply: HttpReply) -> None:
        status = ":status", str(reply.status or 500)
        with contextlib.suppress(ProtocolError):  # the stream was reset meanwhile
            self._h2.send_headers(number, [status, *reply.headers.items()], not reply.body)
            if reply.body:
                self._h2.send_data(number, reply.body, end_stream=True)
        self._forget(number)

    def _forget(self, number: int) -> None:
        self._open.discard(number)
        timer = self._timers.pop(number, None)
        if timer is not None:
            timer.cancel()
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self._last is not None and not any(number <= self._last for number in self._open):
            self._flush()
            if self._transport is not None:
                self._transport.close()

    def _flush(self) -> None:
        data = self._h2.data_to_send()
        if data and self._transport is not None:
            self._transport.write(data)
