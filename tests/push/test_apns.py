import asyncio
import json
import socket
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heliograph.crypto.errors import CryptoError
from heliograph.crypto.jwt import sign_jwt
from heliograph.crypto.p256 import P256Key
from heliograph.push.apns import (
    JWT_LIFETIME,
    JWT_MIN_INTERVAL,
    ApnsApp,
    ApnsConfig,
    ApnsProvider,
)
from heliograph.push.connecting import connections_to
from heliograph.push.http import HttpSettings, NoAnswer
from heliograph.push.provider import (
    Accepted,
    Delivery,
    DeviceTokenInvalid,
    Misconfigured,
    RetryLater,
)
from heliograph.sim.providers.apns import PAYLOAD_LIMIT, ApnsRules, ApnsService
from heliograph.sim.providers.http2 import HttpRequest
from heliograph.sim.providers.simulator import Push as SimulatedPush, Simulator, Wrong
from heliograph.wire.ntf.push import Push, encode_apns
from heliograph.wire.ntf.tokens import (
    APNSDeviceToken,
    FcmDeviceToken,
    InvalidReason,
    PushProvider,
)
from tests.keys import fixed_p256_key
from tests.push.support import (
    CHECK,
    EXPIRES_AT,
    MESSAGE,
    VERIFICATION,
    Clock,
    closing,
    delivery,
    play,
    running,
    says_nothing,
    send_many,
)
from tests.vectors.files import BUNDLED, read_lines
from tests.waiting import until

KEY = fixed_p256_key("apns")
KEY_ID = "TESTKEYID1"
TEAM_ID = "5NN7GUYB6T"
TOPIC = "chat.simplex.app"
pytestmark = pytest.mark.usefixtures("http_client")
WREQ_ONLY = pytest.mark.parametrize(
    "http_client", ["wreq"], indirect=True
)  # when it sends, and on how many connections
TOKEN = "00ff" * 16
DEVICE = APNSDeviceToken(PushProvider.APNS_TEST, TOKEN.encode())


