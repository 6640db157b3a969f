import os

import pytest

from heliograph.ntf.store.devices import decode_device, encode_device, has_plain_text
from heliograph.wire.ntf.tokens import APNSDeviceToken, FcmDeviceToken, PushProvider

AP = PushProvider.APNS_PROD


@pytest.mark.parametrize(
    "token",
    [b"", b"abc", b"00ff", b"00FF", b"not hex", b"=00", b"a\nb", bytes(32), os.urandom(255)],
)
def test_any_apns_token_survives(token: bytes) -> None:
    device = APNSDeviceToken(AP, token)
    text = encode_device(device)
    assert decode_device(text) == device
    assert text.isprintable()
    assert has_plain_text(device) == (token in (b"", b"00ff"))


def test_other_devices_are_written_as_everywhere() -> None:
    null = APNSDeviceToken(PushProvider.APNS_NULL, b"test_ntf_token")
    for device in (null, FcmDeviceToken("abc")):
        assert has_plain_text(device)
        assert decode_device(encode_device(device)) == device
