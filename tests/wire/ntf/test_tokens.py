import pytest
from hypothesis import given, strategies as st

from heliograph.wire.errors import ErrorCode, WireError
from heliograph.wire.ntf.tokens import (
    APNSDeviceToken,
    DeviceToken,
    InvalidReason,
    NtfSubStatus,
    PushProvider,
    SubscriptionState,
    TokenStatus,
    WPDeviceToken,
    decode_token_text,
    device_token,
    encode_subscription_status,
    encode_token_text,
    subscription_status,
    token_from_json,
    token_status,
    token_to_json,
)
from heliograph.wire.primitives import Reader, b64encode
from tests import strategies as our

AUTH = bytes(range(16))
KEY = b"\x04" + bytes(range(64))
WEB_PUSH = WPDeviceToken("push.example", "", "/a/b?c=d", AUTH, KEY)
WEB_PUSH_TEXT = f"webpush https://push.example/a/b?c=d {b64encode(AUTH)} {b64encode(KEY)}"


@given(our.device_tokens)
def test_binary_round_trip(token: DeviceToken) -> None:
    reader = Reader(device_token.encode(token))
    assert device_token.decode(reader) == token
    reader.end()


@given(our.device_tokens)
def test_text_round_trip(token: DeviceToken) -> None:
    assert decode_token_text(encode_token_text(token)) == token


@given(our.apns_tokens)
def test_json_round_trip(token: APNSDeviceToken) -> None:
    assert token_from_json(token_to_json(token)) == token


@pytest.mark.parametrize(
    ("token", "data", "text"),
    [
        (APNSDeviceToken(PushProvider.APNS_DEV, b"00ff"), b"AD\x0400ff", "apns_dev 00ff"),
        (APNSDeviceToken(PushProvider.APNS_PROD, b"00ff"), b"AP\x0400ff", "apns_prod 00ff"),
        (APNSDeviceToken(PushProvider.APNS_TEST, b""), b"AT\x00", "apns_test "),
        (
            APNSDeviceToken(PushProvider.APNS_NULL, b"test_ntf_token"),
            b"AN\x0etest_ntf_token",
            "apns_null test_ntf_token",
        ),
        (
            WEB_PUSH,
            b"WP\x0cpush.example\x00\x08/a/b?c=d\x10" + AUTH + b"\x41" + KEY,
            WEB_PUSH_TEXT,
        ),
    ],
)
def test_exact(token: DeviceToken, data: bytes, text: str) -> None:
    assert device_token.encode(token) == data
    assert device_token.decode(Reader(data)) == token
    assert encode_token_text(token) == text
    assert decode_token_text(text) == token
    assert token.provider.text == text.split(" ")[0]


def test_web_push_port() -> None:
    token = WPDeviceToken("push.example", "8443", "/", AUTH, KEY)
    assert token.endpoint == "https://push.example:8443/"
    assert token.provider is PushProvider.WEB_PUSH
    assert decode_token_text(encode_token_text(token)) == token


@pytest.mark.parametrize(
    "data",
    [b"", b"A", b"XX\x00", b"ad\x00", b"AD", b"AD\x02a", b"WP", b"WP\x01\xff\x00\x01/\x00\x00"],
)
def test_binary_malformed(data: bytes) -> None:
    with pytest.raises(WireError) as caught:
        device_token.decode(Reader(data))
    assert caught.value.error is ErrorCode.CMD_SYNTAX