@pytest.fixture(autouse=True)
def _no_secrets(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield from says_nothing(caplog, TOKEN, "bearer", "PRIVATE KEY")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def apns(tmp_path: Path, clock: Clock) -> AsyncIterator[Simulator]:
    service = ApnsService(KEY, ApnsRules(TOPIC, KEY_ID, TEAM_ID, 5120), clock)
    async with running(service, tmp_path) as simulator:
        yield simulator


def config(simulator: Simulator, **http: Any) -> ApnsConfig:
    settings = HttpSettings(ca=simulator.authority.file.read_bytes(), **http)
    url = simulator.url
    return ApnsConfig(KEY.to_pem(), KEY_ID, TEAM_ID, TOPIC, url, url, url, settings)


@pytest.fixture
async def provider(apns: Simulator, clock: Clock) -> AsyncIterator[ApnsProvider]:
    provider = ApnsProvider(config(apns), clock)
    async with closing(provider):
        yield provider


# What is sent


@pytest.mark.parametrize(
    ("push", "kind", "priority"),
    [(MESSAGE, "alert", "10"), (VERIFICATION, "background", "5"), (CHECK, "background", "5")],
)
async def test_request(
    apns: Simulator, provider: ApnsProvider, push: Push, kind: str, priority: str
) -> None:
    outcome = await provider.send(delivery(DEVICE, push, collapse_id="abc"))
    assert isinstance(outcome, Accepted)
    assert outcome.provider_id is not None
    [entry] = apns.record.select()
    assert entry.token == TOKEN
    assert entry.body.encode() == encode_apns(push)
    wanted = {
        "apns-topic": TOPIC,
        "apns-push-type": kind,
        "apns-priority": priority,
        "apns-expiration": str(EXPIRES_AT),
        "apns-collapse-id": "abc",
    }
    assert wanted.items() <= entry.headers.items()


async def test_without_collapse_id(apns: Simulator, provider: ApnsProvider) -> None:
    await provider.send(delivery(DEVICE))
    [entry] = apns.record.select()
    assert "apns-collapse-id" not in entry.headers


async def test_long_collapse_ids_are_shortened(apns: Simulator, provider: ApnsProvider) -> None:
    for _ in range(2):
        assert isinstance(await provider.send(delivery(DEVICE, collapse_id="a " * 40)), Accepted)
    one, two = (entry.headers["apns-collapse-id"] for entry in apns.record.select())
    assert one == two
    assert len(one) <= 64


@pytest.mark.parametrize("name", ["ntf-test-v3-Ed25519", "ntf-test-v1-noalpn"])
async def test_as_the_reference(apns: Simulator, provider: ApnsProvider, name: str) -> None:
    """The same headers as the recorded requests, and bodies of the same members and sizes."""
    events = read_lines(BUNDLED / f"{name}.jsonl.gz")
    requests = [event for event in events if event["layer"] == "apns_request"]
    assert requests
    for event in requests:
        theirs = dict(_header(*header) for header in event["headers"])
        push = MESSAGE if theirs["apns-push-type"] == "alert" else VERIFICATION
        token = event["path"].removeprefix("/3/device/")
        device = APNSDeviceToken(PushProvider.APNS_TEST, token.encode())
        await provider.send(delivery(device, push))
        ours = apns.record.select()[-1]
        assert ours.token == token
        assert theirs.keys() <= ours.headers.keys()
        del theirs["authorization"]
        assert theirs.items() <= ours.headers.items()
        assert len(ours.body) == len(event["body"])
        assert list(json.loads(ours.body)) == list(json.loads(event["body"]))


def _header(name: str, value: str) -> tuple[str, str]:
    return name.partition('tokenKey = "')[2].rstrip('"}').lower(), value


def test_the_documented_limit_is_exceeded_by_the_reference() -> None:
    """A fact to know: Apple documents 4096 bytes, and a padded message has 4310."""
    assert len(encode_apns(MESSAGE)) == 4310 > PAYLOAD_LIMIT


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        (PushProvider.APNS_PROD, "url"),
        (PushProvider.APNS_DEV, "sandbox_url"),
        (PushProvider.APNS_TEST, "test_url"),
    ],
)
async def test_each_provider_has_its_host(apns: Simulator, kind: PushProvider, field: str) -> None:
    nowhere = "https://127.0.0.1:1"
    elsewhere: dict[str, Any] = dict.fromkeys(("url", "sandbox_url", "test_url"), nowhere)
    settings = replace(config(apns), **{**elsewhere, field: apns.url + "/"})
    async with closing(ApnsProvider(settings)) as provider:
        for other in (PushProvider.APNS_PROD, PushProvider.APNS_DEV, PushProvider.APNS_TEST):
            outcome = await provider.send(delivery(APNSDeviceToken(other, TOKEN.encode())))
            assert isinstance(outcome, Accepted if other is kind else RetryLater)


async def test_devices_of_others(apns: Simulator) -> None:
    async with closing(ApnsProvider(replace(config(apns), test_url=None))) as provider:
        assert await provider.send(delivery(DEVICE)) == Misconfigured("NoSuchProvider")
        assert await provider.send(delivery(FcmDeviceToken("a"))) == Misconfigured("NoSuchProvider")
        null = APNSDeviceToken(PushProvider.APNS_NULL, b"00")
        assert await provider.send(delivery(null)) == Misconfigured("NoSuchProvider")


@pytest.mark.parametrize("token", [b"", b"xy", b"../../x", b"00\r\n", b"00?a=b", b"00" * 101])
async def test_tokens_that_are_not_hex(
    apns: Simulator, provider: ApnsProvider, token: bytes
) -> None:
    device = APNSDeviceToken(PushProvider.APNS_PROD, token)
    assert await provider.send(delivery(device)) == DeviceTokenInvalid(InvalidReason.BAD)
    assert len(apns.record) == 0


