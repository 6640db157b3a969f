"""A simulated phone without its routers: its pushes, its states, and what may be wrong."""

import asyncio
import contextlib
import sqlite3
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from heliograph.agent.agent import Agent, AgentSettings
from heliograph.agent.keys import Cost
from heliograph.agent.records import TokenInfo
from heliograph.cli.device.screen import describe
from heliograph.crypto.p256 import P256Key
from heliograph.crypto.webpush import encrypt
from heliograph.device.chats.content import DatabaseProblem
from heliograph.device.ports import CoreUnavailable
from heliograph.device.states import AppState, CoreState
from heliograph.journal.events import DeviceShown
from heliograph.phone import endpoint, sources as phone_sources
from heliograph.phone.phone import Phone, PhoneError
from heliograph.phone.push import ApnsSource, WebPushSource, opened
from heliograph.push.http import HttpSettings
from heliograph.push.provider import Accepted, Delivery, Misconfigured
from heliograph.push.vapid import Vapid, generate_vapid_key
from heliograph.push.webpush import WebPushConfig, WebPushProvider
from heliograph.sim.providers.apns import ApnsService
from heliograph.sim.providers.simulator import Simulator
from heliograph.wire.addresses import ServerAddress, decode_address
from heliograph.wire.ntf.push import CheckMessagesPush, MessagePush, Push, encode_apns
from heliograph.wire.ntf.tokens import DeviceToken, NotificationsMode, TokenStatus

TOKEN = "c0ffee"
CHEAP = AgentSettings(cost=Cost(operations=1, memory=8192))
ADDRESS = "smp://LcJUMfVhwD8yxjAiSaDzzGF3-kLG4Uh0Fl_ZIjrRwjI=@smp.example.com"
NTF = ADDRESS.replace("smp", "ntf", 1)


@pytest.fixture
async def phone(tmp_path: Path) -> AsyncIterator[Phone]:
    phone = await Phone.create(tmp_path / "phone", "Alice", [ADDRESS], [NTF], settings=CHEAP)
    yield phone
    await phone.close()


def push(number: int) -> MessagePush:
    return MessagePush(bytes([number]) * 24, b"box")


def record(simulator: Simulator, item: MessagePush | bytes, token: str = TOKEN) -> None:
    body = item if isinstance(item, bytes) else encode_apns(item)
    simulator.record.add(
        time=time.time(),
        connection=1,
        token=token,
        accepted=True,
        status=200,
        reason=None,
        headers={},
        body=body.decode(),
    )


async def test_pushes_from_a_simulated_apns_also_after_it_started_again(tmp_path: Path) -> None:
    simulator = Simulator(ApnsService(P256Key.generate()), tmp_path, record=False)
    await simulator.start()
    port = int(simulator.control_url.rpartition(":")[2])
    source = ApnsSource(simulator.control_url, TOKEN)
    async with asyncio.timeout(30), contextlib.aclosing(source.pushes()) as pushes:  # type: ignore[type-var]
        record(simulator, push(1))
        record(simulator, push(9), "another")
        record(simulator, b'{"aps": {}}')
        assert (await anext(pushes)).push == push(1)
        for _ in range(2):
            record(simulator, encode_apns(CheckMessagesPush()))
        one, two = await anext(pushes), await anext(pushes)
        assert (one.push, two.push) == (CheckMessagesPush(), CheckMessagesPush())
        assert one.push_id != two.push_id
        record(simulator, push(2))
        assert (await anext(pushes)).push == push(2)
        await simulator.close()
        simulator = Simulator(ApnsService(P256Key.generate()), tmp_path, record=False)
        await simulator.start(control_port=port)
        record(simulator, push(3))
        assert (await anext(pushes)).push == push(3)
    await source.close()
    await simulator.close()


