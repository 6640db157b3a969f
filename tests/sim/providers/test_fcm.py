import json
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from heliograph.crypto.jwt import RsaKey, sign_jwt
from heliograph.crypto.p256 import P256Key
from heliograph.sim.providers.fcm import (
    EMAIL,
    GRANT,
    KEY_ID,
    PROJECT,
    SCOPE,
    FcmService,
    account_key,
)
from heliograph.sim.providers.http2 import HttpReply
from heliograph.sim.providers.simulator import Push, Wrong
from tests.keys import fixed_rsa_key
from tests.push.support import Clock
from tests.sim.support import changed, request

NOW = 1_700_000_000
URL = "https://127.0.0.1:1"
KEY = fixed_rsa_key()
MESSAGE = {
    "token": "device",
    "data": {"checkMessages": "true"},
    "android": {"priority": "HIGH", "ttl": "5s"},
}


@pytest.fixture
def service(tmp_path: Path) -> FcmService:
    service = FcmService(KEY, Clock(NOW))
    service.set_url(URL, tmp_path)
    service.tokens["access"] = NOW + 10
    return service


def form(key: Any = KEY, *, grant: str = GRANT, kid: str = KEY_ID, **claims: Any) -> bytes:
    whole = {"iss": EMAIL, "scope": SCOPE, "aud": f"{URL}/token", "iat": NOW, "exp": NOW + 3600}
    assertion = sign_jwt(key, {**whole, **claims}, kid=kid)
    return urlencode({"grant_type": grant, "assertion": assertion}).encode()


def send(message: object, access: str = "access") -> Any:
    body = json.dumps({"message": message}).encode()
    headers = {"authorization": f"Bearer {access}"}
    return request(f"/v1/projects/{PROJECT}/messages:send", headers, body)


def test_exchange(service: FcmService) -> None:
    reply = service.check(request("/token", {}, form()))
    assert isinstance(reply, HttpReply)
    body = json.loads(reply.body)
    assert service.check(send(MESSAGE, body["access_token"])) == Push("device", json.dumps(MESSAGE))


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"assertion=x", urlencode({"grant_type": GRANT}).encode()),
        urlencode({"grant_type": GRANT, "assertion": "nonsense"}).encode(),
        *(form(grant="password"), form(kid="other"), form(iss="other"), form(scope="other")),
        *(form(aud="other"), form(iat=NOW + 1000), form(exp=NOW), form(exp=NOW + 3601)),
        *(form(iat="1"), form(RsaKey.generate()), form(P256Key.generate())),
    ],
)
def test_exchange_refused(service: FcmService, body: bytes) -> None:
    reply = service.check(request("/token", {}, body))
    assert isinstance(reply, HttpReply)
    assert reply.status == 400
    assert len(service.tokens) == 1


@pytest.mark.parametrize(
    ("values", "status", "reason"),
    [
        ({"method": "GET"}, 405, "METHOD_NOT_ALLOWED"),
        ({"path": "/v1/projects/other/messages:send"}, 404, "NO_SUCH_PROJECT"),
        ({"headers": {"authorization": None}}, 401, "UNAUTHENTICATED"),
        ({"headers": {"authorization": "Basic access"}}, 401, "UNAUTHENTICATED"),
        ({"headers": {"authorization": "Bearer other"}}, 401, "UNAUTHENTICATED"),
        ({"body": b"{"}, 400, "message"),
        ({"body": b"[]"}, 400, "message"),
        ({"body": b"{}"}, 400, "message"),
    ],
)
def test_wrong(service: FcmService, values: dict[str, Any], status: int, reason: str) -> None:
    assert service.check(changed(send(MESSAGE), **values)) == Wrong(status, reason)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"token": None}, "message.token"),
        ({"token": ""}, "message.token"),
        ({"topic": "x"}, "message"),
        ({"data": None}, "message.data"),
        ({"data": {"a": 1}}, "message.data"),
        ({"data": {"a": "x" * 4096}}, "message.data"),
        ({"data": {"from": "x"}}, "message.data"),
        ({"data": {"google.x": "x"}}, "message.data"),
        ({"android": None}, "message.android"),
        ({"android": {"priority": "high", "ttl": "5s"}}, "message.android.priority"),
        ({"android": {"priority": "HIGH", "ttl": "5"}}, "message.android.ttl"),
        ({"android": {"priority": "HIGH"}}, "message.android.ttl"),
    ],
)
def test_wrong_messages(service: FcmService, change: dict[str, Any], field: str) -> None:
    checked = service.check(send({**MESSAGE, **change}))
    assert isinstance(checked, Wrong)
    assert (checked.status, checked.reason) == (400, field)
    assert service.check(send([])) == Wrong(400, "message")


def test_access_ends(service: FcmService) -> None:
    service.tokens["access"] = NOW
    assert service.check(send(MESSAGE)) == Wrong(401, "UNAUTHENTICATED")


@pytest.mark.parametrize(
    ("status", "reason", "code"),
    [
        (404, None, "UNREGISTERED"),
        (503, None, "UNAVAILABLE"),
        (429, "OTHER", "OTHER"),
    ],
)
def test_answers(service: FcmService, status: int, reason: str | None, code: str) -> None:
    error = json.loads(service.reject(status, reason).body)["error"]
    assert error["details"][0]["errorCode"] == code
    assert json.loads(service.accept().body)["name"].startswith(f"projects/{PROJECT}/")


def test_answers_without_code(service: FcmService) -> None:
    assert "details" not in json.loads(service.reject(401, None).body)["error"]


def test_the_key_is_kept(tmp_path: Path) -> None:
    directory = tmp_path / "new"
    key = account_key(directory)
    FcmService(key).set_url(URL, directory)
    assert account_key(directory).to_pem() == key.to_pem()
