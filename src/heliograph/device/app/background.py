"""Background refresh, for phones that are not pushed: about every 20 minutes, 30 seconds each.

UNREGISTERED ──register──> IDLE ──leave, in periodic mode──> SCHEDULED ──wake──> ACTIVATING
ACTIVATING ──activated──> RECEIVING ──quiet, expired──> SUSPENDING ──suspended──> SCHEDULED
"""

from dataclasses import dataclass, replace
from enum import Enum
from typing import assert_never

from heliograph.wire.ntf.tokens import NotificationsMode

REFRESH_INTERVAL = 20 * 60.0
REFRESH_LIMIT = 30.0
"""Seconds after which the platform ends the task."""
QUIET_SECONDS = 6.0
"""Seconds without a message after which a refresh is done."""
SUSPEND_TIMEOUT = 2.0
RECEIVE_LIMIT = REFRESH_LIMIT - SUSPEND_TIMEOUT - 1.0
"""Seconds after which receiving stops, so that suspension fits in the limit."""


class RefreshPhase(Enum):
    UNREGISTERED = "no handler is registered with the platform"
    IDLE = "nothing is scheduled"
    SCHEDULED = "the platform may wake the app"
    ACTIVATING = "the chat is being activated"
    RECEIVING = "messages are received"
    SUSPENDING = "the chat is being suspended"


class RefreshEvent(Enum):
    REGISTER = "the app starts"
    WAKE = "the platform runs the task"
    ACTIVATED = "the chat receives"
    FAILED = "the chat cannot be activated"
    MESSAGE = "a message was received"
    TICK = "some time has passed"
    EXPIRED = "the platform ends the task"
    SUSPENDED = "the chat is suspended"
    OPENED = "the user opens the app"


@dataclass(frozen=True, slots=True)
class Leave:
    """The app enters the background."""

    mode: NotificationsMode


@dataclass(frozen=True, slots=True)
class ModeChanged:
    mode: NotificationsMode


Input = RefreshEvent | Leave | ModeChanged


class RefreshAction(Enum):
    REGISTER_HANDLER = "register"
    CANCEL = "cancel what is scheduled"
    ACTIVATE = "activate the chat, and receive"
    SUSPEND = "stop receiving, and suspend the chat"


@dataclass(frozen=True, slots=True)
class Submit:
    """Ask to be woken, not before this time."""

    earliest: float


@dataclass(frozen=True, slots=True)
class Complete:
    """Tell the platform that the task is done."""

    success: bool


Effect = RefreshAction | Submit | Complete
Result = tuple["BackgroundRefresh", tuple[Effect, ...]]


@dataclass(frozen=True, slots=True)
class BackgroundRefresh:
    phase: RefreshPhase = RefreshPhase.UNREGISTERED
    mode: NotificationsMode = NotificationsMode.OFF
    due_at: float | None = None
    """The earliest time at which the platform wakes the app."""
    started_at: float = 0.0
    last_message_at: float = 0.0

    @property
    def is_running(self) -> bool:
        return self.phase in (
            RefreshPhase.ACTIVATING,
            RefreshPhase.RECEIVING,
            RefreshPhase.SUSPENDING,
        )

    @property
    def deadline(self) -> float | None:
        """Return the time of the next TICK that has an effect."""
        if self.phase is not RefreshPhase.RECEIVING:
            return None
        return min(self.last_message_at + QUIET_SECONDS, self.started_at + RECEIVE_LIMIT)


def step(state: BackgroundRefresh, happened: Input, now: float) -> Result:
    match happened:
        case Leave(mode):
            return _schedule(replace(state, mode=mode), now)
        case ModeChanged(mode):
            return _change_mode(replace(state, mode=mode), now)
        case RefreshEvent():
            return _simple(state, happened, now)
        case _:
            assert_never(happened)


