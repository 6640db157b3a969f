"""P-256 keys of push providers: signatures (ES256) and key agreement (RFC 8291).

A public key is its uncompressed point of 65 bytes, as Web Push carries it. Signatures are r and s
of 32 bytes each, as JOSE has them, not DER. Pure: PEM is text in memory, never a file.
"""

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)

from heliograph.crypto import pem as pem_text
from heliograph.crypto.errors import CryptoError

POINT_SIZE = 65
SIGNATURE_SIZE = 64

_CURVE = ec.SECP256R1()
_SHA256 = ec.ECDSA(hashes.SHA256())
_REPEATABLE = ec.ECDSA(hashes.SHA256(), deterministic_signing=True)


class P256Key:
    """A private key; `key` is for certificates. Its text forms never show it."""

    __slots__ = ("key", "public")

    def __init__(self, key: ec.EllipticCurvePrivateKey) -> None:
        self.key = key
        self.public = key.public_key().public_bytes(
            serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
        )

    @classmethod
    def generate(cls) -> "P256Key":
        return cls(ec.generate_private_key(_CURVE))

    @classmethod
    def from_secret(cls, secret: bytes) -> "P256Key":
        """Load the bare number, as RFCs and browsers write it."""
        try:
            return cls(ec.derive_private_key(int.from_bytes(secret), _CURVE))
        except ValueError:
            raise CryptoError("not a P-256 private key") from None

    @classmethod
    def from_pem(cls, pem: bytes) -> "P256Key":
        """Load unencrypted PEM: PKCS#8 (Apple's .p8) or SEC 1."""
        key = pem_text.load_key(pem)
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != _CURVE.name:
            raise CryptoError("not a P-256 private key")
        return cls(key)

    def to_pem(self) -> bytes:
        return pem_text.dump_key(self.key)

    def sign(self, message: bytes, *, repeatable: bool = False) -> bytes:
        """Sign a message; `repeatable` always in the same way (RFC 6979)."""
        algorithm = _REPEATABLE if repeatable else _SHA256
        r, s = decode_dss_signature(self.key.sign(message, algorithm))
        return r.to_bytes(32) + s.to_bytes(32)

    def agree(self, public: bytes) -> bytes:
        """Return the secret shared with the owner of a public key."""
        return self.key.exchange(ec.ECDH(), _load_point(public))


def verify(public: bytes, message: bytes, signature: bytes) -> bool:
    if len(signature) != SIGNATURE_SIZE:
        return False
    r, s = int.from_bytes(signature[:32]), int.from_bytes(signature[32:])
    try:
        _load_point(public).verify(encode_dss_signature(r, s), message, _SHA256)
    except InvalidSignature:
        return False
    return True


def _load_point(public: bytes) -> ec.EllipticCurvePublicKey:
    if len(public) != POINT_SIZE:
        raise CryptoError("a P-256 public key is a point of 65 bytes")
    try:
        return ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, public)
    except ValueError:
        raise CryptoError("the point is not on the curve P-256") from None