@pytest.mark.parametrize("token", [b"efgh", b"xyzw", b"qwer", b"a"])
async def test_test_tokens_may_be_words(
    apns: Simulator, provider: ApnsProvider, token: bytes
) -> None:
    """The reference's tests register such ones; what they are is the simulator's to judge."""
    device = APNSDeviceToken(PushProvider.APNS_TEST, token)
    assert await provider.send(delivery(device)) == DeviceTokenInvalid(InvalidReason.BAD, 400)
    assert len(apns.record) == 1


@pytest.mark.parametrize("token", [b"", b"..", b"a/b", b"a b", b"a\r\n", b"a?b", b"a" * 201])
async def test_test_tokens_that_are_no_part_of_a_path(
    apns: Simulator, provider: ApnsProvider, token: bytes
) -> None:
    device = APNSDeviceToken(PushProvider.APNS_TEST, token)
    assert await provider.send(delivery(device)) == DeviceTokenInvalid(InvalidReason.BAD)
    assert len(apns.record) == 0


# What comes back


@pytest.mark.parametrize(
    ("status", "reason", "outcome"),
    [
        (400, "BadDeviceToken", DeviceTokenInvalid(InvalidReason.BAD)),
        (400, "DeviceTokenNotForTopic", DeviceTokenInvalid(InvalidReason.TOPIC)),
        (410, "ExpiredToken", DeviceTokenInvalid(InvalidReason.EXPIRED)),
        (410, "Unregistered", DeviceTokenInvalid(InvalidReason.UNREGISTERED)),
        (410, "Whatever", RetryLater(None, "HTTP-410")),
        (400, "TopicDisallowed", Misconfigured("TopicDisallowed")),
        (400, "Unregistered", Misconfigured("Unregistered")),
        (403, "InvalidProviderToken", Misconfigured("InvalidProviderToken")),
        (403, "Forbidden", Misconfigured("Forbidden")),
        (404, "BadPath", Misconfigured("BadPath")),
        (405, "MethodNotAllowed", Misconfigured("MethodNotAllowed")),
        (413, "PayloadTooLarge", Misconfigured("PayloadTooLarge")),
        (429, "TooManyRequests", RetryLater(None, "TooManyRequests")),
        (
            429,
            "TooManyProviderTokenUpdates",
            RetryLater(None, "TooManyProviderTokenUpdates", account_wide=True),
        ),
        (500, "InternalServerError", RetryLater(None, "InternalServerError")),
        (503, "Shutdown", RetryLater(None, "Shutdown")),
        (502, f"a secret {TOKEN}", RetryLater(None, "HTTP-502")),
        (400, "two words", Misconfigured("HTTP-400")),
    ],
)
async def test_answers(
    apns: Simulator, provider: ApnsProvider, status: int, reason: str, outcome: object
) -> None:
    play(apns, {"status": status, "reason": reason, "times": 1})
    found = await provider.send(delivery(DEVICE))
    assert (found, found.code) == (outcome, status)
    accepted = await provider.send(delivery(DEVICE))
    assert isinstance(accepted, Accepted)
    assert accepted.code == 200


@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after(apns: Simulator, provider: ApnsProvider, status: int) -> None:
    play(apns, {"status": status, "retry_after": 7})
    outcome = await provider.send(delivery(DEVICE))
    assert isinstance(outcome, RetryLater)
    assert outcome.after == 7.0
    assert not outcome.connection


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"[" * 5000, b'{"reason": 1}'])
async def test_answers_that_make_no_sense(
    apns: Simulator, provider: ApnsProvider, body: bytes
) -> None:
    reject = apns.service.reject
    apns.service.reject = lambda *args: replace(reject(*args), body=body)  # type: ignore[method-assign]
    play(apns, {"status": 400})
    assert await provider.send(delivery(DEVICE)) == Misconfigured("HTTP-400")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"topic": "another"}, "TopicDisallowed"),
        ({"team_id": "another"}, "InvalidProviderToken"),
        ({"key_id": "another"}, "InvalidProviderToken"),
        ({"key": P256Key.generate().to_pem()}, "InvalidProviderToken"),
    ],
)
async def test_wrong_settings(apns: Simulator, change: dict[str, Any], reason: str) -> None:
    async with closing(ApnsProvider(replace(config(apns), **change))) as provider:
        assert await provider.send(delivery(DEVICE)) == Misconfigured(reason)