def _simple(state: BackgroundRefresh, happened: RefreshEvent, now: float) -> Result:
    phase = state.phase
    match happened, phase:
        case RefreshEvent.REGISTER, RefreshPhase.UNREGISTERED:
            return replace(state, phase=RefreshPhase.IDLE), (RefreshAction.REGISTER_HANDLER,)
        case RefreshEvent.WAKE, RefreshPhase.UNREGISTERED:
            return state, (Complete(False),)
        case RefreshEvent.WAKE, RefreshPhase.IDLE | RefreshPhase.SCHEDULED:
            return _wake(state, now)
        case RefreshEvent.WAKE, _:
            return state, (Complete(True),)  # the running refresh receives everything
        case RefreshEvent.ACTIVATED, RefreshPhase.ACTIVATING:
            return replace(state, phase=RefreshPhase.RECEIVING, last_message_at=now), ()
        case RefreshEvent.FAILED, RefreshPhase.ACTIVATING:
            return _finish(state, False)
        case RefreshEvent.FAILED, RefreshPhase.RECEIVING:
            return replace(state, phase=RefreshPhase.SUSPENDING), (RefreshAction.SUSPEND,)
        case RefreshEvent.MESSAGE, RefreshPhase.RECEIVING:
            return replace(state, last_message_at=now), ()
        case RefreshEvent.TICK, RefreshPhase.RECEIVING if (
            state.deadline is not None and now >= state.deadline
        ):
            return replace(state, phase=RefreshPhase.SUSPENDING), (RefreshAction.SUSPEND,)
        case RefreshEvent.EXPIRED, RefreshPhase.ACTIVATING | RefreshPhase.RECEIVING:
            return replace(state, phase=RefreshPhase.SUSPENDING), (RefreshAction.SUSPEND,)
        case RefreshEvent.EXPIRED, RefreshPhase.SUSPENDING:
            return _finish(state, False)
        case RefreshEvent.SUSPENDED, RefreshPhase.SUSPENDING:
            return _finish(state, True)
        case RefreshEvent.OPENED, RefreshPhase.SCHEDULED:
            return replace(state, phase=RefreshPhase.IDLE, due_at=None), (RefreshAction.CANCEL,)
        case (
            RefreshEvent.OPENED,
            RefreshPhase.ACTIVATING | RefreshPhase.RECEIVING | RefreshPhase.SUSPENDING,
        ):
            # The app is open now: the end of a task must not suspend it.
            done = replace(state, phase=RefreshPhase.IDLE, due_at=None)
            return done, (RefreshAction.CANCEL, Complete(True))
    return state, ()


def _schedule(state: BackgroundRefresh, now: float) -> Result:
    if state.mode is not NotificationsMode.PERIODIC:
        return _change_mode(state, now)
    if state.phase not in (RefreshPhase.IDLE, RefreshPhase.SCHEDULED):
        return state, ()
    due_at = now + REFRESH_INTERVAL
    return replace(state, phase=RefreshPhase.SCHEDULED, due_at=due_at), (Submit(due_at),)


def _change_mode(state: BackgroundRefresh, now: float) -> Result:
    if state.mode is NotificationsMode.PERIODIC:
        return state, ()  # scheduled when the app is left
    if state.phase is RefreshPhase.SCHEDULED:
        return replace(state, phase=RefreshPhase.IDLE, due_at=None), (RefreshAction.CANCEL,)
    if state.is_running and state.due_at is not None:
        return replace(state, due_at=None), (RefreshAction.CANCEL,)
    return state, ()


def _wake(state: BackgroundRefresh, now: float) -> Result:
    """Receive messages. In periodic mode the next refresh is scheduled first.

    The next one must be scheduled even if this task is killed. In instant mode only silent pushes
    wake the app.
    """
    if state.mode is NotificationsMode.OFF:
        return replace(state, phase=RefreshPhase.IDLE, due_at=None), (Complete(True),)
    if state.mode is NotificationsMode.INSTANT:
        woken = replace(state, phase=RefreshPhase.ACTIVATING, due_at=None, started_at=now)
        return woken, (RefreshAction.ACTIVATE,)
    due_at = now + REFRESH_INTERVAL
    woken = replace(state, phase=RefreshPhase.ACTIVATING, due_at=due_at, started_at=now)
    return woken, (Submit(due_at), RefreshAction.ACTIVATE)


def _finish(state: BackgroundRefresh, success: bool) -> Result:
    phase = RefreshPhase.IDLE if state.due_at is None else RefreshPhase.SCHEDULED
    return replace(state, phase=phase), (Complete(success),)
