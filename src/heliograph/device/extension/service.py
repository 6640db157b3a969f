"""Drives the extension's machines: tasks and timers over an agent and a platform."""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field

from heliograph.device.chats.content import Category, Content, DatabaseProblem
from heliograph.device.chats.model import NotifiedConnection
from heliograph.device.extension import core
from heliograph.device.extension.core import Suspend
from heliograph.device.extension.extension import (
    AppStopped,
    Best,
    Deliver,
    Effect,
    Extension,
    FetchMessage,
    PushId,
    ReadPush,
    content_of,
)
from heliograph.device.ports import CoreUnavailable, ExtensionCore, Shared
from heliograph.device.states import AppState, CoreState
from heliograph.journal.events import DeviceShown
from heliograph.journal.journal import NO_JOURNAL, Journal
from heliograph.tasks import TaskScope
from heliograph.wire.ntf.push import ALERT_TEXT, MessagePush

logger = logging.getLogger(__name__)

WATCH_INTERVAL = 0.1

ORIGINAL = Content(Category.CHECK_MESSAGE, "", ALERT_TEXT)
"""What a push shows unless the extension rewrites it."""


@dataclass(slots=True)
class _Waiting:
    push: MessagePush
    original: Content
    delivered: "asyncio.Future[Content]"
    connections: dict[str, NotifiedConnection] = field(default_factory=dict)


