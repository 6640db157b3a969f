import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import h2.connection
import h2.events
import pytest

from heliograph.push.apns import ApnsConfig, ApnsProvider
from heliograph.push.connecting import connections_to
from heliograph.push.http import HttpSettings
from heliograph.push.provider import Accepted, RetryLater
from heliograph.sim.providers.apns import ApnsRules, ApnsService
from heliograph.sim.providers.simulator import Simulator
from heliograph.transport import loop
from heliograph.transport.loop import Net
from heliograph.wire.ntf.tokens import APNSDeviceToken, PushProvider
from tests.keys import fixed_p256_key
from tests.push.support import closing, delivery, play, running
from tests.waiting import until

KEY = fixed_p256_key("apns")
RULES = ApnsRules(payload_limit=5120)
TOKEN = "00ff"
DEVICE = APNSDeviceToken(PushProvider.APNS_PROD, TOKEN.encode())


@pytest.fixture
async def simulator(tmp_path: Path) -> AsyncIterator[Simulator]:
    async with running(ApnsService(KEY, RULES), tmp_path) as simulator:
        yield simulator


def config(simulator: Simulator) -> ApnsConfig:
    http = HttpSettings(connections=1, ca=simulator.authority.file.read_bytes())
    return ApnsConfig(KEY.to_pem(), "key", "team", "topic", simulator.url, http=http)


@pytest.fixture
async def provider(simulator: Simulator) -> AsyncIterator[ApnsProvider]:
    provider = ApnsProvider(config(simulator))
    async with closing(provider):
        yield provider


