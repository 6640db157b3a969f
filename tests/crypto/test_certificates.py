"""Tests of `heliograph.crypto.certificates`."""

import base64
import gzip
import hashlib
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import example, given, strategies as st

from heliograph.crypto.certificates import (
    CertificateError,
    SigningAlgorithm,
    TlsCredentials,
    certificates_from_pem,
    certificates_to_pem,
    create_authority,
    create_web_authority,
    credentials_from_pem,
    expires_at,
    fingerprint,
    identity_of,
    issue_leaf,
    issue_web_leaf,
    private_key_from_pem,
    private_key_to_pem,
)
from heliograph.crypto.errors import CryptoError
from heliograph.crypto.p256 import P256Key
from tests.keys import AnyPrivateKey, fixed_credentials, make_certificate

NOW = 1_800_000_000
DAY = 86_400
VECTORS = Path(__file__).parent.parent / "vectors"

algorithms = pytest.mark.parametrize("algorithm", list(SigningAlgorithm))

make = partial(make_certificate, start=NOW, end=NOW + DAY)


def long_chain(length: int) -> tuple[bytes, ...]:
    """A chain of Ed25519 certificates named 0 (the leaf), 1, ..., each signed by the next."""
    keys: list[AnyPrivateKey] = [Ed25519PrivateKey.generate() for _ in range(length)]
    names = [str(level) for level in range(length)]
    issuer_keys = [*keys[1:], keys[-1]]
    issuer_names = [*names[1:], names[-1]]
    return tuple(
        make(*each, ca=level > 0)
        for level, each in enumerate(zip(names, issuer_names, keys, issuer_keys, strict=True))
    )


def leaf_key_of(credentials: TlsCredentials) -> bytes:
    key = serialization.load_der_private_key(credentials.private_key, None)
    return key.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


@algorithms
def test_generated_chain_is_accepted(algorithm: SigningAlgorithm) -> None:
    authority = create_authority("SMP server CA", NOW, algorithm)
    credentials = issue_leaf(authority, "smp.example.org", NOW + 0.5, algorithm)
    assert len(credentials.chain) == 2
    identity = identity_of(credentials.chain, NOW + 0.5)
    assert identity.fingerprint == hashlib.sha256(authority.chain[0]).digest()
    assert identity.leaf_public_key == leaf_key_of(credentials)


def test_default_algorithm_is_ed25519() -> None:
    credentials = issue_leaf(create_authority("CA", NOW), "host", NOW)
    for der in credentials.chain:
        key = x509.load_der_x509_certificate(der).public_key()
        assert len(key.public_bytes_raw()) == 32  # type: ignore[union-attr]


def test_leaf_and_authority_may_use_different_algorithms() -> None:
    authority = create_authority("CA", NOW, SigningAlgorithm.ED448)
    credentials = issue_leaf(authority, "host", NOW, SigningAlgorithm.ED25519)
    assert len(identity_of(credentials.chain, NOW).leaf_public_key) == 44


def test_rotation_keeps_the_identity_and_changes_the_key() -> None:
    authority = create_authority("CA", NOW)
    old = identity_of(issue_leaf(authority, "host", NOW).chain, NOW)
    new = identity_of(issue_leaf(authority, "host", NOW + DAY).chain, NOW + DAY)
    assert new.fingerprint == old.fingerprint
    assert new.leaf_public_key != old.leaf_public_key


def test_validity_is_that_of_the_reference() -> None:
    for der in issue_leaf(create_authority("CA", NOW), "host", NOW).chain:
        certificate = x509.load_der_x509_certificate(der)
        assert certificate.not_valid_before_utc == datetime.fromtimestamp(NOW, UTC)
        validity = certificate.not_valid_after_utc - certificate.not_valid_before_utc
        assert validity == timedelta(days=999_999)


def test_expiry_is_read_from_the_certificate() -> None:
    authority = create_authority("CA", NOW)
    leaf = issue_leaf(authority, "localhost", NOW).chain[0]
    expected = x509.load_der_x509_certificate(leaf).not_valid_after_utc.timestamp()
    assert expires_at(leaf) == expected > NOW


@pytest.mark.parametrize("name", ["", "x" * 65])
def test_names_that_do_not_fit(name: str) -> None:
    with pytest.raises(CertificateError, match="1 to 64"):
        create_authority(name, NOW)
    with pytest.raises(CertificateError, match="1 to 64"):
        issue_leaf(create_authority("CA", NOW), name, NOW)


def test_private_key_is_not_shown() -> None:
    credentials = create_authority("CA", NOW)
    assert "private_key" not in repr(credentials)


def reference_chain(session: str) -> list[tuple[bytes, bytes]]:
    """The certificates of a recorded session with the reference, and their fingerprints."""
    with gzip.open(VECTORS / session, "rt") as lines:
        event = next(event for event in map(json.loads, lines) if event.get("certs"))
    return [
        (bytes.fromhex(cert["der"]), base64.urlsafe_b64decode(cert["sha256_b64url"]))
        for cert in event["certs"]
    ]


