"""Tests of `heliograph.crypto.boxes`."""

import ctypes
import importlib.util
from types import ModuleType
from typing import Any

import pytest
from hypothesis import assume, given, strategies as st
from nacl import bindings

from heliograph.crypto import boxes
from heliograph.crypto.boxes import (
    NONCE_SIZE,
    TAG_SIZE,
    box,
    box_padded,
    box_with,
    hsalsa20,
    hsalsa20_portable,
    nonce_from,
    open_box,
    open_box_padded,
    open_box_with,
    random_nonce,
)
from heliograph.crypto.errors import CryptoError
from heliograph.crypto.keys import box_key, dh
from heliograph.wire.keys import PKCS8_PREFIX, SPKI_PREFIX, Algorithm
from heliograph.wire.primitives import MAX_PADDED_MESSAGE
from tests.crypto.golden import golden

keys = st.binary(min_size=32, max_size=32)
nonces = st.binary(min_size=24, max_size=24)
messages = st.binary(max_size=300)

# The example of "Cryptography in NaCl": tests/box.c and tests/core1.c.
ALICE_PRIVATE = "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a"
BOB_PUBLIC = "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
SHARED = bytes.fromhex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")
FIRST_KEY = bytes.fromhex("1b27556473e985d462cd51197a9a46c76009549eac6474f206c4ee0844f68389")
NONCE = bytes.fromhex("69696ee955b62b73cd62bda875fc73d68219e0036b7a0b37")
MESSAGE = bytes.fromhex(
    "be075fc53c81f2d5cf141316ebeb0c7b5228c52a4c62cbd44b66849b64244ffce5ecbaaf33bd751a"
    "1ac728d45e6c61296cdc3c01233561f41db66cce314adb310e3be8250c46f06dceea3a7fa1348057"
    "e2f6556ad6b1318a024a838f21af1fde048977eb48f59ffd4924ca1c60902e52f0a089bc76897040"
    "e082f937763848645e0705"
)
BOX = bytes.fromhex(
    "f3ffc7703f9400e52a7dfb4b3d3305d98e993b9f48681273c29650ba32fc76ce48332ea7164d96a4"
    "476fb8c531a1186ac0dfc17c98dce87b4da7f011ec48c97271d2c20f9b928fe2270d6fb863d51738"
    "b48eeee314a7cc8ab932164548e526ae90224368517acfeabd6bb3732bc0e9da99832b61ca01b6de"
    "56244a9e88d5f9b37973f622a43d14a6599b1f654cb45a74e355a5"
)


# HSalsa20


def test_nacl_first_key() -> None:
    assert hsalsa20(SHARED) == FIRST_KEY
    assert hsalsa20_portable(SHARED) == FIRST_KEY


@given(keys)
def test_both_implementations_agree(key: bytes) -> None:
    assert hsalsa20(key) == hsalsa20_portable(key)


@pytest.mark.parametrize("byte", [b"\0", b"\x7f", b"\x80", b"\xff"])
def test_both_implementations_agree_on_extremes(byte: bytes) -> None:
    assert hsalsa20(byte * 32) == hsalsa20_portable(byte * 32)


def test_the_native_implementation_is_used_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(boxes, "hsalsa20_portable", None)
    assert hsalsa20(SHARED) == FIRST_KEY


