"""VAPID, RFC 8292: how an application server shows a push service who it is.

Clients subscribe for the public key; a push that another key signed is not for them.
"""

import re
import time
from collections.abc import Callable

from heliograph.crypto.errors import CryptoError
from heliograph.crypto.jwt import parse_jwt, sign_jwt
from heliograph.crypto.p256 import P256Key
from heliograph.wire.errors import WireError
from heliograph.wire.primitives import b64decode, b64encode

TOKEN_LIFETIME = 12 * 3600
RENEW_BEFORE = 3600.0
MAX_ORIGINS = 1024
MAX_LIFETIME = 24 * 3600

_AUTHORIZATION = re.compile(r"vapid t=([\w.-]+), ?k=([\w-]+)", re.ASCII)


class Vapid:
    """A key and the tokens made of it, one for each push service."""

    def __init__(self, key: P256Key, contact: str, clock: Callable[[], float] = time.time) -> None:
        """``contact`` is a mailto: or https: URI where the operator is reached."""
        self._key = key
        self._contact = contact
        self._clock = clock
        self._headers: dict[str, tuple[float, str]] = {}

    @classmethod
    def from_pem(cls, pem: bytes, contact: str, clock: Callable[[], float] = time.time) -> "Vapid":
        return cls(P256Key.from_pem(pem), contact, clock)

    @property
    def public_key(self) -> str:
        """Return the key as browsers take it for `applicationServerKey`."""
        return b64encode(self._key.public).rstrip("=")

    def authorization(self, origin: str) -> str:
        """Return the header for a push service, such as `https://push.example.net`."""
        now = self._clock()
        expires_at, header = self._headers.get(origin, (0.0, ""))
        if not RENEW_BEFORE < expires_at - now <= TOKEN_LIFETIME:
            if len(self._headers) >= MAX_ORIGINS:
                self._headers.clear()
            expires_at = int(now) + TOKEN_LIFETIME
            claims = {"aud": origin, "exp": expires_at, "sub": self._contact}
            token = sign_jwt(self._key, claims, typ="JWT")
            header = f"vapid t={token}, k={self.public_key}"
            self._headers[origin] = expires_at, header
        return header


def signer_of(header: str, origin: str, now: float) -> bytes:
    """Return the public key that signed a header for a push service. Raises `CryptoError`."""
    match = _AUTHORIZATION.fullmatch(header)
    if match is None:
        raise CryptoError("no VAPID in the Authorization header")
    try:
        jwt, key = parse_jwt(match[1]), b64decode(match[2])
        genuine = jwt.is_from(key)
    except WireError as exc:
        raise CryptoError(str(exc)) from None
    expires_at, contact = jwt.claims.get("exp"), jwt.claims.get("sub")
    if (
        not genuine
        or jwt.claims.get("aud") != origin
        or not isinstance(expires_at, int)
        or not now < expires_at <= now + MAX_LIFETIME
        or not str(contact).startswith(("mailto:", "https:"))
    ):
        raise CryptoError("a VAPID token for another service or time, or of another key")
    return key


def generate_vapid_key() -> bytes:
    """Return a new private key in PEM. Keep it: subscriptions are bound to it."""
    return P256Key.generate().to_pem()
