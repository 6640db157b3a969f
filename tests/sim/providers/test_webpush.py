from typing import Any

import pytest

from heliograph.crypto.jwt import sign_jwt
from heliograph.crypto.p256 import P256Key
from heliograph.crypto.webpush import encrypt
from heliograph.sim.providers.simulator import Push, Wrong
from heliograph.sim.providers.webpush import WebPushService
from heliograph.wire.primitives import b64encode
from tests.keys import fixed_p256_key
from tests.push.support import Clock
from tests.sim.support import changed, request

NOW = 1_700_000_000
KEY = fixed_p256_key("vapid")
BODY = encrypt(b"message", fixed_p256_key("device").public, bytes(16))


def vapid(key: P256Key = KEY, public: bytes | None = None, **claims: Any) -> str:
    whole = {"aud": "https://push.example", "exp": NOW + 3600, "sub": "mailto:a@b"}
    token = sign_jwt(key, {**whole, **claims})
    return f"vapid t={token}, k={b64encode(public or key.public).rstrip('=')}"


WHOLE = request(
    "/push/some/name",
    {
        ":authority": "push.example",
        "authorization": vapid(),
        "ttl": "60",
        "content-encoding": "aes128gcm",
    },
    BODY,
)


@pytest.fixture
def service() -> WebPushService:
    return WebPushService(Clock(NOW))


def test_right(service: WebPushService) -> None:
    assert service.check(WHOLE) == Push("some/name", b64encode(BODY))
    more = {"urgency": "high", "topic": "abc_-"}
    assert isinstance(service.check(changed(WHOLE, headers=more)), Push)


@pytest.mark.parametrize(
    ("values", "status", "reason"),
    [
        ({"method": "GET"}, 405, "MethodNotAllowed"),
        ({"path": "/push/"}, 404, "NotFound"),
        ({"path": "/other"}, 404, "NotFound"),
        ({"body": b""}, 400, "BadBody"),
        ({"body": BODY[:90]}, 400, "BadBody"),
        ({"body": BODY + bytes(4096)}, 413, "PayloadTooLarge"),
    ],
)
def test_wrong(service: WebPushService, values: dict[str, Any], status: int, reason: str) -> None:
    checked = service.check(changed(WHOLE, **values))
    assert isinstance(checked, Wrong)
    assert (checked.status, checked.reason) == (status, reason)


@pytest.mark.parametrize(
    ("name", "value", "status", "reason"),
    [
        ("authorization", None, 401, "MissingVapid"),
        ("authorization", "bearer x", 401, "MissingVapid"),
        ("authorization", "vapid t=a.b.c, k=AAAA", 403, "InvalidVapid"),
        ("authorization", vapid(public=P256Key.generate().public), 403, "InvalidVapid"),
        ("authorization", vapid(public=b"short"), 403, "InvalidVapid"),
        ("authorization", vapid(aud="https://other.example"), 403, "InvalidVapid"),
        ("authorization", vapid(exp=NOW), 403, "InvalidVapid"),
        ("authorization", vapid(exp=NOW + 24 * 3600 + 1), 403, "InvalidVapid"),
        ("authorization", vapid(exp="soon"), 403, "InvalidVapid"),
        ("authorization", vapid(sub=None), 403, "InvalidVapid"),
        ("ttl", None, 400, "BadTtl"),
        ("ttl", "-1", 400, "BadTtl"),
        ("urgency", "now", 400, "BadUrgency"),
        ("topic", "a" * 33, 400, "BadTopic"),
        ("topic", "a b", 400, "BadTopic"),
        ("content-encoding", None, 415, "BadEncoding"),
        ("content-encoding", "aesgcm", 415, "BadEncoding"),
    ],
)
def test_wrong_headers(
    service: WebPushService, name: str, value: str | None, status: int, reason: str
) -> None:
    checked = service.check(changed(WHOLE, headers={name: value}))
    assert checked == Wrong(status, reason, "some/name")


def test_subscriptions_are_bound_to_their_first_key(service: WebPushService) -> None:
    other = {"authorization": vapid(P256Key.generate())}
    assert isinstance(service.check(WHOLE), Push)
    assert service.check(changed(WHOLE, headers=other)) == Wrong(
        403, "VapidKeyMismatch", "some/name"
    )
    assert isinstance(service.check(changed(WHOLE, path="/push/other", headers=other)), Push)


def test_answers(service: WebPushService) -> None:
    assert service.accept().status == 201
    assert service.reject(410, None).body == b"Gone"
    assert service.reject(400, "Other").body == b"Other"
    assert service.reject(307, None).headers["location"] == "/push/elsewhere"
