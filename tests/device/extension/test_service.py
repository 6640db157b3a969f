import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from heliograph.device.chats.content import DatabaseProblem
from heliograph.device.extension import core
from heliograph.device.extension.core import Suspend
from heliograph.device.extension.service import ORIGINAL, ExtensionService
from heliograph.device.ports import CoreUnavailable
from heliograph.device.states import AppState, CoreState
from heliograph.journal.events import DeviceShown, JournalEvent
from heliograph.journal.journal import Journal
from heliograph.wire.ntf.push import MessagePush
from tests.device.extension.test_extension import text
from tests.device.fakes import Clock, Core, Shared
from tests.device.support import BOB, MUTED_USER, message, notified
from tests.waiting import until

PUSH = MessagePush(b"1", b"box")


class Events(Journal):
    def __init__(self) -> None:
        self.recorded: list[JournalEvent] = []

    def record(self, event: JournalEvent, at: float | None = None) -> None:
        self.recorded.append(event)


class Phone:
    def __init__(self) -> None:
        self.agent, self.shared, self.clock, self.events = Core(), Shared(), Clock(), Events()
        self.extension = ExtensionService(
            self.agent, self.shared, journal=self.events, clock=self.clock
        )


@pytest.fixture
async def phone(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Phone]:
    monkeypatch.setitem(
        core._TABLE, (CoreState.ACTIVE, core.CoreInput.IDLE), (CoreState.SUSPENDING, Suspend(0, 1))
    )
    phone = Phone()
    yield phone
    phone.agent.gate.set()
    await phone.extension.close()


def a_push(nonce: bytes = b"n", conn: str = "a", number: int = 5) -> Any:
    from dataclasses import replace

    return replace(notified(conn, f"{conn}{number}".encode(), number * 100), nonce=nonce * 24)


async def test_a_push_becomes_a_notification(phone: Phone) -> None:
    phone.agent.found[b"1"] = [a_push()]
    phone.agent.queues["a"] = [text(4), text(5), text(6)]
    phone.shared.count = 7
    content = await phone.extension.receive(PUSH)
    assert (content.title, content.body, content.badge) == ("Alice", "a5", 7)
    assert phone.shared.shown == [("a", 500)]
    assert phone.agent.queues["a"] == [text(6)]
    assert phone.events.recorded == [DeviceShown(notification=b"n" * 24)]


async def test_the_database_is_closed_when_all_is_delivered(phone: Phone) -> None:
    phone.agent.found[b"1"] = [a_push()]
    await phone.extension.receive(PUSH)
    await until(lambda: not phone.agent.is_open)
    await until(lambda: phone.shared.core is CoreState.SUSPENDED)
    assert phone.shared.cores[0] is CoreState.STARTING, "said before it is opened"


async def test_the_app_takes_the_database(phone: Phone) -> None:
    phone.agent.found[b"1"] = [a_push()]
    phone.agent.gate.clear()
    receiving = asyncio.create_task(phone.extension.receive(PUSH))
    await until(lambda: phone.shared.core is CoreState.STARTING)
    phone.shared.app = AppState.ACTIVATING
    assert await receiving == ORIGINAL
    phone.agent.gate.set()
    await until(lambda: not phone.shared.core.has_store)
    assert not phone.agent.is_open
    assert phone.events.recorded == []


async def test_an_app_that_was_quicker_keeps_the_database(phone: Phone) -> None:
    """Each says what it does before it looks: both cannot miss the other."""
    real = phone.shared.set_core_state

    async def set_core_state(state: CoreState) -> None:
        await real(state)
        phone.shared.app = AppState.ACTIVATING

    phone.shared.set_core_state = set_core_state  # type: ignore[method-assign]
    assert await phone.extension.receive(PUSH) == ORIGINAL
    assert phone.agent.opened == 0


async def test_several_pushes_share_one_core(phone: Phone) -> None:
    phone.agent.found = {b"1": [a_push()], b"2": [a_push(conn="b")]}
    phone.agent.queues = {"a": [text(5)], "b": [text(5, "b")]}
    first, second = await asyncio.gather(
        phone.extension.receive(PUSH), phone.extension.receive(MessagePush(b"2", b"box"))
    )
    assert (first.body, second.body) == ("a5", "b5")
    assert phone.agent.opened == 1


