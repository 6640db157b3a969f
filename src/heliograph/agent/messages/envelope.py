"""Messages between agents, and the encryption that hides them from the router.

The box is that of the SimpleX agents: the first message of a queue carries the sender's public key
beside the box (and, when the sender cannot secure the queue itself, its authorization key inside).
Its content is our own format: a kind, a number to detect duplicates, and the content.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from heliograph.agent.connections.invitation import CLIENT_VERSION, Invitation, invitation_codec
from heliograph.crypto.boxes import box_padded, open_box_padded, random_nonce
from heliograph.crypto.errors import CryptoError
from heliograph.crypto.keys import dh
from heliograph.wire.errors import ErrorCode, WireError
from heliograph.wire.keys import auth_public_key, x25519_public_key
from heliograph.wire.primitives import Reader, i64, maybe, raw, short, u16

MESSAGE_SIZE = 16_000  # padded, before encryption
FIRST_MESSAGE_SIZE = 15_904  # likewise, with a public key outside of the encrypted part
NONCE_SIZE = 24

_public_key = maybe(x25519_public_key)
_nonce = raw(NONCE_SIZE)
_queue = maybe(invitation_codec)
_snd_id = maybe(short)


class MessageKind(Enum):
    CONFIRMATION = b"C"
    HELLO = b"H"
    MESSAGE = b"M"
    ADD_QUEUE = b"A"
    END_QUEUE = b"E"


_HEAD = 1 + 8  # kind and number
MAX_BODY = MESSAGE_SIZE - 2 - 1 - _HEAD


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The first message of a queue: our reply queue, and which queue of ours is secured now."""

    reply: Invitation | None = None
    secured: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Hello:
    """The queue with this sender ID is secured with the sender's key."""

    secured: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Body:
    """A message of the user."""

    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class AddQueue:
    """Send to this queue from now on."""

    queue: Invitation


@dataclass(frozen=True, slots=True)
class EndQueue:
    """The last message of a queue that was replaced by another."""


Content = Confirmation | Hello | Body | AddQueue | EndQueue


class Opened(NamedTuple):
    """A decrypted message. `secret` is that of the queue."""

    secret: bytes
    sender_key: bytes | None
    number: int
    content: Content


def kind_of(content: Content) -> MessageKind:
    match content:
        case Confirmation():
            return MessageKind.CONFIRMATION
        case Hello():
            return MessageKind.HELLO
        case Body():
            return MessageKind.MESSAGE
        case AddQueue():
            return MessageKind.ADD_QUEUE
        case EndQueue():
            return MessageKind.END_QUEUE


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


def decode_content(kind: MessageKind, data: bytes) -> Content:
    """Decode a message. Trailing bytes are for later versions, and ignored."""
    reader = Reader(data)
    match kind:
        case MessageKind.CONFIRMATION:
            return Confirmation(_queue.decode(reader), _snd_id.decode(reader))
        case MessageKind.HELLO:
            return Hello(reader.short())
        case MessageKind.MESSAGE:
            return Body(data)
        case MessageKind.ADD_QUEUE:
            return AddQueue(invitation_codec.decode(reader))
        case MessageKind.END_QUEUE:
            return EndQueue()


def seal(
    secret: bytes,
    kind: MessageKind,
    number: int,
    content: bytes,
    *,
    public: bytes | None = None,
    sender_key: bytes | None = None,
) -> bytes:
    """Encrypt a message for SEND; with `public` it is the first message of its queue."""
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
    """Decrypt with the queue's secret, or its first message with the private key.

    Raises WireError or CryptoError for anything that is not for us or was modified.
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
        kind = MessageKind(inner.take(1))
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
