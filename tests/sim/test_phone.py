"""A simulated phone without its routers: its pushes, its states, and what may be wrong."""

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from heliograph.agent.agent import AgentSettings
from heliograph.agent.keys import Cost
from heliograph.crypto.p256 import P256Key
from heliograph.device.content import Problem
from heliograph.device.ports import CoreUnavailable
from heliograph.device.states import AppState, CoreState
from heliograph.push.http import HttpSettings
from heliograph.push.provider import Accepted, Delivery
from heliograph.push.vapid import generate_vapid_key
from heliograph.push.webpush import WebPushConfig, WebPushProvider
from heliograph.sim import phone_sources
from heliograph.sim.apns import ApnsService
from heliograph.sim.phone import Phone, PhoneError
from heliograph.sim.phone_push import ApnsSource, WebPushSource
from heliograph.sim.simulator import Simulator
from heliograph.wire.push import CheckMessagesPush, MessagePush, encode_apns

TOKEN = "c0ffee"
CHEAP = AgentSettings(cost=Cost(operations=1, memory=8192))
ADDRESS = "smp://LcJUMfVhwD8yxjAiSaDzzGF3-kLG4Uh0Fl_ZIjrRwjI=@smp.example.com"
NTF = ADDRESS.replace("smp", "ntf", 1)


@pytest.fixture
async def phone(tmp_path: Path) -> AsyncIterator[Phone]:
    phone = await Phone.create(tmp_path / "phone", "Alice", [ADDRESS], NTF, settings=CHEAP)
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
    await source.start()
    ca = source.simulator.authority.file.read_bytes()
    settings = HttpSettings(connections=1, http2_only=False, ca=ca)
    provider = WebPushProvider(
        WebPushConfig(generate_vapid_key(), "mailto:a@example.com", True, settings)
    )
    device = source.device
    for item in (push(1), CheckMessagesPush()):
        outcome = await provider.send(Delivery(device, item, int(time.time()) + 60))
        assert outcome == Accepted()
    async with asyncio.timeout(30), contextlib.aclosing(source.pushes()) as pushes:  # type: ignore[type-var]
        first, second = await anext(pushes), await anext(pushes)
    assert (first.push, second.push) == (push(1), CheckMessagesPush())
    assert first.digest != second.digest
    await provider.close()
    await source.close()
    again = WebPushSource(tmp_path, port=source.port)
    assert again.device == device, "a phone keeps its endpoint"


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
        directory, "Alice", [ADDRESS], NTF, passphrase="open sesame", settings=CHEAP
    )
    await phone.close()
    for passphrase in (None, "open barley"):
        phone = await Phone.open(directory, passphrase=passphrase, settings=CHEAP)
        with pytest.raises(CoreUnavailable) as caught:
            await phone.core().open()
        assert caught.value.problem is Problem.WRONG_PASSPHRASE
        await phone.close()


async def test_a_store_of_a_later_version_and_one_that_is_none(phone: Phone) -> None:
    file = phone.directory / "agent.db"
    with contextlib.closing(sqlite3.connect(file)) as database, database:
        database.execute("INSERT INTO migrations (name, at) VALUES ('9999_later', 0)")
    with pytest.raises(CoreUnavailable) as caught:
        await phone.core().open()
    assert caught.value.problem is Problem.NEWER_VERSION
    for part in phone.directory.glob("agent.db*"):
        part.unlink()
    file.write_bytes(b"this is no database, and long enough to be seen as none" * 100)
    with pytest.raises(CoreUnavailable) as caught:
        await phone.core().open()
    assert caught.value.problem is Problem.DAMAGED


async def test_mistakes_are_told(phone: Phone, tmp_path: Path) -> None:
    with pytest.raises(PhoneError, match="already"):
        await Phone.create(phone.directory, "Bob", [ADDRESS], NTF)
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
    assert source.port != 0


async def test_only_the_user_can_read_a_phone(phone: Phone) -> None:
    assert phone.directory.stat().st_mode & 0o077 == 0
    for name in ("device.db", "agent.db"):
        assert (phone.directory / name).stat().st_mode & 0o077 == 0


async def test_the_journal_has_hashes_only(phone: Phone) -> None:
    async with phone_sources.journaled(phone, phone.directory / "journal"):
        phone.journal("device_shown", notification=b"n" * 24)
    files = [file for file in (phone.directory / "journal").rglob("*") if file.is_file()]
    assert files
    assert not any(b"n" * 24 in file.read_bytes() for file in files)
