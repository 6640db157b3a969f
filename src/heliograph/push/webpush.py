"""Web Push: RFC 8030, encrypted as RFC 8291 says, with VAPID of RFC 8292.

The message is the binary form of `heliograph.wire.push`, because the JSON form would not fit in
the 4096 bytes that every push service takes. The endpoint is the client's choice: see `endpoints`.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from heliograph.crypto.errors import CryptoError
from heliograph.crypto.webpush import MAX_MESSAGE, encrypt
from heliograph.push.endpoints import Endpoints, PrivateAddress, Resolver, resolve
from heliograph.push.http import Answer, HttpSettings, NoAnswer
from heliograph.push.ids import short_id
from heliograph.push.provider import (
    Accepted,
    Delivery,
    Outcome,
    Refused,
    RetryLater,
    TokenInvalid,
)
from heliograph.push.vapid import Vapid
from heliograph.wire.push import MessagePush, encode_push_binary
from heliograph.wire.tokens import InvalidReason, WPDeviceToken

TOPIC_SIZE = 32
MAX_TTL = 28 * 24 * 3600

_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    413: "PayloadTooLarge",
    429: "TooManyRequests",
}


@dataclass(frozen=True, slots=True)
class WebPushConfig:
    vapid_key: bytes = field(repr=False)
    """PEM; see `heliograph.push.vapid.generate_vapid_key`."""

    contact: str
    """A mailto: or https: URI where push services reach the operator."""

    allow_private: bool = False
    http: HttpSettings = field(
        default_factory=lambda: HttpSettings(connections=1, http2_only=False)
    )


class WebPushProvider:
    def __init__(
        self,
        config: WebPushConfig,
        clock: Callable[[], float] = time.time,
        resolver: Resolver = resolve,
    ) -> None:
        self.vapid = Vapid.from_pem(config.vapid_key, config.contact, clock)
        self._endpoints = Endpoints(
            config.http, allow_private=config.allow_private, resolver=resolver
        )
        self._clock = clock
        self._closed = False

    async def send(self, delivery: Delivery) -> Outcome:
        device = delivery.device
        if not isinstance(device, WPDeviceToken):
            return Refused("NoSuchProvider")
        if self._closed:
            return RetryLater(None, "Closed")
        if device.port and not 0 < int(device.port) < 65536:
            return TokenInvalid(InvalidReason.BAD)
        device = replace(device, host=device.host.lower())
        message = encode_push_binary(delivery.push)
        if len(message) > MAX_MESSAGE:
            return Refused("PayloadTooLarge")
        try:
            body = encrypt(message, device.p256dh, device.auth)
        except CryptoError:
            return TokenInvalid(InvalidReason.BAD)  # the point is not on the curve
        try:
            connections = await self._endpoints.connections(device.host.lower())
            answer = await connections.post(device.endpoint, self._headers(delivery, device), body)
        except PrivateAddress:
            return Refused("PrivateAddress")
        except NoAnswer as exc:
            return RetryLater(None, exc.reason, connection=True)
        return _outcome(answer)

    async def refresh(self) -> None:
        self._endpoints.refresh()

    async def close(self) -> None:
        self._closed = True
        self._endpoints.close()

    def _headers(self, delivery: Delivery, device: WPDeviceToken) -> dict[str, str]:
        ttl = min(max(delivery.expires_at - int(self._clock()), 0), MAX_TTL)
        headers = {
            "authorization": self.vapid.authorization(_origin(device)),
            "content-encoding": "aes128gcm",
            "content-type": "application/octet-stream",
            "ttl": str(ttl),
            "urgency": "high" if isinstance(delivery.push, MessagePush) else "normal",
        }
        if delivery.collapse_id is not None:
            headers["topic"] = short_id(delivery.collapse_id, TOPIC_SIZE)
        return headers


def _origin(device: WPDeviceToken) -> str:
    """As RFC 6454 writes it: without the usual port."""
    port = device.port.lstrip("0")
    return f"https://{device.host}{f':{port}' if port not in ('', '443') else ''}"


def _outcome(answer: Answer) -> Outcome:
    """The body and `Location` stay unread: both are capabilities, or text of a stranger."""
    status = answer.status
    if 200 <= status < 300:
        return Accepted(code=status)
    if status in (404, 410):
        return TokenInvalid(InvalidReason.UNREGISTERED, status)
    if status == 429 or status >= 500:
        return RetryLater(answer.retry_after, _REASONS.get(status, f"HTTP-{status}"), code=status)
    return Refused(_REASONS.get(status, f"HTTP-{status}"), status)
