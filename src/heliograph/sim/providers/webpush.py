"""A simulated Web Push service: any path under /push/ is a subscription, bound to its first key."""

import re
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from heliograph.crypto.errors import CryptoError
from heliograph.crypto.webpush import MAX_BODY, parse_header
from heliograph.push.vapid import signer_of
from heliograph.sim.providers.http2 import HttpReply, HttpRequest
from heliograph.sim.providers.simulator import Push, Wrong
from heliograph.wire.primitives import b64encode

PATH = "/push/"

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
        self.keys: dict[str, bytes] = {}
        """The VAPID key that each subscription is bound to."""

        self._clock = clock

    def set_url(self, url: str, directory: Path) -> None:
        """Do nothing: clients choose endpoints, any path under /push/."""

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

    def accept(self) -> HttpReply:
        return HttpReply(201, {"location": f"/message/{uuid.uuid4()}", "content-length": "0"})

    def reject(self, status: int, reason: str | None) -> HttpReply:
        headers = {"content-type": "text/plain"}
        if 300 <= status < 400:
            headers["location"] = f"{PATH}elsewhere"
        return HttpReply(status, headers, (reason or _REASONS.get(status, "Error")).encode())

    def _check_vapid(self, token: str, headers: Mapping[str, str]) -> tuple[int, str] | None:
        authorization = headers.get("authorization", "")
        if not authorization.startswith("vapid "):
            return 401, "MissingVapid"
        try:
            origin = f"https://{headers.get(':authority')}"
            key = signer_of(authorization, origin, self._clock())
        except CryptoError:
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