@pytest.fixture
def without_symbol(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, as it is with a library that does not export the function."""
    spec = importlib.util.find_spec("heliograph.crypto.boxes")
    assert spec is not None
    assert spec.loader is not None
    fresh = importlib.util.module_from_spec(spec)
    with monkeypatch.context() as patch:
        patch.setattr(ctypes, "PyDLL", lambda _: object())
        spec.loader.exec_module(fresh)
    return fresh


def test_the_portable_implementation_is_the_fall_back(
    without_symbol: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def portable(key: bytes) -> bytes:
        calls.append(key)
        return hsalsa20_portable(key)

    monkeypatch.setattr(without_symbol, "hsalsa20_portable", portable)
    assert without_symbol.hsalsa20(SHARED) == FIRST_KEY
    assert without_symbol.box(SHARED, NONCE, MESSAGE) == BOX
    assert without_symbol.open_box(SHARED, NONCE, BOX) == MESSAGE
    assert calls == [SHARED] * 3


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("size", [0, 1, 16, 31, 33, 64])
def test_keys_of_other_sizes_are_refused(size: int, native: bool, without_symbol: Any) -> None:
    module: Any = boxes if native else without_symbol
    with pytest.raises(CryptoError, match="32 bytes"):
        module.hsalsa20(bytes(size))
    for use in (module.box, module.open_box, module.open_box_padded):
        with pytest.raises(CryptoError, match="32 bytes"):
            use(bytes(size), NONCE, BOX)
    with pytest.raises(CryptoError, match="32 bytes"):
        module.box_padded(bytes(size), NONCE, MESSAGE, 1000)
    for use_with in (box_with, open_box_with):
        with pytest.raises(CryptoError):
            use_with(bytes(size), NONCE, BOX)


# Boxes


def test_nacl_box() -> None:
    public = SPKI_PREFIX[Algorithm.X25519] + bytes.fromhex(BOB_PUBLIC)
    private = PKCS8_PREFIX[Algorithm.X25519] + bytes.fromhex(ALICE_PRIVATE)
    assert dh(public, private) == SHARED
    assert box_key(public, private) == FIRST_KEY
    assert box(SHARED, NONCE, MESSAGE) == BOX
    assert box_with(FIRST_KEY, NONCE, MESSAGE) == BOX
    assert open_box(SHARED, NONCE, BOX) == MESSAGE
    assert open_box_with(FIRST_KEY, NONCE, BOX) == MESSAGE


def test_a_box_is_not_a_plain_secretbox() -> None:
    assert box(SHARED, NONCE, MESSAGE) != bindings.crypto_secretbox_easy(MESSAGE, NONCE, SHARED)


@pytest.mark.parametrize("vector", golden("cb_encrypt_nopad") + golden("sb_encrypt_nopad"))
def test_golden_boxes(vector: dict[str, Any]) -> None:
    key = bytes.fromhex(vector.get("secret") or vector["key"])
    nonce, message, boxed = (bytes.fromhex(vector[name]) for name in ("nonce", "msg", "box"))
    assert box(key, nonce, message) == boxed
    assert open_box(key, nonce, boxed) == message


@pytest.mark.parametrize("vector", golden("cb_encrypt_padded"))
def test_golden_padded_boxes(vector: dict[str, Any]) -> None:
    secret, nonce, message, boxed = (
        bytes.fromhex(vector[name]) for name in ("secret", "nonce", "msg", "box")
    )
    assert box_padded(secret, nonce, message, vector["paddedLen"]) == boxed
    assert open_box_padded(secret, nonce, boxed) == message


@given(keys, nonces, messages)
def test_boxes_round_trip(key: bytes, nonce: bytes, message: bytes) -> None:
    boxed = box(key, nonce, message)
    assert len(boxed) == len(message) + TAG_SIZE
    assert boxed == bindings.crypto_box_afternm(message, nonce, hsalsa20(key))
    assert open_box(key, nonce, boxed) == message
    assert open_box_with(hsalsa20(key), nonce, boxed) == message
    assert box_with(hsalsa20(key), nonce, message) == boxed


@given(keys, keys, nonces, nonces, messages, st.data())
def test_other_boxes_do_not_open(
    key: bytes,
    other_key: bytes,
    nonce: bytes,
    other_nonce: bytes,
    message: bytes,
    data: st.DataObject,
) -> None:
    assume(key != other_key and nonce != other_nonce)
    boxed = box(key, nonce, message)
    flipped = bytearray(boxed)
    flipped[data.draw(st.integers(0, len(boxed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    cut = boxed[: data.draw(st.integers(0, len(boxed) - 1))]
    for attempt in (
        (other_key, nonce, boxed),
        (key, other_nonce, boxed),
        (key, nonce, bytes(flipped)),
        (key, nonce, cut),
        (key, nonce, boxed + b"\0"),
    ):
        for use in (open_box, open_box_padded):
            with pytest.raises(CryptoError):
                use(*attempt)


@pytest.mark.parametrize("size", range(TAG_SIZE))
def test_a_box_without_a_whole_tag_is_refused(size: int) -> None:
    with pytest.raises(CryptoError, match="at least 16"):
        open_box(SHARED, NONCE, BOX[:size])


@pytest.mark.parametrize("size", [0, 23, 25])
def test_nonces_of_other_sizes_are_refused(size: int) -> None:
    for use in (box, open_box, box_with, open_box_with, open_box_padded):
        with pytest.raises(CryptoError):
            use(SHARED, bytes(size), BOX)
    with pytest.raises(CryptoError):
        box_padded(SHARED, bytes(size), MESSAGE, 1000)


# Padded boxes


@given(keys, nonces, messages, st.integers(0, 100))
def test_padded_boxes_round_trip(key: bytes, nonce: bytes, message: bytes, room: int) -> None:
    size = len(message) + 2 + room
    boxed = box_padded(key, nonce, message, size)
    assert len(boxed) == size + TAG_SIZE
    assert open_box(key, nonce, boxed) == len(message).to_bytes(2) + message + b"#" * room
    assert open_box_padded(key, nonce, boxed) == message


@given(messages, st.integers(1, 400))
def test_a_message_that_does_not_fit_is_refused(message: bytes, missing: int) -> None:
    size = len(message) + 2 - missing
    with pytest.raises(CryptoError, match=f"{len(message)} bytes in a box of {size}"):
        box_padded(SHARED, NONCE, message, size)


def test_a_message_too_long_for_its_length_is_refused() -> None:
    longest = bytes(MAX_PADDED_MESSAGE)
    assert open_box_padded(SHARED, NONCE, box_padded(SHARED, NONCE, longest, 70000)) == longest
    with pytest.raises(CryptoError, match=f"{MAX_PADDED_MESSAGE + 1} bytes"):
        box_padded(SHARED, NONCE, longest + b"\0", 70000)


@pytest.mark.parametrize("padded", [b"", b"\0", b"\0\1", b"\0\5abcd", b"\xff\xff" + b"#" * 100])
def test_malformed_padding_is_refused(padded: bytes) -> None:
    with pytest.raises(CryptoError, match="padding"):
        open_box_padded(SHARED, NONCE, box(SHARED, NONCE, padded))


# Nonces


@pytest.mark.parametrize("vector", golden("cbNonce_from_bytes"))
def test_golden_nonces(vector: dict[str, Any]) -> None:
    assert nonce_from(bytes.fromhex(vector["bytes"])) == bytes.fromhex(vector["nonce"])


@given(st.binary(max_size=60))
def test_nonces_are_cut_or_filled(data: bytes) -> None:
    nonce = nonce_from(data)
    assert len(nonce) == NONCE_SIZE
    assert (nonce + data[NONCE_SIZE:]).startswith(data)
    assert not any(nonce[len(data) :])


def test_random_nonces_differ() -> None:
    drawn = {random_nonce() for _ in range(100)}
    assert len(drawn) == 100
    assert {len(nonce) for nonce in drawn} == {NONCE_SIZE}


# Secrets


def test_errors_do_not_show_keys_or_plaintext() -> None:
    plaintext = b"the secret plaintext"
    attempts: list[Any] = [
        lambda: box(SHARED[1:], NONCE, plaintext),
        lambda: box(SHARED, b"", plaintext),
        lambda: box_with(SHARED[1:], NONCE, plaintext),
        lambda: box_padded(SHARED, NONCE, plaintext, 10),
        lambda: open_box(SHARED, NONCE, BOX[1:]),
        lambda: open_box_padded(SHARED, NONCE, box(SHARED, NONCE, b"\xff\xff" + plaintext)),
    ]
    for attempt in attempts:
        with pytest.raises(CryptoError) as caught:
            attempt()
        error: BaseException | None = caught.value
        assert caught.value.__suppress_context__ or caught.value.__context__ is None
        while error is not None:
            text = repr(error)
            assert "secret plaintext" not in text
            for secret in (SHARED, FIRST_KEY):
                assert secret[1:].hex() not in text
                assert repr(secret[1:])[2:-1] not in text
            error = error.__context__
