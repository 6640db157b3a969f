"""A simulated phone in somebody's pocket: its screen, and what pushes do to it."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from heliograph.device.app_service import AppService
from heliograph.device.background import REFRESH_LIMIT
from heliograph.device.content import Category, Content
from heliograph.device.manager import Presentation
from heliograph.device.states import AppState
from heliograph.sim.phone import Phone
from heliograph.sim.phone_push import Delivered, PushSource
from heliograph.wire.push import CheckMessagesPush, MessagePush, VerificationPush

logger = logging.getLogger(__name__)

RETRY, LAST_RETRY = 0.5, 30.0
CATCH_UP, LAST_CATCH_UP = 10.0, 120.0
"""Seconds from one look at what the app left to do to the next; more while routers are down."""

CANCEL_AGAIN = 1.0


class Screen:
    """The platform of a simulated phone: what would be on its screen goes to a function."""

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
    """A phone in somebody's pocket: pushes arrive, and what they say is shown.

    Message pushes go to the extension, as many at once as arrive; silent ones to the app. A push
    counts as seen once it is shown, so that nothing is missed if the process is killed. What the
    app left to do while it is suspended, messages to send say, is done from time to time.
    """

    def __init__(
        self, phone: Phone, screen: Screen, app: AppService, catch_up: float = CATCH_UP
    ) -> None:
        self._catch_up_after = catch_up
        self._phone = phone
        self._screen = screen
        self._app = app
        self._extension = phone.extension()
        self._under_way: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, source: PushSource) -> None:
        """Until it is cancelled."""
        try:
            self._spawn(self._refresh_when_due())
            self._spawn(self._catch_up())
            async for delivered in source.pushes():
                is_new = delivered.digest not in self._under_way
                if is_new and not await self._phone.store.has_seen_push(delivered.digest):
                    self._under_way.add(delivered.digest)
                    self._spawn(self._handle(delivered))
        finally:
            await self._end_tasks()
            await self._extension.close()

    async def _end_tasks(self) -> None:
        """An app that is being closed is closed to the end, and its task would go on then."""
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks, timeout=CANCEL_AGAIN)

    def _spawn(self, work: Awaitable[None]) -> None:
        task: asyncio.Task[Any] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _handle(self, delivered: Delivered) -> None:
        """Until it is done: a router that is down comes back."""
        delay = RETRY
        while True:
            try:
                await self._process(delivered)
            except Exception as exc:
                logger.warning("a push could not be handled yet: %s", type(exc).__name__)
            else:
                self._under_way.discard(delivered.digest)
                return
            await asyncio.sleep(delay)
            delay = min(delay * 2, LAST_RETRY)

    async def _process(self, delivered: Delivered) -> None:
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
                        await app.settle()
            case CheckMessagesPush():
                await self._wake()
        await self._phone.store.see_push(delivered.digest, int(time.time()))

    async def _wake(self) -> None:
        """A background refresh, with the time that the platform gives it."""
        waking = asyncio.ensure_future(self._app.wake())
        done, _ = await asyncio.wait({waking}, timeout=REFRESH_LIMIT)
        if not done:
            await self._app.expire()
        await waking

    async def _catch_up(self) -> None:
        """An app that runs does it by itself, and one that was stopped does nothing."""
        delay = self._catch_up_after
        while True:
            is_done = True
            if await self._phone.shared.app_state() is AppState.SUSPENDED:
                try:
                    is_done = await self._phone.catch_up()
                except Exception as exc:
                    logger.warning("what is left to do has to wait: %s", type(exc).__name__)
                    is_done = False
            delay = self._catch_up_after if is_done else min(delay * 2, LAST_CATCH_UP)
            await asyncio.sleep(delay)

    async def _refresh_when_due(self) -> None:
        """What the platform's scheduler does."""
        while True:
            due_at = self._screen.due_at
            if due_at is not None and time.monotonic() >= due_at:
                self._screen.due_at = None
                await self._wake()
            await asyncio.sleep(1.0)
