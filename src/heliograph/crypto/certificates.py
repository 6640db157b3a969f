"""X.509 certificates: create a router's two, and identify a peer by its chain.

A router has an offline authority, whose certificate is its identity, and an online leaf that the
authority signed and that TLS uses. The leaf can be replaced without changing the identity.

Pure: bytes in, bytes out. No files, no sockets; the time is an argument, in Unix seconds. Pinning
is the caller's: compare `Identity.fingerprint` with the one in the address.
"""

import hashlib
import inspect
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PrivateKey, Ed448PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.utils import CryptographyDeprecationWarning
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from heliograph.crypto.errors import CryptoError
from heliograph.crypto.p256 import P256Key
from heliograph.crypto.pem import dump_key

__all__ = [
    "CertificateError",
    "Identity",
    "SigningAlgorithm",
    "TlsCredentials",
    "certificates_from_pem",
    "certificates_to_pem",
    "create_authority",
    "create_web_authority",
    "credentials_from_pem",
    "expires_at",
    "fingerprint",
    "identity_of",
    "issue_leaf",
    "issue_web_leaf",
    "private_key_from_pem",
    "private_key_to_pem",
]

VALIDITY = timedelta(days=999_999)  # as in the reference: leaves are rotated by choice, not by date
MAX_CHAIN_LENGTH = 4

_PrivateKey = Ed25519PrivateKey | Ed448PrivateKey


def _key_usage(*usages: str) -> x509.KeyUsage:
    names = inspect.signature(x509.KeyUsage).parameters
    return x509.KeyUsage(**{name: name in usages for name in names})


_LEAF_KEY_USAGE = _key_usage("digital_signature", "content_commitment", "key_agreement")
_WEB_AUTHORITY_KEY_USAGE = _key_usage("key_cert_sign", "crl_sign")

# All that cryptography raises for hostile bytes; it parses lazily, so any access may raise.
_REJECTIONS = (
    CryptographyDeprecationWarning,  # where warnings are errors
    InvalidSignature,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    TypeError,
    ValueError,
)


class CertificateError(CryptoError):
    """A certificate, chain or private key that is malformed, forged, or not valid now."""


class SigningAlgorithm(StrEnum):
    """The two signature algorithms the protocols know."""

    ED25519 = "ed25519"
    ED448 = "ed448"


@dataclass(frozen=True, slots=True)
class TlsCredentials:
    """A chain to present and the key that proves it is ours."""

    chain: tuple[bytes, ...]
    """DER certificates, leaf first."""

    private_key: bytes = field(repr=False)
    """PKCS#8 DER of the leaf's key."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a peer whose chain was verified."""

    leaf_public_key: bytes
    """SubjectPublicKeyInfo DER of the key that TLS and the handshake were signed with."""

    fingerprint: bytes
    """SHA-256 of the identity certificate's DER: what addresses pin."""


def fingerprint(certificate: bytes) -> bytes:
    """Return the SHA-256 of a DER certificate, which addresses pin."""
    return hashlib.sha256(certificate).digest()


def expires_at(certificate: bytes) -> float:
    """Return the end of validity of a DER certificate, in Unix seconds."""
    return _load_certificate(certificate).not_valid_after_utc.timestamp()


