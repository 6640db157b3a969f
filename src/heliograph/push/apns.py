"""Apple's push notification service, over HTTP/2 with a provider token.

https://developer.apple.com/documentation/usernotifications/sending-notification-requests-to-apns
"""

import json
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from heliograph.crypto.jwt import sign_jwt, sign_repeatably
from heliograph.crypto.p256 import P256Key
from heliograph.push.connecting import HttpConnections, connections_to
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
from heliograph.push.reasons import APNS_REASONS, known_reason
from heliograph.wire.ntf.push import MessagePush, encode_apns
from heliograph.wire.ntf.tokens import APNSDeviceToken, InvalidReason, PushProvider

PRODUCTION_URL = "https://api.push.apple.com"
SANDBOX_URL = "https://api.sandbox.push.apple.com"

JWT_LIFETIME = 30 * 60.0
JWT_MIN_INTERVAL = 20 * 60.0
"""Apple answers TooManyProviderTokenUpdates to those who renew more often."""

COLLAPSE_ID_SIZE = 64
MAX_KNOWN_TOKENS = 100_000
"""Devices of which the app is remembered, if there are several."""

_TOKEN = re.compile(rb"[0-9a-fA-F]{2,200}")  # it becomes a part of the path
_TEST_TOKEN = re.compile(rb"[0-9A-Za-z_-]{1,200}")
"""Simulators take other tokens than Apple: the reference's tests use words."""

_INVALID = {
    (400, "BadDeviceToken"): InvalidReason.BAD,
    (400, "DeviceTokenNotForTopic"): InvalidReason.TOPIC,
    (410, "ExpiredToken"): InvalidReason.EXPIRED,
    (410, "Unregistered"): InvalidReason.UNREGISTERED,
}

_OTHER_TOPIC = DeviceTokenInvalid(InvalidReason.TOPIC, 400)


@dataclass(frozen=True, slots=True)
class ApnsApp:
    """An app, and the key of its maker."""

    key: bytes = field(repr=False)
    """The .p8 file that Apple gave."""

    key_id: str
    team_id: str
    topic: str


@dataclass(frozen=True, slots=True)
class ApnsConfig(ApnsApp):
    url: str = PRODUCTION_URL
    sandbox_url: str = SANDBOX_URL
    test_url: str | None = None
    http: HttpSettings = field(default_factory=HttpSettings)
    others: tuple[ApnsApp, ...] = ()
    """Further apps. A device token does not say which app it is of: see `ApnsProvider`."""
    is_shared: bool = False
    """Other processes use the same key: all must use the same provider token."""


class ApnsProvider:
    """Sends pushes to AP, AD and AT tokens, each with its own host.

    With several apps, a device whose app is not known is tried with one after another, until Apple
    does not answer that the token is for another topic.
    """

    def __init__(self, config: ApnsConfig, clock: Callable[[], float] = time.time) -> None:
        urls = {
            PushProvider.APNS_PROD: config.url,
            PushProvider.APNS_DEV: config.sandbox_url,
            PushProvider.APNS_TEST: config.test_url,
        }
        self._urls = {kind: url.rstrip("/") for kind, url in urls.items() if url}
        self._apps = [_App(app, config, clock) for app in (config, *config.others)]
        self._app_of: OrderedDict[bytes, _App] = OrderedDict()
        self._closed = False

    async def send(self, delivery: Delivery) -> PushOutcome:
        device = delivery.device
        if not isinstance(device, APNSDeviceToken) or device.provider not in self._urls:
            return Misconfigured("NoSuchProvider")
        is_test = device.provider is PushProvider.APNS_TEST
        if (_TEST_TOKEN if is_test else _TOKEN).fullmatch(device.token) is None:
            return DeviceTokenInvalid(InvalidReason.BAD)
        if self._closed:
            return RetryLater(None, "Closed")
        url = f"{self._urls[device.provider]}/3/device/{device.token.decode()}"
        known = self._app_of.get(device.token)
        refused: PushOutcome | None = None
        for app in sorted(self._apps, key=lambda app: app is not known):
            outcome = await app.send(url, device.provider, delivery)
            if isinstance(outcome, Accepted):
                self._remember(device.token, app)
            elif isinstance(outcome, Misconfigured) and app is not known:
                refused = refused or outcome  # a bad key of one app says nothing of the others
                continue
            if outcome != _OTHER_TOPIC:
                return outcome if len(self._apps) == 1 else _of_one_app(outcome)
        return refused or _OTHER_TOPIC

    async def refresh(self) -> None:
        for app in self._apps:
            app.refresh()

    async def close(self) -> None:
        self._closed = True
        for app in self._apps:
            app.close()

    def _remember(self, token: bytes, app: "_App") -> None:
        if len(self._apps) > 1:
            self._app_of[token] = app
            self._app_of.move_to_end(token)
            if len(self._app_of) > MAX_KNOWN_TOKENS:
                self._app_of.popitem(last=False)


