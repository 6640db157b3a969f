"""A simulated FCM: issues access tokens to its service account, and accepts messages with them."""

import json
import re
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import parse_qs

from heliograph.crypto.errors import CryptoError
from heliograph.crypto.jwt import RsaKey, parse_jwt
from heliograph.documents import JsonObject
from heliograph.runtime.files import write_file
from heliograph.sim.providers.http2 import HttpReply, HttpRequest
from heliograph.sim.providers.simulator import Push, Wrong

ACCOUNT_FILE = "service-account.json"
PROJECT = "heliograph-sim"
EMAIL = f"push@{PROJECT}.iam.gserviceaccount.com"
KEY_ID = "0123456789abcdef"

SCOPE = "https://www.googleapis.com/auth/firebase.messaging"
GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
MAX_DATA = 4096
TOKEN_LIFETIME = 3599

_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}
_CODES = {
    400: "INVALID_ARGUMENT",
    403: "SENDER_ID_MISMATCH",
    404: "UNREGISTERED",
    429: "QUOTA_EXCEEDED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}
_BAD_TOKEN = "The registration token is not a valid FCM registration token"  # noqa: S105
_TTL = re.compile(r"[0-9]{1,7}(\.[0-9]+)?s")
_RESERVED = re.compile(r"from|message_type|(google|gcm).*")


class FcmService:
    name = "fcm"

    def __init__(
        self,
        key: RsaKey,
        clock: Callable[[], float] = time.time,
        token_lifetime: int = TOKEN_LIFETIME,
    ) -> None:
        self.tokens: dict[str, float] = {}
        """Access tokens, and the time when each expires."""

        self._key = key
        self._clock = clock
        self._token_lifetime = token_lifetime
        self._token_url = ""

    def set_url(self, url: str, directory: Path) -> None:
        """Write the service account's file, which contains the URL for tokens."""
        self._token_url = f"{url}/token"
        account = {
            "type": "service_account",
            "project_id": PROJECT,
            "private_key_id": KEY_ID,
            "private_key": self._key.to_pem().decode(),
            "client_email": EMAIL,
            "token_uri": self._token_url,
        }
        write_file(directory / ACCOUNT_FILE, json.dumps(account, indent=2).encode(), 0o600)

    def check(self, request: HttpRequest) -> Push | Wrong | HttpReply:
        if request.method != "POST":
            return Wrong(405, "METHOD_NOT_ALLOWED")
        if request.path == "/token":
            return self.exchange(request.body)
        if request.path != f"/v1/projects/{PROJECT}/messages:send":
            return Wrong(404, "NO_SUCH_PROJECT")
        scheme, _, access = request.headers.get("authorization", "").partition(" ")
        if scheme != "Bearer" or self._clock() >= self.tokens.get(access, 0.0):
            return Wrong(401, "UNAUTHENTICATED")
        try:
            message = json.loads(request.body)["message"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return Wrong(400, "message")
        field, token = _wrong_field(message)
        if field is not None:
            return Wrong(400, field, token)
        return Push(token, json.dumps(message))

    def accept(self) -> HttpReply:
        name = f"projects/{PROJECT}/messages/0:{secrets.token_hex(16)}"
        return _json(200, {"name": name})

    def reject(self, status: int, reason: str | None) -> HttpReply:
        """Return a rejection. A reason that names a field means that this field is malformed."""
        error: JsonObject = {
            "code": status,
            "status": _STATUSES.get(status, "UNKNOWN"),
            "message": "Request contains an invalid argument.",
        }
        code = reason or _CODES.get(status)
        if reason is not None and reason.startswith("message"):
            violation = {"field": reason, "description": "Invalid value"}
            error["details"] = [_detail("google.rpc.BadRequest", fieldViolations=[violation])]
        elif code is not None:
            error["details"] = [_detail("google.firebase.fcm.v1.FcmError", errorCode=code)]
            if code == "INVALID_ARGUMENT":
                error["message"] = _BAD_TOKEN
        return _json(status, {"error": error})

    def exchange(self, body: bytes) -> HttpReply:
        form = parse_qs(body.decode("utf-8", "replace"))
        if form.get("grant_type") != [GRANT]:
            return _json(400, {"error": "unsupported_grant_type"})
        if not self._is_genuine("".join(form.get("assertion", []))):
            return _json(400, {"error": "invalid_grant"})
        token = f"ya29.{secrets.token_urlsafe(32)}"
        self.tokens[token] = self._clock() + self._token_lifetime
        answer = {"access_token": token, "expires_in": self._token_lifetime}
        return _json(200, {**answer, "token_type": "Bearer"})

    def _is_genuine(self, assertion: str) -> bool:
        now = self._clock()
        try:
            jwt = parse_jwt(assertion)
        except CryptoError:
            return False
        match jwt.claims:
            case {"iss": iss, "scope": scope, "aud": aud, "iat": int(iat), "exp": int(exp)}:
                return (
                    (iss, scope, aud) == (EMAIL, SCOPE, self._token_url)
                    and iat - 300 <= now < exp <= iat + 3600
                    and jwt.header.get("kid") == KEY_ID
                    and jwt.is_from_rsa(self._key)
                )
        return False


def account_key(directory: Path) -> RsaKey:
    """Return the service account's key: the one in its file, or a new one."""
    file = directory / ACCOUNT_FILE
    if file.exists():
        return RsaKey.from_pem(json.loads(file.read_bytes())["private_key"].encode())
    directory.mkdir(parents=True, exist_ok=True)
    return RsaKey.generate()


def _wrong_field(message: object) -> tuple[str | None, str]:
    """Return the first wrong field, and the device token or an empty text."""
    if not isinstance(message, dict):
        return "message", ""
    token, data, android = (message.get(name) for name in ("token", "data", "android"))
    if not isinstance(token, str) or not token:
        return "message.token", ""
    if message.keys() - {"token", "data", "android"}:
        return "message", token
    if not isinstance(data, dict) or not all(isinstance(value, str) for value in data.values()):
        return "message.data", token
    size = sum(len(name.encode()) + len(value.encode()) for name, value in data.items())
    if size > MAX_DATA or any(_RESERVED.fullmatch(name) for name in data):
        return "message.data", token
    return _wrong_android(android), token


def _wrong_android(android: object) -> str | None:
    if not isinstance(android, dict):
        return "message.android"
    if android.get("priority") not in ("HIGH", "NORMAL"):
        return "message.android.priority"
    if _TTL.fullmatch(str(android.get("ttl"))) is None:
        return "message.android.ttl"
    return None


def _detail(kind: str, **values: object) -> Mapping[str, object]:
    return {"@type": f"type.googleapis.com/{kind}", **values}


def _json(status: int, body: Mapping[str, object]) -> HttpReply:
    headers = {"content-type": "application/json; charset=UTF-8"}
    return HttpReply(status, headers, json.dumps(body).encode())
