"""Keys of encrypted SMP blocks: two chains, one a direction, each step giving a key and a nonce."""

from hashlib import sha512
from typing import NamedTuple

from heliograph.crypto.boxes import KEY_SIZE, NONCE_SIZE, TAG_SIZE, box, open_box_padded
from heliograph.wire.primitives import pad

_HASH_SIZE = 64
_HASH_BLOCK = 128
_INNER = bytes(byte ^ 0x36 for byte in range(256))
_OUTER = bytes(byte ^ 0x5C for byte in range(256))


def hkdf(salt: bytes, ikm: bytes, info: bytes, length: int) -> bytes:
    """HKDF-SHA512 (RFC 5869)."""
    prk = _hmac(salt, ikm)
    okm = block = b""
    for counter in range(1, -(-length // _HASH_SIZE) + 1):
        block = _hmac(prk, block + info + bytes((counter,)))
        okm += block
    return okm[:length]


def _hmac(key: bytes, message: bytes) -> bytes:
    # A third of what hmac.digest costs.
    padded = (key if len(key) <= _HASH_BLOCK else sha512(key).digest()).ljust(_HASH_BLOCK, b"\0")
    inner = sha512(padded.translate(_INNER) + message).digest()
    return sha512(padded.translate(_OUTER) + inner).digest()


class ChainStep(NamedTuple):
    next: bytes
    key: bytes
    nonce: bytes

    def __repr__(self) -> str:
        return "ChainStep(...)"


def chain_init(session_id: bytes, secret: bytes) -> tuple[bytes, bytes]:
    """The first chain keys: of the server's sending and of its receiving direction."""
    okm = hkdf(session_id, secret, b"SimpleXSbChainInit", 2 * KEY_SIZE)
    return okm[:KEY_SIZE], okm[KEY_SIZE:]


_INNER_OF_NO_SALT = sha512(bytes(_HASH_BLOCK).translate(_INNER))
_OUTER_OF_NO_SALT = sha512(bytes(_HASH_BLOCK).translate(_OUTER))
_STEP_INFO = b"SimpleXSbChain"
_HALF_BLOCK = bytes(_HASH_BLOCK - _HASH_SIZE)
_INNER_HALF = _HALF_BLOCK.translate(_INNER)
_OUTER_HALF = _HALF_BLOCK.translate(_OUTER)


def chain_step(chain: bytes) -> ChainStep:
    """`hkdf` without a salt, in half its time: every block takes a step."""
    inner = _INNER_OF_NO_SALT.copy()
    inner.update(chain)
    outer = _OUTER_OF_NO_SALT.copy()
    outer.update(inner.digest())
    prk = outer.digest()
    inner_key = prk.translate(_INNER) + _INNER_HALF
    outer_key = prk.translate(_OUTER) + _OUTER_HALF
    keys = sha512(outer_key + sha512(inner_key + _STEP_INFO + b"\1").digest()).digest()
    last = sha512(outer_key + sha512(inner_key + keys + _STEP_INFO + b"\2").digest()).digest()
    return ChainStep(keys[:KEY_SIZE], keys[KEY_SIZE:], last[:NONCE_SIZE])


class BlockCipher:
    """The block encryption of one connection: every block, in order, advances its chain."""

    __slots__ = ("_receive", "_send")

    def __init__(self, send: bytes, receive: bytes) -> None:
        self._send = send
        self._receive = receive

    @classmethod
    def server(cls, session_id: bytes, secret: bytes) -> "BlockCipher":
        return cls(*chain_init(session_id, secret))

    @classmethod
    def client(cls, session_id: bytes, secret: bytes) -> "BlockCipher":
        receive, send = chain_init(session_id, secret)
        return cls(send, receive)

    def encrypt(self, content: bytes, block_size: int) -> bytes:
        padded = pad(content, block_size - TAG_SIZE)
        self._send, key, nonce = chain_step(self._send)
        return box(key, nonce, padded)

    def decrypt(self, block: bytes) -> bytes:
        self._receive, key, nonce = chain_step(self._receive)
        return open_box_padded(key, nonce, block)
