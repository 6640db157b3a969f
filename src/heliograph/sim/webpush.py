"""A simulated Web Push service: any path under /push/ is a subscription, bound to its first key."""

import re
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from heliograph.crypto.errors import CryptoError
from heliograph.crypto.jwt import parse_jwt
from heliograph.crypto.webpush import MAX_BODY, parse_header
from heliograph.sim.http2 import HttpRequest, Reply
from heliograph.sim.simulator import Push, Wrong
from heliograph.wire.errors import WireError
from heliograph.wire.primitives import b64decode, b64encode

PATH = "/push/"
MAX_VAPID_LIFETIME = 24 * 3600

_AUTHORIZATION = re.compile(r"vapid t=([\w.-]+), ?k=([\w-]+)", re.ASCII)
_TOPIC = re.compile(r"[\w-]{1,32}", re.ASCII)
_URGENCIES = ("very-low", "low", "normal", "high")
_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    410: "Gone",
    413: "PayloadTooLarge",
    429: "TooManyRequests",
}


class WebPushService:
    name = "webpush"

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.keys: dict[str, str] = {}
        """Subscriptions and the VAPID keys that they are bound to."""

        self._clock = clock

    def set_url(self, url: str, directory: Path) -> None:
        """Endpoints are made by clients: the URL, /push/ and anything."""

    def check(self, request: HttpRequest) -> Push | Wrong:
        token = request.path.removeprefix(PATH)
        if request.method != "POST":
            return Wrong(405, "MethodNotAllowed")
        if not token or token == request.path:
            return Wrong(404, "NotFound")
        wrong = (
            self._check_vapid(token, request.headers)
            or _check_headers(request.headers)
            or _check_body(request.body)
        )
        if wrong is not None:
            return Wrong(*wrong, token)
        return Push(token, b64encode(request.body))

    def accept(self) -> Reply:
        return Reply(201, {"location": f"/message/{uuid.uuid4()}", "content-length": "0"})

    def reject(self, status: int, reason: str | None) -> Reply:
        headers = {"content-type": "text/plain"}
        if 300 <= status < 400:
            headers["location"] = f"{PATH}elsewhere"
        return Reply(status, headers, (reason or _REASONS.get(status, "Error")).encode())

    def _check_vapid(self, token: str, headers: Mapping[str, str]) -> tuple[int, str] | None:
        match = _AUTHORIZATION.fullmatch(headers.get("authorization", ""))
        if match is None:
            return 401, "MissingVapid"
        text, key = match.groups()
        now = self._clock()
        try:
            jwt = parse_jwt(text)
            genuine = jwt.is_from(b64decode(key))
        except (CryptoError, WireError):
            return 403, "InvalidVapid"
        expires_at = jwt.claims.get("exp")
        contact = jwt.claims.get("sub")
        if (
            not genuine
            or jwt.claims.get("aud") != f"https://{headers.get(':authority')}"
            or not isinstance(expires_at, int)
            or not now < expires_at <= now + MAX_VAPID_LIFETIME
            or not str(contact).startswith(("mailto:", "https:"))
        ):
            return 403, "InvalidVapid"
        if self.keys.setdefault(token, key) != key:
            return 403, "VapidKeyMismatch"
        return None


def _check_headers(headers: Mapping[str, str]) -> tuple[int, str] | None:
    if not headers.get("ttl", "").isdecimal():
        return 400, "BadTtl"
    if headers.get("urgency", "normal") not in _URGENCIES:
        return 400, "BadUrgency"
    if _TOPIC.fullmatch(headers.get("topic", "none")) is None:
        return 400, "BadTopic"
    if headers.get("content-encoding") != "aes128gcm":
        return 415, "BadEncoding"
    return None


def _check_body(body: bytes) -> tuple[int, str] | None:
    if len(body) > MAX_BODY:
        return 413, "PayloadTooLarge"
    try:
        parse_header(body)
    except CryptoError:
        return 400, "BadBody"
    return None
