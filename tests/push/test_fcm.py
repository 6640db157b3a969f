import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heliograph.crypto.jwt import RsaKey
from heliograph.crypto.p256 import P256Key
from heliograph.push.fcm import (
    MAX_TTL,
    MIN_INTERVAL,
    RENEW_BEFORE,
    FcmConfig,
    FcmProvider,
    ServiceAccountError,
)
from heliograph.push.http import HttpSettings
from heliograph.push.provider import (
    Accepted,
    DeviceTokenInvalid,
    Misconfigured,
    PushOutcome,
    RetryLater,
)
from heliograph.sim.providers.fcm import ACCOUNT_FILE, TOKEN_LIFETIME, FcmService
from heliograph.sim.providers.http2 import HttpReply
from heliograph.sim.providers.simulator import Simulator
from heliograph.wire.ntf.push import (
    FCM_PUSH_SIZE,
    CheckMessagesPush,
    MessagePush,
    Push,
    VerificationPush,
    decode_push,
)
from heliograph.wire.ntf.tokens import (
    APNSDeviceToken,
    FcmDeviceToken,
    InvalidReason,
    PushProvider,
)
from tests.keys import fixed_rsa_key
from tests.push.support import (
    CHECK,
    NONCE,
    Clock,
    closing,
    delivery,
    play,
    running,
    says_nothing,
    send_many,
)
from tests.waiting import until

KEY = fixed_rsa_key()
pytestmark = pytest.mark.usefixtures("http_client")
TOKEN = "cX1:APA91b-secret"
DEVICE = FcmDeviceToken(TOKEN)
BOX = bytes(FCM_PUSH_SIZE + 16)


@pytest.fixture(autouse=True)
def _no_secrets(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield from says_nothing(caplog, TOKEN, "ya29.", "Bearer", "PRIVATE KEY")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def fcm(tmp_path: Path, clock: Clock) -> AsyncIterator[Simulator]:
    async with running(FcmService(KEY, clock), tmp_path) as simulator:
        yield simulator


def config(simulator: Simulator, **http: Any) -> FcmConfig:
    directory = simulator.authority.file.parent
    settings = HttpSettings(ca=simulator.authority.file.read_bytes(), **http)
    account = (directory / ACCOUNT_FILE).read_bytes()
    return FcmConfig(account, simulator.url + "/", http=settings)


@pytest.fixture
async def provider(fcm: Simulator, clock: Clock) -> AsyncIterator[FcmProvider]:
    provider = FcmProvider(config(fcm), clock)
    async with closing(provider):
        yield provider


def service(simulator: Simulator) -> FcmService:
    assert isinstance(simulator.service, FcmService)
    return simulator.service


@pytest.mark.parametrize(
    ("push", "priority"),
    [
        (MessagePush(NONCE, BOX), "HIGH"),
        (VerificationPush(NONCE, BOX), "NORMAL"),
        (CheckMessagesPush(), "NORMAL"),
    ],
)
async def test_request(
    fcm: Simulator, provider: FcmProvider, clock: Clock, push: Push, priority: str
) -> None:
    expires_at = int(clock.now) + 90
    outcome = await provider.send(delivery(DEVICE, push, expires_at=expires_at, collapse_id="c"))
    assert isinstance(outcome, Accepted)
    assert outcome.provider_id is not None
    assert outcome.provider_id.startswith("0:")
    [entry] = fcm.record.select()
    assert entry.token == TOKEN
    message = json.loads(entry.body)
    assert message["android"] == {"priority": priority, "ttl": "90s", "collapse_key": "c"}
    assert decode_push(json.dumps(message["data"]).encode()) == push


@pytest.mark.parametrize(("expires_in", "ttl"), [(-5, 0), (10**9, MAX_TTL)])
async def test_ttl(
    fcm: Simulator, provider: FcmProvider, clock: Clock, expires_in: int, ttl: int
) -> None:
    await provider.send(delivery(DEVICE, CHECK, expires_at=int(clock.now) + expires_in))
    [entry] = fcm.record.select()
    assert json.loads(entry.body)["android"] == {"priority": "NORMAL", "ttl": f"{ttl}s"}


async def test_too_large(provider: FcmProvider) -> None:
    """It is not the token's fault."""
    outcome = await provider.send(delivery(DEVICE, MessagePush(NONCE, bytes(3088))))
    assert outcome == Misconfigured("INVALID_ARGUMENT")


async def test_devices_of_others(provider: FcmProvider) -> None:
    other = APNSDeviceToken(PushProvider.APNS_PROD, b"00")
    assert await provider.send(delivery(other)) == Misconfigured("NoSuchProvider")


@pytest.mark.parametrize(
    ("status", "reason", "outcome"),
    [
        (404, "UNREGISTERED", DeviceTokenInvalid(InvalidReason.UNREGISTERED)),
        (403, "SENDER_ID_MISMATCH", DeviceTokenInvalid(InvalidReason.TOPIC)),
        (400, "INVALID_ARGUMENT", DeviceTokenInvalid(InvalidReason.BAD)),
        (400, "message.token", DeviceTokenInvalid(InvalidReason.BAD)),
        (400, "message.data", Misconfigured("INVALID_ARGUMENT")),
        (401, "THIRD_PARTY_AUTH_ERROR", Misconfigured("THIRD_PARTY_AUTH_ERROR")),
        (403, "PERMISSION_DENIED", Misconfigured("PERMISSION_DENIED")),
        (404, "NOT_FOUND", Misconfigured("NOT_FOUND")),
        (429, "QUOTA_EXCEEDED", RetryLater(None, "QUOTA_EXCEEDED")),
        (500, "INTERNAL", RetryLater(None, "INTERNAL")),
        (503, "UNAVAILABLE", RetryLater(None, "UNAVAILABLE")),
        (503, f"a secret {TOKEN}", RetryLater(None, "HTTP-503")),
    ],
)
async def test_answers(
    fcm: Simulator, provider: FcmProvider, status: int, reason: str, outcome: PushOutcome
) -> None:
    play(fcm, {"status": status, "reason": reason})
    found = await provider.send(delivery(DEVICE, CHECK))
    assert (found, found.code) == (outcome, status)


@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after(fcm: Simulator, provider: FcmProvider, status: int) -> None:
    play(fcm, {"status": status, "retry_after": 11})
    outcome = await provider.send(delivery(DEVICE, CHECK))
    assert isinstance(outcome, RetryLater)
    assert outcome.after == 11.0


def bad_request(violations: bytes) -> bytes:
    detail = b'{"@type": "x/google.rpc.BadRequest", "fieldViolations": ' + violations + b"}"
    return b'{"error": {"status": "INVALID_ARGUMENT", "details": [' + detail + b"]}}"


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"[]", b'{"error": 1}', b'{"error": {"details": 1}}'),
        b'{"error": {"details": [1, {"@type": "x/google.firebase.fcm.v1.FcmError"}]}}',
        bad_request(b"1"),
        bad_request(b'[1, {"field": "message.data"}]'),
    ],
)
async def test_answers_that_make_no_sense(
    fcm: Simulator, provider: FcmProvider, body: bytes
) -> None:
    fcm.service.reject = lambda *args: HttpReply(400, body=body)  # type: ignore[method-assign]
    play(fcm, {"status": 400})
    assert await provider.send(delivery(DEVICE, CHECK)) in (
        Misconfigured("HTTP-400"),
        Misconfigured("INVALID_ARGUMENT"),
    )


