"""Web Push: RFC 8030, encrypted as RFC 8291 says, with VAPID of RFC 8292.

The message is the JSON `{nonce, message | verification}` of the reference's Web Push branch, with a
box that is padded to fit in the 4096 bytes that every push service takes. The endpoint is the
client's choice: see `endpoints`.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from heliograph.crypto.errors import CryptoError
from heliograph.crypto.webpush import MAX_MESSAGE, encrypt
from heliograph.net.resolver import Lookup, resolve
from heliograph.push.endpoints import Endpoints, PrivateAddress
from heliograph.push.http import HttpAnswer, HttpSettings, NoAnswer
from heliograph.push.ids import short_id
from heliograph.push.provider import (
    Accepted,
    Delivery,
    DeviceTokenInvalid,
    Misconfigured,
    PushOutcome,
    RetryLater,
)
from heliograph.push.vapid import Vapid
from heliograph.wire.ntf.push import MessagePush, encode_web_push
from heliograph.wire.ntf.tokens import InvalidReason, WPDeviceToken

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
        default_factory=lambda: HttpSettings(
            connections=1, timeout=15.0, http2_only=False, thread="webpush"
        )
    )


class WebPushProvider:
    def __init__(
        self,
        config: WebPushConfig,
        clock: Callable[[], float] = time.time,
        resolver: Lookup = resolve,
    ) -> None:
        self.vapid = Vapid.from_pem(config.vapid_key, config.contact, clock)
        self._endpoints = Endpoints(
            config.http, allow_private=config.allow_private, resolver=resolver
        )
        self._clock = clock
        self._closed = False

    async def send(self, delivery: Delivery) -> PushOutcome:
        device = delivery.device
        if not isinstance(device, WPDeviceToken):
            return Misconfigured("NoSuchProvider")
        if self._closed:
            return RetryLater(None, "Closed")
        if device.port and not 0 < int(device.port) < 65536:
            return DeviceTokenInvalid(InvalidReason.BAD)
        device = replace(device, host=device.host.lower())
        message = encode_web_push(delivery.push)
        if len(message) > MAX_MESSAGE:
            return Misconfigured("PayloadTooLarge")
        try:
            body = encrypt(message, device.p256dh, device.auth)
        except CryptoError:
            return DeviceTokenInvalid(InvalidReason.BAD)  # the point is not on the curve
        try:
            connections = await self._endpoints.connections(device.host)
            answer = await connections.post(device.endpoint, self._headers(delivery, device), body)
        except PrivateAddress:
            return Misconfigured("PrivateAddress")
        except NoAnswer as exc:
            self._endpoints.refresh(device.host)
            return RetryLater(None, exc.reason, connection=True)
        return _outcome(answer)

    async def refresh(self) -> None:
        """Do nothing: `send` replaces the connections of a host that does not answer."""

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
    """Return the origin as RFC 6454 writes it: without the usual port."""
    port = device.port.lstrip("0")
    return f"https://{device.host}{f':{port}' if port not in ('', '443') else ''}"


def _outcome(answer: HttpAnswer) -> PushOutcome:
    """Decide by the status alone: the body and `Location` may hold secrets, or any text."""
    status = answer.status
    if 200 <= status < 300:
        return Accepted(code=status)
    if status in (404, 410):
        return DeviceTokenInvalid(InvalidReason.UNREGISTERED, status)
    if status == 429 or status >= 500:
        return RetryLater(answer.retry_after, _REASONS.get(status, f"HTTP-{status}"), code=status)
    return Misconfigured(_REASONS.get(status, f"HTTP-{status}"), status)
