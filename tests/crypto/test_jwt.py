import base64
import json

import pytest

from heliograph.crypto.errors import CryptoError
from heliograph.crypto.jwt import RsaKey, parse_jwt, sign_jwt, sign_repeatably
from heliograph.crypto.p256 import P256Key
from heliograph.wire.primitives import b64decode
from tests.crypto.test_p256 import KEY
from tests.keys import fixed_rsa_key

RSA = fixed_rsa_key()

# RFC 7515, appendix A.3
RFC_7515 = (
    "eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFt"
    "cGxlLmNvbS9pc19yb290Ijp0cnVlfQ.DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8IS"
    "lSApmWQxfKTUJqPP3-Kg6NU1Q"
)
RFC_7515_KEY = (
    b"\x04"
    + b64decode("f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU")
    + b64decode("x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0")
)
# RFC 8292, section 2.4
RFC_8292 = (
    "eyJ0eXAiOiJKV1QiLCJhbGciOiJFUzI1NiJ9.eyJhdWQiOiJodHRwczovL3B1c2guZXhhbXBsZS5uZXQiLCJleHAiOjE0"
    "NTM1MjM3NjgsInN1YiI6Im1haWx0bzpwdXNoQGV4YW1wbGUuY29tIn0.i3CYb7t4xfxCDquptFOepC9GAu_HLGkMlMuC"
    "GSK2rpiUfnK9ojFwDXb1JrErtmysazNjjvW2L9OkSSHzvoD1oA"
)
RFC_8292_KEY = b64decode(
    "BA1Hxzyi1RUM1b5wjxsn7nGxAszw2u61m164i3MrAIxHF6YK5h4SDYic-dRuU_RCPCfA5aq9ojSwk5Y2EmClBPs"
)


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def test_rfc_7515() -> None:
    jwt = parse_jwt(RFC_7515)
    assert jwt.claims["iss"] == "joe"
    assert jwt.is_from(RFC_7515_KEY)
    assert not jwt.is_from(KEY.public)


def test_rfc_8292() -> None:
    jwt = parse_jwt(RFC_8292)
    assert jwt.claims == {
        "aud": "https://push.example.net",
        "exp": 1453523768,
        "sub": "mailto:push@example.com",
    }
    assert jwt.is_from(RFC_8292_KEY)


def test_es256() -> None:
    text = sign_jwt(KEY, {"iss": "team", "iat": 1}, kid="key")
    jwt = parse_jwt(text)
    assert jwt.header == {"alg": "ES256", "kid": "key"}
    assert jwt.claims == {"iss": "team", "iat": 1}
    assert "=" not in text
    assert jwt.is_from(KEY.public)
    assert not jwt.is_from(P256Key.generate().public)
    assert not jwt.is_from_rsa(RSA)


def test_rs256() -> None:
    jwt = parse_jwt(sign_jwt(RSA, {"iss": "account"}, typ="JWT", kid="1"))
    assert jwt.header == {"alg": "RS256", "typ": "JWT", "kid": "1"}
    assert jwt.is_from_rsa(RSA)
    assert jwt.is_from_rsa(RsaKey.from_pem(RSA.to_pem()))
    assert not jwt.is_from_rsa(RsaKey.generate())
    assert not jwt.is_from(KEY.public)


def test_no_algorithm_is_no_signature() -> None:
    claims = b64(b"{}")
    for algorithm in ("none", "HS256"):
        text = f"{b64(json.dumps({'alg': algorithm}).encode())}.{claims}.{b64(bytes(64))}"
        assert not parse_jwt(text).is_from(KEY.public)
        assert not parse_jwt(text).is_from_rsa(RSA)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a.b",
        "a.b.c.d",
        "!.!.!",
        f"{b64(b'{}')}.{b64(b'{}')}.",
        f"{b64(b'[]')}.{b64(b'{}')}.AAAA",
        f"{b64(b'{}')}.{b64(b'1')}.AAAA",
        f"{b64(b'{')}.{b64(b'{}')}.AAAA",
        f"{b64(b'[' * 100_000)}.{b64(b'{}')}.AAAA",
        f"{b64(bytes([255]))}.{b64(b'{}')}.AAAA",
    ],
)
def test_malformed(text: str) -> None:
    with pytest.raises(CryptoError):
        parse_jwt(text)


@pytest.mark.parametrize("pem", [b"", b"nonsense", KEY.to_pem()])
def test_not_an_rsa_key(pem: bytes) -> None:
    with pytest.raises(CryptoError):
        RsaKey.from_pem(pem)


def test_a_token_that_is_the_same_everywhere() -> None:
    key = P256Key.generate()
    copy = P256Key.from_pem(key.to_pem())
    one, other = (sign_repeatably(each, {"iat": 5}, kid="k") for each in (key, copy))
    assert one == other
    assert parse_jwt(one).is_from(key.public)
    assert sign_repeatably(key, {"iat": 6}, kid="k") != one
