"""An agent and a platform that tests control: the machines' drivers must not care which."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from heliograph.device.chats.content import Content
from heliograph.device.chats.model import (
    ExpectedMessage,
    FetchedMessage,
    Loaded,
    NotifiedConnection,
)
from heliograph.device.states import AppState, CoreState, Presentation, PreviewMode
from heliograph.wire.ntf.tokens import NotificationsMode


class Shared:
    def __init__(self) -> None:
        self.app = AppState.SUSPENDED
        self.core = CoreState.CREATED
        self.states: list[AppState] = []
        self.cores: list[CoreState] = []
        self.count = 0
        self.shown: list[tuple[str, int]] = []
        self.read: list[str] = []
        self.preview_mode = PreviewMode.MESSAGE
        self.notifications = NotificationsMode.PERIODIC
        self.unread = 0
        self.user: int | None = None

    async def active_user(self) -> int | None:
        return self.user

    async def set_active_user(self, user: int) -> None:
        self.user = user

    async def app_state(self) -> AppState:
        return self.app

    async def set_app_state(self, state: AppState) -> None:
        self.app = state
        self.states.append(state)

    async def core_state(self) -> CoreState:
        return self.core

    async def set_core_state(self, state: CoreState) -> None:
        self.core = state
        self.cores.append(state)

    async def preview(self) -> PreviewMode:
        return self.preview_mode

    async def mode(self) -> NotificationsMode:
        return self.notifications

    async def badge(self) -> int:
        return self.count

    async def change_badge(self, by: int) -> int:
        self.count += by
        return self.count

    async def count_unread(self) -> int:
        self.count = self.unread
        return self.unread

    async def read_chat(self, chat_id: str) -> int:
        self.read.append(chat_id)
        self.count = max(self.count - 1, 0)
        return self.count

    async def set_shown(self, conn_id: str, up_to: int) -> None:
        self.shown.append((conn_id, up_to))


class Core:
    """Messages by connection, oldest first; opening and looking may be held up, or fail."""

    def __init__(self) -> None:
        self.is_open = False
        self.opened = 0
        self.queues: dict[str, list[FetchedMessage]] = {}
        self.found: dict[bytes, Sequence[NotifiedConnection]] = {}
        self.failure: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.may_fetch = asyncio.Semaphore(1000)
        self.fetching: list[str] = []
        self.inbox: asyncio.Queue[FetchedMessage | Exception] = asyncio.Queue()
        self.accepted: list[str] = []
        self.calls: list[tuple[str, bool]] = []
        self.waiting = Loaded()
        self.platform: Platform | None = None
        self.unprotected: list[str] = []
        """Calls made while the platform might suspend the app, if there is a platform."""

    def _called(self, name: str) -> None:
        if self.platform is not None and not self.platform.tasks:
            self.unprotected.append(name)

    async def open(self) -> None:
        self._called("open")
        if self.is_open:
            return
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        self.is_open = True
        self.opened += 1

    async def close(self) -> None:
        self._called("close")
        self.is_open = False

    async def read_push(self, nonce: bytes, box: bytes) -> Sequence[NotifiedConnection]:
        assert self.is_open
        return self.found[nonce]

    async def fetch(self, conn_id: str, expected: ExpectedMessage) -> FetchedMessage | None:
        self.fetching.append(conn_id)
        await self.may_fetch.acquire()
        assert self.is_open
        queue = self.queues.get(conn_id, [])
        return queue.pop(0) if queue else None

    async def loaded(self) -> Loaded:
        self._called("loaded")
        return self.waiting

    async def messages(self) -> AsyncIterator[FetchedMessage]:
        while True:
            item = await self.inbox.get()
            if isinstance(item, Exception):
                raise item
            yield item

    async def accept_contact(self, chat_id: str) -> None:
        self._called("accept_contact")
        self.accepted.append(chat_id)

    async def answer_call(self, chat_id: str, accept: bool) -> None:
        self._called("answer_call")
        self.calls.append((chat_id, accept))


class Platform:
    def __init__(self) -> None:
        self.shown: list[tuple[Content, Presentation]] = []
        self.badges: list[int] = []
        self.submitted: list[float] = []
        self.cancelled = 0
        self.completed: list[bool] = []
        self.tasks: set[int] = set()
        self.begun = 0
        self.news = asyncio.Event()

    def show(self, content: Content, how: Presentation) -> None:
        self.shown.append((content, how))
        self.news.set()

    def set_badge(self, count: int) -> None:
        self.badges.append(count)

    def submit(self, earliest: float) -> None:
        self.submitted.append(earliest)

    def cancel(self) -> None:
        self.cancelled += 1

    def complete(self, success: bool) -> None:
        self.completed.append(success)

    def begin_task(self) -> int:
        self.begun += 1
        self.tasks.add(self.begun)
        return self.begun

    def end_task(self, task: int) -> None:
        self.tasks.discard(task)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now