def create_authority(
    name: str, now: float, algorithm: SigningAlgorithm = SigningAlgorithm.ED25519
) -> TlsCredentials:
    """Create an offline authority: a self-signed certificate and its key.

    ``name`` is the common name, such as ``SMP server CA``. The result is also usable as it is by a
    peer whose chain is a single self-signed certificate.
    """
    key = _generate_key(algorithm)
    subject = _name((NameOID.COMMON_NAME, name), (NameOID.ORGANIZATION_NAME, "SimpleX"))
    own_id = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    builder = (
        _builder(subject, subject, key, now)
        .add_extension(own_id, critical=False)
        .add_extension(_authority_id(own_id), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    )
    return TlsCredentials((_sign(builder, key),), _private_key_to_der(key))


def issue_leaf(
    authority: TlsCredentials,
    host: str,
    now: float,
    algorithm: SigningAlgorithm = SigningAlgorithm.ED25519,
) -> TlsCredentials:
    """Create an online leaf for ``host`` with a new key, signed by ``authority``.

    Called again with the same authority, it rotates the leaf and keeps the identity.
    """
    issuer = _load_certificate(authority.chain[0])
    issuer_key = _load_private_key(authority.private_key)
    key = _generate_key(algorithm)
    builder = (
        _builder(_name((NameOID.COMMON_NAME, host)), issuer.subject, key, now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=False)
        .add_extension(_LEAF_KEY_USAGE, critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            _authority_id(x509.SubjectKeyIdentifier.from_public_key(issuer_key.public_key())),
            critical=False,
        )
    )
    return TlsCredentials((_sign(builder, issuer_key), *authority.chain), _private_key_to_der(key))


def create_web_authority(name: str, key: P256Key, now: float) -> bytes:
    """Create the DER certificate of an authority for HTTPS servers, whose clients need P-256."""
    subject = _name((NameOID.COMMON_NAME, name))
    own_id = x509.SubjectKeyIdentifier.from_public_key(key.key.public_key())
    builder = (
        _builder(subject, subject, key.key, now)
        .add_extension(own_id, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_WEB_AUTHORITY_KEY_USAGE, critical=True)
    )
    return _sign(builder, key.key)


def issue_web_leaf(
    authority: bytes, authority_key: P256Key, names: Sequence[str], key: P256Key, now: float
) -> bytes:
    """Create the DER certificate of an HTTPS server with these host names and addresses."""
    issuer_id = x509.SubjectKeyIdentifier.from_public_key(authority_key.key.public_key())
    builder = (
        _builder(x509.Name([]), _load_certificate(authority).subject, key.key, now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), True)
        .add_extension(_authority_id(issuer_id), critical=False)
    )
    return _sign(builder, authority_key.key)


def identity_of(chain: Sequence[bytes], now: float) -> Identity:
    """Verify a peer's chain of DER certificates, leaf first, and return its identity.

    The identity certificate is the only one of a chain of one, which must be self-signed, and the
    second of a chain of two to four. Every certificate must have been signed by the next one and
    be valid at ``now``: a chain is easily assembled from other people's certificates.

    Raises `CertificateError` for anything else.
    """
    if not 1 <= len(chain) <= MAX_CHAIN_LENGTH:
        raise CertificateError(f"a chain of {len(chain)} certificates")
    try:
        certificates = [x509.load_der_x509_certificate(der) for der in chain]
        issuers = certificates[1:] or certificates
        for certificate, issuer in zip(certificates, issuers, strict=False):
            certificate.verify_directly_issued_by(issuer)
        for issuer in certificates[1:]:
            _check_may_issue(issuer)
        for der, certificate in zip(chain, certificates, strict=True):
            _check_signature_bits(der, certificate)
            _check_key(certificate)
            _check_dates(certificate, _utc(now))
        leaf_key = certificates[0].public_key()
    except _REJECTIONS as exc:
        raise CertificateError("invalid certificate chain") from exc
    return Identity(
        leaf_public_key=leaf_key.public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        ),
        fingerprint=fingerprint(chain[0] if len(chain) == 1 else chain[1]),
    )


def certificates_to_pem(certificates: Sequence[bytes]) -> bytes:
    """Encode DER certificates as PEM, in the same order."""
    return b"".join(
        _load_certificate(der).public_bytes(serialization.Encoding.PEM) for der in certificates
    )


def certificates_from_pem(pem: bytes) -> tuple[bytes, ...]:
    """Decode all certificates of a PEM text to DER, in the same order."""
    try:
        certificates = x509.load_pem_x509_certificates(pem)
    except _REJECTIONS as exc:
        raise CertificateError("not PEM certificates") from exc
    return tuple(cert.public_bytes(serialization.Encoding.DER) for cert in certificates)


def private_key_to_pem(private_key: bytes, password: bytes | None = None) -> bytes:
    """Encode a PKCS#8 DER private key as PEM, encrypted if there is a password."""
    return dump_key(_load_private_key(private_key), password)


