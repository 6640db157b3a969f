"""Boxes: XSalsa20-Poly1305 under an X25519 secret or a symmetric key, padded or not.

Both kinds of key go through HSalsa20 first, as NaCl's crypto_box does after key agreement, so one
function serves both. It is not plain crypto_secretbox.
"""

import ctypes
from typing import Any

from nacl import _sodium, bindings as nacl

from heliograph.crypto.errors import CryptoError
from heliograph.wire.errors import WireError
from heliograph.wire.primitives import pad

KEY_SIZE = 32
NONCE_SIZE = 24
TAG_SIZE = 16

_SIGMA = b"expand 32-byte k"
_ZERO_16 = bytes(16)
_MASK = 0xFFFFFFFF

# PyNaCl's own functions clear and copy more than needed, which is slow for blocks of 16 KB.
_allocate = _sodium.ffi.new_allocator(should_clear_after_alloc=False)
_view = _sodium.ffi.buffer


def nonce_from(data: bytes) -> bytes:
    """Return a nonce of 24 bytes from an ID of any length: cut, or filled with zero bytes."""
    return data[:NONCE_SIZE].ljust(NONCE_SIZE, b"\0")


def box(secret: bytes, nonce: bytes, message: bytes) -> bytes:
    """Encrypt a message; return the Poly1305 tag and the ciphertext."""
    return box_with(hsalsa20(secret), nonce, message)


def open_box(secret: bytes, nonce: bytes, boxed: bytes) -> bytes:
    return open_box_with(hsalsa20(secret), nonce, boxed)


def box_padded(secret: bytes, nonce: bytes, message: bytes, size: int) -> bytes:
    try:
        return box(secret, nonce, pad(message, size))
    except WireError:
        raise CryptoError(f"a message of {len(message)} bytes in a box of {size}") from None


def open_box_padded(secret: bytes, nonce: bytes, boxed: bytes) -> bytes:
    plain = _open(boxed, nonce, hsalsa20(secret))
    size = len(plain) - 2
    length = plain[0] << 8 | plain[1] if size >= 0 else 0
    if length > size:
        raise CryptoError("the padding of an opened box is malformed")
    content: bytes = _view(plain)[2 : 2 + length]
    return content


def box_with(key: bytes, nonce: bytes, message: bytes) -> bytes:
    """Encrypt as `box` does, with a key that already went through HSalsa20."""
    if len(key) != KEY_SIZE or len(nonce) != NONCE_SIZE:
        raise CryptoError("a box needs a key of 32 bytes and a nonce of 24")
    boxed = _allocate("unsigned char[]", TAG_SIZE + len(message))
    _sodium.lib.crypto_secretbox_easy(boxed, message, len(message), nonce, key)
    result: bytes = _view(boxed)[:]
    return result


def open_box_with(key: bytes, nonce: bytes, boxed: bytes) -> bytes:
    message: bytes = _view(_open(boxed, nonce, key))[:]
    return message


def _open(boxed: bytes, nonce: bytes, key: bytes) -> Any:  # cffi has no types
    size = len(boxed) - TAG_SIZE
    if size < 0:
        raise CryptoError("a box is at least 16 bytes")
    if len(key) != KEY_SIZE or len(nonce) != NONCE_SIZE:
        raise CryptoError("a box needs a key of 32 bytes and a nonce of 24")
    plain = _allocate("unsigned char[]", size)
    if _sodium.lib.crypto_secretbox_open_easy(plain, boxed, len(boxed), nonce, key) != 0:
        raise CryptoError("the box does not open")
    return plain


def random_nonce() -> bytes:
    return nacl.randombytes(NONCE_SIZE)


def _rotate(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (32 - bits))) & _MASK


_QUARTERS = (
    (0, 4, 8, 12), (5, 9, 13, 1), (10, 14, 2, 6), (15, 3, 7, 11),
    (0, 1, 2, 3), (5, 6, 7, 4), (10, 11, 8, 9), (15, 12, 13, 14),
)  # fmt: skip


def hsalsa20_portable(key: bytes) -> bytes:
    """Compute HSalsa20(key, 16 zero bytes), for a libsodium that does not export it."""
    c = [int.from_bytes(_SIGMA[i : i + 4], "little") for i in range(0, 16, 4)]
    k = [int.from_bytes(key[i : i + 4], "little") for i in range(0, 32, 4)]
    x = [c[0], *k[:4], c[1], 0, 0, 0, 0, c[2], *k[4:], c[3]]
    for _ in range(10):
        for a, b, d, e in _QUARTERS:
            x[b] ^= _rotate((x[a] + x[e]) & _MASK, 7)
            x[d] ^= _rotate((x[b] + x[a]) & _MASK, 9)
            x[e] ^= _rotate((x[d] + x[b]) & _MASK, 13)
            x[a] ^= _rotate((x[e] + x[d]) & _MASK, 18)
    return b"".join(x[i].to_bytes(4, "little") for i in (0, 5, 10, 15, 6, 7, 8, 9))


_Key = ctypes.c_char * KEY_SIZE

# PyNaCl has no binding for it, but the library it ships exports it. It is too short for
# releasing the GIL to pay off.
_native = getattr(ctypes.PyDLL(_sodium.__file__), "crypto_core_hsalsa20", None)


def hsalsa20(key: bytes) -> bytes:
    """Return the key of XSalsa20 for a shared secret or a symmetric key."""
    if len(key) != KEY_SIZE:
        raise CryptoError("a box key has 32 bytes")
    if _native is None:
        return hsalsa20_portable(key)
    out = _Key()
    _native(out, _ZERO_16, key, None)
    return out.raw