async def test_accepted_without_a_name(fcm: Simulator, provider: FcmProvider) -> None:
    fcm.service.accept = lambda: HttpReply(200, body=b"{}")  # type: ignore[method-assign]
    assert await provider.send(delivery(DEVICE, CHECK)) == Accepted(None)


# Access tokens


async def test_one_token_for_all(fcm: Simulator, provider: FcmProvider) -> None:
    outcomes = await send_many(provider, [delivery(DEVICE, CHECK)] * 50)
    assert {type(outcome) for outcome in outcomes} == {Accepted}
    assert len(service(fcm).tokens) == 1


async def test_tokens_are_replaced_before_they_end(
    fcm: Simulator, provider: FcmProvider, clock: Clock
) -> None:
    for passed, tokens in ((0.0, 1), (TOKEN_LIFETIME - RENEW_BEFORE - 1.0, 1), (2.0, 2)):
        clock.now += passed
        assert isinstance(await provider.send(delivery(DEVICE, CHECK)), Accepted)
        assert len(service(fcm).tokens) == tokens


async def test_a_token_that_is_not_taken(
    fcm: Simulator, provider: FcmProvider, clock: Clock
) -> None:
    await provider.send(delivery(DEVICE, CHECK))
    service(fcm).tokens.clear()
    outcomes = await send_many(provider, [delivery(DEVICE, CHECK)] * 20)
    assert {type(outcome) for outcome in outcomes} == {Accepted}
    assert len(service(fcm).tokens) == 1
    service(fcm).tokens.clear()
    assert await provider.send(delivery(DEVICE, CHECK)) == Misconfigured("UNAUTHENTICATED")
    assert len(service(fcm).tokens) == 0
    clock.now += MIN_INTERVAL
    assert isinstance(await provider.send(delivery(DEVICE, CHECK)), Accepted)


