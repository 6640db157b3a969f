"""Tests of `heliograph.crypto.keys`."""

import traceback
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from hypothesis import assume, given, strategies as st

from heliograph.crypto.boxes import hsalsa20
from heliograph.crypto.errors import CryptoError
from heliograph.crypto.keys import (
    KeyPair,
    algorithm_of,
    box_key,
    dh,
    generate_key_pair,
    private_algorithm_of,
    public_key,
    sign,
    verify,
)
from heliograph.wire.keys import KEY_SIZE, PKCS8_PREFIX, SPKI_PREFIX, Algorithm
from tests.crypto.golden import golden

LIBRARY: dict[
    Algorithm, type[X25519PrivateKey] | type[Ed25519PrivateKey] | type[Ed448PrivateKey]
] = {
    Algorithm.X25519: X25519PrivateKey,
    Algorithm.ED25519: Ed25519PrivateKey,
    Algorithm.ED448: Ed448PrivateKey,
}
SIGNING = [Algorithm.ED25519, Algorithm.ED448]
SIGNATURE_SIZE = {Algorithm.ED25519: 64, Algorithm.ED448: 114}

algorithms = st.sampled_from(Algorithm)
signing = st.sampled_from(SIGNING)
messages = st.binary(max_size=300)


def x25519_public(raw: str) -> bytes:
    return SPKI_PREFIX[Algorithm.X25519] + bytes.fromhex(raw)


def x25519_private(raw: str) -> bytes:
    return PKCS8_PREFIX[Algorithm.X25519] + bytes.fromhex(raw)


@st.composite
def private_keys(draw: st.DrawFn, of: st.SearchStrategy[Algorithm] = algorithms) -> bytes:
    algorithm = draw(of)
    size = KEY_SIZE[algorithm]
    return PKCS8_PREFIX[algorithm] + draw(st.binary(min_size=size, max_size=size))


x25519_private_keys = private_keys(st.just(Algorithm.X25519))


# Forms


