import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from heliograph.crypto.webpush import decrypt
from heliograph.push.http import HttpSettings
from heliograph.push.provider import (
    Accepted,
    Delivery,
    DeviceTokenInvalid,
    Misconfigured,
    RetryLater,
)
from heliograph.push.vapid import generate_vapid_key
from heliograph.push.webpush import MAX_TTL, WebPushConfig, WebPushProvider, _origin
from heliograph.sim.providers.simulator import Simulator
from heliograph.sim.providers.webpush import WebPushService
from heliograph.wire.ntf.push import WEB_PUSH_SIZE, MessagePush, Push, VerificationPush, decode_push
from heliograph.wire.ntf.tokens import (
    APNSDeviceToken,
    DeviceToken,
    InvalidReason,
    PushProvider,
    WPDeviceToken,
)
from heliograph.wire.primitives import b64decode
from tests.keys import fixed_p256_key
from tests.push import support
from tests.push.support import (
    CHECK,
    NONCE,
    Clock,
    closing,
    play,
    running,
    says_nothing,
    send_many,
)
from tests.waiting import until

BOX = bytes(WEB_PUSH_SIZE + 16)
MESSAGE, VERIFICATION = MessagePush(NONCE, BOX), VerificationPush(NONCE, BOX)
DEVICE_KEY = fixed_p256_key("device")
AUTH = bytes(range(16))
VAPID_KEY = fixed_p256_key("vapid").to_pem()
NAME = "secret-subscription"


@pytest.fixture(autouse=True)
def _no_secrets(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield from says_nothing(caplog, NAME, "vapid t=", "PRIVATE KEY")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def service(tmp_path: Path, clock: Clock) -> AsyncIterator[Simulator]:
    async with running(WebPushService(clock), tmp_path) as simulator:
        yield simulator


def delivery(to: DeviceToken, push: Push = MESSAGE, **values: Any) -> Delivery:
    return support.delivery(to, push, **values)


def config(simulator: Simulator, **http: Any) -> WebPushConfig:
    ca = simulator.authority.file.read_bytes()
    settings = HttpSettings(connections=1, http2_only=False, ca=ca, **http)
    return WebPushConfig(VAPID_KEY, "mailto:ops@example.com", allow_private=True, http=settings)


@pytest.fixture
async def provider(service: Simulator, clock: Clock) -> AsyncIterator[WebPushProvider]:
    provider = WebPushProvider(config(service), clock)
    async with closing(provider):
        yield provider


def device(simulator: Simulator, name: str = NAME, **values: Any) -> WPDeviceToken:
    host, _, port = simulator.url.removeprefix("https://").partition(":")
    token = WPDeviceToken(host, port, f"/push/{name}", AUTH, DEVICE_KEY.public)
    return replace(token, **values)


@pytest.mark.parametrize(
    ("push", "urgency"), [(MESSAGE, "high"), (VERIFICATION, "normal"), (CHECK, "normal")]
)
async def test_request(
    service: Simulator, provider: WebPushProvider, clock: Clock, push: Push, urgency: str
) -> None:
    """The device can open it, and its size fits."""
    expires_at = int(clock.now) + 600
    item = delivery(device(service), push, expires_at=expires_at, collapse_id="topic")
    assert await provider.send(item) == Accepted()
    [entry] = service.record.select()
    assert entry.token == NAME
    body = b64decode(entry.body)
    assert len(body) <= 4096
    assert decode_push(decrypt(body, DEVICE_KEY, AUTH)) == push
    wanted = {
        "ttl": "600",
        "urgency": urgency,
        "topic": "topic",
        "content-encoding": "aes128gcm",
    }
    assert wanted.items() <= entry.headers.items()


@pytest.mark.parametrize(("expires_in", "ttl"), [(-5, 0), (10**9, MAX_TTL)])
async def test_ttl(
    service: Simulator, provider: WebPushProvider, clock: Clock, expires_in: int, ttl: int
) -> None:
    expires_at = int(clock.now) + expires_in
    await provider.send(delivery(device(service), expires_at=expires_at))
    [entry] = service.record.select()
    assert entry.headers["ttl"] == str(ttl)
    assert "topic" not in entry.headers


async def test_topics_are_shortened(service: Simulator, provider: WebPushProvider) -> None:
    assert await provider.send(delivery(device(service), collapse_id="é" * 40)) == Accepted()


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (200, Accepted()),
        (201, Accepted()),
        (202, Accepted()),
        (404, DeviceTokenInvalid(InvalidReason.UNREGISTERED)),
        (410, DeviceTokenInvalid(InvalidReason.UNREGISTERED)),
        (400, Misconfigured("BadRequest")),
        (401, Misconfigured("Unauthorized")),
        (403, Misconfigured("Forbidden")),
        (413, Misconfigured("PayloadTooLarge")),
        (418, Misconfigured("HTTP-418")),
        (429, RetryLater(None, "TooManyRequests")),
        (500, RetryLater(None, "HTTP-500")),
        (503, RetryLater(None, "HTTP-503")),
        (301, Misconfigured("HTTP-301")),
        (307, Misconfigured("HTTP-307")),
    ],
)
async def test_answers(
    service: Simulator, provider: WebPushProvider, status: int, outcome: object
) -> None:
    play(service, {"status": status, "reason": f"text with {NAME}"})
    found = await provider.send(delivery(device(service)))
    assert found == outcome
    assert found.code == (status if status > 202 else 201)  # it says Created, as RFC 8030 has it
    assert len(service.record) == 1  # no redirect was followed


