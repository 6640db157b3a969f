import pytest
from hypothesis import given, strategies as st

from heliograph.wire.errors import ErrorCode, WireError
from heliograph.wire.ntf.tokens import (
    FcmDeviceToken,
    PushProvider,
    decode_token_text,
    device_token,
    encode_token_text,
    token_from_json,
)
from heliograph.wire.primitives import Reader

TOKEN = FcmDeviceToken("cX1_a:APA91b-xyz")

characters = st.sampled_from("ABCXYZabcxyz0123456789_:.%~-")
fcm_tokens = st.builds(FcmDeviceToken, st.text(characters, min_size=1, max_size=255))


@given(fcm_tokens)
def test_round_trip(token: FcmDeviceToken) -> None:
    reader = Reader(device_token.encode(token))
    assert device_token.decode(reader) == token
    reader.end()
    assert decode_token_text(encode_token_text(token)) == token


def test_exact() -> None:
    assert device_token.encode(TOKEN) == b"FC\x10cX1_a:APA91b-xyz"
    assert encode_token_text(TOKEN) == "firebase cX1_a:APA91b-xyz"
    assert TOKEN.provider is PushProvider.FCM
    assert TOKEN.provider.text == "firebase"


@pytest.mark.parametrize("data", [b"FC", b"FC\x00", b"FC\x02a", b"FC\x01 ", b"FC\x01\xff"])
def test_binary_malformed(data: bytes) -> None:
    with pytest.raises(WireError) as caught:
        device_token.decode(Reader(data, ErrorCode.BLOCK))
    assert caught.value.error is ErrorCode.BLOCK


@pytest.mark.parametrize(
    "text", ["firebase", "firebase ", "firebase a b", "firebase é", "fcm abcd", "fcm a:b"]
)
def test_text_malformed(text: str) -> None:
    with pytest.raises(WireError) as caught:
        decode_token_text(text)
    assert caught.value.error is ErrorCode.CMD_SYNTAX


def test_too_long() -> None:
    with pytest.raises(WireError):
        device_token.encode(FcmDeviceToken("a" * 256))


def test_json_is_for_apns_only() -> None:
    with pytest.raises(WireError):
        token_from_json({"pushProvider": "firebase", "token": "a"})
