"""Keys of encrypted SMP blocks: two chains, one a direction, each step giving a key and a nonce."""

from hashlib import sha512
from typing import NamedTuple

from heliograph.crypto.boxes import KEY_SIZE, NONCE_SIZE, TAG_SIZE, box, open_box
from heliograph.crypto.errors import CryptoError
from heliograph.wire.errors import WireError
from heliograph.wire.primitives import pad, unpad

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
    # A third of what hmac.digest costs, and every encrypted block needs three of them.
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


def chain_step(chain: bytes) -> ChainStep:
    okm = hkdf(b"", chain, b"SimpleXSbChain", 2 * KEY_SIZE + NONCE_SIZE)
    return ChainStep(okm[:KEY_SIZE], okm[KEY_SIZE : 2 * KEY_SIZE], okm[2 * KEY_SIZE :])


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
        try:
            return unpad(open_box(key, nonce, block))
        except WireError:
            raise CryptoError("the padding of a block is malformed") from None
