"""Device tokens (APNs, Web Push and FCM), modes, and statuses of tokens and subscriptions."""

import re
from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from heliograph.wire.errors import ErrorCode, ErrorType, WireError
from heliograph.wire.primitives import Codec, Reader, b64decode, b64encode, encode_short


class NotificationsMode(Enum):
    """Notification mode of a device: a push per message, periodic wake-ups, or none."""

    INSTANT = "instant"
    PERIODIC = "periodic"
    OFF = "off"


class PushProvider(Enum):
    """Push providers. The value is the pair of characters on the wire."""

    APNS_DEV = b"AD"
    APNS_PROD = b"AP"
    APNS_TEST = b"AT"
    APNS_NULL = b"AN"
    WEB_PUSH = b"WP"
    FCM = b"FC"  # ours: the reference has no such provider

    @property
    def text(self) -> str:
        return _OTHER_NAMES.get(self.name, self.name.lower())


_OTHER_NAMES = {"WEB_PUSH": "webpush", "FCM": "firebase"}

APNS_PROVIDERS = {
    provider.text: provider for provider in PushProvider if provider.name.startswith("APNS")
}
"""The providers whose device tokens are `APNSDeviceToken`, by their names in text."""


@dataclass(frozen=True, slots=True)
class APNSDeviceToken:
    provider: PushProvider
    token: bytes


@dataclass(frozen=True, slots=True)
class WPDeviceToken:
    """A Web Push subscription: where to POST, and the keys of RFC 8291."""

    host: str
    port: str
    path: str
    auth: bytes
    p256dh: bytes

    @property
    def provider(self) -> PushProvider:
        return PushProvider.WEB_PUSH

    @property
    def endpoint(self) -> str:
        return f"https://{self.host}{f':{self.port}' if self.port else ''}{self.path}"


@dataclass(frozen=True, slots=True)
class FcmDeviceToken:
    """A registration token of Firebase Cloud Messaging."""

    token: str

    @property
    def provider(self) -> PushProvider:
        return PushProvider.FCM


DeviceToken = APNSDeviceToken | WPDeviceToken | FcmDeviceToken

WP_AUTH_SIZE = 16
WP_KEY_SIZE = 65

_HEX = re.compile(r"[0-9a-f]*")
_ENDPOINT = re.compile(r"https://([A-Za-z0-9._-]+)(?::([0-9]{1,5}))?(/[!-~]*)")
_FCM_TOKEN = re.compile(r"[A-Za-z0-9_:.%~-]{1,255}")
_SURROGATE = re.compile(r"[\ud800-\udfff]")  # JSON may have lone surrogates
_NULL_TOKEN = "test_ntf_token"  # noqa: S105 - the protocol's own name for the token that nobody has


def _encode_token(token: DeviceToken) -> bytes:
    if isinstance(token, APNSDeviceToken):
        return token.provider.value + encode_short(token.token)
    if isinstance(token, FcmDeviceToken):
        return PushProvider.FCM.value + encode_short(token.token.encode())
    texts = (token.host, token.port, token.path)
    return (
        PushProvider.WEB_PUSH.value
        + b"".join(encode_short(text.encode()) for text in texts)
        + encode_short(token.auth)
        + encode_short(token.p256dh)
    )


def _decode_token(reader: Reader) -> DeviceToken:
    try:
        provider = PushProvider(reader.take(2))
    except ValueError:
        raise reader.fail("unknown push provider") from None
    match provider:
        case PushProvider.FCM:
            return _fcm_token(reader.short().decode("latin-1"), reader.error)
        case PushProvider.WEB_PUSH:
            return _decode_web_push(reader)
        case (
            PushProvider.APNS_DEV
            | PushProvider.APNS_PROD
            | PushProvider.APNS_TEST
            | PushProvider.APNS_NULL
        ):
            return APNSDeviceToken(provider, reader.short())
        case _:
            assert_never(provider)


def _decode_web_push(reader: Reader) -> WPDeviceToken:
    try:
        host, port, path = (reader.short().decode() for _ in range(3))
    except UnicodeDecodeError:
        raise reader.fail("malformed Web Push endpoint") from None
    token = WPDeviceToken(host, port, path, reader.short(), reader.short())
    if not _valid_web_push(token):
        raise reader.fail("malformed Web Push token")
    return token


def _fcm_token(text: str, error: ErrorType = ErrorCode.CMD_SYNTAX) -> FcmDeviceToken:
    if _FCM_TOKEN.fullmatch(text) is None:
        raise WireError(error, "malformed device token: not an FCM registration token")
    return FcmDeviceToken(text)


def _valid_web_push(token: WPDeviceToken) -> bool:
    match = _ENDPOINT.fullmatch(token.endpoint)
    return (
        match is not None
        and match.groups("") == (token.host, token.port, token.path)
        and len(token.auth) == WP_AUTH_SIZE
        and len(token.p256dh) == WP_KEY_SIZE
        and token.p256dh[0] == 4
    )


device_token = Codec[DeviceToken]("token", _encode_token, _decode_token)