@pytest.mark.parametrize(
    "token",
    [
        WPDeviceToken("", "", "/", AUTH, KEY),
        WPDeviceToken("a b", "", "/", AUTH, KEY),
        WPDeviceToken("user@push.example", "", "/", AUTH, KEY),
        WPDeviceToken("push.example?", "", "/", AUTH, KEY),
        WPDeviceToken("push.example/path", "", "/", AUTH, KEY),
        WPDeviceToken("push.example:1", "", "/", AUTH, KEY),
        WPDeviceToken("push.example", "x", "/", AUTH, KEY),
        WPDeviceToken("push.example", "123456", "/", AUTH, KEY),
        WPDeviceToken("push.example", "1/", "/", AUTH, KEY),
        WPDeviceToken("push.example", "", "", AUTH, KEY),
        WPDeviceToken("push.example", "", "path", AUTH, KEY),
        WPDeviceToken("push.example", "", ":1/", AUTH, KEY),
        WPDeviceToken("push.example", "", "/a b", AUTH, KEY),
        WPDeviceToken("push.example", "", "/é", AUTH, KEY),
        WPDeviceToken("push.example", "", "/", AUTH[:-1], KEY),
        WPDeviceToken("push.example", "", "/", AUTH, KEY[:-1]),
        WPDeviceToken("push.example", "", "/", AUTH, b"\x03" + KEY[1:]),
    ],
)
def test_web_push_malformed(token: WPDeviceToken) -> None:
    with pytest.raises(WireError):
        device_token.decode(Reader(device_token.encode(token)))


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "apns_test", "apns_test abc", "apns_test XY", "apns_test AB", "fcm abcd"),
        *("apns_prod test_ntf_token", "apns_null test_ntf_toke", "apns_dev 00 ", "APNS_DEV 00"),
        *("webpush", "webpush ", "webpush https://push.example/", f"{WEB_PUSH_TEXT} x"),
        WEB_PUSH_TEXT.replace("https", "http"),
        WEB_PUSH_TEXT.replace("/a/b?c=d", ""),
        f"webpush https://push.example/ {b64encode(KEY)} {b64encode(AUTH)}",
        "webpush https://push.example/ ! !",
        "apns_test \ud800",
    ],
)
def test_text_malformed(text: str) -> None:
    with pytest.raises(WireError) as caught:
        decode_token_text(text)
    assert caught.value.error is ErrorCode.CMD_SYNTAX


@pytest.mark.parametrize(
    "fields",
    [
        None,
        [],
        {},
        {"pushProvider": "apns_dev"},
        {"token": "00"},
        {"pushProvider": "apns_dev", "token": 1},
        {"pushProvider": 1, "token": "00"},
        {"pushProvider": "webpush", "token": "00"},
        {"pushProvider": "fcm", "token": "00"},
        {"pushProvider": "apns_dev", "token": "\ud800"},
    ],
)
def test_json_malformed(fields: object) -> None:
    with pytest.raises(WireError):
        token_from_json(fields)


@given(st.binary(max_size=120))
def test_any_bytes(data: bytes) -> None:
    reader = Reader(data)
    try:
        token = device_token.decode(reader)
    except WireError:
        return
    assert device_token.encode(token) == data[: reader.pos]
    encode_token_text(token)


@given(st.text(max_size=60))
def test_any_text(text: str) -> None:
    try:
        token = decode_token_text(text)
    except WireError:
        return
    assert encode_token_text(token) == text


# Statuses


@pytest.mark.parametrize("status", TokenStatus)
def test_token_status(status: TokenStatus) -> None:
    data = token_status.encode(status)
    assert data == status.value.encode()
    assert token_status.decode(Reader(data)) is status
    assert status.is_invalid is data.startswith(b"INVALID")
    expected = TokenStatus.INVALID if status.is_invalid else status
    assert status.without_reason() is expected


def test_reasons() -> None:
    assert TokenStatus.invalid(None) is TokenStatus.INVALID
    for reason in InvalidReason:
        assert TokenStatus.invalid(reason).value == f"INVALID,{reason.value}"


@pytest.mark.parametrize(
    "data", [b"", b"new", b"INVALID,", b"INVALID,WHAT", b"NEW ", b"INVALID BAD"]
)
def test_token_status_malformed(data: bytes) -> None:
    with pytest.raises(WireError):
        token_status.decode(Reader(data))


@given(our.subscription_statuses)
def test_subscription_status(status: NtfSubStatus) -> None:
    data = encode_subscription_status(status)
    assert subscription_status.decode(Reader(data)) == status


@pytest.mark.parametrize("state", SubscriptionState)
def test_subscription_states(state: SubscriptionState) -> None:
    data = subscription_status.encode(NtfSubStatus(state))
    expected = b"ERR " if state is SubscriptionState.ERR else state.value.encode()
    assert data == expected
    assert subscription_status.decode(Reader(data)) == NtfSubStatus(state)


@pytest.mark.parametrize("data", [b"", b"ERR", b"WHAT", b"NEW ", b"ACTIVE x"])
def test_subscription_status_malformed(data: bytes) -> None:
    with pytest.raises(WireError):
        subscription_status.decode(Reader(data))