async def test_payload_limit(tmp_path: Path) -> None:
    service = ApnsService(KEY, ApnsRules())
    async with running(service, tmp_path) as apns, closing(ApnsProvider(config(apns))) as provider:
        assert await provider.send(delivery(DEVICE)) == Misconfigured("PayloadTooLarge")


# The provider token


def authorizations(simulator: Simulator) -> list[str]:
    return [entry.headers["authorization"] for entry in simulator.record.select()]


async def test_token_is_refreshed_every_half_hour(
    apns: Simulator, provider: ApnsProvider, clock: Clock
) -> None:
    for passed in (0, JWT_LIFETIME - 1, 2, -10):  # a clock may also be set back
        clock.now += passed
        assert isinstance(await provider.send(delivery(DEVICE)), Accepted)
    one, two, three, four = authorizations(apns)
    assert one == two
    assert len({two, three, four}) == 3


async def test_processes_that_share_a_key_have_the_same_token(
    apns: Simulator, clock: Clock
) -> None:
    shared = replace(config(apns), is_shared=True)
    async with (
        closing(ApnsProvider(shared, clock)) as first,
        closing(ApnsProvider(shared, clock)) as second,
    ):
        clock.now += JWT_LIFETIME - clock.now % JWT_LIFETIME
        for passed, provider in ((0, first), (7, second), (JWT_LIFETIME - 8, first), (1, second)):
            clock.now += passed
            assert isinstance(await provider.send(delivery(DEVICE)), Accepted)
    one, two, three, four = authorizations(apns)
    assert one == two == three != four


async def test_an_expired_token_is_replaced_once(
    apns: Simulator, provider: ApnsProvider, clock: Clock
) -> None:
    expired = {"status": 403, "reason": "ExpiredProviderToken"}
    play(apns, {**expired, "times": 1})
    assert isinstance(await provider.send(delivery(DEVICE)), Accepted)
    one, two = authorizations(apns)
    assert one != two
    play(apns, expired)
    apns.record.clear()
    assert await provider.send(delivery(DEVICE)) == Misconfigured("ExpiredProviderToken")
    assert authorizations(apns) == [two]
    clock.now += JWT_MIN_INTERVAL
    assert await provider.send(delivery(DEVICE)) == Misconfigured("ExpiredProviderToken")
    assert len(set(authorizations(apns))) == 2


async def test_a_token_that_is_too_old(apns: Simulator, clock: Clock) -> None:
    """Our clock is an hour behind Apple's."""
    behind = Clock(clock.now - 3601)
    async with closing(ApnsProvider(config(apns), behind)) as provider:
        assert await provider.send(delivery(DEVICE)) == Misconfigured("ExpiredProviderToken")


@WREQ_ONLY
async def test_all_who_find_it_expired_share_one_new_token(apns: Simulator) -> None:
    async with closing(ApnsProvider(config(apns))) as provider:
        play(apns, {"status": 403, "reason": "ExpiredProviderToken", "to": 50})
        outcomes = await send_many(provider, [delivery(DEVICE)] * 50)
    assert Counter(map(type, outcomes)) == {Accepted: 50}
    assert len(set(authorizations(apns))) == 2


def test_a_wrong_key_is_refused_at_once() -> None:
    with pytest.raises(CryptoError):
        ApnsProvider(ApnsConfig(b"nonsense", KEY_ID, TEAM_ID, TOPIC))