@pytest.mark.parametrize("session", ["smp-v18-enc.jsonl.gz", "ntf-test-v3-X25519.jsonl.gz"])
def test_reference_chain_is_accepted(session: str) -> None:
    chain = [der for der, _ in reference_chain(session)]
    start = x509.load_der_x509_certificate(chain[0]).not_valid_before_utc.timestamp()
    assert identity_of(chain, start + DAY).fingerprint == reference_chain(session)[1][1]


def test_generated_chain_has_the_extensions_of_the_reference() -> None:
    ours = issue_leaf(create_authority("SMP server CA", NOW), "127.0.0.1", NOW).chain
    theirs = [der for der, _ in reference_chain("smp-v18-enc.jsonl.gz")]
    for our_der, their_der in zip(ours, theirs, strict=True):
        our, their = map(x509.load_der_x509_certificate, (our_der, their_der))
        assert our.version == their.version
        assert our.subject.public_bytes() == their.subject.public_bytes()
        assert our.issuer.public_bytes() == their.issuer.public_bytes()
        ids = (x509.SubjectKeyIdentifier, x509.AuthorityKeyIdentifier)
        assert [
            (extension.oid, extension.critical, isinstance(extension.value, ids) or extension.value)
            for extension in our.extensions
        ] == [
            (extension.oid, extension.critical, isinstance(extension.value, ids) or extension.value)
            for extension in their.extensions
        ]


def test_chain_of_one_is_its_own_identity() -> None:
    credentials = create_authority("service", NOW)
    identity = identity_of(credentials.chain, NOW)
    assert identity.fingerprint == fingerprint(credentials.chain[0])
    assert identity.leaf_public_key == leaf_key_of(credentials)


@pytest.mark.parametrize("length", [2, 3, 4])
def test_second_certificate_of_a_longer_chain_is_the_identity(length: int) -> None:
    chain = long_chain(length)
    assert identity_of(chain, NOW).fingerprint == fingerprint(chain[1])


@pytest.mark.parametrize("length", [0, 5])
def test_chain_length_is_bounded(length: int) -> None:
    with pytest.raises(CertificateError, match=f"chain of {length}"):
        identity_of(long_chain(length) if length else (), NOW)


def test_error_is_a_crypto_error() -> None:
    with pytest.raises(CryptoError):
        identity_of((), NOW)


def rejection(chain: tuple[bytes, ...], now: float = NOW) -> Exception:
    """Why a chain is refused."""
    with pytest.raises(CertificateError) as info:
        identity_of(chain, now)
    assert isinstance(info.value.__cause__, Exception)
    return info.value.__cause__


@algorithms
def test_stolen_authority_certificate_is_refused(algorithm: SigningAlgorithm) -> None:
    victim = create_authority("SMP server CA", NOW, algorithm)
    attacker = create_authority("SMP server CA", NOW, algorithm)  # the names match
    leaf = issue_leaf(attacker, "host", NOW, algorithm).chain[0]
    rejection((leaf, *victim.chain))
    # The reference looks for any issuer in the chain, so it takes this one.
    rejection((leaf, *victim.chain, *attacker.chain))


def test_leaf_alone_is_refused() -> None:
    leaf = issue_leaf(create_authority("CA", NOW), "host", NOW).chain[0]
    assert "name" in str(rejection((leaf,))) or "subject" in str(rejection((leaf,)))


def test_self_signed_in_name_only_is_refused() -> None:
    key, other = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    rejection((make("a", "a", key, other),))


def test_wrong_issuer_name_is_refused() -> None:
    key, ca_key = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    authority = make("ca", "ca", ca_key, ca_key)
    identity_of((make("leaf", "ca", key, ca_key, ca=False), authority), NOW)
    rejection((make("leaf", "other", key, ca_key, ca=False), authority))


def test_chain_in_the_wrong_order_is_refused() -> None:
    leaf, authority = long_chain(2)
    rejection((authority, leaf))
    leaf, second, third = long_chain(3)
    rejection((leaf, third, second))


def test_broken_link_above_the_identity_is_refused() -> None:
    rejection((*long_chain(3)[:2], long_chain(3)[2]))


def test_issuer_that_is_no_authority_is_refused() -> None:
    key, ca_key = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    leaf = make("leaf", "ca", key, ca_key)
    assert "authority" in str(rejection((leaf, make("ca", "ca", ca_key, ca_key, ca=False))))
    identity_of((leaf, make("ca", "ca", ca_key, ca_key, ca=None)), NOW)


@pytest.mark.parametrize("late", [0, 1])
def test_expired_is_refused(late: int) -> None:
    key = Ed448PrivateKey.generate()
    ends = [NOW + 10, NOW + 10]
    ends[late] = NOW + 20
    chain = (
        make("leaf", "ca", key, key, ca=False, end=ends[0]),
        make("ca", "ca", key, key, end=ends[1]),
    )
    identity_of(chain, NOW + 10)
    assert str(rejection(chain, NOW + 11)) == "expired"


@pytest.mark.parametrize("early", [0, 1])
def test_not_yet_valid_is_refused(early: int) -> None:
    key = Ed448PrivateKey.generate()
    starts = [NOW, NOW]
    starts[early] = NOW - 10
    chain = (
        make("leaf", "ca", key, key, ca=False, start=starts[0]),
        make("ca", "ca", key, key, start=starts[1]),
    )
    identity_of(chain, NOW)
    assert str(rejection(chain, NOW - 1)) == "not valid yet"


