"""VAPID, RFC 8292: how an application server shows a push service who it is.

Clients subscribe for the public key; a push that another key signed is not for them.
"""

import time
from collections.abc import Callable

from heliograph.crypto.jwt import sign_jwt
from heliograph.crypto.p256 import P256Key
from heliograph.wire.primitives import b64encode

LIFETIME = 12 * 3600
RENEW_BEFORE = 3600.0
MAX_ORIGINS = 1024


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
        """As browsers take it for `applicationServerKey`."""
        return b64encode(self._key.public).rstrip("=")

    def authorization(self, origin: str) -> str:
        """The header for a push service, such as `https://push.example.net`."""
        now = self._clock()
        expires_at, header = self._headers.get(origin, (0.0, ""))
        if not RENEW_BEFORE < expires_at - now <= LIFETIME:
            if len(self._headers) >= MAX_ORIGINS:
                self._headers.clear()
            expires_at = int(now) + LIFETIME
            claims = {"aud": origin, "exp": expires_at, "sub": self._contact}
            token = sign_jwt(self._key, claims, typ="JWT")
            header = f"vapid t={token}, k={self.public_key}"
            self._headers[origin] = expires_at, header
        return header


def generate_vapid_key() -> bytes:
    """A new private key in PEM, to be kept: subscriptions are bound to it."""
    return P256Key.generate().to_pem()