async def test_pushes_of_one_connection_in_order(phone: Phone) -> None:
    phone.agent.found = {b"1": [a_push()], b"2": [a_push(number=6)]}
    phone.agent.queues = {"a": [text(5), text(6)]}
    contents = await asyncio.gather(
        *(phone.extension.receive(MessagePush(n, b"box")) for n in (b"1", b"2"))
    )
    assert [content.body for content in contents] == ["a5", "a6"]


async def test_when_time_is_over_the_best_attempt_is_delivered(phone: Phone) -> None:
    phone.agent.found[b"1"] = [a_push()]
    phone.agent.queues["a"] = [text(4), text(5)]
    phone.agent.may_fetch = asyncio.Semaphore(1)
    receiving = asyncio.create_task(phone.extension.receive(PUSH))
    await until(lambda: phone.agent.fetching == ["a", "a"])
    phone.clock.now += 29.9
    await asyncio.sleep(0.3)
    assert not receiving.done()
    phone.clock.now += 0.1
    assert (await receiving).body == "a4"
    phone.agent.may_fetch.release()


async def test_the_platform_takes_the_time_away(phone: Phone) -> None:
    phone.agent.gate.clear()
    receiving = asyncio.create_task(phone.extension.receive(PUSH))
    await until(lambda: phone.shared.core is CoreState.STARTING)
    phone.extension.expire()
    assert await receiving == ORIGINAL


@pytest.mark.parametrize("problem", DatabaseProblem)
async def test_problems_are_shown(phone: Phone, problem: DatabaseProblem) -> None:
    phone.agent.failure = CoreUnavailable(problem)
    assert (await phone.extension.receive(PUSH)).title == problem.value
    phone.agent.failure = None
    phone.agent.found[b"1"] = [a_push()]
    phone.agent.queues["a"] = [text(5)]
    assert (await phone.extension.receive(PUSH)).body == "a5"


async def test_what_nobody_foresaw_is_a_damaged_database(phone: Phone) -> None:
    phone.agent.failure = ValueError("odd")
    assert (await phone.extension.receive(PUSH)).title == DatabaseProblem.DAMAGED.value


async def test_a_push_that_arrives_while_the_core_starts_for_one_that_expired(phone: Phone) -> None:
    phone.agent.found = {b"1": [a_push()], b"2": [a_push()]}
    phone.agent.queues["a"] = [text(5)]
    phone.agent.gate.clear()
    first = asyncio.create_task(phone.extension.receive(PUSH))
    await until(lambda: phone.shared.core is CoreState.STARTING)
    phone.extension.expire()
    assert await first == ORIGINAL
    second = asyncio.create_task(phone.extension.receive(MessagePush(b"2", b"box")))
    await asyncio.sleep(0.05)
    phone.agent.gate.set()
    assert (await second).body == "a5"


async def test_a_push_that_cannot_be_read_is_shown_as_it_came(phone: Phone) -> None:
    assert await phone.extension.receive(MessagePush(b"?", b"box")) == ORIGINAL


async def test_a_router_that_cannot_be_reached_leaves_the_best_attempt(phone: Phone) -> None:
    async def fetch(conn_id: str, expected: object) -> None:
        raise OSError("unreachable")

    phone.agent.found[b"1"] = [a_push()]
    phone.agent.fetch = fetch  # type: ignore[method-assign]
    content = await phone.extension.receive(PUSH)
    assert (content.title, content.body) == ("Alice", "Message received")


async def test_a_stopped_app(phone: Phone) -> None:
    phone.shared.app = AppState.STOPPED
    content = await phone.extension.receive(PUSH)
    assert (content.title, content.badge) == ("Encrypted message: app is stopped", 1)
    assert phone.agent.opened == 0


async def test_a_muted_user(phone: Phone) -> None:
    phone.agent.found[b"1"] = [notified("m", user=MUTED_USER, contact=BOB)]
    assert not (await phone.extension.receive(PUSH)).is_shown
    assert phone.events.recorded == []


async def test_many_connections_are_one_notification(phone: Phone) -> None:
    phone.agent.found[b"1"] = [a_push(), a_push(conn="b")]
    phone.agent.queues = {"a": [text(5)], "b": [text(5, "b")]}
    content = await phone.extension.receive(PUSH)
    assert (content.title, content.body) == ("New messages", "From: Alice and Bob")
    assert len(phone.events.recorded) == 2
    assert message("x") != message("y")