@pytest.mark.parametrize("place", [0, 1])
def test_other_key_types_are_refused(place: int) -> None:
    keys: list[AnyPrivateKey] = [Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()]
    keys[place] = ec.generate_private_key(ec.SECP256R1())
    chain = (make("leaf", "ca", keys[0], keys[1], ca=False), make("ca", "ca", keys[1], keys[1]))
    assert "Ed25519" in str(rejection(chain))


@pytest.mark.parametrize("garbage", [b"", b"\x30\x00", b"garbage"])
def test_garbage_is_refused(garbage: bytes) -> None:
    authority = create_authority("CA", NOW)
    rejection((garbage,))
    rejection((garbage, *authority.chain))
    rejection((authority.chain[0] + b"\x00",))


def test_serial_number_that_later_releases_refuse() -> None:
    key = Ed25519PrivateKey.generate()
    certificate = make("a", "a", key, key)
    rejection((certificate.replace(b"\x02\x01\x01", b"\x02\x01\x00", 1),))


CHAINS = {each: fixed_credentials("CA", each, each).chain for each in SigningAlgorithm}
ED448_UNUSED_BITS = -1 - 114
"""Where an Ed448 certificate says how many bits of its signature's last byte are unused.

That byte is 0, so any number reads as DER if nobody insists on whole bytes.
"""


@given(
    algorithm=st.sampled_from(SigningAlgorithm),
    place=st.integers(0, 1),
    where=st.integers(0, 1000),
    flip=st.integers(1, 255),
)
@example(SigningAlgorithm.ED448, 0, ED448_UNUSED_BITS, 1)
@example(SigningAlgorithm.ED448, 0, ED448_UNUSED_BITS, 7)
def test_any_changed_byte_is_refused_or_changes_the_identity(
    algorithm: SigningAlgorithm, place: int, where: int, flip: int
) -> None:
    chain = CHAINS[algorithm]
    changed = [bytearray(der) for der in chain]
    changed[place][where % len(changed[place])] ^= flip
    genuine = identity_of(chain, NOW)
    try:
        identity = identity_of([bytes(der) for der in changed], NOW)
    except CertificateError:
        return
    assert identity.fingerprint != genuine.fingerprint


@algorithms
def test_pem_round_trip(algorithm: SigningAlgorithm) -> None:
    credentials = issue_leaf(create_authority("CA", NOW, algorithm), "host", NOW, algorithm)
    certificates = certificates_to_pem(credentials.chain)
    assert certificates.count(b"-----BEGIN CERTIFICATE-----") == 2
    assert certificates_from_pem(certificates) == credentials.chain
    key = private_key_to_pem(credentials.private_key)
    assert private_key_from_pem(key) == credentials.private_key
    assert credentials_from_pem(certificates, key) == credentials


def test_encrypted_private_key() -> None:
    private_key = create_authority("CA", NOW).private_key
    pem = private_key_to_pem(private_key, b"secret")
    assert b"ENCRYPTED" in pem
    assert private_key_from_pem(pem, b"secret") == private_key
    for password in (None, b"wrong"):
        with pytest.raises(CertificateError, match="password"):
            private_key_from_pem(pem, password)


def test_key_of_another_certificate_is_refused() -> None:
    credentials = issue_leaf(create_authority("CA", NOW), "host", NOW)
    other = create_authority("CA", NOW)
    with pytest.raises(CertificateError, match="not the first certificate's"):
        credentials_from_pem(
            certificates_to_pem(credentials.chain), private_key_to_pem(other.private_key)
        )


def ec_key_pem() -> bytes:
    return ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


@pytest.mark.parametrize(
    "load",
    [
        lambda: certificates_to_pem([b"garbage"]),
        lambda: certificates_from_pem(b"garbage"),
        lambda: private_key_to_pem(b"garbage"),
        lambda: private_key_from_pem(b"garbage"),
        lambda: private_key_from_pem(ec_key_pem()),
        lambda: issue_leaf(TlsCredentials((b"garbage",), b"garbage"), "host", NOW),
        lambda: issue_leaf(
            TlsCredentials(CHAINS[SigningAlgorithm.ED25519], b"garbage"), "host", NOW
        ),
    ],
)
def test_unreadable_input_raises_the_documented_error(load: Callable[[], object]) -> None:
    with pytest.raises(CertificateError):
        load()


def test_web_certificates() -> None:
    authority_key, key = P256Key.generate(), P256Key.generate()
    authority = create_web_authority("endpoints", authority_key, NOW)
    leaf = issue_web_leaf(authority, authority_key, ["a.example", "127.0.0.1", "::1"], key, NOW)
    certificate = x509.load_der_x509_certificate(leaf)
    certificate.verify_directly_issued_by(x509.load_der_x509_certificate(authority))
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["a.example"]
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "::1"]
    with pytest.raises(CertificateError):
        identity_of([leaf, authority], NOW)  # the protocols do not know P-256
