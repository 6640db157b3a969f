import pytest

from heliograph.crypto.errors import CryptoError
from heliograph.crypto.jwt import Jwt, parse_jwt
from heliograph.crypto.p256 import P256Key
from heliograph.push.vapid import MAX_ORIGINS, TOKEN_LIFETIME, Vapid, generate_vapid_key
from heliograph.wire.primitives import b64decode
from tests.push.support import Clock

ORIGIN = "https://push.example.net"
CONTACT = "mailto:push@example.com"


def token_of(header: str) -> Jwt:
    assert header.startswith("vapid t=")
    return parse_jwt(header.removeprefix("vapid t=").partition(",")[0])


def test_header() -> None:
    pem = generate_vapid_key()
    clock = Clock(1_700_000_000)
    vapid = Vapid.from_pem(pem, CONTACT, clock)
    header = vapid.authorization(ORIGIN)
    jwt = token_of(header)
    assert jwt.header == {"alg": "ES256", "typ": "JWT"}
    assert jwt.claims == {"aud": ORIGIN, "exp": 1_700_000_000 + TOKEN_LIFETIME, "sub": CONTACT}
    assert jwt.is_from(P256Key.from_pem(pem).public)
    assert header.endswith(f", k={vapid.public_key}")
    assert b64decode(vapid.public_key) == P256Key.from_pem(pem).public
    assert "=" not in vapid.public_key


def test_tokens_are_kept_while_they_last() -> None:
    clock = Clock(0.0)
    vapid = Vapid(P256Key.generate(), CONTACT, clock)
    first = vapid.authorization(ORIGIN)
    clock.now += TOKEN_LIFETIME - 3601
    assert vapid.authorization(ORIGIN) == first
    assert vapid.authorization("https://other.example") != first
    clock.now += 2
    second = vapid.authorization(ORIGIN)
    assert second != first
    clock.now = -3600.0  # the clock was set back: nobody takes a token for more than a day
    assert vapid.authorization(ORIGIN) not in (first, second)


def test_memory_is_bounded() -> None:
    vapid = Vapid(P256Key.generate(), CONTACT, Clock(0.0))
    headers = [
        vapid.authorization(f"https://{number}.example") for number in range(MAX_ORIGINS + 5)
    ]
    assert vapid.authorization(f"https://{MAX_ORIGINS + 4}.example") == headers[-1]
    assert vapid.authorization("https://0.example") != headers[0]  # it was signed again


def test_bad_key() -> None:
    with pytest.raises(CryptoError):
        Vapid.from_pem(b"nonsense", CONTACT)
