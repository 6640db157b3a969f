"""A simulated APNs: makes the same checks as Apple and returns the same errors."""

import json
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from heliograph.crypto.errors import CryptoError
from heliograph.crypto.jwt import parse_jwt
from heliograph.crypto.p256 import P256Key
from heliograph.runtime.files import write_file
from heliograph.sim.providers.http2 import HttpReply, HttpRequest
from heliograph.sim.providers.simulator import Push, Wrong

KEY_FILE = "apns.p8"
PATH = "/3/device/"
TOKEN_LIFETIME = 3600.0
CLOCK_SKEW = 300.0
MAX_COLLAPSE_ID = 64

PAYLOAD_LIMIT = 4096
"""The maximum that Apple documents; the body of the reference has 4310 bytes."""

_REASONS = {
    400: "BadDeviceToken",
    403: "InvalidProviderToken",
    404: "BadPath",
    405: "MethodNotAllowed",
    410: "Unregistered",
    413: "PayloadTooLarge",
    429: "TooManyRequests",
    500: "InternalServerError",
    503: "ServiceUnavailable",
}
_PRIORITIES = {"alert": ("1", "5", "10"), "background": ("1", "5")}
_HEX = frozenset("0123456789abcdefABCDEF")


@dataclass(frozen=True, slots=True)
class ApnsRules:
    """The accepted senders; None accepts every valid signature."""

    topic: str | None = None
    key_id: str | None = None
    team_id: str | None = None
    payload_limit: int = PAYLOAD_LIMIT


class ApnsService:
    name = "apns"

    def __init__(
        self,
        key: P256Key,
        rules: ApnsRules | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Create the service. ``key`` is the provider's key, of which Apple has the public part."""
        self._key = key
        self._rules = rules or ApnsRules()
        self._clock = clock
        self._known: dict[str, float] = {}

    def set_url(self, url: str, directory: Path) -> None:
        """Do nothing: clients need only the key, which exists already."""

    def check(self, request: HttpRequest) -> Push | Wrong:
        if request.method != "POST":
            return Wrong(405, "MethodNotAllowed")
        if not request.path.startswith(PATH):
            return Wrong(404, "BadPath")
        token = request.path.removeprefix(PATH)
        if not token:
            return Wrong(400, "MissingDeviceToken")
        wrong = (
            self._check_authorization(request.headers.get("authorization", ""))
            or self._check_headers(request.headers)
            or (None if _HEX.issuperset(token) and len(token) % 2 == 0 else (400, _REASONS[400]))
            or self._check_body(request)
        )
        if wrong is not None:
            return Wrong(*wrong, token)
        return Push(token, request.body.decode())

    def accept(self) -> HttpReply:
        return HttpReply(200, {"apns-id": str(uuid.uuid4()).upper()})

    def reject(self, status: int, reason: str | None) -> HttpReply:
        body: dict[str, object] = {"reason": reason or _REASONS.get(status, "Unknown")}
        if status == 410:
            body["timestamp"] = int(self._clock() * 1000)
        headers = {"apns-id": str(uuid.uuid4()).upper(), "content-type": "application/json"}
        return HttpReply(status, headers, json.dumps(body).encode())

    def _check_authorization(self, header: str) -> tuple[int, str] | None:
        scheme, _, token = header.partition(" ")
        if scheme.lower() != "bearer" or not token:
            return 403, "MissingProviderToken"
        issued_at = self._known.get(token)
        if issued_at is None:
            issued_at = self._issued_at(token)
            if issued_at is None:
                return 403, "InvalidProviderToken"
            self._known = {**self._known, token: issued_at} if len(self._known) < 100 else {}
        age = self._clock() - issued_at
        if age < -CLOCK_SKEW:
            return 403, "InvalidProviderToken"
        return (403, "ExpiredProviderToken") if age > TOKEN_LIFETIME else None

    def _issued_at(self, token: str) -> float | None:
        """Return the time when a token was issued, None if it is not genuine."""
        rules = self._rules
        try:
            jwt = parse_jwt(token)
        except CryptoError:
            return None
        key_id, team_id = jwt.header.get("kid"), jwt.claims.get("iss")
        issued_at = jwt.claims.get("iat")
        if not (isinstance(key_id, str) and isinstance(team_id, str)):
            return None
        if rules.key_id not in (None, key_id) or rules.team_id not in (None, team_id):
            return None
        if not isinstance(issued_at, int) or not jwt.is_from(self._key.public):
            return None
        return float(issued_at)

    def _check_headers(self, headers: Mapping[str, str]) -> tuple[int, str] | None:
        topic = headers.get("apns-topic")
        kind = headers.get("apns-push-type", "")
        if not topic:
            return 400, "MissingTopic"
        if self._rules.topic not in (None, topic):
            return 400, "TopicDisallowed"
        if kind not in _PRIORITIES:
            return 400, "InvalidPushType"
        if headers.get("apns-priority", "10") not in _PRIORITIES[kind]:
            return 400, "BadPriority"
        if not headers.get("apns-expiration", "0").isdecimal():
            return 400, "BadExpirationDate"
        if len(headers.get("apns-collapse-id", "").encode()) > MAX_COLLAPSE_ID:
            return 400, "BadCollapseId"
        return None

    def _check_body(self, request: HttpRequest) -> tuple[int, str] | None:
        if not request.body:
            return 400, "PayloadEmpty"
        if len(request.body) > self._rules.payload_limit:
            return 413, "PayloadTooLarge"
        try:
            body = json.loads(request.body)
        except (ValueError, RecursionError):
            body = None
        aps = body.get("aps") if isinstance(body, dict) else None
        if not isinstance(aps, dict):
            return 400, "BadMessage"
        silent = aps.get("content-available") == 1 and "alert" not in aps
        if silent != (request.headers["apns-push-type"] == "background"):
            return 400, "InvalidPushType"
        return None


def provider_key(directory: Path) -> P256Key:
    """Return the key that a provider signs with; create it at the first start."""
    file = directory / KEY_FILE
    if not file.exists():
        directory.mkdir(parents=True, exist_ok=True)
        write_file(file, P256Key.generate().to_pem(), 0o600)
    return P256Key.from_pem(file.read_bytes())