class Control:
    """The control endpoint, seen by a client."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def __call__(self, method: str, path: str, **options: Any) -> Any:
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, self.url + path, **options) as response,
        ):
            text = await response.text()
            return json.loads(text) if response.status == 200 else (response.status, text)


@pytest.fixture
def control(simulator: Simulator) -> Control:
    return Control(simulator.control_url)


# Control


async def test_script(control: Control, provider: ApnsProvider) -> None:
    script = {"rules": [{"status": 503, "retry_after": 2.5}], "max_streams": 7}
    answer = await control("PUT", "/script", json=script)
    assert answer["rules"] == [{**script["rules"][0], "used": 0, "delay": 0.0, "do": "answer"}]  # type: ignore[index]
    assert isinstance(await provider.send(delivery(DEVICE)), RetryLater)
    answer = await control("GET", "/script")
    assert answer["rules"][0]["used"] == 1
    assert (answer["requests"], answer["max_streams"]) == (1, 7)
    assert (await control("DELETE", "/script"))["rules"] == []
    assert isinstance(await provider.send(delivery(DEVICE)), Accepted)


@pytest.mark.parametrize("data", ["{", '{"rules": [{"what": 1}]}', "[]"])
async def test_bad_scripts(control: Control, data: str) -> None:
    status, text = await control("PUT", "/script", data=data)
    assert status == 400
    assert text


async def test_a_name_that_a_web_page_chose_is_refused(control: Control) -> None:
    status, _ = await control("GET", "/requests", headers={"host": "rebound.example"})
    assert status == 421
    assert await control("GET", "/requests", headers={"host": "localhost:1"}) == []


async def test_requests(control: Control, simulator: Simulator, provider: ApnsProvider) -> None:
    play(simulator, {"at": 2, "status": 410})
    for _ in range(3):
        await provider.send(delivery(DEVICE))
    entries = await control("GET", "/requests")
    assert [(entry["seq"], entry["status"]) for entry in entries] == [(1, 200), (2, 410), (3, 200)]
    assert len(await control("GET", "/requests?after=2")) == 1
    assert len(await control("GET", "/requests?accepted=0")) == 1
    assert len(await control("GET", f"/requests?accepted=1&token={TOKEN}")) == 2
    assert await control("GET", "/requests?token=other") == []
    assert (await control("GET", "/requests?after=x"))[0] == 400
    assert (await control("GET", "/requests?after=-1"))[0] == 400
    await control("DELETE", "/requests")
    assert await control("GET", "/requests") == []
    file = simulator.authority.file.parent / "apns.jsonl"
    assert len(file.read_text().splitlines()) == 3


async def test_a_phone_waits_for_its_pushes(control: Control, provider: ApnsProvider) -> None:
    assert await control("GET", f"/devices/{TOKEN}") == []
    waiting = asyncio.create_task(control("GET", f"/devices/{TOKEN}?wait=10"))
    await asyncio.sleep(0.05)
    await provider.send(delivery(DEVICE))
    [entry] = await waiting
    assert json.loads(entry["body"])["notificationData"]
    again = await control("GET", f"/devices/{TOKEN}?after={entry['seq']}&wait=0.01")
    assert again == []
    assert await control("GET", f"/devices/{TOKEN}?after=0") == [entry]


async def test_stats_goaway_and_reset(
    control: Control, simulator: Simulator, provider: ApnsProvider
) -> None:
    await provider.send(delivery(DEVICE))
    assert (await control("GET", "/stats"))["open_connections"] == 1
    await control("POST", "/goaway")
    await until(lambda: simulator.stats()["open_connections"] == 0)
    assert isinstance(await provider.send(delivery(DEVICE)), Accepted)
    await control("POST", "/reset")
    await until(lambda: simulator.stats()["open_connections"] == 0)
    outcome = await provider.send(delivery(DEVICE))
    if isinstance(outcome, RetryLater):  # the client may not have noticed yet
        assert outcome.connection
        await provider.refresh()
        outcome = await provider.send(delivery(DEVICE))
    assert isinstance(outcome, Accepted)
    stats = await control("GET", "/stats")
    assert (stats["connections"], stats["goaways"], stats["accepted"]) == (3, 1, 3)


# What is recorded


@pytest.mark.parametrize(
    ("rule", "status", "reason", "accepted"),
    [
        ({}, 200, None, True),
        ({"delay": 0.01}, 200, None, True),
        ({"status": 429}, 429, None, False),
        ({"status": 410, "reason": "ExpiredToken"}, 410, "ExpiredToken", False),
        ({"do": "reset"}, None, "reset", False),
        ({"do": "reset_stream"}, None, "reset_stream", False),
        ({"do": "silence"}, None, "silence", False),
        ({"do": "goaway"}, None, "goaway", False),
        ({"do": "goaway", "status": 200}, 200, None, True),
        ({"do": "goaway", "status": 503}, 503, None, False),
    ],
)
async def test_entries(
    simulator: Simulator,
    provider: ApnsProvider,
    rule: dict[str, Any],
    status: int | None,
    reason: str | None,
    accepted: bool,
) -> None:
    play(simulator, {**rule, "times": 1})
    task = asyncio.create_task(provider.send(delivery(DEVICE)))
    await until(lambda: len(simulator.record))
    entry = simulator.record.select()[0]
    assert (entry.status, entry.reason, entry.accepted) == (status, reason, accepted)
    task.cancel()
    await asyncio.wait([task])


async def test_wrong_requests_are_recorded(simulator: Simulator) -> None:
    connections = connections_to(config(simulator).http)
    answer = await connections.post(f"{simulator.url}/elsewhere", {}, b"\xff")
    connections.close()
    assert answer.status == 404
    [entry] = simulator.record.select()
    assert (entry.accepted, entry.reason, entry.body) == (False, "BadPath", "\ufffd")


async def test_no_file(tmp_path: Path) -> None:
    simulator = Simulator(ApnsService(KEY, RULES), tmp_path, record=False)
    await simulator.start()
    await simulator.close()
    assert not (tmp_path / "apns.jsonl").exists()


async def test_other_hosts(tmp_path: Path) -> None:
    simulator = Simulator(ApnsService(KEY, RULES), tmp_path)
    await simulator.start("0.0.0.0")
    port = simulator.url.rpartition(":")[2]
    context = ssl.create_default_context(cafile=simulator.authority.file)
    for name in ("127.0.0.1", "localhost", "0.0.0.0"):
        _, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=context, server_hostname=name
        )
        writer.transport.abort()
    await simulator.close()


@pytest.mark.parametrize("net", Net)
def test_every_stack(tmp_path: Path, net: Net) -> None:
    async def main() -> None:
        async with running(ApnsService(KEY, RULES), tmp_path) as simulator:
            play(simulator, {"at": 5, "do": "goaway"}, {"at": 10, "do": "reset"})
            async with closing(ApnsProvider(config(simulator))) as provider:
                outcomes = [await provider.send(delivery(DEVICE)) for _ in range(12)]
        assert sum(isinstance(outcome, Accepted) for outcome in outcomes) == 11

    loop.run(asyncio.wait_for(main(), 20), net=net)


# Clients that break the rules


class RawClient:
    """HTTP/2 by hand, on a blocking socket in another thread."""

    def __init__(self, simulator: Simulator) -> None:
        context = ssl.create_default_context(cafile=simulator.authority.file)
        context.set_alpn_protocols(["h2"])
        port = int(simulator.url.rpartition(":")[2])
        plain = socket.create_connection(("127.0.0.1", port), timeout=10)
        self.socket = context.wrap_socket(plain, server_hostname="127.0.0.1")
        self.h2 = h2.connection.H2Connection()
        self.h2.initiate_connection()

    def request(self, stream: int, *, end: bool = True) -> None:
        headers = [(":method", "POST"), (":path", "/"), (":scheme", "https"), (":authority", "a")]
        self.h2.send_headers(stream, headers, end_stream=end)

    def flush(self) -> None:
        self.socket.sendall(self.h2.data_to_send())

    def events(self) -> list[h2.events.Event]:
        """What comes next; nothing if the connection ended."""
        try:
            data = self.socket.recv(65536)
        except ConnectionError:
            return []
        return self.h2.receive_data(data) if data else []

    def until(self, kind: type[h2.events.Event]) -> bool:
        while events := self.events():
            self.flush()
            if any(isinstance(event, kind) for event in events):
                return True
        return False


async def test_too_many_streams(simulator: Simulator) -> None:
    simulator.server.max_streams = 1

    def client() -> bool:
        raw = RawClient(simulator)
        raw.flush()
        raw.until(h2.events.SettingsAcknowledged)
        raw.h2.remote_settings.max_concurrent_streams = 5
        raw.h2.remote_settings.acknowledge()
        raw.request(1, end=False)
        raw.request(3)
        raw.flush()
        ended = not raw.until(h2.events.ResponseReceived)
        raw.socket.close()
        return ended

    assert await asyncio.to_thread(client)
    assert simulator.stats()["violations"] == 1


async def test_nonsense(simulator: Simulator) -> None:
    def client() -> None:
        raw = RawClient(simulator)
        raw.socket.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
        while raw.socket.recv(65536):
            pass
        raw.socket.close()

    await asyncio.to_thread(client)
    assert simulator.stats()["violations"] == 1


async def test_a_client_that_changes_its_mind(simulator: Simulator) -> None:
    """Streams that the client resets, before the request is whole and before its answer."""
    play(simulator, {"delay": 0.2})

    def client() -> bool:
        raw = RawClient(simulator)
        raw.request(1, end=False)
        raw.h2.reset_stream(1)
        raw.request(3, end=False)
        raw.h2.send_data(3, b"x" * 1000)
        raw.h2.send_data(3, b"x" * 1000)
        raw.h2.end_stream(3)
        raw.flush()
        found = raw.until(h2.events.ResponseReceived)
        raw.socket.close()
        return found

    assert await asyncio.to_thread(client)
    await until(lambda: simulator.stats()["open_connections"] == 0)
    assert len(simulator.record) == 1
