"""Firebase Cloud Messaging, HTTP v1, with a service account.

https://firebase.google.com/docs/reference/fcm/rest/v1/projects.messages
"""

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlencode

from heliograph.crypto.errors import CryptoError
from heliograph.crypto.jwt import RsaKey, sign_jwt
from heliograph.documents import JsonMapping, JsonObject
from heliograph.push.connecting import connections_to
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
from heliograph.push.reasons import FCM_REASONS, OAUTH_REASONS, known_reason
from heliograph.tasks import ScopeClosed, SharedTasks
from heliograph.wire.ntf.push import MessagePush, notification_data
from heliograph.wire.ntf.tokens import FcmDeviceToken, InvalidReason

URL = "https://fcm.googleapis.com"
SCOPE = "https://www.googleapis.com/auth/firebase.messaging"
GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"

ASSERTION_LIFETIME = 3600
RENEW_BEFORE = 300.0
"""Seconds before its end that an access token is replaced."""

MIN_INTERVAL = 60.0
"""Seconds between access tokens that replace one which was not taken."""

MAX_TTL = 28 * 24 * 3600
COLLAPSE_KEY_SIZE = 64


class ServiceAccountError(ValueError):
    """The service account's file cannot be used; the text says why."""


# What a header may carry (RFC 6750): with anything else each request would fail.
_ACCESS_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")


@dataclass(frozen=True, slots=True)
class FcmConfig:
    service_account: bytes = field(repr=False)
    """The JSON file that Google gave."""

    url: str = URL
    token_url: str | None = None
    """Where to get access tokens; None for the place that the service account names."""

    http: HttpSettings = field(default_factory=HttpSettings)


class FcmProvider:
    def __init__(self, config: FcmConfig, clock: Callable[[], float] = time.time) -> None:
        account = _ServiceAccount.parse(config.service_account)
        self._connections = connections_to(config.http)
        self._access = _Access(account, config, clock)
        self._url = f"{config.url.rstrip('/')}/v1/projects/{account.project_id}/messages:send"
        self._clock = clock
        self._closed = False

    async def send(self, delivery: Delivery) -> PushOutcome:
        if not isinstance(delivery.device, FcmDeviceToken):
            return Misconfigured("NoSuchProvider")
        if self._closed:
            return RetryLater(None, "Closed")
        body = json.dumps({"message": self._message(delivery, delivery.device)}).encode()
        try:
            access = await self._access.current()
            if not isinstance(access, str):
                return access
            answer = await self._post(access, body)
            if answer.status == 401 and self._access.invalidate(access):
                access = await self._access.current()
                if not isinstance(access, str):
                    return access
                answer = await self._post(access, body)
        except NoAnswer as exc:
            return RetryLater(None, exc.reason, connection=True)
        return _outcome(answer)

    async def refresh(self) -> None:
        self._connections.refresh()
        self._access.connections.refresh()

    async def close(self) -> None:
        self._closed = True
        self._connections.close()
        self._access.close()

    async def _post(self, access: str, body: bytes) -> HttpAnswer:
        headers = {"authorization": f"Bearer {access}", "content-type": "application/json"}
        return await self._connections.post(self._url, headers, body, read=True)

    def _message(self, delivery: Delivery, device: FcmDeviceToken) -> JsonObject:
        ttl = min(max(delivery.expires_at - int(self._clock()), 0), MAX_TTL)
        urgent = isinstance(delivery.push, MessagePush)
        android = {"priority": "HIGH" if urgent else "NORMAL", "ttl": f"{ttl}s"}
        if delivery.collapse_id is not None:
            android["collapse_key"] = short_id(delivery.collapse_id, COLLAPSE_KEY_SIZE)
        return {"token": device.token, "data": fcm_data(delivery), "android": android}


def fcm_data(delivery: Delivery) -> dict[str, str]:
    """Return the fields of every provider, with values as texts."""
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in notification_data(delivery.push).items()
    }


@dataclass(frozen=True, slots=True)
class _ServiceAccount:
    project_id: str
    email: str
    key: RsaKey
    key_id: str
    token_uri: str

    @classmethod
    def parse(cls, text: bytes) -> "_ServiceAccount":
        names = ("project_id", "client_email", "private_key", "private_key_id", "token_uri")
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            raise ServiceAccountError("the service account's file is not JSON") from None
        for name in names:
            if not isinstance(data, dict) or not isinstance(data.get(name), str):
                raise ServiceAccountError(f"the service account's file has no {name}")
        project_id, email, pem, key_id, token_uri = (data[name] for name in names)
        try:
            key = RsaKey.from_pem(pem.encode())
        except CryptoError as exc:
            raise ServiceAccountError(f"the service account's private_key is {exc}") from None
        return cls(project_id, email, key, key_id, token_uri)


