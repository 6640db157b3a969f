"""JSON Web Tokens as push providers want them: ES256 (APNs, VAPID) and RS256 (Google).

Pure: the caller provides the times in the claims, and interprets those of others.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from heliograph.crypto import p256, pem as pem_text
from heliograph.crypto.errors import CryptoError
from heliograph.crypto.p256 import P256Key
from heliograph.wire.errors import WireError
from heliograph.wire.primitives import b64decode, b64encode

ES256 = "ES256"
RS256 = "RS256"

_RSA_SIZE = 2048


class RsaKey:
    """A private RSA key, for RS256."""

    __slots__ = ("_key",)

    def __init__(self, key: rsa.RSAPrivateKey) -> None:
        self._key = key

    @classmethod
    def generate(cls) -> "RsaKey":
        return cls(rsa.generate_private_key(public_exponent=65537, key_size=_RSA_SIZE))

    @classmethod
    def from_pem(cls, pem: bytes) -> "RsaKey":
        key = pem_text.load_key(pem)
        if not isinstance(key, rsa.RSAPrivateKey):
            raise CryptoError("not an RSA private key")
        return cls(key)

    def to_pem(self) -> bytes:
        return pem_text.dump_key(self._key)

    def sign(self, message: bytes) -> bytes:
        return self._key.sign(message, padding.PKCS1v15(), hashes.SHA256())

    def verify(self, message: bytes, signature: bytes) -> bool:
        try:
            self._key.public_key().verify(signature, message, padding.PKCS1v15(), hashes.SHA256())
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True, slots=True)
class Jwt:
    """A parsed token; nothing is verified yet."""

    header: Mapping[str, object]
    claims: Mapping[str, object]
    signed: bytes
    signature: bytes

    def is_from(self, public: bytes) -> bool:
        """Return True if the owner of this P-256 key signed it."""
        return self.header.get("alg") == ES256 and p256.verify(public, self.signed, self.signature)

    def is_from_rsa(self, key: RsaKey) -> bool:
        return self.header.get("alg") == RS256 and key.verify(self.signed, self.signature)


def sign_jwt(key: P256Key | RsaKey, claims: Mapping[str, object], **header: str) -> str:
    algorithm = ES256 if isinstance(key, P256Key) else RS256
    signed = f"{_encode({'alg': algorithm, **header})}.{_encode(claims)}"
    return f"{signed}.{_b64(key.sign(signed.encode()))}"


def sign_repeatably(key: P256Key, claims: Mapping[str, object], **header: str) -> str:
    """Return a token that is the same wherever the same key signs the same claims."""
    signed = f"{_encode({'alg': ES256, **header})}.{_encode(claims)}"
    return f"{signed}.{_b64(key.sign(signed.encode(), repeatable=True))}"


def parse_jwt(text: str) -> Jwt:
    parts = text.split(".")
    if len(parts) != 3:
        raise CryptoError("a token has three parts")
    try:
        header, claims = (json.loads(b64decode(part)) for part in parts[:2])
        signature = b64decode(parts[2])
    except (WireError, ValueError, RecursionError):
        raise CryptoError("the token is malformed") from None
    if not (isinstance(header, dict) and isinstance(claims, dict)):
        raise CryptoError("the token is malformed")
    return Jwt(header, claims, f"{parts[0]}.{parts[1]}".encode(), signature)


def _encode(value: Mapping[str, object]) -> str:
    return _b64(json.dumps(value, separators=(",", ":")).encode())


def _b64(data: bytes) -> str:
    return b64encode(data).rstrip("=")
