"""A TLS connection that speaks in blocks: handshake, block encryption, batches, back-pressure.

Both ends of both protocols are subclasses, which define only the handshake and what to do with the
content of a block.
"""

import asyncio
from collections.abc import Sequence
from typing import cast

from heliograph.crypto.errors import CryptoError
from heliograph.transport import loop as net, tls
from heliograph.transport.errors import HandshakeFailed
from heliograph.transport.handshake import Established, Handshake, ServiceRequest, TlsFacts
from heliograph.transport.protocols import AnyProtocol
from heliograph.transport.tls import unacknowledged
from heliograph.wire.errors import TransportError, WireError
from heliograph.wire.primitives import pad, unpad
from heliograph.wire.transmissions import pack

WRITE_HIGH_WATER = 256 * 1024


class BlockConnection(asyncio.Protocol):
    """One end of a connection. `established` is None until the handshake is done."""

    def __init__(self, protocol: AnyProtocol, handshake_timeout: float) -> None:
        self.protocol = protocol
        self.established: Established | None = None
        self.received_at = 0.0
        """When the last whole block arrived."""
        self.write_paused_at: float | None = None
        self.left_in_order = False
        """The peer ended the TLS session itself, after all that was sent had reached it."""
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._begun_at = 0.0
        self._paused = False
        self._handshake: Handshake | None = None
        self._handshake_timeout = handshake_timeout
        self._handshake_timer: asyncio.TimerHandle | None = None
        self._failure: Exception | None = None

    # Hooks for subclasses.

    def _begin(self, facts: TlsFacts, alpn: str | None) -> Handshake:
        raise NotImplementedError

    def _ready(self, established: Established) -> None:
        """Handle the end of the handshake."""

    def _service_requested(self, request: ServiceRequest) -> None:
        self.answer_service(TransportError.HANDSHAKE_BAD_SERVICE)

    def _content_received(self, content: bytes) -> None:
        """Handle the decrypted content of one block."""

    def _bad_block(self) -> None:
        """Handle a block that did not decrypt, or whose padding is malformed."""

    def _handshake_failed(self) -> None:
        self.close()

    def _lost(self, reason: Exception | None) -> None:
        """Handle the end of the connection. Called once."""

    # Methods for subclasses and users.

    @property
    def is_closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    @property
    def is_writable(self) -> bool:
        """Whether the peer reads; if not, keep what is to be sent until `resume_writing`."""
        return self.write_paused_at is None and not self.is_closing

    @property
    def unfinished_since(self) -> float | None:
        """Return when the unfinished block began to arrive, None if there is none."""
        return self._begun_at if self._buffer and not self._paused else None

    @property
    def peer_address(self) -> str:
        """Return the peer's address, for limits only: it must not be logged or stored."""
        peer = self._transport and self._transport.get_extra_info("peername")
        return str(peer[0]) if peer else ""

    @property
    def has_arrived(self) -> bool:
        """Whether the peer's kernel acknowledged all that was sent, where this can be known."""
        transport = self._transport
        if transport is None or self.unsent:
            return False
        return unacknowledged(transport.get_extra_info("socket")) == 0

    @property
    def unsent(self) -> int:
        """Return how many bytes wait in this process for the peer to read."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def buffered(self) -> int:
        """Return how many bytes were read and wait: part of a block, or blocks while paused."""
        return len(self._buffer)

    @property
    def unread(self) -> int:
        """Return how many bytes have reached this machine and were not read."""
        transport = self._transport
        return 0 if transport is None else tls.unread(transport.get_extra_info("socket"))

    def send(self, transmissions: Sequence[bytes]) -> None:
        """Send encoded transmissions in as few blocks as hold them; nothing once closing."""
        established = self.established
        if established is None or self._transport is None or self._transport.is_closing():
            return
        size = self.protocol.block_size
        contents = pack(established.session, transmissions)
        if established.cipher is None:
            blocks = [pad(content, size) for content in contents]
        else:
            blocks = [established.cipher.encrypt(content, size) for content in contents]
        self._transport.write(blocks[0] if len(blocks) == 1 else b"".join(blocks))

    def close(self) -> None:
        """Close once everything sent has left."""
        # On asyncio a second close would make abort do nothing.
        if self._transport is not None and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()  # or it would not see the peer close, too
            self._transport.close()

    def abort(self, reason: Exception | None = None) -> None:
        """Close at once."""
        self._failure = self._failure or reason
        if self._transport is not None:
            self._transport.abort()

    def pause_reading(self) -> None:
        """Stop taking blocks: what the peer sends waits in its own buffers."""
        if not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Take blocks again, beginning with what arrived meanwhile."""
        if self._paused:
            self._paused = False
            self._loop.call_soon(self._resume)

    def answer_service(self, answer: bytes | TransportError) -> None:
        """Resume a handshake that asked for a service: with its ID, or why it is refused."""
        if self._handshake is not None and not self.is_closing:
            self._advance(answer)
            self.resume_reading()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)
        self.received_at = self._loop.time()
        self._handshake_timer = self._loop.call_later(
            self._handshake_timeout, self._handshake_timed_out
        )
        net.watch_hangup(transport.get_extra_info("socket"), self._hung_up)
        try:
            facts = TlsFacts(
                tls.session_id(transport),
                tls.peer_chain(transport),
                tls.certificate_sent(transport),
            )
            self._handshake = self._begin(facts, tls.negotiated_alpn(transport))
        except Exception as exc:
            self.abort(exc)
            return
        self._advance(None)

    def data_received(self, data: bytes) -> None:
        if self.is_closing:
            return  # some transports deliver until the peer has closed, too
        now = self._loop.time()
        if len(data) == self.protocol.block_size and not self._buffer and not self._paused:
            self.received_at = now
            self._block_received(bytes(data))
            return
        if not self._buffer:
            self._begun_at = now
        self._buffer += data
        if self._consume():
            self.received_at = self._begun_at = now

    def eof_received(self) -> bool:
        self.left_in_order = self.has_arrived and net.reports_close_notify()
        return False

    def pause_writing(self) -> None:
        self.write_paused_at = self._loop.time()

    def resume_writing(self) -> None:
        self.write_paused_at = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            net.forget_hangup(self._transport.get_extra_info("socket"))
        self._transport = None
        self._cancel_timer()
        self._buffer.clear()
        if self._handshake is not None:
            self._handshake.close()
            self._handshake = None
        self._lost(self._failure or exc)

    # Private.

    def _hung_up(self) -> None:
        self.abort(ConnectionResetError("the peer reset the connection"))

    def _resume(self) -> None:
        if self._paused or self.is_closing:
            return
        self._consume()
        self._resume_reading()

    def _resume_reading(self) -> None:
        if not self._paused and self._transport is not None:
            self._transport.resume_reading()

    def _consume(self) -> bool:
        """Take the whole blocks that have arrived; whether there were any."""
        size = self.protocol.block_size
        pos = 0
        while len(self._buffer) - pos >= size and not self._paused and not self.is_closing:
            block = bytes(self._buffer[pos : pos + size])
            pos += size
            self._block_received(block)
        del self._buffer[:pos]
        return pos > 0

    def _block_received(self, block: bytes) -> None:
        established = self.established
        if established is None and self._handshake is None:
            return  # the handshake failed, and the connection is closing
        try:
            if established is None or established.cipher is None:
                content = unpad(block)
            else:
                content = established.cipher.decrypt(block)
        except (WireError, CryptoError):
            if self._handshake is not None:
                self.abort(HandshakeFailed(TransportError.HANDSHAKE_PARSE))
            else:
                self._bad_block()
            return
        if self._handshake is not None:
            self._advance(content)
        else:
            self._content_received(content)

    def _advance(self, value: bytes | TransportError | None) -> None:
        handshake = cast(Handshake, self._handshake)
        try:
            event = handshake.send(value)
            while isinstance(event, bytes):
                cast(asyncio.Transport, self._transport).write(pad(event, self.protocol.block_size))
                event = handshake.send(None)
        except StopIteration as done:
            established: Established = done.value
        except (HandshakeFailed, WireError) as exc:
            if isinstance(exc, WireError):
                exc = HandshakeFailed(TransportError.LARGE_MSG, str(exc))
            self._handshake = None
            self._failure = exc
            self._handshake_failed()
            return
        else:
            if event is not None:
                self.pause_reading()
                self._service_requested(event)
            return
        self._handshake = None
        self.established = established
        self._cancel_timer()
        self._ready(established)

    def _handshake_timed_out(self) -> None:
        self.abort(HandshakeFailed(TransportError.HANDSHAKE_PARSE, "the handshake took too long"))

    def _cancel_timer(self) -> None:
        if self._handshake_timer is not None:
            self._handshake_timer.cancel()
            self._handshake_timer = None
