"""Web Push encryption and decryption (RFC 8291): one record of aes128gcm (RFC 8188).

The application server encrypts for the subscription's key and secret; only the device can open it,
so a push service sees nothing but sizes. Pure, but for the random key and salt of each message.
"""

import hashlib
import hmac
import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from heliograph.crypto.errors import CryptoError
from heliograph.crypto.p256 import POINT_SIZE, P256Key

SALT_SIZE = 16
TAG_SIZE = 16
HEADER_SIZE = SALT_SIZE + 4 + 1 + POINT_SIZE
RECORD_SIZE = 4096
MAX_BODY = 4096
"""Size that every push service must accept (RFC 8030, section 7.2)."""

MAX_MESSAGE = MAX_BODY - HEADER_SIZE - TAG_SIZE - 1

_LAST_RECORD = b"\x02"


def encrypt(
    message: bytes,
    public: bytes,
    auth: bytes,
    *,
    salt: bytes | None = None,
    key: P256Key | None = None,
) -> bytes:
    """Encrypt the body of a push for the subscription with this key and secret.

    The salt and the sender's key are new each time, unless a test brings those of the RFC.
    """
    if len(message) > MAX_MESSAGE:
        raise CryptoError(f"{len(message)} bytes in a push of at most {MAX_MESSAGE}")
    key = key or P256Key.generate()
    salt = salt or secrets.token_bytes(SALT_SIZE)
    content_key, nonce = _derive(key.agree(public), auth, public, key.public, salt)
    header = salt + RECORD_SIZE.to_bytes(4) + bytes((POINT_SIZE,)) + key.public
    return header + AESGCM(content_key).encrypt(nonce, message + _LAST_RECORD, None)


def decrypt(body: bytes, key: P256Key, auth: bytes) -> bytes:
    """Decrypt the body of a push for the subscription with this private key and secret."""
    salt, sender = parse_header(body)
    content_key, nonce = _derive(key.agree(sender), auth, key.public, sender, salt)
    try:
        record = AESGCM(content_key).decrypt(nonce, body[HEADER_SIZE:], None)
    except InvalidTag:
        raise CryptoError("the push does not open") from None
    padded = record.rstrip(b"\0")
    if not padded.endswith(_LAST_RECORD):
        raise CryptoError("the push is not padded as a last record")
    return padded[:-1]


def parse_header(body: bytes) -> tuple[bytes, bytes]:
    """Return the salt and the sender's public key; one whole record must follow."""
    size = int.from_bytes(body[SALT_SIZE : SALT_SIZE + 4])
    record = len(body) - HEADER_SIZE
    if not TAG_SIZE < record <= size or body[SALT_SIZE + 4] != POINT_SIZE:
        raise CryptoError("not one record of aes128gcm")
    return body[:SALT_SIZE], body[SALT_SIZE + 5 : HEADER_SIZE]


def _derive(
    shared: bytes, auth: bytes, receiver: bytes, sender: bytes, salt: bytes
) -> tuple[bytes, bytes]:
    material = _hkdf(auth, shared, b"WebPush: info\0" + receiver + sender, 32)
    content_key = _hkdf(salt, material, b"Content-Encoding: aes128gcm\0", 16)
    return content_key, _hkdf(salt, material, b"Content-Encoding: nonce\0", 12)


def _hkdf(salt: bytes, material: bytes, info: bytes, size: int) -> bytes:
    """Compute HKDF-SHA256 for at most one block."""
    secret = hmac.digest(salt, material, hashlib.sha256)
    return hmac.digest(secret, info + b"\x01", hashlib.sha256)[:size]
