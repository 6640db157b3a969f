from typing import Any

import pytest
from hypothesis import given, strategies as st

from heliograph.wire.errors import ErrorCode, WireError
from heliograph.wire.keys import (
    KEY_SIZE,
    PKCS8_PREFIX,
    PKCS8_PREFIX_SIZE,
    SPKI_PREFIX,
    SPKI_PREFIX_SIZE,
    Algorithm,
    auth_private_key,
    auth_public_key,
    private_key_algorithm,
    public_key_algorithm,
    x25519_public_key,
)
from heliograph.wire.primitives import Codec, Reader
from tests import strategies as our

CODECS: dict[str, tuple[Codec[bytes], st.SearchStrategy[bytes]]] = {
    "public": (auth_public_key, our.auth_keys),
    "private": (auth_private_key, our.private_keys),
    "X25519": (x25519_public_key, our.x25519_keys),
}


@pytest.mark.parametrize("name", CODECS)
@given(data=st.data())
def test_round_trip(name: str, data: st.DataObject) -> None:
    codec, values = CODECS[name]
    key = data.draw(values)
    reader = Reader(codec.encode(key))
    assert codec.decode(reader) == key
    reader.end()


@pytest.mark.parametrize("algorithm", Algorithm)
def test_algorithms_are_known_by_prefix_and_size(algorithm: Algorithm) -> None:
    size = KEY_SIZE[algorithm]
    assert len(SPKI_PREFIX[algorithm]) == SPKI_PREFIX_SIZE
    assert len(PKCS8_PREFIX[algorithm]) == PKCS8_PREFIX_SIZE
    assert public_key_algorithm(SPKI_PREFIX[algorithm] + bytes(size)) is algorithm
    assert private_key_algorithm(PKCS8_PREFIX[algorithm] + bytes(size)) is algorithm
    for wrong in (size - 1, size + 1):
        assert public_key_algorithm(SPKI_PREFIX[algorithm] + bytes(wrong)) is None
        assert private_key_algorithm(PKCS8_PREFIX[algorithm] + bytes(wrong)) is None


ED25519 = SPKI_PREFIX[Algorithm.ED25519] + bytes(32)
X448 = bytes.fromhex("3042300506032b656f033900") + bytes(56)


@pytest.mark.parametrize(
    ("codec", "key"),
    [
        (auth_public_key, b""),
        (auth_public_key, X448),
        (auth_public_key, ED25519[:-1]),
        (x25519_public_key, ED25519),
        (auth_private_key, ED25519),
        (auth_private_key, b""),
    ],
)
def test_malformed(codec: Codec[Any], key: bytes) -> None:
    with pytest.raises(WireError) as caught:
        codec.decode(Reader(bytes((len(key),)) + key))
    assert caught.value.error is ErrorCode.CMD_SYNTAX