@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after(service: Simulator, provider: WebPushProvider, status: int) -> None:
    play(service, {"status": status, "retry_after": 30})
    outcome = await provider.send(delivery(device(service)))
    assert isinstance(outcome, RetryLater)
    assert outcome.after == 30.0
    assert not outcome.connection


async def test_hosts_in_capitals(service: Simulator, provider: WebPushProvider) -> None:
    """wreq would resolve them by itself: the pin is for lower case."""
    assert await provider.send(delivery(device(service, host="LocalHost"))) == Accepted()


# VAPID


async def test_a_subscription_of_another_key(service: Simulator, provider: WebPushProvider) -> None:
    assert await provider.send(delivery(device(service))) == Accepted()
    other = replace(config(service), vapid_key=generate_vapid_key())
    async with closing(WebPushProvider(other)) as stranger:
        assert await stranger.send(delivery(device(service))) == Misconfigured("Forbidden")
    assert service.record.select()[-1].reason == "VapidKeyMismatch"


@pytest.mark.parametrize("behind", [24 * 3600, -24 * 3600])
async def test_a_wrong_clock(service: Simulator, clock: Clock, behind: float) -> None:
    async with closing(WebPushProvider(config(service), Clock(clock.now - behind))) as provider:
        assert await provider.send(delivery(device(service))) == Misconfigured("Forbidden")


async def test_a_bad_contact(service: Simulator, clock: Clock) -> None:
    settings = replace(config(service), contact="nobody")
    async with closing(WebPushProvider(settings, clock)) as provider:
        assert await provider.send(delivery(device(service))) == Misconfigured("Forbidden")


@pytest.mark.parametrize(
    ("host", "port", "origin"),
    [
        ("push.example", "", "https://push.example"),
        ("push.example", "443", "https://push.example"),
        ("push.example", "0443", "https://push.example"),
        ("push.example", "8443", "https://push.example:8443"),
    ],
)
def test_origin(host: str, port: str, origin: str) -> None:
    assert _origin(WPDeviceToken(host, port, "/", AUTH, DEVICE_KEY.public)) == origin


# Tokens


async def test_devices_of_others(provider: WebPushProvider) -> None:
    other = APNSDeviceToken(PushProvider.APNS_PROD, b"00")
    assert await provider.send(delivery(other)) == Misconfigured("NoSuchProvider")


@pytest.mark.parametrize(
    "values", [{"p256dh": b"\x04" + bytes(64)}, {"port": "0"}, {"port": "65536"}]
)
async def test_bad_tokens(
    service: Simulator, provider: WebPushProvider, values: dict[str, Any]
) -> None:
    outcome = await provider.send(delivery(device(service, **values)))
    assert outcome == DeviceTokenInvalid(InvalidReason.BAD)


async def test_too_large(service: Simulator, provider: WebPushProvider) -> None:
    push = MessagePush(NONCE, bytes(4096))
    assert await provider.send(delivery(device(service), push)) == Misconfigured("PayloadTooLarge")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.1"])
async def test_private_endpoints_are_refused(service: Simulator, host: str) -> None:
    settings = replace(config(service), allow_private=False)
    async with closing(WebPushProvider(settings)) as provider:
        outcome = await provider.send(delivery(device(service, host=host)))
    assert outcome == Misconfigured("PrivateAddress")
    assert service.stats()["connections"] == 0


async def test_a_name_cannot_be_rebound(service: Simulator) -> None:
    """Public when it is checked, and the loopback when asked again."""
    found = iter(["203.0.114.1", "127.0.0.1"])
    asked = 0

    async def resolver(host: str) -> list[Any]:
        nonlocal asked
        asked += 1
        return [ip_address(next(found))]

    settings = replace(config(service, connect_timeout=0.2, timeout=0.3), allow_private=False)
    async with closing(WebPushProvider(settings, resolver=resolver)) as provider:
        item = delivery(device(service, host="localhost"))
        for _ in range(2):
            assert isinstance(await provider.send(item), RetryLater)
            await provider.refresh()
    assert asked == 1
    assert service.stats()["connections"] == 0


async def test_unknown_names(service: Simulator, provider: WebPushProvider) -> None:
    outcome = await provider.send(delivery(device(service, host="a" * 64 + ".example")))
    assert outcome == RetryLater(None, "NameNotResolved", connection=True)


# Connections


async def test_200_in_flight(service: Simulator, provider: WebPushProvider) -> None:
    assert await provider.send(delivery(device(service, "first"))) == Accepted()
    play(service, {"every": 50, "do": "goaway", "status": 201, "times": 2}, {"delay": 0.05})
    items = [delivery(device(service, str(number)), CHECK) for number in range(200)]
    assert set(await send_many(provider, items)) == {Accepted()}
    assert len({entry.token for entry in service.record.select(accepted=True)}) == 201


async def test_reset(service: Simulator, provider: WebPushProvider) -> None:
    play(service, {"do": "reset", "times": 1})
    outcome = await provider.send(delivery(device(service)))
    assert isinstance(outcome, RetryLater)
    assert outcome.connection
    await provider.refresh()
    assert await provider.send(delivery(device(service))) == Accepted()


async def test_close(service: Simulator, provider: WebPushProvider) -> None:
    play(service, {"do": "silence"})
    sending = asyncio.create_task(provider.send(delivery(device(service))))
    await until(lambda: len(service.record))
    await provider.close()
    assert await sending == RetryLater(None, "Closed", connection=True)
    assert await provider.send(delivery(device(service))) == RetryLater(None, "Closed")


def test_nothing_shows_secrets(service: Simulator) -> None:
    shown = repr(config(service)) + repr(delivery(device(service)))
    assert NAME not in shown
    assert VAPID_KEY.decode().splitlines()[1] not in shown