def reply_to_exchange(simulator: Simulator, *replies: HttpReply) -> None:
    exchange = service(simulator).exchange
    left = list(replies)
    service(simulator).exchange = lambda body: left.pop(0) if left else exchange(body)  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        (HttpReply(400, body=b'{"error": "invalid_grant"}'), Misconfigured("invalid_grant")),
        (HttpReply(403, body=b"nonsense"), Misconfigured("HTTP-403")),
        (HttpReply(200, body=b'{"access_token": 1}'), Misconfigured("HTTP-200")),
        (
            HttpReply(200, body=b'{"access_token": "a\\r\\nb: c", "expires_in": 3600}'),
            Misconfigured("HTTP-200"),
        ),
        (HttpReply(429), RetryLater(None, "HTTP-429")),
        (HttpReply(503, {"retry-after": "5"}), RetryLater(5.0, "HTTP-503")),
    ],
)
async def test_no_access_token(
    fcm: Simulator, provider: FcmProvider, reply: HttpReply, outcome: PushOutcome
) -> None:
    reply_to_exchange(fcm, reply)
    outcomes = await send_many(provider, [delivery(DEVICE, CHECK)] * 5)
    assert outcomes == [outcome] * 5
    assert isinstance(await provider.send(delivery(DEVICE, CHECK)), Accepted)
    service(fcm).tokens.clear()
    reply_to_exchange(fcm, reply)
    assert await provider.send(delivery(DEVICE, CHECK)) == outcome


async def test_nobody_gives_access_tokens(fcm: Simulator, clock: Clock) -> None:
    settings = replace(config(fcm), token_url="https://127.0.0.1:1/token")
    async with closing(FcmProvider(settings, clock)) as provider:
        outcomes = await send_many(provider, [delivery(DEVICE, CHECK)] * 5)
    assert outcomes == [RetryLater(None, "ConnectFailed", connection=True)] * 5


@pytest.mark.parametrize("behind", [-3700, 3700])
async def test_a_wrong_clock(fcm: Simulator, clock: Clock, behind: float) -> None:
    async with closing(FcmProvider(config(fcm), Clock(clock.now - behind))) as provider:
        assert await provider.send(delivery(DEVICE, CHECK)) == Misconfigured("invalid_grant")


async def test_another_key(fcm: Simulator) -> None:
    account = json.loads(config(fcm).service_account)
    account["private_key"] = RsaKey.generate().to_pem().decode()
    settings = replace(config(fcm), service_account=json.dumps(account).encode())
    async with closing(FcmProvider(settings)) as provider:
        assert await provider.send(delivery(DEVICE, CHECK)) == Misconfigured("invalid_grant")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"private_key": "nonsense"}, "private_key"),
        ({"private_key": P256Key.generate().to_pem().decode()}, "not an RSA"),
        ({"project_id": None}, "project_id"),
        ({"token_uri": 1}, "token_uri"),
    ],
)
def test_bad_service_accounts(fcm: Simulator, change: dict[str, Any], text: str) -> None:
    account = {**json.loads(config(fcm).service_account), **change}
    with pytest.raises(ServiceAccountError, match=text) as caught:
        FcmProvider(FcmConfig(json.dumps(account).encode()))
    assert "PRIVATE" not in str(caught.value)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"1"])
def test_not_a_service_account(text: bytes) -> None:
    with pytest.raises(ServiceAccountError):
        FcmProvider(FcmConfig(text))


# Connections


async def test_200_in_flight_with_goaway(fcm: Simulator, provider: FcmProvider) -> None:
    play(fcm, {"every": 50, "do": "goaway", "status": 200, "times": 2}, {"delay": 0.05})
    items = [delivery(FcmDeviceToken(f"t{number}"), CHECK) for number in range(200)]
    outcomes = await send_many(provider, items)
    assert {type(outcome) for outcome in outcomes} == {Accepted}


async def test_reset(fcm: Simulator, provider: FcmProvider) -> None:
    play(fcm, {"do": "reset", "times": 1})
    outcome = await provider.send(delivery(DEVICE, CHECK))
    assert isinstance(outcome, RetryLater)
    assert outcome.connection
    await provider.refresh()
    assert isinstance(await provider.send(delivery(DEVICE, CHECK)), Accepted)


async def test_close(fcm: Simulator, provider: FcmProvider) -> None:
    play(fcm, {"do": "silence"})
    sending = asyncio.create_task(provider.send(delivery(DEVICE, CHECK)))
    await until(lambda: len(fcm.record))
    await provider.close()
    assert await sending == RetryLater(None, "Closed", connection=True)
    assert await provider.send(delivery(DEVICE, CHECK)) == RetryLater(None, "Closed")


async def test_cancellation_leaves_the_others_their_access_token(
    fcm: Simulator, provider: FcmProvider
) -> None:
    exchange = service(fcm).exchange
    service(fcm).exchange = lambda body: replace(exchange(body), delay=0.1)  # type: ignore[method-assign]
    one, two = (asyncio.create_task(provider.send(delivery(DEVICE, CHECK))) for _ in range(2))
    await asyncio.sleep(0.05)
    one.cancel()
    assert isinstance(await two, Accepted)
    with pytest.raises(asyncio.CancelledError):
        await one


def test_nothing_shows_secrets(fcm: Simulator) -> None:
    shown = repr(config(fcm)) + repr(delivery(DEVICE))
    assert TOKEN not in shown
    assert "PRIVATE" not in shown