async def test_pushes_at_an_endpoint_of_its_own(tmp_path: Path) -> None:
    source = WebPushSource(tmp_path)
    await source.endpoint.start()
    ca = source.endpoint.ca_file.read_bytes()
    settings = HttpSettings(connections=1, http2_only=False, ca=ca)
    provider = WebPushProvider(
        WebPushConfig(generate_vapid_key(), "mailto:a@example.com", True, settings)
    )
    device = source.device
    sent: list[Push] = [push(1), CheckMessagesPush(), CheckMessagesPush()]
    for item in sent:
        outcome = await provider.send(Delivery(device, item, int(time.time()) + 60))
        assert outcome == Accepted(code=201)
    await source.close()
    again = WebPushSource(tmp_path, port=source.endpoint.port)
    assert again.device == device, "a phone keeps its endpoint"
    async with asyncio.timeout(30), contextlib.aclosing(again.pushes()) as pushes:  # type: ignore[type-var]
        received = [await anext(pushes) for _ in sent]
        assert [item.push for item in received] == sent, "accepted pushes survive the process"
        assert len({item.push_id for item in received}) == 3, "wake-ups are alike, and all count"
        for each in received[:2]:
            await again.handled(each.push_id)
    async with asyncio.timeout(30), contextlib.aclosing(again.pushes()) as pushes:  # type: ignore[type-var]
        assert await anext(pushes) == received[2]
    await provider.close()


async def test_a_subscription_that_only_one_router_may_use(tmp_path: Path) -> None:
    """The phone knows the router's VAPID key by its address, and refuses other signatures."""
    key, other = generate_vapid_key(), generate_vapid_key()
    vapid = Vapid.from_pem(key, "mailto:a@example.com").public_key
    address = f"{NTF}/?vapid={vapid}"
    async with Phone.create(
        tmp_path / "phone", "Alice", [ADDRESS], [address], settings=CHEAP
    ) as phone:
        await phone_sources.save_web_push(phone, "127.0.0.1")
        source = await phone_sources.load(phone)
        assert isinstance(source, WebPushSource)
        async with opened(source):
            ca = source.endpoint.ca_file.read_bytes()
            settings = HttpSettings(connections=1, http2_only=False, ca=ca)
            outcomes = []
            for signer in (key, other):
                provider = WebPushProvider(
                    WebPushConfig(signer, "mailto:a@example.com", True, settings)
                )
                item = Delivery(source.device, CheckMessagesPush(), int(time.time()) + 60)
                outcomes.append(await provider.send(item))
                await provider.close()
        assert outcomes == [Accepted(code=201), Misconfigured("Forbidden", code=403)]


async def test_what_the_endpoint_rejects(tmp_path: Path) -> None:
    source = WebPushSource(tmp_path)
    async with opened(source):
        context = ssl.create_default_context(cafile=str(source.endpoint.ca_file))
        device = source.endpoint.device
        encoded = {"content-encoding": "aes128gcm"}
        async with aiohttp.ClientSession() as session:

            async def post(url: str, body: bytes, headers: dict[str, str]) -> int:
                async with session.post(url, data=body, headers=headers, ssl=context) as answer:
                    return answer.status

            assert await post(f"{device.endpoint}x", b"", encoded) == 404
            assert await post(device.endpoint, b"", {}) == 415
            assert await post(device.endpoint, b"x" * 4097, encoded) == 413
            other = encrypt(b"hi", P256Key.generate().public, device.auth)
            assert await post(device.endpoint, other, encoded) == 400
            mine = encrypt(b"hi", device.p256dh, device.auth)
            assert await post(device.endpoint, mine, encoded) == 201
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(endpoint, "MAX_SPOOLED", 1)
                assert await post(device.endpoint, mine, encoded) == 429


async def test_the_state_of_a_process_that_is_gone_counts_no_more(phone: Phone) -> None:
    shared = phone.shared
    await shared.set_app_state(AppState.ACTIVE)
    await shared.set_core_state(CoreState.ACTIVE)
    assert (await shared.app_state(), await shared.core_state()) == (
        AppState.ACTIVE,
        CoreState.ACTIVE,
    )
    gone = await asyncio.create_subprocess_exec("true")
    await gone.wait()
    pid = gone.pid
    for name, value in (("app state", "active"), ("core state", "active")):
        await phone.store.set(name, f"{value}/{pid}")
    assert (await shared.app_state(), await shared.core_state()) == (
        AppState.SUSPENDED,
        CoreState.CREATED,
    )
    await phone.store.set("app state", f"stopped/{pid}")
    assert await shared.app_state() is AppState.STOPPED, "the user stopped it"


async def test_a_missing_passphrase_is_a_problem_to_show(tmp_path: Path) -> None:
    directory = tmp_path / "locked"
    phone = await Phone.create(
        directory, "Alice", [ADDRESS], [NTF], passphrase="open sesame", settings=CHEAP
    )
    await phone.close()
    for passphrase in (None, "open barley"):
        phone = await Phone.open(directory, passphrase=passphrase, settings=CHEAP)
        with pytest.raises(CoreUnavailable) as caught:
            await phone.core().open()
        assert caught.value.problem is DatabaseProblem.WRONG_PASSPHRASE
        await phone.close()