def private_key_from_pem(pem: bytes, password: bytes | None = None) -> bytes:
    """Decode a PEM private key to PKCS#8 DER."""
    try:
        key = serialization.load_pem_private_key(pem, password)
    except _REJECTIONS as exc:
        raise CertificateError("not a PEM private key, or not its password") from exc
    return _private_key_to_der(_check_private_key(key))


def credentials_from_pem(certificates: bytes, private_key: bytes) -> TlsCredentials:
    """Load credentials from PEM texts: the certificates, leaf first, and the leaf's key."""
    chain = certificates_from_pem(certificates)
    key = private_key_from_pem(private_key)
    if _load_certificate(chain[0]).public_key() != _load_private_key(key).public_key():
        raise CertificateError("the private key is not the first certificate's")
    return TlsCredentials(chain, key)


def _check_may_issue(certificate: x509.Certificate) -> None:
    try:
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    except x509.ExtensionNotFound:
        return  # the reference makes authorities without extensions for short-lived uses
    if not constraints.value.ca:
        raise ValueError("the issuer is not an authority")


def _check_signature_bits(der: bytes, certificate: x509.Certificate) -> None:
    """Require a signature of whole bytes.

    The count of unused bits, which stands before the signature, is not signed itself, and parsers
    accept other counts than 0 if the last bits are 0: one certificate would have several encodings.
    """
    if der[-len(certificate.signature) - 1]:
        raise ValueError("the signature claims unused bits")


def _check_key(certificate: x509.Certificate) -> None:
    if not isinstance(certificate.public_key(), Ed25519PublicKey | Ed448PublicKey):
        raise ValueError("not an Ed25519 or Ed448 key")


def _check_dates(certificate: x509.Certificate, now: datetime) -> None:
    if now < certificate.not_valid_before_utc:
        raise ValueError("not valid yet")
    if now > certificate.not_valid_after_utc:
        raise ValueError("expired")


def _check_private_key(key: object) -> _PrivateKey:
    if not isinstance(key, Ed25519PrivateKey | Ed448PrivateKey):
        raise CertificateError("not an Ed25519 or Ed448 key")
    return key


def _load_certificate(der: bytes) -> x509.Certificate:
    try:
        return x509.load_der_x509_certificate(der)
    except _REJECTIONS as exc:
        raise CertificateError("not a DER certificate") from exc


def _load_private_key(der: bytes) -> _PrivateKey:
    try:
        key = serialization.load_der_private_key(der, None)
    except _REJECTIONS as exc:
        raise CertificateError("not a PKCS#8 private key") from exc
    return _check_private_key(key)


def _private_key_to_der(key: _PrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.DER,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _generate_key(algorithm: SigningAlgorithm) -> _PrivateKey:
    if algorithm is SigningAlgorithm.ED25519:
        return Ed25519PrivateKey.generate()
    return Ed448PrivateKey.generate()


def _name(*attributes: tuple[x509.ObjectIdentifier, str]) -> x509.Name:
    try:
        return x509.Name([x509.NameAttribute(oid, value) for oid, value in attributes])
    except ValueError as exc:
        raise CertificateError("a name takes 1 to 64 bytes") from exc


def _builder(
    subject: x509.Name, issuer: x509.Name, key: _PrivateKey | EllipticCurvePrivateKey, now: float
) -> x509.CertificateBuilder:
    start = _utc(int(now))
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + VALIDITY)
    )


def _authority_id(issuer_id: x509.SubjectKeyIdentifier) -> x509.AuthorityKeyIdentifier:
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer_id)


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _sign(
    builder: x509.CertificateBuilder, issuer_key: _PrivateKey | EllipticCurvePrivateKey
) -> bytes:
    # Ed25519 and Ed448 have their own hash.
    is_curve = isinstance(issuer_key, EllipticCurvePrivateKey)
    certificate = builder.sign(issuer_key, SHA256() if is_curve else None)
    return certificate.public_bytes(serialization.Encoding.DER)


def _utc(now: float) -> datetime:
    return datetime.fromtimestamp(now, UTC)
