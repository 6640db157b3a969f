import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from heliograph.device.app import background
from heliograph.device.app.background import REFRESH_INTERVAL, RefreshPhase
from heliograph.device.app.manager import (
    CallAction,
    NotificationAction,
    OpenChat,
    PermissionAnswer,
    Response,
    SwitchUser,
    TakeCall,
)
from heliograph.device.app.service import AppService
from heliograph.device.chats.content import build
from heliograph.device.chats.model import ChatEvent, FetchedMessage, Loaded
from heliograph.device.states import AppState, CoreState, Presentation, PreviewMode
from heliograph.wire.ntf.tokens import NotificationsMode
from tests.device.fakes import Clock, Core, Platform, Shared
from tests.device.support import BOB, REQUESTED, call, message
from tests.waiting import until

S = AppState


class Phone:
    def __init__(self) -> None:
        self.agent, self.shared, self.platform, self.clock = Core(), Shared(), Platform(), Clock()
        self.effects: list[Any] = []
        self.app = AppService(
            self.agent,
            self.shared,
            self.platform,
            clock=self.clock,
            on_effect=self.effects.append,
        )

    def receive(self, event: ChatEvent | None) -> None:
        self.agent.inbox.put_nowait(FetchedMessage(b"m", 1, event))


@pytest.fixture
async def phone() -> AsyncIterator[Phone]:
    phone = Phone()
    await phone.app.launch()
    yield phone
    await phone.app.close()


async def test_opening_and_leaving(phone: Phone) -> None:
    await phone.app.open()
    assert phone.shared.states == [S.SUSPENDED, S.ACTIVATING, S.ACTIVE]
    assert phone.agent.is_open
    phone.shared.unread = 4
    await phone.app.leave()
    assert phone.shared.states[3:] == [S.SUSPENDING, S.SUSPENDED]
    assert not phone.agent.is_open
    assert phone.platform.badges == [4]
    assert phone.platform.submitted == [phone.clock.now + REFRESH_INTERVAL]
    await phone.app.open()
    assert phone.platform.cancelled == 1


async def test_an_app_that_runs_elsewhere_is_left_alone(phone: Phone) -> None:
    phone.shared.app = S.ACTIVE
    await phone.app.launch()
    assert phone.shared.app is S.ACTIVE


async def test_the_extension_is_waited_for(phone: Phone) -> None:
    phone.shared.core = CoreState.ACTIVE
    opening = asyncio.create_task(phone.app.open())
    await until(lambda: phone.shared.app is S.ACTIVATING)
    await asyncio.sleep(0.1)
    assert not phone.agent.is_open
    phone.shared.core = CoreState.SUSPENDED
    await opening
    assert phone.agent.is_open


async def test_an_extension_that_was_killed_is_not_waited_for_for_ever(phone: Phone) -> None:
    phone.shared.core = CoreState.ACTIVE
    opening = asyncio.create_task(phone.app.open())
    await until(lambda: phone.shared.app is S.ACTIVATING)
    phone.clock.now += 10
    await opening
    assert phone.app.state is S.ACTIVE


async def test_local_notifications_while_active(phone: Phone) -> None:
    await phone.app.open()
    phone.app.open_chat = "@8"
    phone.receive(None)
    phone.receive(message("one"))
    phone.receive(message("too soon"))
    await until(phone.agent.inbox.empty)
    await until(lambda: len(phone.platform.badges) == 2)
    phone.clock.now += 1
    phone.receive(message("later"))
    await until(lambda: len(phone.platform.shown) == 2)
    assert [(content.body, how) for content, how in phone.platform.shown] == [
        ("one", Presentation.BANNER),
        ("later", Presentation.BANNER),
    ]


async def test_nothing_is_shown_without_permission(phone: Phone) -> None:
    await phone.app.launch(PermissionAnswer.DENIED)
    await phone.app.open()
    phone.receive(message("one"))
    await until(lambda: len(phone.platform.badges) == 1)
    assert phone.platform.shown == []


async def test_background_refresh(phone: Phone) -> None:
    await phone.app.set_mode(NotificationsMode.PERIODIC)
    assert phone.platform.submitted == [phone.clock.now + REFRESH_INTERVAL]
    waking = asyncio.create_task(phone.app.wake())
    await until(lambda: phone.app.refresh.phase is RefreshPhase.RECEIVING)
    assert phone.shared.states[-1] is S.BACKGROUND_REFRESH
    phone.receive(message("while asleep"))
    await until(lambda: bool(phone.platform.shown))
    assert phone.platform.shown[0][1] is Presentation.BANNER
    phone.clock.now += background.QUIET_SECONDS
    await waking
    assert phone.platform.completed == [True]
    assert phone.shared.app is S.SUSPENDED
    assert not phone.agent.is_open
    assert phone.app.refresh.phase is RefreshPhase.SCHEDULED
    assert len(phone.platform.submitted) == 2


async def test_the_platform_takes_the_time_of_a_refresh_away(phone: Phone) -> None:
    await phone.app.set_mode(NotificationsMode.PERIODIC)
    waking = asyncio.create_task(phone.app.wake())
    await until(lambda: phone.app.refresh.phase is RefreshPhase.RECEIVING)
    await phone.app.expire()
    await waking
    assert phone.shared.app is S.SUSPENDED


