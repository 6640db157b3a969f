"""X25519, Ed25519 and Ed448 keys in their DER forms: generation, agreement, signatures.

Keys are DER bytes: SubjectPublicKeyInfo and PKCS#8. Slicing the fixed prefixes is two hundred times
cheaper than parsing them.
"""

from typing import NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PrivateKey, Ed448PublicKey
from nacl import bindings as nacl
from nacl.exceptions import BadSignatureError, RuntimeError as NaclError

from heliograph.crypto.errors import CryptoError
from heliograph.wire.keys import (
    PKCS8_PREFIX,
    PKCS8_PREFIX_SIZE,
    SPKI_PREFIX,
    SPKI_PREFIX_SIZE,
    Algorithm,
    private_key_algorithm,
    public_key_algorithm,
)

# OpenSSL accepts this point of order 4, with either sign; anybody can sign for it.
_WEAK_ED448 = (bytes(57), bytes(56) + b"\x80")


class KeyPair(NamedTuple):
    public: bytes
    private: bytes

    def __repr__(self) -> str:
        return f"KeyPair(public={self.public.hex()}, private=...)"


def generate_key_pair(algorithm: Algorithm) -> KeyPair:
    if algorithm is Algorithm.ED448:
        seed = Ed448PrivateKey.generate().private_bytes_raw()
    else:
        seed = nacl.randombytes(32)
    private = PKCS8_PREFIX[algorithm] + seed
    return KeyPair(public_key(private), private)


def algorithm_of(public: bytes) -> Algorithm:
    algorithm = public_key_algorithm(public)
    if algorithm is None:
        raise CryptoError("not an Ed25519, Ed448 or X25519 public key")
    return algorithm


def private_algorithm_of(private: bytes) -> Algorithm:
    algorithm = private_key_algorithm(private)
    if algorithm is None:
        raise CryptoError("not an Ed25519, Ed448 or X25519 private key")
    return algorithm


def public_key(private: bytes) -> bytes:
    algorithm = private_algorithm_of(private)
    seed = private[PKCS8_PREFIX_SIZE:]
    if algorithm is Algorithm.X25519:
        raw = nacl.crypto_scalarmult_base(seed)
    elif algorithm is Algorithm.ED25519:
        raw = nacl.crypto_sign_seed_keypair(seed)[0]
    else:
        raw = Ed448PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()
    return SPKI_PREFIX[algorithm] + raw


def dh(public: bytes, private: bytes) -> bytes:
    """Return the raw X25519 shared secret, 32 bytes."""
    _check_x25519(public, private)
    try:
        return nacl.crypto_scalarmult(private[PKCS8_PREFIX_SIZE:], public[SPKI_PREFIX_SIZE:])
    except NaclError:
        raise CryptoError("the public key is a point of low order") from None


def box_key(public: bytes, private: bytes) -> bytes:
    """Return the key of boxes: HSalsa20 of the shared secret."""
    _check_x25519(public, private)
    try:
        return nacl.crypto_box_beforenm(public[SPKI_PREFIX_SIZE:], private[PKCS8_PREFIX_SIZE:])
    except NaclError:
        raise CryptoError("the public key is a point of low order") from None


def sign(private: bytes, message: bytes) -> bytes:
    algorithm = private_algorithm_of(private)
    seed = private[PKCS8_PREFIX_SIZE:]
    if algorithm is Algorithm.X25519:
        raise CryptoError("an X25519 key does not sign")
    if algorithm is Algorithm.ED25519:
        secret = nacl.crypto_sign_seed_keypair(seed)[1]
        return nacl.crypto_sign(message, secret)[: nacl.crypto_sign_BYTES]
    return Ed448PrivateKey.from_private_bytes(seed).sign(message)


def verify(public: bytes, signature: bytes, message: bytes) -> bool:
    """Return True if the signature is valid; False also for a key of another type."""
    raw = public[SPKI_PREFIX_SIZE:]
    match algorithm_of(public), len(signature):
        case Algorithm.ED25519, nacl.crypto_sign_BYTES:
            try:
                nacl.crypto_sign_open(signature + message, raw)
            except BadSignatureError:
                return False
            return True
        case Algorithm.ED448, 114 if raw not in _WEAK_ED448:
            try:
                Ed448PublicKey.from_public_bytes(raw).verify(signature, message)
            except InvalidSignature:
                return False
            return True
    return False


def _check_x25519(public: bytes, private: bytes) -> None:
    if (
        public_key_algorithm(public) is not Algorithm.X25519
        or private_key_algorithm(private) is not Algorithm.X25519
    ):
        raise CryptoError("X25519 keys are needed to agree a secret")
