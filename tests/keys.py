"""Keys and certificates that are the same in every run, so that a failure can be repeated."""

import hashlib
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID

from heliograph.crypto.certificates import SigningAlgorithm, TlsCredentials
from heliograph.crypto.jwt import RsaKey
from heliograph.crypto.keys import KeyPair, public_key
from heliograph.crypto.p256 import P256Key
from heliograph.wire.keys import KEY_SIZE, PKCS8_PREFIX, Algorithm

START = 1_700_000_000
END = START + 100 * 365 * 86_400

SigningKey = Ed25519PrivateKey | Ed448PrivateKey
AnyPrivateKey = SigningKey | ec.EllipticCurvePrivateKey


def fixed_bytes(name: str, size: int = 32) -> bytes:
    """Bytes that look random and depend on the name alone."""
    return hashlib.shake_256(name.encode()).digest(size)


def fixed_key_pair(algorithm: Algorithm, name: str) -> KeyPair:
    private = PKCS8_PREFIX[algorithm] + fixed_bytes(name, KEY_SIZE[algorithm])
    return KeyPair(public_key(private), private)


def fixed_p256_key(name: str) -> P256Key:
    return P256Key.from_secret(fixed_bytes(name))


def fixed_rsa_key() -> RsaKey:
    """The one RSA key of the tests: such keys cannot be derived from a name."""
    return RsaKey.from_pem((Path(__file__).parent / "crypto" / "rsa-2048.pem").read_bytes())


def fixed_signing_key(
    algorithm: SigningAlgorithm, name: str
) -> Ed25519PrivateKey | Ed448PrivateKey:
    if algorithm is SigningAlgorithm.ED25519:
        return Ed25519PrivateKey.from_private_bytes(fixed_bytes(name, 32))
    return Ed448PrivateKey.from_private_bytes(fixed_bytes(name, 57))


def make_certificate(
    subject: str,
    issuer: str,
    key: AnyPrivateKey,
    issuer_key: AnyPrivateKey,
    *,
    ca: bool | None = True,
    start: float = START,
    end: float = END,
) -> bytes:
    """A certificate with anything in it that `issue_leaf` would not put there."""

    def name(value: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, value)])

    builder = x509.CertificateBuilder(
        issuer_name=name(issuer),
        subject_name=name(subject),
        public_key=key.public_key(),
        serial_number=1,
        not_valid_before=datetime.fromtimestamp(start, UTC),
        not_valid_after=datetime.fromtimestamp(end, UTC),
    )
    if ca is not None:
        builder = builder.add_extension(x509.BasicConstraints(ca, None), critical=True)
    algorithm = hashes.SHA256() if isinstance(issuer_key, ec.EllipticCurvePrivateKey) else None
    return builder.sign(issuer_key, algorithm).public_bytes(serialization.Encoding.DER)


def fixed_credentials(
    name: str,
    leaf: SigningAlgorithm = SigningAlgorithm.ED25519,
    authority: SigningAlgorithm = SigningAlgorithm.ED25519,
) -> TlsCredentials:
    """A leaf for 127.0.0.1 and its authority."""
    leaf_key = fixed_signing_key(leaf, f"{name} leaf")
    ca_key = fixed_signing_key(authority, f"{name} authority")
    chain = (
        make_certificate("127.0.0.1", name, leaf_key, ca_key, ca=False),
        make_certificate(name, name, ca_key, ca_key),
    )
    private = leaf_key.private_bytes(
        serialization.Encoding.DER,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return TlsCredentials(chain, private)
