import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from heliograph.crypto import p256
from heliograph.crypto.errors import CryptoError
from heliograph.crypto.p256 import P256Key
from tests.keys import fixed_p256_key

KEY = fixed_p256_key("own")


def pem_of(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey, password: bytes = b"") -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(password)
        if password
        else serialization.NoEncryption(),
    )


def test_pem_round_trip() -> None:
    again = P256Key.from_pem(KEY.to_pem())
    assert again.public == KEY.public
    assert len(KEY.public) == p256.POINT_SIZE
    assert KEY.public[0] == 4


def test_signature_is_r_and_s() -> None:
    """Another implementation verifies it: JOSE's 64 bytes turned into DER."""
    for _ in range(50):  # also when r or s is short
        signature = KEY.sign(b"message")
        assert len(signature) == p256.SIGNATURE_SIZE
        der = encode_dss_signature(int.from_bytes(signature[:32]), int.from_bytes(signature[32:]))
        public = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), KEY.public)
        public.verify(der, b"message", ec.ECDSA(hashes.SHA256()))


def test_verify() -> None:
    signature = KEY.sign(b"message")
    assert p256.verify(KEY.public, b"message", signature)
    assert not p256.verify(KEY.public, b"another", signature)
    assert not p256.verify(P256Key.generate().public, b"message", signature)
    assert not p256.verify(KEY.public, b"message", signature[:-1])
    assert not p256.verify(KEY.public, b"message", bytes(64))


def test_agreement() -> None:
    other = P256Key.generate()
    assert KEY.agree(other.public) == other.agree(KEY.public)


@pytest.mark.parametrize("public", [b"", bytes(65), b"\x04" + bytes(64), b"\x04" + bytes(63)])
def test_not_a_point(public: bytes) -> None:
    with pytest.raises(CryptoError):
        KEY.agree(public)


@pytest.mark.parametrize("secret", [b"", bytes(32), b"\xff" * 32])
def test_not_a_secret(secret: bytes) -> None:
    with pytest.raises(CryptoError):
        P256Key.from_secret(secret)


@pytest.mark.parametrize(
    "pem",
    [
        b"",
        b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
        pem_of(ec.generate_private_key(ec.SECP384R1())),
        pem_of(rsa.generate_private_key(public_exponent=65537, key_size=2048)),
        pem_of(ec.generate_private_key(ec.SECP256R1()), b"password"),
    ],
    ids=["empty", "nonsense", "P-384", "RSA", "encrypted"],
)
def test_not_a_key(pem: bytes) -> None:
    with pytest.raises(CryptoError) as caught:
        P256Key.from_pem(pem)
    assert caught.value.__context__ is None or caught.value.__suppress_context__


def test_keys_are_not_shown() -> None:
    assert "object at" in repr(KEY)
