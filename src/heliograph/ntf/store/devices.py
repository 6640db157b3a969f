"""Device tokens as text of the store.

As people and the reference's store log write them, except that an APNs token which is not hex, and
which the provider will reject, is written in base64 after an equals sign.
"""

from heliograph.wire.errors import WireError
from heliograph.wire.ntf.tokens import (
    APNS_PROVIDERS,
    APNSDeviceToken,
    DeviceToken,
    decode_token_text,
    encode_token_text,
)
from heliograph.wire.primitives import b64decode, b64encode


def has_plain_text(device: DeviceToken) -> bool:
    """Return whether the device can be written as people and store logs write it."""
    try:
        return decode_token_text(encode_token_text(device)) == device
    except WireError:
        return False


def encode_device(device: DeviceToken) -> str:
    if isinstance(device, APNSDeviceToken) and not has_plain_text(device):
        return f"{device.provider.text} ={b64encode(device.token)}"
    return encode_token_text(device)


def decode_device(text: str) -> DeviceToken:
    name, separator, rest = text.partition(" =")
    if separator and name in APNS_PROVIDERS:
        return APNSDeviceToken(APNS_PROVIDERS[name], b64decode(rest))
    return decode_token_text(text)