@pytest.mark.parametrize("algorithm", Algorithm)
def test_generated_keys_are_what_the_library_reads(algorithm: Algorithm) -> None:
    public, private = generate_key_pair(algorithm)
    key = serialization.load_der_private_key(private, password=None)
    assert isinstance(key, LIBRARY[algorithm])
    assert public == key.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    assert private == key.private_bytes(
        serialization.Encoding.DER,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


@pytest.mark.parametrize("algorithm", Algorithm)
def test_generated_keys_differ(algorithm: Algorithm) -> None:
    assert len({generate_key_pair(algorithm).private for _ in range(20)}) == 20


@given(private_keys())
def test_public_key_is_the_librarys(private: bytes) -> None:
    algorithm = private_algorithm_of(private)
    raw = private[len(PKCS8_PREFIX[algorithm]) :]
    expected = LIBRARY[algorithm].from_private_bytes(raw).public_key().public_bytes_raw()
    public = public_key(private)
    assert public == SPKI_PREFIX[algorithm] + expected
    assert algorithm_of(public) is algorithm


@pytest.mark.parametrize("vector", golden("keypair"), ids=lambda vector: vector["alg"])
def test_golden_key_pairs(vector: dict[str, Any]) -> None:
    private = bytes.fromhex(vector["private_pkcs8"])
    public = bytes.fromhex(vector["public_spki"])
    if vector["alg"] == "X448":
        with pytest.raises(CryptoError):
            private_algorithm_of(private)
        with pytest.raises(CryptoError):
            algorithm_of(public)
    else:
        assert algorithm_of(public) is private_algorithm_of(private) is Algorithm(vector["alg"])
        assert public_key(private) == public


@given(private_keys(), st.data())
def test_other_forms_are_refused(private: bytes, data: st.DataObject) -> None:
    public = public_key(private)
    cut = data.draw(st.integers(0, len(public) - 1))
    for key in (public[:cut], public + b"\0", private, public[1:]):
        with pytest.raises(CryptoError, match="public key"):
            algorithm_of(key)
        with pytest.raises(CryptoError, match="public key"):
            verify(key, bytes(64), b"")
    for key in (private[:cut], private + b"\0", public, private[1:]):
        for use in (private_algorithm_of, public_key):
            with pytest.raises(CryptoError, match="private key"):
                use(key)
        with pytest.raises(CryptoError, match="private key"):
            sign(key, b"")


# Agreement


@pytest.mark.parametrize(
    ("private", "public", "secret"),
    [
        (  # RFC 7748, 5.2
            "a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4",
            "e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c",
            "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552",
        ),
        (  # the same; the high bit of the point is set and has to be ignored
            "4b66e9d4d1b4673c5ad22691957d6af5c11b6421e0ea01d42ca4169e7918ba0d",
            "e5210f12786811d3f4b7959d0538ae2c31dbe7106fc03c3efc4cd549c715a493",
            "95cbde9476e8907d7aade45cb4b873f88b595a68799fa152e6f8f7647aac7957",
        ),
        (  # RFC 7748, 6.1, as Alice
            "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a",
            "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f",
            "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742",
        ),
        (  # and as Bob
            "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb",
            "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a",
            "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742",
        ),
    ],
)
def test_rfc_7748(private: str, public: str, secret: str) -> None:
    agreed = dh(x25519_public(public), x25519_private(private))
    assert agreed == bytes.fromhex(secret)
    assert box_key(x25519_public(public), x25519_private(private)) == hsalsa20(agreed)


def test_rfc_7748_public_key() -> None:
    alice = "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a"
    assert public_key(x25519_private(alice)) == x25519_public(
        "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    )


def test_golden_agreement() -> None:
    (vector,) = golden("dh_x25519")
    public, private = (bytes.fromhex(vector[name]) for name in ("public_spki", "private_pkcs8"))
    assert dh(public, private) == bytes.fromhex(vector["secret"])


@given(x25519_private_keys, x25519_private_keys)
def test_both_sides_agree(ours: bytes, theirs: bytes) -> None:
    secret = dh(public_key(theirs), ours)
    assert secret == dh(public_key(ours), theirs)
    assert secret == X25519PrivateKey.from_private_bytes(ours[16:]).exchange(
        X25519PublicKey.from_public_bytes(public_key(theirs)[12:])
    )
    assert box_key(public_key(theirs), ours) == box_key(public_key(ours), theirs)
    assert box_key(public_key(theirs), ours) == hsalsa20(secret)


LOW_ORDER = [
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0100000000000000000000000000000000000000000000000000000000000000",
    "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
    "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
]


@pytest.mark.parametrize("high_bit", [0, 0x80])
@pytest.mark.parametrize("point", LOW_ORDER)
def test_points_of_low_order_are_refused(point: str, high_bit: int) -> None:
    raw = bytearray.fromhex(point)
    raw[31] |= high_bit
    public = SPKI_PREFIX[Algorithm.X25519] + bytes(raw)
    private = generate_key_pair(Algorithm.X25519).private
    for agree in (dh, box_key):
        with pytest.raises(CryptoError, match="low order"):
            agree(public, private)


@given(st.binary(min_size=32, max_size=32), x25519_private_keys)
def test_any_point_agrees_or_is_refused(point: bytes, private: bytes) -> None:
    public = SPKI_PREFIX[Algorithm.X25519] + point
    try:
        secret = dh(public, private)
    except CryptoError:
        with pytest.raises(CryptoError):
            box_key(public, private)
    else:
        assert box_key(public, private) == hsalsa20(secret)


@pytest.mark.parametrize("agree", [dh, box_key])
def test_only_x25519_keys_agree(agree: Any) -> None:
    ours = generate_key_pair(Algorithm.X25519)
    for algorithm in SIGNING:
        other = generate_key_pair(algorithm)
        with pytest.raises(CryptoError, match="X25519"):
            agree(other.public, ours.private)
        with pytest.raises(CryptoError, match="X25519"):
            agree(ours.public, other.private)
    for public, private in ((b"", ours.private), (ours.public, b""), (ours.private, ours.public)):
        with pytest.raises(CryptoError, match="X25519"):
            agree(public, private)


# Signatures


@pytest.mark.parametrize(
    ("algorithm", "private", "public", "message", "signature"),
    [
        (  # RFC 8032, 7.1, test 1
            Algorithm.ED25519,
            "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
            "",
            (
                "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bac"
                "c61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"
            ),
        ),
        (  # test 2
            Algorithm.ED25519,
            "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
            "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
            "72",
            (
                "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e"
                "458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
            ),
        ),
        (  # test 3
            Algorithm.ED25519,
            "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
            "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
            "af82",
            (
                "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290"
                "ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a"
            ),
        ),
        (  # RFC 8032, 7.4, blank
            Algorithm.ED448,
            (
                "6c82a562cb808d10d632be89c8513ebf6c929f34ddfa8c9f63c9960ef6e348a3528c8a3fcc2f044e"
                "39a3fc5b94492f8f032e7549a20098f95b"
            ),
            (
                "5fd7449b59b461fd2ce787ec616ad46a1da1342485a70e1f8a0ea75d80e96778edf124769b46c706"
                "1bd6783df1e50f6cd1fa1abeafe8256180"
            ),
            "",
            (
                "533a37f6bbe457251f023c0d88f976ae2dfb504a843e34d2074fd823d41a591f2b233f034f628281"
                "f2fd7a22ddd47d7828c59bd0a21bfd3980ff0d2028d4b18a9df63e006c5d1c2d345b925d8dc00b41"
                "04852db99ac5c7cdda8530a113a0f4dbb61149f05a7363268c71d95808ff2e652600"
            ),
        ),
        (  # 1 octet
            Algorithm.ED448,
            (
                "c4eab05d357007c632f3dbb48489924d552b08fe0c353a0d4a1f00acda2c463afbea67c5e8d2877c"
                "5e3bc397a659949ef8021e954e0a12274e"
            ),
            (
                "43ba28f430cdff456ae531545f7ecd0ac834a55d9358c0372bfa0c6c6798c0866aea01eb00742802"
                "b8438ea4cb82169c235160627b4c3a9480"
            ),
            "03",
            (
                "26b8f91727bd62897af15e41eb43c377efb9c610d48f2335cb0bd0087810f4352541b143c4b981b7"
                "e18f62de8ccdf633fc1bf037ab7cd779805e0dbcc0aae1cbcee1afb2e027df36bc04dcecbf154336"
                "c19f0af7e0a6472905e799f1953d2a0ff3348ab21aa4adafd1d234441cf807c03a00"
            ),
        ),
    ],
)
def test_rfc_8032(
    algorithm: Algorithm, private: str, public: str, message: str, signature: str
) -> None:
    private_der = PKCS8_PREFIX[algorithm] + bytes.fromhex(private)
    public_der = SPKI_PREFIX[algorithm] + bytes.fromhex(public)
    assert public_key(private_der) == public_der
    assert sign(private_der, bytes.fromhex(message)) == bytes.fromhex(signature)
    assert verify(public_der, bytes.fromhex(signature), bytes.fromhex(message))


@pytest.mark.parametrize("vector", golden("sign"))
def test_golden_signatures(vector: dict[str, Any]) -> None:
    private, message, signature = (
        bytes.fromhex(vector[name]) for name in ("private_pkcs8", "msg", "sig")
    )
    assert sign(private, message) == signature
    assert verify(public_key(private), signature, message)


@given(private_keys(signing), messages)
def test_signatures_round_trip(private: bytes, message: bytes) -> None:
    algorithm = private_algorithm_of(private)
    signature = sign(private, message)
    assert len(signature) == SIGNATURE_SIZE[algorithm]
    key = serialization.load_der_private_key(private, password=None)
    assert isinstance(key, Ed25519PrivateKey | Ed448PrivateKey)
    assert signature == key.sign(message)
    assert verify(public_key(private), signature, message)


@given(private_keys(signing), private_keys(signing), messages, st.data())
def test_wrong_signatures_do_not_fit(
    private: bytes, other: bytes, message: bytes, data: st.DataObject
) -> None:
    assume(private != other)
    signature = sign(private, message)
    public = public_key(private)
    assert not verify(public_key(other), signature, message)
    assert not verify(public, signature, message + b"\0")
    flipped = bytearray(signature)
    flipped[data.draw(st.integers(0, len(flipped) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert not verify(public, bytes(flipped), message)
    for size in (0, 63, 64, 65, 80, 113, 114, 115):
        assert not verify(public, bytes(size), message)


def test_x25519_neither_signs_nor_verifies() -> None:
    public, private = generate_key_pair(Algorithm.X25519)
    with pytest.raises(CryptoError, match="does not sign"):
        sign(private, b"message")
    for size in (64, 80, 114):
        assert not verify(public, bytes(size), b"message")


@given(signing, st.data(), messages)
def test_keys_and_signatures_that_are_no_points_do_not_fit(
    algorithm: Algorithm, data: st.DataObject, message: bytes
) -> None:
    size, length = KEY_SIZE[algorithm], SIGNATURE_SIZE[algorithm]
    key = SPKI_PREFIX[algorithm] + data.draw(st.binary(min_size=size, max_size=size))
    assert not verify(key, data.draw(st.binary(min_size=length, max_size=length)), message)


@pytest.mark.parametrize("algorithm", SIGNING)
def test_nobody_signs_for_points_of_low_order(algorithm: Algorithm) -> None:
    """R of low order and S = 0 fit such a key, unless the key is refused."""
    prime, size = {
        Algorithm.ED25519: (2**255 - 19, 32),
        Algorithm.ED448: (2**448 - 2**224 - 1, 57),
    }[algorithm]
    points = []
    for y in (0, 1, prime - 1, prime, prime + 1):
        for sign_bit in (0, 0x80):
            raw = bytearray(y.to_bytes(size, "little"))
            raw[-1] |= sign_bit
            points.append(bytes(raw))
    for key in points:
        for r in points:
            for message in (b"", b"a", b"b", b"c", b"d"):
                assert not verify(SPKI_PREFIX[algorithm] + key, r + bytes(size), message)


def test_no_key_is_all_zero_bits_or_all_ones() -> None:
    for algorithm in SIGNING:
        for byte in (b"\0", b"\xff"):
            key = SPKI_PREFIX[algorithm] + byte * KEY_SIZE[algorithm]
            for filler in (b"\0", b"\xff"):
                assert not verify(key, filler * SIGNATURE_SIZE[algorithm], b"message")


# Secrets


@pytest.mark.parametrize("algorithm", Algorithm)
def test_a_key_pair_does_not_show_its_private_key(algorithm: Algorithm) -> None:
    pair = generate_key_pair(algorithm)
    seed = pair.private[16:]
    for text in (repr(pair), str(pair), f"{pair}", repr([pair])):
        assert seed.hex() not in text
        assert repr(seed)[2:-1] not in text
    assert repr(KeyPair(b"\x01", b"\x02")) == "KeyPair(public=01, private=...)"


def test_errors_do_not_show_keys() -> None:
    x25519 = generate_key_pair(Algorithm.X25519)
    signer = generate_key_pair(Algorithm.ED25519)
    broken = signer.private + b"\0"
    attempts: list[Any] = [
        lambda: sign(x25519.private, b"plaintext"),
        lambda: sign(broken, b"plaintext"),
        lambda: public_key(broken),
        lambda: algorithm_of(broken),
        lambda: dh(x25519.public, signer.private),
        lambda: box_key(signer.public, x25519.private),
        lambda: dh(x25519_public(LOW_ORDER[0]), x25519.private),
        lambda: box_key(x25519_public(LOW_ORDER[0]), x25519.private),
    ]
    for attempt in attempts:
        with pytest.raises(CryptoError) as caught:
            attempt()
        text = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
        for secret in (x25519.private[16:], signer.private[16:]):
            assert secret.hex() not in text
            assert repr(secret)[2:-1] not in text
        assert "b'plaintext'" not in repr(caught.value)
