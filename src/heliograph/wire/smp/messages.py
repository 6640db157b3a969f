"""Content of the box of MSG: the message as it was sent, or the marker of a full queue."""

from dataclasses import dataclass

from heliograph.wire.primitives import Reader, i64
from heliograph.wire.smp.fields import MsgFlags, msg_flags

RCV_MESSAGE_SIZE = 16106  # padded, before encryption

_QUOTA = b"QUOTA "


@dataclass(frozen=True, slots=True)
class RcvMessage:
    timestamp: int
    flags: MsgFlags
    body: bytes


@dataclass(frozen=True, slots=True)
class RcvQuota:
    """The queue was full: senders were refused after this point."""

    timestamp: int


def encode_rcv_message(message: RcvMessage | RcvQuota) -> bytes:
    if isinstance(message, RcvQuota):
        return _QUOTA + i64.encode(message.timestamp)
    return i64.encode(message.timestamp) + msg_flags.encode(message.flags) + message.body


def decode_rcv_message(data: bytes) -> RcvMessage | RcvQuota:
    reader = Reader(data)
    if data.startswith(_QUOTA):
        reader.pos = len(_QUOTA)
        timestamp = i64.decode(reader)
        reader.end()
        return RcvQuota(timestamp)
    return RcvMessage(i64.decode(reader), msg_flags.decode(reader), reader.tail())
