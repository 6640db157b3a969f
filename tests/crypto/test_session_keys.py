"""Tests of `heliograph.crypto.session_keys`."""

from typing import Any

import pytest
from hypothesis import assume, given, strategies as st

from heliograph.crypto.errors import CryptoError
from heliograph.crypto.keys import KeyPair, generate_key_pair, public_key, sign, verify
from heliograph.crypto.session_keys import sign_session_key, verify_session_key
from heliograph.wire.keys import KEY_SIZE, PKCS8_PREFIX, SPKI_PREFIX, Algorithm
from tests.crypto.golden import golden
from tests.keys import fixed_key_pair

SIGNING = [Algorithm.ED25519, Algorithm.ED448]
SESSION = [Algorithm.X25519, Algorithm.ED25519]
IDENTIFIER = {
    Algorithm.ED25519: bytes.fromhex("300506032b6570"),
    Algorithm.ED448: bytes.fromhex("300506032b6571"),
}
LEAVES = {algorithm: fixed_key_pair(algorithm, "leaf") for algorithm in Algorithm}
KEY = fixed_key_pair(Algorithm.X25519, "session").public


def der(tag: int, content: bytes, *, width: int = 0) -> bytes:
    """A DER element; with `width`, its length takes that many bytes, needed or not."""
    size = len(content)
    if not width and size < 0x80:
        return bytes((tag, size)) + content
    width = width or (size.bit_length() + 7) // 8
    return bytes((tag, 0x80 | width)) + size.to_bytes(width) + content


def assemble(leaf: KeyPair, algorithm: Algorithm, signed: bytes, covered: bytes) -> bytes:
    """A signed object around `signed`, whose signature covers `covered`."""
    signature = der(0x03, b"\0" + sign(leaf.private, covered))
    return der(0x30, signed + IDENTIFIER[algorithm] + signature)


@st.composite
def keys_of(draw: st.DrawFn, algorithms: list[Algorithm]) -> tuple[Algorithm, bytes]:
    algorithm = draw(st.sampled_from(algorithms))
    size = KEY_SIZE[algorithm]
    return algorithm, draw(st.binary(min_size=size, max_size=size))


# Round trips


@pytest.mark.parametrize("vector", golden("signed_x25519_key"))
def test_golden_session_keys(vector: dict[str, Any]) -> None:
    private = bytes.fromhex(vector.get("server_ed25519_pkcs8") or vector["server_ed448_pkcs8"])
    key = bytes.fromhex(vector["x25519_spki"])
    large = bytes.fromhex(vector["signed_exact_der_large"])
    signed_key = large[2:]
    assert len(signed_key) == int.from_bytes(large[:2])
    assert sign_session_key(private, key) == signed_key
    assert verify_session_key(public_key(private), signed_key) == key


@given(keys_of(SIGNING), keys_of(SESSION))
def test_session_keys_round_trip(
    leaf: tuple[Algorithm, bytes], session: tuple[Algorithm, bytes]
) -> None:
    private = PKCS8_PREFIX[leaf[0]] + leaf[1]
    key = SPKI_PREFIX[session[0]] + session[1]
    signed_key = sign_session_key(private, key)
    assert verify_session_key(public_key(private), signed_key) == key


@pytest.mark.parametrize("algorithm", SIGNING)
def test_the_signature_covers_the_sequence_around_the_key(algorithm: Algorithm) -> None:
    leaf = LEAVES[algorithm]
    signed = bytes.fromhex("302c") + KEY
    assert len(signed) == 46
    signed_key = sign_session_key(leaf.private, KEY)
    assert signed_key == assemble(leaf, algorithm, signed, covered=signed)
    size = {Algorithm.ED25519: 64, Algorithm.ED448: 114}[algorithm]
    assert verify(leaf.public, signed_key[-size:], signed)
    assert not verify(leaf.public, signed_key[-size:], KEY)


# Refusals


@pytest.mark.parametrize("algorithm", SIGNING)
def test_a_signature_over_the_bare_key_is_refused(algorithm: Algorithm) -> None:
    bare = assemble(LEAVES[algorithm], algorithm, der(0x30, KEY), covered=KEY)
    with pytest.raises(CryptoError, match="does not fit"):
        verify_session_key(LEAVES[algorithm].public, bare)


@pytest.mark.parametrize("algorithm", SIGNING)
def test_a_key_without_the_sequence_is_refused(algorithm: Algorithm) -> None:
    bare = assemble(LEAVES[algorithm], algorithm, KEY, covered=KEY)
    with pytest.raises(CryptoError):
        verify_session_key(LEAVES[algorithm].public, bare)


@pytest.mark.parametrize("algorithm", SIGNING)
def test_truncated_anywhere_is_refused(algorithm: Algorithm) -> None:
    leaf = LEAVES[algorithm]
    signed_key = sign_session_key(leaf.private, KEY)
    for size in range(len(signed_key)):
        with pytest.raises(CryptoError):
            verify_session_key(leaf.public, signed_key[:size])


@pytest.mark.parametrize("algorithm", SIGNING)
def test_any_flipped_bit_is_refused(algorithm: Algorithm) -> None:
    leaf = LEAVES[algorithm]
    signed_key = sign_session_key(leaf.private, KEY)
    for index in range(len(signed_key)):
        for bit in range(8):
            flipped = bytearray(signed_key)
            flipped[index] ^= 1 << bit
            with pytest.raises(CryptoError):
                verify_session_key(leaf.public, bytes(flipped))


