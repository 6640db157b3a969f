"""What one agent sends to another: the message, and the box that hides it from the router.

The box is that of the SimpleX agents: the first message of a queue carries the sender's public key
beside the box (and, when the sender cannot secure the queue itself, its authorization key inside).
Within it, what is ours: a kind, a number that tells repetitions apart, and the content.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from heliograph.agent.invitation import CLIENT_VERSION, Invitation, invitation_codec
from heliograph.crypto.boxes import box_padded, open_box_padded, random_nonce
from heliograph.crypto.errors import CryptoError
from heliograph.crypto.keys import dh
from heliograph.wire.errors import ErrorCode, WireError
from heliograph.wire.keys import auth_public_key, x25519_public_key
from heliograph.wire.primitives import Reader, i64, maybe, raw, short, u16

MESSAGE_SIZE = 16_000  # padded, before encryption
FIRST_MESSAGE_SIZE = 15_904  # likewise, when a key travels beside the box
NONCE_SIZE = 24

_public_key = maybe(x25519_public_key)
_nonce = raw(NONCE_SIZE)
_queue = maybe(invitation_codec)
_snd_id = maybe(short)


class Kind(Enum):
    CONFIRMATION = b"C"
    HELLO = b"H"
    MESSAGE = b"M"
    ADD_QUEUE = b"A"
    END_QUEUE = b"E"


_HEAD = 1 + 8  # kind and number
MAX_BODY = MESSAGE_SIZE - 2 - 1 - _HEAD


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The first message of a queue: where to answer, and which queue of ours is secured now."""

    reply: Invitation | None = None
    secured: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Hello:
    """The queue with this sender ID is secured with the sender's key."""

    secured: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Body:
    """What users send to each other."""

    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class AddQueue:
    """Send to this queue from now on."""

    queue: Invitation


@dataclass(frozen=True, slots=True)
class EndQueue:
    """Nothing follows in this queue: another took its place."""


Content = Confirmation | Hello | Body | AddQueue | EndQueue


class Opened(NamedTuple):
    """A message that came out of its box. `secret` is that of the queue."""

    secret: bytes
    sender_key: bytes | None
    number: int
    content: Content


def kind_of(content: Content) -> Kind:
    match content:
        case Confirmation():
            return Kind.CONFIRMATION
        case Hello():
            return Kind.HELLO
        case Body():
            return Kind.MESSAGE
        case AddQueue():
            return Kind.ADD_QUEUE
        case EndQueue():
            return Kind.END_QUEUE


def encode_content(content: Content) -> bytes:
    match content:
        case Confirmation():
            return _queue.encode(content.reply) + _snd_id.encode(content.secured)
        case Hello():
            return short.encode(content.secured)
        case Body():
            return content.body
        case AddQueue():
            return invitation_codec.encode(content.queue)
        case EndQueue():
            return b""


def decode_content(kind: Kind, data: bytes) -> Content:
    """Bytes that are left are for later versions, and ignored."""
    reader = Reader(data)
    match kind:
        case Kind.CONFIRMATION:
            return Confirmation(_queue.decode(reader), _snd_id.decode(reader))
        case Kind.HELLO:
            return Hello(reader.short())
        case Kind.MESSAGE:
            return Body(data)
        case Kind.ADD_QUEUE:
            return AddQueue(invitation_codec.decode(reader))
        case Kind.END_QUEUE:
            return EndQueue()


def seal(
    secret: bytes,
    kind: Kind,
    number: int,
    content: bytes,
    *,
    public: bytes | None = None,
    sender_key: bytes | None = None,
) -> bytes:
    """A message as SEND carries it; with `public` it is the first one of its queue."""
    head = b"_" if sender_key is None else b"K" + auth_public_key.encode(sender_key)
    plain = head + kind.value + i64.encode(number) + content
    size = MESSAGE_SIZE if public is None else FIRST_MESSAGE_SIZE
    nonce = random_nonce()
    return (
        u16.encode(CLIENT_VERSION)
        + _public_key.encode(public)
        + nonce
        + box_padded(secret, nonce, plain, size)
    )


def unseal(data: bytes, key: bytes, secret: bytes | None) -> Opened:
    """With the queue's secret, or for its first message with the private key.

    Raises WireError or CryptoError: whatever is not for us, or was changed on its way.
    """
    reader = Reader(data)
    u16.decode(reader)  # later versions keep this layout
    public = _public_key.decode(reader)
    nonce = _nonce.decode(reader)
    if secret is None:
        if public is None:
            raise CryptoError("the first message of a queue has no key")
        secret = dh(public, key)
    inner = Reader(open_box_padded(secret, nonce, reader.tail()))
    sender_key = _decode_head(inner)
    try:
        kind = Kind(inner.take(1))
    except ValueError:
        raise WireError(ErrorCode.CMD_SYNTAX, "a message of an unknown kind") from None
    number = i64.decode(inner)
    return Opened(secret, sender_key, number, decode_content(kind, inner.tail()))


def _decode_head(reader: Reader) -> bytes | None:
    match reader.take(1):
        case b"K":
            return auth_public_key.decode(reader)
        case b"_":
            return None
    raise reader.fail("a message without its head")
