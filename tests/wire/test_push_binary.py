import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.crypto.webpush import MAX_MESSAGE
from heliograph.wire import push
from heliograph.wire.errors import WireError
from heliograph.wire.push import (
    FCM_PUSH_SIZE,
    PUSH_SIZE,
    CheckMessagesPush,
    MessagePush,
    Push,
    VerificationPush,
)
from heliograph.wire.tokens import PushProvider

NONCE = bytes(range(24))
BOX_OVERHEAD = 16

nonces = st.binary(min_size=24, max_size=24)
pushes: st.SearchStrategy[Push] = st.one_of(
    st.builds(VerificationPush, nonces, st.binary(max_size=100)),
    st.builds(MessagePush, nonces, st.binary(max_size=100)),
    st.just(CheckMessagesPush()),
)


@given(pushes)
def test_round_trip(value: Push) -> None:
    assert push.decode_push_binary(push.encode_push_binary(value)) == value


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (VerificationPush(NONCE, b"box"), b"V" + NONCE + b"box"),
        (MessagePush(NONCE, b"box"), b"M" + NONCE + b"box"),
        (CheckMessagesPush(), b"C"),
    ],
)
def test_exact(value: Push, data: bytes) -> None:
    assert push.encode_push_binary(value) == data
    assert push.decode_push_binary(data) == value


def test_later_versions_may_add_to_check_messages() -> None:
    assert push.decode_push_binary(b"Cmore") == CheckMessagesPush()


@pytest.mark.parametrize("data", [b"", b"X", b"V", b"M" + NONCE[:-1], b"c"])
def test_malformed(data: bytes) -> None:
    with pytest.raises(WireError):
        push.decode_push_binary(data)


def test_a_nonce_has_24_bytes() -> None:
    with pytest.raises(WireError):
        push.encode_push_binary(MessagePush(NONCE[:-1], b""))


def test_a_padded_push_fits_in_web_push() -> None:
    value = MessagePush(NONCE, bytes(PUSH_SIZE + BOX_OVERHEAD))
    assert len(push.encode_push_binary(value)) <= MAX_MESSAGE
    assert len(push.encode_apns(value)) > MAX_MESSAGE


@pytest.mark.parametrize("kind", [VerificationPush, MessagePush])
def test_a_padded_push_fits_in_fcm(kind: type[VerificationPush | MessagePush]) -> None:
    data = push.notification_data(kind(NONCE, bytes(FCM_PUSH_SIZE + BOX_OVERHEAD)))
    assert sum(len(name) + len(str(value)) for name, value in data.items()) <= 4096


def test_sizes() -> None:
    assert push.push_size(PushProvider.FCM) == FCM_PUSH_SIZE
    assert {push.push_size(kind) for kind in PushProvider} == {FCM_PUSH_SIZE, PUSH_SIZE}


def test_fcm_data_is_texts() -> None:
    assert push.decode_push(b'{"checkMessages": "true"}') == CheckMessagesPush()