@given(st.sampled_from(SIGNING), st.binary(max_size=200))
def test_garbage_is_refused(algorithm: Algorithm, garbage: bytes) -> None:
    for data in (garbage, der(0x30, garbage), der(0x30, der(0x30, KEY) + garbage)):
        with pytest.raises(CryptoError):
            verify_session_key(LEAVES[algorithm].public, data)


@given(st.sampled_from(SIGNING), st.data())
def test_spliced_bytes_are_refused(algorithm: Algorithm, data: st.DataObject) -> None:
    leaf = LEAVES[algorithm]
    signed_key = sign_session_key(leaf.private, KEY)
    start = data.draw(st.integers(0, len(signed_key)))
    end = data.draw(st.integers(start, len(signed_key)))
    spliced = signed_key[:start] + data.draw(st.binary(max_size=8)) + signed_key[end:]
    assume(spliced != signed_key)
    with pytest.raises(CryptoError):
        verify_session_key(leaf.public, spliced)


@pytest.mark.parametrize("algorithm", SIGNING)
def test_other_encodings_of_the_same_values_are_refused(algorithm: Algorithm) -> None:
    leaf = LEAVES[algorithm]
    signed = der(0x30, KEY)
    identifier = IDENTIFIER[algorithm]
    raw = sign(leaf.private, signed)
    bits = der(0x03, b"\0" + raw)
    assert verify_session_key(leaf.public, der(0x30, signed + identifier + bits)) == KEY
    long_identifier = der(0x30, identifier[2:], width=1)
    with_null = der(0x30, identifier[2:] + b"\5\0")
    other_signed = der(0x30, KEY, width=2)
    refused = {
        "long length outside": der(0x30, signed + identifier + bits, width=3),
        "indefinite length": b"\x30\x80" + signed + identifier + bits + b"\0\0",
        "huge length": b"\x30\xff" + b"\xff" * 127 + signed + identifier + bits,
        "a long identifier": der(0x30, signed + long_identifier + bits),
        "parameters": der(0x30, signed + with_null + bits),
        "unused bits": der(0x30, signed + identifier + der(0x03, b"\1" + raw)),
        "no unused bits byte": der(0x30, signed + identifier + der(0x03, raw)),
        "empty bit string": der(0x30, signed + identifier + der(0x03, b"")),
        "octet string": der(0x30, signed + identifier + der(0x04, b"\0" + raw)),
        "set": der(0x31, signed + identifier + bits),
        "no signature": der(0x30, signed + identifier),
        "no identifier": der(0x30, signed + bits),
        "only a key": der(0x30, signed),
        "empty": der(0x30, b""),
        "surplus inside": der(0x30, signed + identifier + bits + b"\5\0"),
        "surplus outside": der(0x30, signed + identifier + bits) + b"\0",
        "long length inside": assemble(leaf, algorithm, other_signed, covered=other_signed),
    }
    for name, data in refused.items():
        with pytest.raises(CryptoError):
            pytest.fail(f"{name} gave {verify_session_key(leaf.public, data).hex()}")


@pytest.mark.parametrize("algorithm", SIGNING)
def test_another_leaf_is_refused(algorithm: Algorithm) -> None:
    signed_key = sign_session_key(LEAVES[algorithm].private, KEY)
    with pytest.raises(CryptoError, match="does not fit"):
        verify_session_key(generate_key_pair(algorithm).public, signed_key)
    for other in Algorithm:
        if other is not algorithm:
            with pytest.raises(CryptoError, match="another kind"):
                verify_session_key(LEAVES[other].public, signed_key)
    for malformed in (b"", LEAVES[algorithm].public[:-1], LEAVES[algorithm].private):
        with pytest.raises(CryptoError, match="another kind"):
            verify_session_key(malformed, signed_key)


@pytest.mark.parametrize("leaf", SIGNING)
def test_a_signed_key_of_another_kind_is_refused(leaf: Algorithm) -> None:
    for key in (LEAVES[Algorithm.ED448].public, LEAVES[Algorithm.X25519].private, KEY + b"\0"):
        signed = der(0x30, key)
        signed_key = assemble(LEAVES[leaf], leaf, signed, covered=signed)
        with pytest.raises(CryptoError, match="X25519 or Ed25519"):
            verify_session_key(LEAVES[leaf].public, signed_key)


@given(st.sampled_from(SIGNING), st.binary(max_size=300))
def test_a_signed_something_is_no_session_key(algorithm: Algorithm, content: bytes) -> None:
    signed = der(0x30, content)
    signed_key = assemble(LEAVES[algorithm], algorithm, signed, covered=signed)
    with pytest.raises(CryptoError, match="X25519 or Ed25519"):
        verify_session_key(LEAVES[algorithm].public, signed_key)


def test_an_x25519_leaf_does_not_sign() -> None:
    with pytest.raises(CryptoError, match="signs with"):
        sign_session_key(LEAVES[Algorithm.X25519].private, KEY)


@pytest.mark.parametrize(
    "private", [b"", LEAVES[Algorithm.ED25519].public], ids=["empty", "public"]
)
def test_a_malformed_leaf_does_not_sign(private: bytes) -> None:
    with pytest.raises(CryptoError, match="private key"):
        sign_session_key(private, KEY)


@pytest.mark.parametrize(
    "key",
    [b"", KEY[:-1], KEY + b"\0", LEAVES[Algorithm.ED448].public, LEAVES[Algorithm.X25519].private],
    ids=["empty", "short", "long", "Ed448", "private"],
)
def test_only_session_keys_are_signed(key: bytes) -> None:
    """Above all not a private key, which would be published."""
    with pytest.raises(CryptoError, match="session key") as caught:
        sign_session_key(LEAVES[Algorithm.ED25519].private, key)
    assert not key or key[16:].hex() not in repr(caught.value)