async def test_a_store_of_a_later_version_and_one_that_is_none(phone: Phone) -> None:
    file = phone.directory / "agent.db"
    with contextlib.closing(sqlite3.connect(file)) as database, database:
        database.execute("INSERT INTO migrations (name, at) VALUES ('9999_later', 0)")
    with pytest.raises(CoreUnavailable) as caught:
        await phone.core().open()
    assert caught.value.problem is DatabaseProblem.NEWER_VERSION
    for part in phone.directory.glob("agent.db*"):
        part.unlink()
    file.write_bytes(b"this is no database, and long enough to be seen as none" * 100)
    with pytest.raises(CoreUnavailable) as caught:
        await phone.core().open()
    assert caught.value.problem is DatabaseProblem.DAMAGED


async def test_mistakes_are_reported(phone: Phone, tmp_path: Path) -> None:
    with pytest.raises(PhoneError, match="already"):
        await Phone.create(phone.directory, "Bob", [ADDRESS], [NTF])
    with pytest.raises(PhoneError, match="device init"):
        await Phone.open(tmp_path / "nowhere")
    async with phone.app() as app:
        with pytest.raises(PhoneError, match="there are: none"):
            await app.find("Bob")
    with pytest.raises(PhoneError, match="device register"):
        await phone_sources.load(phone)
    with pytest.raises(PhoneError, match="control URL"):
        await phone_sources.save_apns(phone, "1.2.3.4:80")
    with pytest.raises(PhoneError, match="HOST:PORT"):
        await phone_sources.save_web_push(phone, "1.2.3.4:http")
    await phone_sources.save_none(phone)
    with pytest.raises(PhoneError, match="a terminal cannot"):
        await phone_sources.load(phone)


async def test_sources_are_remembered(phone: Phone) -> None:
    await phone_sources.save_apns(phone, "http://127.0.0.1:9")
    source = await phone_sources.load(phone)
    assert isinstance(source, ApnsSource)
    await phone_sources.save_web_push(phone, "127.0.0.1")
    source = await phone_sources.load(phone)
    assert isinstance(source, WebPushSource)
    assert source.endpoint.port != 0


async def test_only_the_user_can_read_a_phone(phone: Phone) -> None:
    assert phone.directory.stat().st_mode & 0o077 == 0
    for name in ("device.db", "agent.db"):
        assert (phone.directory / name).stat().st_mode & 0o077 == 0


async def test_the_journal_has_hashes_only(phone: Phone) -> None:
    async with phone_sources.journaled(phone, phone.directory / "journal"):
        phone.journal.record(DeviceShown(notification=b"n" * 24))
    files = [file for file in (phone.directory / "journal").rglob("*") if file.is_file()]
    assert files
    assert not any(b"n" * 24 in file.read_bytes() for file in files)


async def test_a_token_is_registered_at_one_of_several_routers(
    phone: Phone, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [NTF, NTF.replace("LcJU", "McJU"), NTF.replace("LcJU", "NcJU")]
    await phone.store.set("ntf", "\n".join(others))
    asked: list[str] = []
    kept: TokenInfo | None = None

    async def register(
        self: Agent, device: DeviceToken, mode: NotificationsMode, address: ServerAddress
    ) -> TokenStatus:
        asked.append(str(address))
        return TokenStatus.REGISTERED

    async def token_info(self: Agent) -> TokenInfo | None:
        return kept

    monkeypatch.setattr(Agent, "register_token", register)
    monkeypatch.setattr(Agent, "token_info", token_info)
    device = ApnsSource("http://127.0.0.1:9", TOKEN).device
    async with phone.app() as app:
        for _ in range(60):
            await app.register(device, NotificationsMode.INSTANT)
        assert set(asked) == set(others), "chosen at random"
        kept = TokenInfo(
            device, TokenStatus.ACTIVE, NotificationsMode.INSTANT, decode_address(others[1])
        )
        asked.clear()
        for _ in range(20):
            await app.register(device, NotificationsMode.INSTANT)
        assert set(asked) == {others[1]}, "a token stays where it is"
    assert dict(describe(await phone.status()))["registered at"] == others[1]
