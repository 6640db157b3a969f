"""A running phone: its screen, and the handling of pushes."""

import asyncio
import logging
import time
from collections.abc import Callable

from heliograph.device.app.background import REFRESH_LIMIT
from heliograph.device.app.service import AppService
from heliograph.device.chats.content import Category, Content
from heliograph.device.states import AppState, Presentation
from heliograph.phone.phone import Phone
from heliograph.phone.push import DeliveredPush, PushSource
from heliograph.tasks import TaskScope
from heliograph.wire.ntf.push import CheckMessagesPush, MessagePush, VerificationPush
from heliograph.wire.ntf.tokens import DeviceToken

logger = logging.getLogger(__name__)

RETRY, LAST_RETRY = 0.5, 30.0
CATCH_UP, LAST_CATCH_UP = 10.0, 120.0
"""Seconds between checks for the app's pending work; more while routers are down."""

CANCEL_AGAIN = 2.0


class Screen:
    """The platform of a simulated phone: passes what the screen would show to a function."""

    def __init__(self, show: Callable[[Content], None] | None = None) -> None:
        self.shown: list[Content] = []
        self.badge = 0
        self.due_at: float | None = None
        self.completed: list[bool] = []
        self.tasks: set[int] = set()
        self._show = show
        self._numbers = 0

    def show(self, content: Content, how: Presentation) -> None:
        self.shown.append(content)
        if self._show is not None:
            self._show(content)

    def set_badge(self, count: int) -> None:
        self.badge = count

    def submit(self, earliest: float) -> None:
        self.due_at = earliest

    def cancel(self) -> None:
        self.due_at = None

    def complete(self, success: bool) -> None:
        self.completed.append(success)

    def begin_task(self) -> int:
        self._numbers += 1
        self.tasks.add(self._numbers)
        return self._numbers

    def end_task(self, task: int) -> None:
        self.tasks.discard(task)


class Watch:
    """A running phone: it receives pushes and shows notifications.

    Message pushes go to the extension, concurrently; silent ones to the app. A push counts as seen
    once it is shown, so that a kill loses none. Pending work of the suspended app, such as messages
    to send, is done periodically.
    """

    def __init__(
        self, phone: Phone, screen: Screen, app: AppService, catch_up: float = CATCH_UP
    ) -> None:
        self._catch_up_after = catch_up
        self._phone = phone
        self._screen = screen
        self._app = app
        self._extension = phone.extension()
        self._in_flight: set[str] = set()
        self._tasks = TaskScope()

    async def run(self, source: PushSource) -> None:
        """Handle pushes until cancelled."""
        try:
            self._tasks.spawn(self._refresh_when_due(), name="background refresh")
            self._tasks.spawn(self._register(source.device), name="phone launch")
            async for delivered in source.pushes():
                if delivered.push_id in self._in_flight:
                    continue
                if await self._phone.store.has_seen_push(delivered.push_id):
                    await source.handled(delivered.push_id)
                    continue
                self._in_flight.add(delivered.push_id)
                self._tasks.spawn(self._handle(source, delivered), name="push")
        finally:
            await self._end_tasks()
            await self._extension.close()

    async def _end_tasks(self) -> None:
        """Cancel until all have ended: closing the app's core ignores one cancellation."""
        while len(self._tasks):
            await self._tasks.close(CANCEL_AGAIN)

    async def _handle(self, source: PushSource, delivered: DeliveredPush) -> None:
        """Process a push, and retry until it succeeds."""
        delay = RETRY
        while True:
            try:
                await self._process(delivered)
            except Exception as exc:
                logger.warning("a push cannot be handled now, retrying: %s", type(exc).__name__)
            else:
                await source.handled(delivered.push_id)
                self._in_flight.discard(delivered.push_id)
                return
            await asyncio.sleep(delay)
            delay = min(delay * 2, LAST_RETRY)

    async def _process(self, delivered: DeliveredPush) -> None:
        match delivered.push:
            case MessagePush() as push:
                content = await self._extension.receive(push)
                badge = content.badge
                if badge is not None:
                    self._screen.set_badge(badge)
                running = (await self._phone.shared.app_state()).is_running
                if content.is_shown and not (
                    running and content.category is Category.CHECK_MESSAGE
                ):
                    self._screen.show(content, Presentation.BANNER)
            case VerificationPush() as verification:
                async with self._phone.app() as app:
                    if await app.verify(verification) is not None:
                        await app.wait_idle()
            case CheckMessagesPush():
                await self._wake()
        await self._phone.store.see_push(delivered.push_id, int(time.time()))

    async def _wake(self) -> None:
        """Run a background refresh within the time that the platform allows."""
        waking = self._tasks.spawn(self._app.wake(), name="wake", is_awaited=True)
        done, _ = await asyncio.wait({waking}, timeout=REFRESH_LIMIT)
        if not done:
            await self._app.expire()
        await waking

    async def _register(self, device: DeviceToken) -> None:
        """Register at launch, then do pending work periodically."""
        try:
            await self._phone.register(device)
        except Exception as exc:
            logger.warning("the token cannot be registered now: %s", type(exc).__name__)
        await self._catch_up()

    async def _catch_up(self) -> None:
        """Do pending work if the app is suspended: a running app does it itself."""
        delay = self._catch_up_after
        while True:
            is_done = True
            if await self._phone.shared.app_state() is AppState.SUSPENDED:
                try:
                    is_done = await self._phone.catch_up()
                except Exception as exc:
                    logger.warning(
                        "pending work of the app failed, retrying later: %s", type(exc).__name__
                    )
                    is_done = False
            delay = self._catch_up_after if is_done else min(delay * 2, LAST_CATCH_UP)
            await asyncio.sleep(delay)

    async def _refresh_when_due(self) -> None:
        """Run background refreshes when they are due, as a platform's scheduler does."""
        while True:
            due_at = self._screen.due_at
            if due_at is not None and time.monotonic() >= due_at:
                self._screen.due_at = None
                await self._wake()
            await asyncio.sleep(1.0)