class ExtensionService:
    """One process of the extension. `receive` may be called for several pushes at once.

    It joins one machine with the ports it uses, and keeps what waits for them.
    """

    def __init__(
        self,
        agent: ExtensionCore,
        shared: Shared,
        *,
        journal: Journal = NO_JOURNAL,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._agent = agent
        self._shared = shared
        self._journal = journal
        self._clock = clock
        self._machine = Extension()
        self._published: CoreState | None = None
        self._app: AppState | None = None
        self._numbers = itertools.count(1)
        self._waiting: dict[PushId, _Waiting] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._store_lock = asyncio.Lock()
        self._tasks = TaskScope()
        self._suspension: asyncio.Task[None] | None = None
        self._watcher: asyncio.Task[None] | None = None

    @property
    def core_state(self) -> CoreState:
        return self._machine.core

    async def receive(self, push: MessagePush, original: Content = ORIGINAL) -> Content:
        """Return what the platform shows for a push, after at most 30 seconds."""
        app = await self._shared.app_state()
        push_id = next(self._numbers)
        delivered: asyncio.Future[Content] = asyncio.get_running_loop().create_future()
        self._waiting[push_id] = _Waiting(push, original, delivered)
        self._app = app
        self._do(self._machine.arrived(push_id, app, self._clock()))
        try:
            return await delivered
        except asyncio.CancelledError:
            self._do(self._machine.expired(push_id, self._clock()))
            raise

    def expire(self) -> None:
        """Deliver the best known content, because the platform is about to end the process."""
        for push_id in list(self._waiting):
            self._do(self._machine.expired(push_id, self._clock()))

    async def close(self) -> None:
        """Deliver the best known content, and close the database at once."""
        self.expire()
        await self._tasks.close()
        async with self._store_lock:
            await self._agent.close()
        await self._shared.set_core_state(CoreState.CREATED)

    # Effects.

    def _do(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case ReadPush(push_id):
                    self._spawn(self._look(push_id))
                case FetchMessage(push_id, conn_id):
                    self._spawn(self._fetch(push_id, conn_id))
                case Deliver():
                    self._spawn(self._deliver(effect))
                case Suspend():
                    self._cancel_suspension()
                    self._suspension = self._spawn(self._suspend(effect))
                case core.Resume():
                    self._cancel_suspension()
                case core.OpenStore():
                    self._spawn(self._open())
                case core.CloseStore():
                    self._spawn(self._close())
        if self._watcher is None and (self._machine.pending or self._machine.core.has_store):
            self._watcher = self._spawn(self._watch())

    def _spawn(self, work: Coroutine[object, object, None]) -> "asyncio.Task[None]":
        return self._tasks.spawn(work, name="notification extension")

    def _cancel_suspension(self) -> None:
        if self._suspension is not None:
            self._suspension.cancel()
            self._suspension = None

    async def _open(self) -> None:
        try:
            async with self._store_lock:
                await self._publish()
                if await self._is_taken():
                    return
                await self._agent.open()
        except CoreUnavailable as exc:
            self._do(self._machine.core_failed(exc.problem, self._clock()))
        except Exception as exc:
            logger.error("the core cannot be opened: %s", type(exc).__name__)
            self._do(self._machine.core_failed(DatabaseProblem.DAMAGED, self._clock()))
        else:
            self._do(self._machine.core_opened(self._clock()))
        await self._publish()

    async def _is_taken(self) -> bool:
        """Check whether the app runs now: each publishes its state before it reads the other's."""
        app = await self._shared.app_state()
        if app.is_running:
            self._app = app
            self._do(self._machine.app_changed(app, self._clock()))
        return app.is_running

    async def _close(self) -> None:
        async with self._store_lock:
            if not self._machine.core.has_store:
                await self._agent.close()
            await self._publish()

    async def _suspend(self, effect: Suspend) -> None:
        await asyncio.sleep(effect.delay)
        await self._publish()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(effect.timeout):
                for lock in list(self._locks.values()):
                    async with lock:  # what is being fetched is stored first
                        pass
        self._suspension = None
        self._do(self._machine.core_over())

    async def _look(self, push_id: PushId) -> None:
        waiting = self._waiting.get(push_id)
        if waiting is None:
            return
        try:
            async with self._store_lock:
                await self._agent.open()  # a core that was resumed may not be open yet
            found = await self._agent.read_push(waiting.push.nonce, waiting.push.box)
        except CoreUnavailable as exc:
            self._do(self._machine.core_failed(exc.problem, self._clock()))
            return
        except Exception as exc:
            logger.warning("a push cannot be read: %s", type(exc).__name__)
            self._do(self._machine.not_found(push_id, self._clock()))
            return
        waiting.connections = {item.conn_id: item for item in found}
        self._do(self._machine.found(push_id, found, self._clock()))

    async def _fetch(self, push_id: PushId, conn_id: str) -> None:
        waiting = self._waiting.get(push_id)
        connection = None if waiting is None else waiting.connections.get(conn_id)
        if connection is None or connection.expected is None:
            return
        got = None
        try:
            async with self._locks.setdefault(conn_id, asyncio.Lock()):
                got = await self._agent.fetch(conn_id, connection.expected)
        except Exception as exc:
            logger.warning("a message cannot be fetched: %s", type(exc).__name__)
        if got is None:
            self._do(self._machine.no_message(push_id, conn_id, self._clock()))
        else:
            self._do(self._machine.got(push_id, conn_id, got, self._clock()))

    async def _deliver(self, effect: Deliver) -> None:
        waiting = self._waiting.pop(effect.push, None)
        if waiting is None or waiting.delivered.done():
            return
        content = waiting.original
        try:
            badge = await self._shared.change_badge(int(isinstance(effect.delivery, AppStopped)))
            mode = await self._shared.preview()
            content = content_of(effect.delivery, waiting.original, mode, badge)
            if isinstance(effect.delivery, Best):
                for item in effect.connections:
                    if item.expected is not None:
                        await self._shared.set_shown(item.conn_id, item.expected.timestamp)
        finally:
            if not waiting.delivered.done():
                waiting.delivered.set_result(content)
        if content.is_shown and isinstance(effect.delivery, Best):
            for item in effect.connections:
                if item.expected is not None and not (item.is_muted or item.is_old):
                    self._journal.record(DeviceShown(notification=item.nonce))

    # Background tasks.

    async def _watch(self) -> None:
        """Follow the app's state and the time, while there is something to do."""
        try:
            while self._machine.pending or self._machine.core.has_store:
                await asyncio.sleep(WATCH_INTERVAL)
                app = await self._shared.app_state()
                if app is not self._app:
                    self._app = app
                    self._do(self._machine.app_changed(app, self._clock()))
                    await self._publish()
                deadline = self._machine.deadline
                if deadline is not None and self._clock() >= deadline:
                    self._do(self._machine.tick(app, self._clock()))
        finally:
            self._watcher = None

    async def _publish(self) -> None:
        state = self._machine.core
        if state is not self._published:
            self._published = state
            await self._shared.set_core_state(state)
