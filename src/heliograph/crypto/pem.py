"""Private keys as PKCS#8 PEM: text in memory, never a file."""

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

from heliograph.crypto.errors import CryptoError


def load_key(pem: bytes) -> PrivateKeyTypes:
    """Return the key of an unencrypted PEM text, of any type."""
    try:
        return serialization.load_pem_private_key(pem, None)
    except (TypeError, ValueError, UnsupportedAlgorithm):
        raise CryptoError("not an unencrypted PEM private key") from None


def dump_key(key: PrivateKeyTypes, password: bytes | None = None) -> bytes:
    """Return a key as PEM, encrypted if there is a password."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(password)
        if password
        else serialization.NoEncryption(),
    )
