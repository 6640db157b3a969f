import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from heliograph.crypto.jwt import RsaKey, sign_jwt
from heliograph.crypto.p256 import P256Key
from heliograph.sim.providers.apns import ApnsRules, ApnsService, provider_key
from heliograph.sim.providers.simulator import Push, Wrong
from heliograph.wire.ntf.push import CheckMessagesPush, MessagePush, encode_apns
from heliograph.wire.primitives import b64encode
from tests.keys import fixed_p256_key
from tests.push.support import Clock
from tests.sim.support import changed, request

NOW = 1_700_000_000
KEY = fixed_p256_key("apns")
SERVICE = ApnsService(KEY, ApnsRules("topic", "key", "team", 4096), Clock(NOW))


def bearer(key: P256Key | RsaKey = KEY, kid: str = "key", **claims: Any) -> str:
    return f"bearer {sign_jwt(key, {'iss': 'team', 'iat': NOW, **claims}, kid=kid)}"


SILENT = request(
    "/3/device/00ff",
    {
        "authorization": bearer(),
        "apns-topic": "topic",
        "apns-push-type": "background",
        "apns-priority": "5",
    },
    encode_apns(CheckMessagesPush()),
)
LOUD = changed(
    SILENT,
    headers={"apns-push-type": "alert", "apns-priority": "10", "apns-expiration": "0"},
    body=encode_apns(MessagePush(bytes(24), b"box")),
)


@pytest.mark.parametrize("whole", [SILENT, LOUD])
def test_right(whole: Any) -> None:
    for _ in range(2):
        assert SERVICE.check(whole) == Push("00ff", whole.body.decode())


@pytest.mark.parametrize(
    ("values", "status", "reason"),
    [
        ({"method": "GET"}, 405, "MethodNotAllowed"),
        ({"path": "/4/device/00"}, 404, "BadPath"),
        ({"path": "/3/device/"}, 400, "MissingDeviceToken"),
        ({"path": "/3/device/0"}, 400, "BadDeviceToken"),
        ({"path": "/3/device/xy"}, 400, "BadDeviceToken"),
        ({"body": b""}, 400, "PayloadEmpty"),
        ({"body": b'{"aps":{"content-available":1}, "x": "' + b"x" * 4096}, 413, "PayloadTooLarge"),
        ({"body": b"{"}, 400, "BadMessage"),
        ({"body": b"[]"}, 400, "BadMessage"),
        ({"body": b'{"aps": 1}'}, 400, "BadMessage"),
        ({"body": LOUD.body}, 400, "InvalidPushType"),
        ({"body": b'{"aps":{"content-available":0}}'}, 400, "InvalidPushType"),
    ],
)
def test_wrong(values: dict[str, Any], status: int, reason: str) -> None:
    checked = SERVICE.check(changed(SILENT, **values))
    assert isinstance(checked, Wrong)
    assert (checked.status, checked.reason) == (status, reason)


@pytest.mark.parametrize(
    ("name", "value", "status", "reason"),
    [
        ("authorization", None, 403, "MissingProviderToken"),
        ("authorization", "basic x", 403, "MissingProviderToken"),
        ("authorization", "bearer ", 403, "MissingProviderToken"),
        ("authorization", "bearer nonsense", 403, "InvalidProviderToken"),
        ("authorization", bearer(P256Key.generate()), 403, "InvalidProviderToken"),
        ("authorization", bearer(RsaKey.generate()), 403, "InvalidProviderToken"),
        ("authorization", bearer(kid="other"), 403, "InvalidProviderToken"),
        ("authorization", bearer(iss="other"), 403, "InvalidProviderToken"),
        ("authorization", bearer(iss=1), 403, "InvalidProviderToken"),
        ("authorization", bearer(iat="1"), 403, "InvalidProviderToken"),
        ("authorization", bearer(iat=NOW + 1000), 403, "InvalidProviderToken"),
        ("authorization", bearer(iat=NOW - 3601), 403, "ExpiredProviderToken"),
        ("apns-topic", None, 400, "MissingTopic"),
        ("apns-topic", "other", 400, "TopicDisallowed"),
        ("apns-push-type", None, 400, "InvalidPushType"),
        ("apns-push-type", "voip", 400, "InvalidPushType"),
        ("apns-priority", "10", 400, "BadPriority"),
        ("apns-priority", None, 400, "BadPriority"),
        ("apns-priority", "7", 400, "BadPriority"),
        ("apns-expiration", "soon", 400, "BadExpirationDate"),
        ("apns-collapse-id", "é" * 33, 400, "BadCollapseId"),
    ],
)
def test_wrong_headers(name: str, value: str | None, status: int, reason: str) -> None:
    checked = SERVICE.check(changed(SILENT, headers={name: value}))
    assert checked == Wrong(status, reason, "00ff")


def test_signatures_are_not_der() -> None:
    """What the reference sends; JOSE wants r and s."""
    header, claims, _ = bearer().rsplit(".")
    signature = KEY.sign(f"{header.removeprefix('bearer ')}.{claims}".encode())
    der = encode_dss_signature(int.from_bytes(signature[:32]), int.from_bytes(signature[32:]))
    token = f"{header}.{claims}.{b64encode(der).rstrip('=')}"
    checked = SERVICE.check(changed(SILENT, headers={"authorization": token}))
    assert checked == Wrong(403, "InvalidProviderToken", "00ff")


def test_anybody_with_the_key() -> None:
    service = ApnsService(KEY, clock=Clock(NOW))
    whole = changed(SILENT, headers={"authorization": bearer(kid="x", iss="y"), "apns-topic": "z"})
    assert isinstance(service.check(whole), Push)


def test_few_tokens_are_remembered() -> None:
    service = ApnsService(KEY, clock=Clock(NOW))
    for number in range(150):
        whole = changed(SILENT, headers={"authorization": bearer(iat=NOW - number)})
        assert isinstance(service.check(whole), Push)
    assert len(service._known) <= 100  # memory that nothing else shows


def test_answers() -> None:
    assert SERVICE.accept().status == 200
    assert json.loads(SERVICE.reject(410, None).body) == {
        "reason": "Unregistered",
        "timestamp": NOW * 1000,
    }
    assert json.loads(SERVICE.reject(400, "Other").body) == {"reason": "Other"}
    assert json.loads(SERVICE.reject(418, None).body) == {"reason": "Unknown"}


def test_the_key_is_kept(tmp_path: Path) -> None:
    directory = tmp_path / "new"
    assert provider_key(directory).public == provider_key(directory).public
    assert (directory / "apns.p8").stat().st_mode & 0o077 == 0
