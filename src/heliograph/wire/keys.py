"""DER forms of keys: the fixed prefixes that identify them, and the codecs that carry them.

Keys are DER bytes everywhere, so this module needs no cryptography; it only checks that a key has
an accepted form.
"""

from enum import Enum

from heliograph.wire.primitives import Codec, Reader, encode_short


class Algorithm(Enum):
    X25519 = "X25519"
    ED25519 = "Ed25519"
    ED448 = "Ed448"


SPKI_PREFIX = {
    Algorithm.X25519: bytes.fromhex("302a300506032b656e032100"),
    Algorithm.ED25519: bytes.fromhex("302a300506032b6570032100"),
    Algorithm.ED448: bytes.fromhex("3043300506032b6571033a00"),
}
PKCS8_PREFIX = {
    Algorithm.X25519: bytes.fromhex("302e020100300506032b656e04220420"),
    Algorithm.ED25519: bytes.fromhex("302e020100300506032b657004220420"),
    Algorithm.ED448: bytes.fromhex("3047020100300506032b6571043b0439"),
}
KEY_SIZE = {Algorithm.X25519: 32, Algorithm.ED25519: 32, Algorithm.ED448: 57}

SPKI_PREFIX_SIZE = 12
PKCS8_PREFIX_SIZE = 16

_PUBLIC = {(prefix, 12 + KEY_SIZE[alg]): alg for alg, prefix in SPKI_PREFIX.items()}
_PRIVATE = {(prefix, 16 + KEY_SIZE[alg]): alg for alg, prefix in PKCS8_PREFIX.items()}


def public_key_algorithm(der: bytes) -> Algorithm | None:
    return _PUBLIC.get((der[:SPKI_PREFIX_SIZE], len(der)))


def private_key_algorithm(der: bytes) -> Algorithm | None:
    return _PRIVATE.get((der[:PKCS8_PREFIX_SIZE], len(der)))


def _decode_public(reader: Reader) -> bytes:
    der = reader.short()
    if public_key_algorithm(der) is None:
        raise reader.fail("not an Ed25519, Ed448 or X25519 public key")
    return der


def _decode_x25519(reader: Reader) -> bytes:
    der = reader.short()
    if public_key_algorithm(der) is not Algorithm.X25519:
        raise reader.fail("not an X25519 public key")
    return der


def _decode_private(reader: Reader) -> bytes:
    der = reader.short()
    if private_key_algorithm(der) is None:
        raise reader.fail("not an Ed25519, Ed448 or X25519 private key")
    return der


auth_public_key = Codec[bytes]("public key", encode_short, _decode_public)
auth_private_key = Codec[bytes]("private key", encode_short, _decode_private)
x25519_public_key = Codec[bytes]("X25519 public key", encode_short, _decode_x25519)
