"""Drives the app's machines: states, background refresh, local notifications and responses."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from dataclasses import replace

from heliograph.device.app import app, background, background_task, manager
from heliograph.device.app.app import AppEffect, AppInput
from heliograph.device.app.background import BackgroundRefresh, Complete, Submit
from heliograph.device.app.manager import (
    AcceptContact,
    LocalNotifier,
    PermissionAnswer,
    Responded,
    Response,
    Responses,
    present,
)
from heliograph.device.chats.content import build
from heliograph.device.chats.model import (
    CallInvited,
    ChatId,
    ContactRequested,
    FetchedMessage,
    Loaded,
)
from heliograph.device.ports import AppCore, Platform, Shared
from heliograph.device.states import AppState, Presentation
from heliograph.tasks import TaskScope
from heliograph.wire.ntf.tokens import NotificationsMode

logger = logging.getLogger(__name__)

POLL_INTERVAL = 0.05


class AppService:
    """One process of the app. `on_effect` is called with the effects of responses.

    It joins four machines with the ports they use, which are its attributes.
    """

    def __init__(
        self,
        agent: AppCore,
        shared: Shared,
        platform: Platform,
        *,
        state: AppState = AppState.SUSPENDED,
        clock: Callable[[], float] = time.monotonic,
        on_effect: Callable[[manager.Effect], None] | None = None,
    ) -> None:
        self.state = state
        self.refresh = BackgroundRefresh()
        self.notifier = LocalNotifier()
        self.responses = Responses()
        self.open_chat: ChatId | None = None
        self._agent = agent
        self._shared = shared
        self._platform = platform
        self._clock = clock
        self._on_effect = on_effect
        self._is_open = False
        self._receiving: TaskScope | None = None
        self._refreshes = TaskScope()
        self._last_refresh: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        self._refreshed = asyncio.Event()

    # Inputs of users and the platform.

    async def launch(self, asked: PermissionAnswer = PermissionAnswer.GRANTED) -> None:
        """Register with the platform, and publish the app's state."""
        self.notifier = LocalNotifier(manager.ask(self.notifier.permission, asked))
        self.responses = replace(self.responses, user=await self._shared.active_user())
        await self._refresh(background.RefreshEvent.REGISTER)
        if not (await self._shared.app_state()).is_running:  # another process has the app open
            await self._shared.set_app_state(self.state)

    async def open(self) -> None:
        await self._refresh(background.RefreshEvent.OPENED)
        await self._input(AppInput.OPEN)

    async def leave(self) -> None:
        """Go to the background."""
        await self._input(AppInput.BACKGROUND)

    async def stop(self) -> None:
        await self._input(AppInput.STOP)

    async def start(self) -> None:
        await self._input(AppInput.START)

    async def set_mode(self, mode: NotificationsMode) -> None:
        await self._refresh(background.ModeChanged(mode))
        if mode is NotificationsMode.PERIODIC and not self.state.is_running:
            await self._refresh(background.Leave(mode))

    async def wake(self) -> None:
        """Run a background refresh to its end, for the platform's schedule or a silent push."""
        await self._refresh(background.ModeChanged(await self._shared.mode()))
        await self._refresh(background.RefreshEvent.WAKE)
        await self._refreshed.wait()

    async def expire(self) -> None:
        """End the background refresh, because its time is over."""
        await self._refresh(background.RefreshEvent.EXPIRED)

    async def respond(self, response: Response) -> None:
        """Handle a user's response to a notification."""
        await self._responded(Responded(response))

    async def close(self) -> None:
        if self.state is not AppState.STOPPED:
            await self.leave()
        await self._refreshes.close()
        await self._stop_receiving(app.REFRESH_SUSPEND_TIMEOUT)
        await self._close_store()

    @contextlib.asynccontextmanager
    async def protected(self) -> AsyncIterator[None]:
        """Keep the app running in the background while the block runs, for at most 15 seconds."""
        task, effect = background_task.step(
            background_task.BackgroundTask(), background_task.Input.BEGIN, self._clock()
        )
        number = self._platform.begin_task() if effect is not None else 0
        ended = asyncio.Event()

        def end(happened: background_task.Input) -> None:
            nonlocal task
            task, effect = background_task.step(task, happened, self._clock())
            if effect is background_task.Effect.END_TASK:
                self._platform.end_task(number)
                ended.set()

        async def limit() -> None:
            while task.deadline is not None and not ended.is_set():
                await asyncio.sleep(min(max(task.deadline - self._clock(), POLL_INTERVAL), 1.0))
                end(background_task.Input.TICK)

        async with TaskScope() as timer:
            timer.spawn(limit(), name="time limit of a background task")
            try:
                yield
            finally:
                end(background_task.Input.END)

    # The app's states.

    async def _input(self, happened: AppInput) -> None:
        async with self._lock:
            await self._step(happened)

    async def _step(self, happened: AppInput) -> None:
        before = self.state
        self.state, effects = app.step(self.state, happened)
        if self.state is not before:
            await self._shared.set_app_state(self.state)
            active = (
                manager.AppActivity.ACTIVE
                if self.state is AppState.ACTIVE
                else manager.AppActivity.INACTIVE
            )
            if active is manager.AppActivity.INACTIVE:
                await self._responded(active)
        for effect in effects:
            await self._effect(effect)

    async def _effect(self, effect: AppEffect) -> None:
        match effect:
            case AppEffect.CLAIM_STORE:
                await self._claim()
                await self._step(AppInput.STORE_FREE)
            case AppEffect.ACTIVATE:
                async with self.protected():
                    await self._open_store()
                    loaded = await self._agent.loaded()
                await self._responded(loaded)
                self._start_receiving()
            case AppEffect.RESPOND:
                await self._responded(manager.AppActivity.ACTIVE)
            case AppEffect.SUSPEND:
                await self._stop_receiving(app.SUSPEND_TIMEOUT)
                await self._step(AppInput.OVER)
            case AppEffect.CLOSE_STORE:
                async with self.protected():
                    await self._close_store()
            case AppEffect.SET_BADGE:
                if self._is_open:
                    async with self.protected():
                        self._platform.set_badge(await self._shared.count_unread())
            case AppEffect.SCHEDULE:
                await self._refresh(background.Leave(await self._shared.mode()))

    async def _claim(self) -> None:
        """Wait until the extension closes the database; one that was killed never will."""
        deadline = self._clock() + app.STORE_TIMEOUT
        while (await self._shared.core_state()).has_store:
            if self._clock() >= deadline:
                logger.warning(
                    "the extension did not close the database in time; opening it anyway"
                )
                return
            await asyncio.sleep(POLL_INTERVAL)

    async def _open_store(self) -> None:
        if not self._is_open:
            await self._agent.open()
            self._is_open = True

    async def _close_store(self) -> None:
        if self._is_open:
            self._is_open = False
            await self._agent.close()

    # Receiving.

    def _start_receiving(self) -> None:
        if self._receiving is None:
            self._receiving = TaskScope()
            self._receiving.spawn(self._receive(), name="receive messages")

    async def _stop_receiving(self, within: float) -> None:
        receiving, self._receiving = self._receiving, None
        if receiving is not None:
            await receiving.close(within)

    async def _receive(self) -> None:
        try:
            async for got in self._agent.messages():
                await self._refresh(background.RefreshEvent.MESSAGE)
                async with self.protected():
                    await self._received(got)
        except Exception as exc:
            logger.error("messages cannot be received: %s", type(exc).__name__)
            await self._refresh(background.RefreshEvent.FAILED)

    async def _received(self, got: FetchedMessage) -> None:
        event = got.event
        if event is None:
            return
        match event:
            case ContactRequested(request=request):
                await self._responded(Loaded(requests=(request.chat_id,)))
            case CallInvited(invitation=invitation):
                await self._responded(Loaded(calls=(invitation.contact.chat_id,)))
        content = build(event, await self._shared.preview(), await self._shared.badge())
        self.notifier, shown = self.notifier.notify(content, self._clock())
        how = present(
            content,
            is_active=self.state is AppState.ACTIVE,
            open_chat=self.open_chat,
            user=self.responses.user,
        )
        if shown and how is not Presentation.NOTHING:
            self._platform.show(content, how)
        if content.target is not None and self._is_seen(content.target):
            await self._shared.read_chat(content.target)
        self._platform.set_badge(await self._shared.badge())

    def _is_seen(self, chat: ChatId) -> bool:
        """Return whether the chat is open in the foreground."""
        return self.state is AppState.ACTIVE and self.open_chat == chat

    # Background refresh.

    async def _refresh(self, happened: background.Input) -> None:
        self.refresh, effects = background.step(self.refresh, happened, self._clock())
        if self.refresh.is_running:
            self._refreshed.clear()
        else:
            self._refreshed.set()
        for effect in effects:
            match effect:
                case Submit(earliest):
                    self._platform.submit(earliest)
                case Complete(success):
                    self._platform.complete(success)
                case background.RefreshAction.CANCEL:
                    self._platform.cancel()
                case background.RefreshAction.ACTIVATE:
                    self._run_in_order(self._activate())
                case background.RefreshAction.SUSPEND:
                    self._run_in_order(self._end_refresh())
                case background.RefreshAction.REGISTER_HANDLER:
                    pass

    def _run_in_order(self, work: Coroutine[object, object, None]) -> None:
        """Run work after earlier work, in a task apart from the receiver, which it may stop."""
        before = self._last_refresh

        async def run() -> None:
            if before is not None:
                await asyncio.wait([before])
            await work

        self._last_refresh = self._refreshes.spawn(run(), name="background refresh")

    async def _activate(self) -> None:
        try:
            await self._input(AppInput.WAKE)
        except Exception as exc:
            logger.error("the app cannot be activated: %s", type(exc).__name__)
            await self._refresh(background.RefreshEvent.FAILED)
            await self._input(AppInput.DONE)
            return
        await self._refresh(background.RefreshEvent.ACTIVATED)
        while (deadline := self.refresh.deadline) is not None:
            await asyncio.sleep(max(min(deadline - self._clock(), 1.0), POLL_INTERVAL))
            await self._refresh(background.RefreshEvent.TICK)

    async def _end_refresh(self) -> None:
        await self._input(AppInput.DONE)
        await self._refresh(background.RefreshEvent.SUSPENDED)

    # Responses.

    async def _responded(self, happened: manager.Input) -> None:
        self.responses, effects = manager.respond(self.responses, happened)
        await self._carry_out(effects)

    async def _carry_out(self, effects: Iterable[manager.Effect]) -> None:
        for effect in effects:
            match effect:
                case manager.SwitchUser(user):
                    async with self.protected():
                        await self._shared.set_active_user(user)
                case manager.OpenChat(chat):
                    self.open_chat = chat
                    async with self.protected():
                        self._platform.set_badge(await self._shared.read_chat(chat))
                case AcceptContact(chat):
                    async with self.protected():
                        await self._agent.accept_contact(chat)
                case manager.TakeCall(chat, action):
                    async with self.protected():
                        await self._agent.answer_call(chat, action is manager.CallAction.ACCEPT)
            if self._on_effect is not None:
                self._on_effect(effect)