class _Access:
    """The access token; callers that need a new one share one request."""

    def __init__(
        self, account: _ServiceAccount, config: FcmConfig, clock: Callable[[], float]
    ) -> None:
        self.connections = connections_to(config.http)
        self._account = account
        self._url = config.token_url or account.token_uri
        self._clock = clock
        self._token = ""
        self._expires_at = 0.0
        self._invalidated_at: float | None = None
        self._fetching = SharedTasks[None, PushOutcome | str]("FCM access token")

    async def current(self) -> PushOutcome | str:
        """Return the token, or the outcome if there is none. Raises `NoAnswer`."""
        if self._token and self._clock() < self._expires_at - RENEW_BEFORE:
            return self._token
        try:
            return await self._fetching.run(None, self._fetch)
        except ScopeClosed:
            raise NoAnswer("Closed") from None

    def invalidate(self, token: str) -> bool:
        """Discard a rejected token; return False if it is too soon to fetch another."""
        if token == self._token:
            now = self._clock()
            if self._invalidated_at is not None and 0 <= now - self._invalidated_at < MIN_INTERVAL:
                return False
            self._invalidated_at = now
            self._token = ""
        return True

    def close(self) -> None:
        self._fetching.cancel()
        self.connections.close()

    async def _fetch(self) -> PushOutcome | str:
        now = int(self._clock())
        claims = {
            "iss": self._account.email,
            "scope": SCOPE,
            "aud": self._account.token_uri,
            "iat": now,
            "exp": now + ASSERTION_LIFETIME,
        }
        assertion = sign_jwt(self._account.key, claims, typ="JWT", kid=self._account.key_id)
        form = urlencode({"grant_type": GRANT, "assertion": assertion}).encode()
        headers = {"content-type": "application/x-www-form-urlencoded"}
        answer = await self.connections.post(self._url, headers, form, read=True)
        body = _json(answer)
        match body:
            case {"access_token": str(token), "expires_in": int(seconds)} if (
                answer.status == 200 and _ACCESS_TOKEN.fullmatch(token)
            ):
                self._token, self._expires_at = token, now + seconds
                return token
        reason = known_reason(body.get("error"), answer.status, OAUTH_REASONS)
        if answer.status == 429 or answer.status >= 500:
            return RetryLater(answer.retry_after, reason, code=answer.status)
        return Misconfigured(reason, answer.status)


def _outcome(answer: HttpAnswer) -> PushOutcome:
    if answer.status == 200:
        return Accepted(_provider_id(_json(answer).get("name")), answer.status)
    error = _json(answer).get("error")
    error = error if isinstance(error, dict) else {}
    code = _fcm_code(error)
    reason = known_reason(code or error.get("status"), answer.status, FCM_REASONS)
    if code == "UNREGISTERED":
        return DeviceTokenInvalid(InvalidReason.UNREGISTERED, answer.status)
    if code == "SENDER_ID_MISMATCH":
        return DeviceTokenInvalid(InvalidReason.TOPIC, answer.status)
    if reason == "INVALID_ARGUMENT" and _blames_token(error):
        return DeviceTokenInvalid(InvalidReason.BAD, answer.status)
    if answer.status == 429 or answer.status >= 500:
        return RetryLater(answer.retry_after, reason, code=answer.status)
    return Misconfigured(reason, answer.status)


def _provider_id(name: object) -> str | None:
    """Return the ID of `projects/P/messages/ID`."""
    return name.rpartition("/")[2] if isinstance(name, str) else None


def _fcm_code(error: JsonMapping) -> str | None:
    for detail in _details(error, "google.firebase.fcm.v1.FcmError"):
        code = detail.get("errorCode")
        if isinstance(code, str):
            return code
    return None


def _blames_token(error: JsonMapping) -> bool:
    """Return whether the token is wrong: INVALID_ARGUMENT also answers a message too big."""
    for detail in _details(error, "google.rpc.BadRequest"):
        violations = detail.get("fieldViolations")
        for violation in violations if isinstance(violations, list) else ():
            if isinstance(violation, dict) and violation.get("field") == "message.token":
                return True
    return "registration token" in str(error.get("message"))


def _details(error: JsonMapping, kind: str) -> list[JsonMapping]:
    details = error.get("details")
    return [
        detail
        for detail in (details if isinstance(details, list) else ())
        if isinstance(detail, dict) and str(detail.get("@type")).endswith(f"/{kind}")
    ]


def _json(answer: HttpAnswer) -> JsonObject:
    try:
        body = json.loads(answer.body)
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}