# Connections


def devices(count: int) -> list[Delivery]:
    names = (f"{number:064x}".encode() for number in range(count))
    return [delivery(APNSDeviceToken(PushProvider.APNS_PROD, name)) for name in names]


@WREQ_ONLY
async def test_500_in_flight(apns: Simulator, provider: ApnsProvider) -> None:
    play(apns, {"delay": 1.5})  # longer than all take to be sent, on a busy machine
    outcomes = await send_many(provider, devices(500))
    assert Counter(map(type, outcomes)) == {Accepted: 500}
    assert apns.stats()["connections"] == 2
    assert apns.stats()["most_streams"] >= 200
    assert apns.stats()["violations"] == 0
    assert (
        len({outcome.provider_id for outcome in outcomes if isinstance(outcome, Accepted)}) == 500
    )


@pytest.mark.parametrize("status", [{"status": 200}, {}], ids=["answered", "unprocessed"])
async def test_goaway_in_mid_flight(
    apns: Simulator, provider: ApnsProvider, status: dict[str, int]
) -> None:
    """Nothing is lost, and nothing is delivered twice."""
    play(apns, {"every": 100, "do": "goaway", "times": 4, **status}, {"delay": 0.02})
    outcomes = await send_many(provider, devices(500))
    assert Counter(map(type, outcomes)) == {Accepted: 500}
    assert apns.stats()["goaways"] >= 1
    delivered = Counter(entry.token for entry in apns.record.select(accepted=True))
    assert len(delivered) == 500
    assert set(delivered.values()) == {1}


async def test_goaway_for_ever(apns: Simulator, provider: ApnsProvider) -> None:
    play(apns, {"do": "goaway"})
    outcome = await provider.send(delivery(DEVICE))
    assert outcome == RetryLater(None, "ConnectionLost", connection=True)


@WREQ_ONLY
async def test_reset(apns: Simulator, provider: ApnsProvider) -> None:
    play(apns, {"at": 10, "do": "reset"}, {"delay": 0.3})
    outcomes = await send_many(provider, devices(50))
    lost = [outcome for outcome in outcomes if isinstance(outcome, RetryLater)]
    assert lost
    assert all(outcome.connection for outcome in lost)
    assert {outcome.reason for outcome in lost} <= {"ConnectionReset", "ConnectionLost"}
    before = apns.stats()["connections"]
    await provider.refresh()
    play(apns)
    assert Counter(map(type, await send_many(provider, devices(50)))) == {Accepted: 50}
    assert apns.stats()["connections"] > before


async def test_reset_stream(apns: Simulator, provider: ApnsProvider) -> None:
    play(apns, {"do": "reset_stream", "times": 1})
    outcome = await provider.send(delivery(DEVICE))
    assert outcome == RetryLater(None, "ConnectionLost", connection=True)
    assert isinstance(await provider.send(delivery(DEVICE)), Accepted)
    assert apns.stats()["connections"] <= 2


async def test_one_stream_at_a_time(apns: Simulator, provider: ApnsProvider) -> None:
    play(apns, {"delay": 0.005}, max_streams=1)
    outcomes = await send_many(provider, devices(40))
    assert Counter(map(type, outcomes)) == {Accepted: 40}
    assert apns.stats()["most_streams"] == 1
    assert apns.stats()["violations"] == 0


async def test_streams_are_cut_to_one_while_in_use(apns: Simulator, provider: ApnsProvider) -> None:
    play(apns, {"delay": 0.1})
    first = asyncio.create_task(send_many(provider, devices(50)))
    await until(lambda: len(apns.record) == 50)
    play(apns, {"delay": 0.001}, max_streams=1)
    second = await send_many(provider, devices(40))
    assert Counter(map(type, await first + second)) == {Accepted: 90}
    assert apns.stats()["violations"] == 0