class _App:
    """One app, with connections of its own: Apple takes one team on a connection."""

    def __init__(self, app: ApnsApp, config: ApnsConfig, clock: Callable[[], float]) -> None:
        self._topic = app.topic
        self._http = config.http
        self._authorization = _Authorization(app, clock, is_shared=config.is_shared)
        self._connections: dict[PushProvider, HttpConnections] = {}

    async def send(self, url: str, kind: PushProvider, delivery: Delivery) -> PushOutcome:
        connections = self._connections_to(kind)
        headers = self._headers(delivery)
        body = encode_apns(delivery.push)
        try:
            answer = await connections.post(url, headers, body)
            reason = _reason(answer)
            if reason == "ExpiredProviderToken" and self._authorization.renew(headers):
                answer = await connections.post(url, headers, body)
                reason = _reason(answer)
        except NoAnswer as exc:
            return RetryLater(None, exc.reason, connection=True)
        return _outcome(answer, reason)

    def refresh(self) -> None:
        for connections in self._connections.values():
            connections.refresh()

    def close(self) -> None:
        for connections in self._connections.values():
            connections.close()

    def _connections_to(self, kind: PushProvider) -> HttpConnections:
        connections = self._connections.get(kind)
        if connections is None:
            connections = self._connections[kind] = connections_to(self._http)
        return connections

    def _headers(self, delivery: Delivery) -> dict[str, str]:
        alert = isinstance(delivery.push, MessagePush)
        headers = {
            "authorization": self._authorization.current(),
            "apns-topic": self._topic,
            "apns-push-type": "alert" if alert else "background",
            "apns-priority": "10" if alert else "5",
            "apns-expiration": str(delivery.expires_at),
        }
        if delivery.collapse_id is not None:
            headers["apns-collapse-id"] = short_id(delivery.collapse_id, COLLAPSE_ID_SIZE)
        return headers


class _Authorization:
    """The provider token, the same for all requests of half an hour."""

    def __init__(self, app: ApnsApp, clock: Callable[[], float], *, is_shared: bool) -> None:
        self._is_shared = is_shared
        self._key = P256Key.from_pem(app.key)
        self._key_id = app.key_id
        self._team_id = app.team_id
        self._clock = clock
        self._header = ""
        self._issued_at = 0.0
        self._forced_at: float | None = None

    def current(self) -> str:
        now = self._clock()
        # Also when the clock was set back: a token from the future is not valid.
        if not self._header or not 0 <= now - self._issued_at < JWT_LIFETIME:
            self._issue(now)
        return self._header

    def renew(self, headers: dict[str, str]) -> bool:
        """Replace an expired token in the headers of a request; False if that is no use."""
        if headers["authorization"] == self._header:
            now = self._clock()
            if self._forced_at is not None and 0 <= now - self._forced_at < JWT_MIN_INTERVAL:
                return False
            self._forced_at = now
            self._issue(now)
        headers["authorization"] = self._header
        return True

    def _issue(self, now: float) -> None:
        if self._is_shared and now != self._forced_at:
            # The same half hour and the same signature in each process, without a word between.
            now -= now % JWT_LIFETIME
        claims = {"iss": self._team_id, "iat": int(now)}
        sign = sign_repeatably if self._is_shared else sign_jwt
        self._header = f"bearer {sign(self._key, claims, kid=self._key_id)}"
        self._issued_at = now


def _reason(answer: HttpAnswer) -> str | None:
    if answer.status == 200:
        return None
    try:
        body = json.loads(answer.body)
    except (ValueError, RecursionError):
        body = None
    reason = body.get("reason") if isinstance(body, dict) else None
    return known_reason(reason, answer.status, APNS_REASONS)


def _outcome(answer: HttpAnswer, reason: str | None) -> PushOutcome:
    if reason is None:
        return Accepted(answer.header("apns-id"), answer.status)
    invalid = _INVALID.get((answer.status, reason))
    if invalid is not None:
        return DeviceTokenInvalid(invalid, answer.status)
    if answer.status in (410, 429) or answer.status >= 500:
        return RetryLater(
            answer.retry_after,
            reason,
            account_wide=reason == "TooManyProviderTokenUpdates",
            code=answer.status,
        )
    return Misconfigured(reason, answer.status)


def _of_one_app(outcome: PushOutcome) -> PushOutcome:
    """Return an outcome that does not slow down the pushes of other apps."""
    return replace(outcome, account_wide=False) if isinstance(outcome, RetryLater) else outcome
