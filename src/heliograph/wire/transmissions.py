"""Transmissions (authorization, correlation, entity, command) and the batches in blocks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from heliograph.wire.errors import ErrorCode, WireError
from heliograph.wire.primitives import LENGTHS, encode_large, encode_short

NTF_BLOCK_SIZE = 512
SMP_BLOCK_SIZE = 16384

BLOCK_OVERHEAD = 19  # padded length 2, count 1, authentication tag of an encrypted block 16
MAX_BATCH = 255

ED25519_SIGNATURE_SIZE = 64
AUTHENTICATOR_SIZE = 80
ED448_SIGNATURE_SIZE = 114
_AUTHORIZATION_SIZES = frozenset(
    {0, ED25519_SIGNATURE_SIZE, AUTHENTICATOR_SIZE, ED448_SIGNATURE_SIZE}
)


@dataclass(frozen=True, slots=True)
class Session:
    """The results of a handshake on which the layout of blocks depends."""

    session_id: bytes
    version: int
    block_size: int
    implied_session: bool
    batched: bool
    service_auth: bool

    @classmethod
    def ntf(cls, session_id: bytes, version: int) -> "Session":
        modern = version >= 2
        return cls(session_id, version, NTF_BLOCK_SIZE, modern, modern, service_auth=False)

    @classmethod
    def smp(cls, session_id: bytes, version: int) -> "Session":
        return cls(session_id, version, SMP_BLOCK_SIZE, version >= 7, True, version >= 16)


class RawTransmission(NamedTuple):
    """A transmission with its command not yet parsed; `authorized` are the bytes `auth` covers."""

    auth: bytes
    service_signature: bytes | None
    corr_id: bytes
    entity_id: bytes
    command: bytes
    authorized: bytes


def encode_unauthorized(corr_id: bytes, entity_id: bytes, command: bytes) -> bytes:
    return encode_short(corr_id) + encode_short(entity_id) + command


def authorized_bytes(session: Session, corr_id: bytes, entity_id: bytes, command: bytes) -> bytes:
    """Return the bytes that a client signs, with the session ID even if it is not sent."""
    return encode_short(session.session_id) + encode_unauthorized(corr_id, entity_id, command)


def encode_transmission(
    session: Session,
    corr_id: bytes,
    entity_id: bytes,
    command: bytes,
    auth: bytes = b"",
    service_signature: bytes | None = None,
) -> bytes:
    if not auth and session.implied_session and len(corr_id) < 256 and len(entity_id) < 256:
        # Inlined: a router calls this for everything it sends.
        ids = (LENGTHS[len(corr_id)], corr_id, LENGTHS[len(entity_id)], entity_id)
        return b"".join((b"\0", *ids, command))
    head = encode_short(auth)
    if auth and session.service_auth:
        head += b"0" if service_signature is None else b"1" + encode_short(service_signature)
    if not session.implied_session:
        head += encode_short(session.session_id)
    return head + encode_unauthorized(corr_id, entity_id, command)


def decode_transmission(session: Session, data: bytes) -> RawTransmission:
    """Decode a transmission. Raises `TransmissionError`: BLOCK, or SESSION for another session."""
    signature = None
    session_id = session.session_id
    try:
        pos = 1 + data[0]
        auth = data[1:pos]
        if auth and session.service_auth:
            signature, pos = _service_signature_at(data, pos)
        if session.implied_session:
            authorized = LENGTHS[len(session_id)] + session_id + data[pos:]
        else:
            authorized = data[pos:]
            session_id, pos = _short_at(data, pos)
        start, pos = pos + 1, pos + 1 + data[pos]
        corr_id = data[start:pos]
        start, pos = pos + 1, pos + 1 + data[pos]
        entity_id = data[start:pos]
    except IndexError:
        raise TransmissionError(ErrorCode.BLOCK) from None
    if pos > len(data):
        raise TransmissionError(ErrorCode.BLOCK)
    if session_id != session.session_id:
        raise TransmissionError(ErrorCode.SESSION, corr_id)
    if len(auth) not in _AUTHORIZATION_SIZES:
        raise TransmissionError(ErrorCode.BLOCK, corr_id)
    return RawTransmission(auth, signature, corr_id, entity_id, data[pos:], authorized)


class TransmissionError(WireError):
    """A transmission that cannot be served; the answer echoes `corr_id`, empty if not read."""

    def __init__(self, error: ErrorCode, corr_id: bytes = b"") -> None:
        super().__init__(error, "malformed transmission")
        self.corr_id = corr_id


def _short_at(data: bytes, pos: int) -> tuple[bytes, int]:
    """Return a short string and the position after it, beyond the data if it is truncated."""
    end = pos + 1 + data[pos]
    return data[pos + 1 : end], end


def _service_signature_at(data: bytes, pos: int) -> tuple[bytes | None, int]:
    flag = data[pos : pos + 1]
    if flag == b"0":
        return None, pos + 1
    if flag != b"1":
        raise TransmissionError(ErrorCode.BLOCK)
    signature, end = _short_at(data, pos + 1)
    if len(signature) != ED25519_SIGNATURE_SIZE:
        raise TransmissionError(ErrorCode.BLOCK)
    return signature, end


def max_transmission_size(session: Session) -> int:
    if session.batched:
        return session.block_size - BLOCK_OVERHEAD - 2
    return session.block_size - 2


def pack(session: Session, transmissions: Sequence[bytes]) -> list[bytes]:
    """Return the contents of the blocks that carry `transmissions`, in order.

    Blocks are filled from the end, as the reference does: the first may be the one with room left.
    """
    longest = max(map(len, transmissions), default=0)
    if longest > max_transmission_size(session):
        raise WireError(ErrorCode.LARGE_MSG, f"{longest} bytes in one transmission")
    if not session.batched:
        return list(transmissions)
    room = session.block_size - BLOCK_OVERHEAD
    if len(transmissions) == 1:  # the usual case
        return [b"\1" + encode_large(transmissions[0])]
    contents: list[bytes] = []
    batch: list[bytes] = []
    size = 0
    for transmission in reversed(transmissions):
        item = encode_large(transmission)
        if size + len(item) > room or len(batch) == MAX_BATCH:
            contents.append(_join(batch))
            batch, size = [], 0
        batch.append(item)
        size += len(item)
    if batch:
        contents.append(_join(batch))
    contents.reverse()
    return contents


def _join(reversed_batch: list[bytes]) -> bytes:
    reversed_batch.append(bytes((len(reversed_batch),)))
    reversed_batch.reverse()
    return b"".join(reversed_batch)


def unpack(session: Session, content: bytes) -> list[bytes]:
    """Return the transmissions of one block. Raises BLOCK if the batch itself is malformed."""
    if not session.batched:
        return [content]
    transmissions = []
    pos = 1
    for _ in range(content[0] if content else 0):
        start = pos + 2
        pos = start + int.from_bytes(content[pos:start])
        if pos > len(content):
            raise TransmissionError(ErrorCode.BLOCK)
        transmissions.append(content[start:pos])
    if pos != len(content) or not transmissions:
        raise TransmissionError(ErrorCode.BLOCK)
    return transmissions