async def test_slow_answers(apns: Simulator) -> None:
    play(apns, {"at": 1, "delay": 3.0}, {"at": 2, "do": "silence"})
    async with closing(ApnsProvider(config(apns, timeout=0.3))) as provider:
        for _ in range(2):
            outcome = await provider.send(delivery(DEVICE))
            assert outcome == RetryLater(None, "Timeout", connection=True)
            assert outcome.code is None
        assert isinstance(await provider.send(delivery(DEVICE)), Accepted)


async def test_nobody_there(apns: Simulator) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"https://127.0.0.1:{server.getsockname()[1]}"
    settings = replace(config(apns), test_url=url)
    async with closing(ApnsProvider(settings)) as provider:
        outcome = await provider.send(delivery(DEVICE))
    assert outcome == RetryLater(None, "ConnectFailed", connection=True)


async def test_a_stranger_is_not_trusted(apns: Simulator, tmp_path: Path) -> None:
    async with running(ApnsService(KEY, ApnsRules()), tmp_path / "other") as other:
        settings = replace(config(other), test_url=apns.url)
        async with closing(ApnsProvider(settings)) as provider:
            outcome = await provider.send(delivery(DEVICE))
        settings = replace(settings, http=HttpSettings())
        async with closing(ApnsProvider(settings)) as provider:
            assert await provider.send(delivery(DEVICE)) == outcome
    assert outcome == RetryLater(None, "ConnectFailed", connection=True)
    assert len(apns.record) == 0


