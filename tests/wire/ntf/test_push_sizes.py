"""A padded push fits in what each provider takes."""

import json

import pytest

from heliograph.crypto.webpush import MAX_MESSAGE
from heliograph.wire.ntf import push
from heliograph.wire.ntf.push import (
    FCM_PUSH_SIZE,
    PUSH_SIZE,
    WEB_PUSH_SIZE,
    CheckMessagesPush,
    MessagePush,
    Push,
    VerificationPush,
)
from heliograph.wire.ntf.tokens import PushProvider

NONCE = bytes(range(24))
BOX_OVERHEAD = 16

both_kinds = pytest.mark.parametrize("kind", [VerificationPush, MessagePush])


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (
            VerificationPush(NONCE, b"box"),
            {"nonce": "AAECAwQFBgcICQoLDA0ODxAREhMUFRYX", "verification": "Ym94"},
        ),
        (
            MessagePush(NONCE, b"box"),
            {"nonce": "AAECAwQFBgcICQoLDA0ODxAREhMUFRYX", "message": "Ym94"},
        ),
        (CheckMessagesPush(), {"checkMessages": True}),
    ],
)
def test_the_message_of_web_push(value: Push, data: dict[str, object]) -> None:
    encoded = push.encode_web_push(value)
    assert json.loads(encoded) == data
    assert push.decode_push(encoded) == value


@both_kinds
def test_a_padded_push_fits_in_web_push(kind: type[VerificationPush | MessagePush]) -> None:
    value = kind(NONCE, bytes(WEB_PUSH_SIZE + BOX_OVERHEAD))
    assert len(push.encode_web_push(value)) <= MAX_MESSAGE
    larger = kind(NONCE, bytes(PUSH_SIZE + BOX_OVERHEAD))
    assert len(push.encode_web_push(larger)) > MAX_MESSAGE


@both_kinds
def test_a_padded_push_fits_in_fcm(kind: type[VerificationPush | MessagePush]) -> None:
    data = push.notification_data(kind(NONCE, bytes(FCM_PUSH_SIZE + BOX_OVERHEAD)))
    assert sum(len(name) + len(str(value)) for name, value in data.items()) <= 4096


def test_sizes() -> None:
    shorter = {PushProvider.FCM: FCM_PUSH_SIZE, PushProvider.WEB_PUSH: WEB_PUSH_SIZE}
    for kind in PushProvider:
        assert push.push_size(kind) == shorter.get(kind, PUSH_SIZE)


def test_fcm_data_is_texts() -> None:
    assert push.decode_push(b'{"checkMessages": "true"}') == CheckMessagesPush()