async def test_a_refresh_that_cannot_start(phone: Phone) -> None:
    await phone.app.set_mode(NotificationsMode.PERIODIC)
    phone.agent.failure = OSError("no disk")
    await phone.app.wake()
    assert phone.platform.completed == [False]
    await until(lambda: phone.shared.app is S.SUSPENDED)


async def test_a_refresh_whose_receiving_fails(phone: Phone) -> None:
    await phone.app.set_mode(NotificationsMode.PERIODIC)
    waking = asyncio.create_task(phone.app.wake())
    await until(lambda: phone.app.refresh.phase is RefreshPhase.RECEIVING)
    phone.agent.inbox.put_nowait(OSError("no network"))
    await waking
    assert phone.shared.app is S.SUSPENDED


async def test_with_notifications_off_nothing_is_woken(phone: Phone) -> None:
    phone.shared.notifications = NotificationsMode.OFF
    await phone.app.wake()
    assert phone.platform.submitted == []
    assert phone.agent.opened == 0


async def test_a_silent_push_is_honoured_in_instant_mode(phone: Phone) -> None:
    phone.shared.notifications = NotificationsMode.INSTANT
    waking = asyncio.create_task(phone.app.wake())
    await until(lambda: phone.app.refresh.phase is RefreshPhase.RECEIVING)
    await phone.app.expire()
    await waking
    assert phone.agent.opened == 1
    assert phone.platform.submitted == [], "the router wakes it again, not the platform"


async def test_a_refresh_becomes_the_active_app(phone: Phone) -> None:
    await phone.app.set_mode(NotificationsMode.PERIODIC)
    waking = asyncio.create_task(phone.app.wake())
    await until(lambda: phone.app.refresh.phase is RefreshPhase.RECEIVING)
    await phone.app.open()
    await waking
    assert phone.app.state is S.ACTIVE
    assert phone.agent.is_open


async def test_stop_and_start(phone: Phone) -> None:
    await phone.app.open()
    await phone.app.stop()
    assert phone.shared.app is S.STOPPED
    assert not phone.agent.is_open
    await phone.app.start()
    assert phone.app.state is S.ACTIVE


async def test_a_response_is_kept_until_the_app_is_active(phone: Phone) -> None:
    content = build(message("hi"), PreviewMode.MESSAGE)
    await phone.app.respond(Response(content))
    assert phone.effects == []
    await phone.app.open()
    assert phone.effects[-1] == OpenChat("@7")
    assert phone.app.open_chat == "@7"


async def test_every_call_is_inside_a_background_task(phone: Phone) -> None:
    phone.agent.platform = phone.platform
    content = build(REQUESTED, PreviewMode.MESSAGE)
    await phone.app.respond(Response(content, NotificationAction.ACCEPT_CONTACT.value))
    await phone.app.open()
    assert phone.agent.accepted == []
    phone.receive(REQUESTED)
    await until(lambda: phone.agent.accepted == ["<@10"])
    phone.receive(call())
    await until(lambda: phone.agent.inbox.empty())
    answer = Response(build(call(), PreviewMode.MESSAGE), NotificationAction.ACCEPT_CALL.value)
    await phone.app.respond(answer)
    await until(lambda: phone.agent.calls == [("@7", True)])
    await phone.app.leave()
    assert not phone.agent.is_open
    await until(lambda: not phone.platform.tasks)
    assert phone.agent.unprotected == []


async def test_a_response_switches_the_user(phone: Phone) -> None:
    phone.shared.user = 2
    await phone.app.launch()
    await phone.app.open()
    await phone.app.respond(Response(build(message("hi"), PreviewMode.MESSAGE)))
    assert phone.shared.user == 1
    assert phone.effects[:2] == [SwitchUser(1), OpenChat("@7")]


async def test_what_waits_is_known_when_the_app_is_opened(phone: Phone) -> None:
    phone.agent.waiting = Loaded(requests=["<@10"], calls=["@7"])
    content = build(REQUESTED, PreviewMode.MESSAGE)
    await phone.app.respond(Response(content, NotificationAction.ACCEPT_CONTACT.value))
    await phone.app.open()
    assert phone.agent.accepted == ["<@10"]
    content = build(call(), PreviewMode.MESSAGE)
    await phone.app.respond(Response(content, NotificationAction.REJECT_CALL.value))
    assert phone.effects[-1] == TakeCall("@7", CallAction.REJECT)


async def test_a_call_that_arrives_while_active_is_the_apps_own_matter(phone: Phone) -> None:
    await phone.app.open()
    phone.receive(call())
    await until(lambda: bool(phone.platform.badges))
    assert phone.platform.shown == []


async def test_protection_ends_after_fifteen_seconds(phone: Phone) -> None:
    async with phone.app.protected():
        assert phone.platform.tasks == {1}
        phone.clock.now += 15
        await until(lambda: phone.platform.tasks == set())


async def test_a_chat_that_is_opened_is_read(phone: Phone) -> None:
    await phone.app.open()
    phone.shared.count = 2
    await phone.app.respond(Response(build(message("hi"), PreviewMode.MESSAGE)))
    assert (phone.shared.read, phone.platform.badges) == (["@7"], [1])
    phone.receive(message("you are looking at it"))
    await until(lambda: phone.shared.read == ["@7", "@7"])
    phone.receive(message("another chat", BOB))
    await until(phone.agent.inbox.empty)
    await until(lambda: len(phone.platform.badges) == 3)
    assert phone.shared.read == ["@7", "@7"]