async def test_refresh_does_not_touch_pushes_in_flight(
    apns: Simulator, provider: ApnsProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heliograph.push.http.REFRESH_INTERVAL", 0.0)
    play(apns, {"delay": 0.3})
    in_flight = asyncio.create_task(send_many(provider, devices(20)))
    await until(lambda: len(apns.record) == 20)
    before = apns.stats()["connections"]
    await provider.refresh()
    assert isinstance(await provider.send(delivery(DEVICE)), Accepted)
    assert apns.stats()["connections"] == before + 1
    assert Counter(map(type, await in_flight)) == {Accepted: 20}
    await until(lambda: apns.stats()["open_connections"] == 1)


async def test_many_refreshes_are_one(apns: Simulator, provider: ApnsProvider) -> None:
    play(apns, {"at": 100, "do": "reset"}, {"to": 99, "delay": 1.0})

    async def send(item: Delivery) -> object:
        outcome = await provider.send(item)
        if isinstance(outcome, RetryLater) and outcome.connection:
            await provider.refresh()
            outcome = await provider.send(item)
        return outcome

    outcomes = await asyncio.gather(*(send(item) for item in devices(200)))
    assert Counter(map(type, outcomes)) == {Accepted: 200}
    assert apns.stats()["connections"] <= 6


async def test_close(apns: Simulator) -> None:
    provider = ApnsProvider(config(apns))
    play(apns, {"do": "silence"})
    sending = asyncio.create_task(provider.send(delivery(DEVICE)))
    await until(lambda: len(apns.record))
    await provider.close()
    assert await sending == RetryLater(None, "Closed", connection=True)
    assert await provider.send(delivery(DEVICE)) == RetryLater(None, "Closed")
    await provider.close()


async def test_cancellation(apns: Simulator, provider: ApnsProvider) -> None:
    play(apns, {"do": "silence", "times": 1})
    sending = asyncio.create_task(provider.send(delivery(DEVICE)))
    await until(lambda: len(apns.record))
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    assert isinstance(await provider.send(delivery(DEVICE)), Accepted)


# Secrets


async def test_nothing_shows_secrets(apns: Simulator, provider: ApnsProvider) -> None:
    secret = KEY.to_pem().decode().splitlines()[1]
    for shown in (repr(config(apns)), repr(delivery(DEVICE, collapse_id=TOKEN)), repr(provider)):
        assert TOKEN not in shown
        assert secret not in shown
    play(apns, {"do": "reset"})
    connections = connections_to(config(apns).http)
    jwt = sign_jwt(KEY, {"iss": TEAM_ID, "iat": int(time.time())}, kid=KEY_ID)
    headers = {
        "authorization": f"bearer {jwt}",
        "apns-topic": TOPIC,
        "apns-push-type": "alert",
        "apns-priority": "10",
    }
    with pytest.raises(NoAnswer) as caught:
        await connections.post(f"{apns.url}/3/device/{TOKEN}", headers, encode_apns(MESSAGE))
    connections.close()
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    shown = "".join(traceback.format_exception(caught.value))
    assert TOKEN not in shown
    assert jwt not in shown


# Several apps

OTHER_KEY = P256Key.generate()
OTHER = ApnsApp(OTHER_KEY.to_pem(), "KEY9876543", "TEAM987654", "org.example.fork")
OTHER_TOKEN = "ef" * 32


class TwoApps(ApnsService):
    """Apple, with two makers and a device of each."""

    def __init__(self) -> None:
        super().__init__(KEY)
        self._apps = {
            TOPIC: ApnsService(KEY, ApnsRules(TOPIC, KEY_ID, TEAM_ID, 5120)),
            OTHER.topic: ApnsService(
                OTHER_KEY, ApnsRules(OTHER.topic, OTHER.key_id, OTHER.team_id, 5120)
            ),
        }
        self.topics: list[tuple[str, str]] = []

    def check(self, request: HttpRequest) -> SimulatedPush | Wrong:
        topic = request.headers.get("apns-topic", "")
        found = self._apps[topic].check(request)
        if isinstance(found, Wrong):
            return found
        self.topics.append((found.token, topic))
        wanted = {TOKEN: TOPIC, OTHER_TOKEN: OTHER.topic}.get(found.token)
        return found if topic == wanted else Wrong(400, "DeviceTokenNotForTopic", found.token)


async def test_several_apps(tmp_path: Path) -> None:
    """A device's app is found at the first push, and known from then on."""
    service = TwoApps()
    fork = APNSDeviceToken(PushProvider.APNS_PROD, OTHER_TOKEN.encode())
    nobody = APNSDeviceToken(PushProvider.APNS_PROD, b"aa" * 32)
    async with running(service, tmp_path) as simulator:
        made = ApnsProvider(replace(config(simulator), others=(OTHER,)))
        async with closing(made) as provider:
            for device in (fork, DEVICE, fork):
                assert isinstance(await provider.send(delivery(device)), Accepted)
            assert service.topics == [
                (OTHER_TOKEN, TOPIC),
                (OTHER_TOKEN, OTHER.topic),
                (TOKEN, TOPIC),
                (OTHER_TOKEN, OTHER.topic),
            ]
            outcome = await provider.send(delivery(nobody))
            assert outcome == DeviceTokenInvalid(InvalidReason.TOPIC)


async def test_a_rate_limit_of_one_app_slows_down_no_other(tmp_path: Path) -> None:
    async with running(TwoApps(), tmp_path) as simulator:
        made = ApnsProvider(replace(config(simulator), others=(OTHER,)))
        async with closing(made) as provider:
            play(simulator, {"status": 429, "reason": "TooManyProviderTokenUpdates", "times": 1})
            outcome = await provider.send(delivery(DEVICE))
            assert outcome == RetryLater(None, "TooManyProviderTokenUpdates")


async def test_a_bad_key_of_one_app_stops_no_other(tmp_path: Path) -> None:
    fork = APNSDeviceToken(PushProvider.APNS_PROD, OTHER_TOKEN.encode())
    async with running(TwoApps(), tmp_path) as simulator:
        broken = replace(config(simulator), key_id="REVOKED000", others=(OTHER,))
        async with closing(ApnsProvider(broken)) as provider:
            assert isinstance(await provider.send(delivery(fork)), Accepted)
            outcome = await provider.send(delivery(DEVICE))
            assert outcome == Misconfigured("InvalidProviderToken"), "it is not given up"
