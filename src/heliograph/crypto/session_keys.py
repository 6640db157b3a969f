"""The signed session key of a handshake: an X.509 signed object around one public key.

SEQUENCE { SEQUENCE { SubjectPublicKeyInfo }, AlgorithmIdentifier, BIT STRING signature }. The
signature covers the inner SEQUENCE, not the bare SubjectPublicKeyInfo.
"""

from heliograph.crypto.errors import CryptoError
from heliograph.crypto.keys import private_algorithm_of, sign, verify
from heliograph.wire.keys import Algorithm, public_key_algorithm

_SEQUENCE = 0x30
_BIT_STRING = 0x03
# Session keys of a router, and of a service client.
_SESSION_KEYS = (Algorithm.X25519, Algorithm.ED25519)
_ALGORITHMS = {
    Algorithm.ED25519: bytes.fromhex("300506032b6570"),
    Algorithm.ED448: bytes.fromhex("300506032b6571"),
}


def sign_session_key(leaf_private: bytes, session_key: bytes) -> bytes:
    _check_session_key(session_key)
    identifier = _ALGORITHMS.get(private_algorithm_of(leaf_private))
    if identifier is None:
        raise CryptoError("a certificate key signs with Ed25519 or Ed448")
    signed = _der(_SEQUENCE, session_key)
    signature = _der(_BIT_STRING, b"\0" + sign(leaf_private, signed))
    return _der(_SEQUENCE, signed + identifier + signature)


def verify_session_key(leaf_public: bytes, signed_key: bytes) -> bytes:
    """Return the session key if the leaf's key signed it.

    It is X25519 or Ed25519; the caller checks which of them a handshake requires.
    """
    outer, rest = _read(_SEQUENCE, signed_key)
    inner, after_inner = _read(_SEQUENCE, outer)
    identifier, after_identifier = _read(_SEQUENCE, after_inner)
    bits, surplus = _read(_BIT_STRING, after_identifier)
    algorithm = public_key_algorithm(leaf_public)
    if rest or surplus or not bits.startswith(b"\0"):
        raise CryptoError("malformed signed session key")
    if algorithm is None or _der(_SEQUENCE, identifier) != _ALGORITHMS.get(algorithm):
        raise CryptoError("the session key was signed by another kind of key")
    if not verify(leaf_public, bits[1:], outer[: len(outer) - len(after_inner)]):
        raise CryptoError("the signature of the session key does not fit")
    _check_session_key(inner)
    return inner


def _check_session_key(key: bytes) -> None:
    if public_key_algorithm(key) not in _SESSION_KEYS:
        raise CryptoError("a session key is an X25519 or Ed25519 public key")


def _der(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    width = (size.bit_length() + 7) // 8
    return bytes((tag, 0x80 | width)) + size.to_bytes(width) + content


def _read(tag: int, data: bytes) -> tuple[bytes, bytes]:
    """Return the content of the first element, which must have this tag, and the rest."""
    if len(data) < 2 or data[0] != tag:
        raise CryptoError("malformed signed session key")
    size, start = data[1], 2
    if size >= 0x80:
        start = 2 + (size & 0x7F)
        size = int.from_bytes(data[2:start])
    end = start + size
    if end > len(data) or data[:end] != _der(tag, data[start:end]):
        raise CryptoError("malformed signed session key")
    return data[start:end], data[end:]