def encode_token_text(token: DeviceToken) -> str:
    """Return the text in store logs: `apns_prod 00ff`, `webpush https://host/path auth key`."""
    if isinstance(token, FcmDeviceToken):
        return f"{token.provider.text} {token.token}"
    if isinstance(token, APNSDeviceToken):
        return f"{token.provider.text} {token.token.decode('latin-1')}"
    return f"webpush {token.endpoint} {b64encode(token.auth)} {b64encode(token.p256dh)}"


def decode_token_text(text: str) -> DeviceToken:
    name, _, rest = text.partition(" ")
    if name not in APNS_PROVIDERS:
        if name == PushProvider.WEB_PUSH.text:
            return _decode_web_push_text(rest)
        if name == PushProvider.FCM.text:
            return _fcm_token(rest)
    provider = _apns_provider(name)
    null = provider is PushProvider.APNS_NULL and rest == _NULL_TOKEN
    is_hex = len(rest) % 2 == 0 and _HEX.fullmatch(rest) is not None
    if not null and (" " not in text or not is_hex):
        raise _bad("an APNs token is an even number of lower-case hex digits")
    return APNSDeviceToken(provider, rest.encode())


def token_to_json(token: APNSDeviceToken) -> dict[str, str]:
    return {"pushProvider": token.provider.text, "token": token.token.decode("latin-1")}


def token_from_json(fields: object) -> APNSDeviceToken:
    match fields:
        case {"pushProvider": str(name), "token": str(token)} if not _SURROGATE.search(token):
            return APNSDeviceToken(_apns_provider(name), token.encode())
    raise _bad("pushProvider and token are needed")


def _apns_provider(name: str) -> PushProvider:
    try:
        return APNS_PROVIDERS[name]
    except KeyError:
        raise _bad("unknown push provider") from None


def _decode_web_push_text(text: str) -> WPDeviceToken:
    parts = text.split(" ")
    match = _ENDPOINT.fullmatch(parts[0])
    if match is None or len(parts) != 3:
        raise _bad("webpush needs an https endpoint with a path, the auth secret and the key")
    host, port, path = match.groups(default="")
    token = WPDeviceToken(host, port, path, b64decode(parts[1]), b64decode(parts[2]))
    if not _valid_web_push(token):
        raise _bad("the auth secret has 16 bytes and the uncompressed key 65")
    return token


class InvalidReason(Enum):
    BAD = "BAD"
    TOPIC = "TOPIC"
    EXPIRED = "EXPIRED"
    UNREGISTERED = "UNREGISTERED"


class TokenStatus(Enum):
    """The ten statuses of a token; the reason of INVALID goes only to NTF v3 clients."""

    NEW = "NEW"
    REGISTERED = "REGISTERED"
    CONFIRMED = "CONFIRMED"
    ACTIVE = "ACTIVE"
    EXPIRED = "EXPIRED"
    INVALID = "INVALID"
    INVALID_BAD = "INVALID,BAD"
    INVALID_TOPIC = "INVALID,TOPIC"
    INVALID_EXPIRED = "INVALID,EXPIRED"
    INVALID_UNREGISTERED = "INVALID,UNREGISTERED"

    @property
    def is_invalid(self) -> bool:
        return self.value.startswith("INVALID")

    @classmethod
    def invalid(cls, reason: InvalidReason | None) -> "TokenStatus":
        return cls.INVALID if reason is None else cls(f"INVALID,{reason.value}")

    def without_reason(self) -> "TokenStatus":
        return TokenStatus.INVALID if self.is_invalid else self


_TOKEN_STATUSES = {status.value.encode(): status for status in TokenStatus}


def _decode_token_status(reader: Reader) -> TokenStatus:
    status = _TOKEN_STATUSES.get(reader.tail())
    if status is None:
        raise reader.fail("unknown token status")
    return status


token_status = Codec[TokenStatus](
    "token status", lambda status: status.value.encode(), _decode_token_status
)


class SubscriptionState(Enum):
    NEW = "NEW"
    PENDING = "PENDING"
    ACTIVE = "ACTIVE"
    INACTIVE = "INACTIVE"
    END = "END"
    AUTH = "AUTH"
    DELETED = "DELETED"
    SERVICE = "SERVICE"
    ERR = "ERR"


@dataclass(frozen=True, slots=True)
class NtfSubStatus:
    """A state, and for ERR the text that says what the SMP router answered."""

    state: SubscriptionState
    error: bytes = b""


_STATES = {state.value.encode(): NtfSubStatus(state) for state in SubscriptionState}
del _STATES[b"ERR"]


def encode_subscription_status(status: NtfSubStatus) -> bytes:
    tag = status.state.value.encode()
    return tag + b" " + status.error if status.state is SubscriptionState.ERR else tag


def _decode_subscription_status(reader: Reader) -> NtfSubStatus:
    data = reader.tail()
    if data.startswith(b"ERR "):
        return NtfSubStatus(SubscriptionState.ERR, data[4:])
    status = _STATES.get(data)
    if status is None:
        raise reader.fail("unknown subscription status")
    return status


subscription_status = Codec[NtfSubStatus](
    "subscription status", encode_subscription_status, _decode_subscription_status
)


def _bad(reason: str) -> WireError:
    return WireError(ErrorCode.CMD_SYNTAX, f"malformed device token: {reason}")
