"""Background refresh, for phones that are not pushed: about every 20 minutes, 30 seconds each.

UNREGISTERED ──register──> IDLE ──leave, in periodic mode──> SCHEDULED ──wake──> ACTIVATING
ACTIVATING ──activated──> RECEIVING ──quiet, expired──> SUSPENDING ──suspended──> SCHEDULED
"""

from dataclasses import dataclass, replace
from enum import Enum
from typing import assert_never

from heliograph.device.states import NotificationsMode

REFRESH_INTERVAL = 20 * 60.0
REFRESH_LIMIT = 30.0
"""Seconds after which the platform ends the task."""
QUIET = 6.0
"""Seconds without a message after which there are no more."""
SUSPEND_TIMEOUT = 2.0
RECEIVE_LIMIT = REFRESH_LIMIT - SUSPEND_TIMEOUT - 1.0
"""Seconds after which receiving ends, so that suspension fits in the limit."""


class Phase(Enum):
    UNREGISTERED = "the platform knows no handler"
    IDLE = "nothing is scheduled"
    SCHEDULED = "the platform may wake the app"
    ACTIVATING = "the chat is being activated"
    RECEIVING = "messages are received"
    SUSPENDING = "the chat is being suspended"


class Simple(Enum):
    REGISTER = "the app starts"
    WAKE = "the platform runs the task"
    ACTIVATED = "the chat receives"
    FAILED = "the chat cannot be activated"
    MESSAGE = "a message was received"
    TICK = "some time has passed"
    EXPIRED = "the platform takes the time away"
    SUSPENDED = "the chat is suspended"
    OPENED = "the user opens the app"


@dataclass(frozen=True, slots=True)
class Leave:
    """The app enters the background."""

    mode: NotificationsMode


@dataclass(frozen=True, slots=True)
class ModeChanged:
    mode: NotificationsMode


Input = Simple | Leave | ModeChanged


class Act(Enum):
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


Effect = Act | Submit | Complete
Result = tuple["BackgroundRefresh", tuple[Effect, ...]]


@dataclass(frozen=True, slots=True)
class BackgroundRefresh:
    phase: Phase = Phase.UNREGISTERED
    mode: NotificationsMode = NotificationsMode.OFF
    due_at: float | None = None
    """Not before this the platform wakes the app."""
    started_at: float = 0.0
    last_message_at: float = 0.0

    @property
    def is_running(self) -> bool:
        return self.phase in (Phase.ACTIVATING, Phase.RECEIVING, Phase.SUSPENDING)

    @property
    def deadline(self) -> float | None:
        """When the next TICK means something."""
        if self.phase is not Phase.RECEIVING:
            return None
        return min(self.last_message_at + QUIET, self.started_at + RECEIVE_LIMIT)


def step(state: BackgroundRefresh, happened: Input, now: float) -> Result:
    match happened:
        case Leave(mode):
            return _schedule(replace(state, mode=mode), now)
        case ModeChanged(mode):
            return _change_mode(replace(state, mode=mode), now)
        case Simple():
            return _simple(state, happened, now)
        case _:
            assert_never(happened)


def _simple(state: BackgroundRefresh, happened: Simple, now: float) -> Result:
    phase = state.phase
    match happened, phase:
        case Simple.REGISTER, Phase.UNREGISTERED:
            return replace(state, phase=Phase.IDLE), (Act.REGISTER_HANDLER,)
        case Simple.WAKE, Phase.UNREGISTERED:
            return state, (Complete(False),)
        case Simple.WAKE, Phase.IDLE | Phase.SCHEDULED:
            return _wake(state, now)
        case Simple.WAKE, _:
            return state, (Complete(True),)  # one is under way, and does it all
        case Simple.ACTIVATED, Phase.ACTIVATING:
            return replace(state, phase=Phase.RECEIVING, last_message_at=now), ()
        case Simple.FAILED, Phase.ACTIVATING:
            return _finish(state, False)
        case Simple.FAILED, Phase.RECEIVING:
            return replace(state, phase=Phase.SUSPENDING), (Act.SUSPEND,)
        case Simple.MESSAGE, Phase.RECEIVING:
            return replace(state, last_message_at=now), ()
        case Simple.TICK, Phase.RECEIVING if state.deadline is not None and now >= state.deadline:
            return replace(state, phase=Phase.SUSPENDING), (Act.SUSPEND,)
        case Simple.EXPIRED, Phase.ACTIVATING | Phase.RECEIVING:
            return replace(state, phase=Phase.SUSPENDING), (Act.SUSPEND,)
        case Simple.EXPIRED, Phase.SUSPENDING:
            return _finish(state, False)
        case Simple.SUSPENDED, Phase.SUSPENDING:
            return _finish(state, True)
        case Simple.OPENED, Phase.SCHEDULED:
            return replace(state, phase=Phase.IDLE, due_at=None), (Act.CANCEL,)
        case Simple.OPENED, Phase.ACTIVATING | Phase.RECEIVING | Phase.SUSPENDING:
            # The app has the chat now, and must not be suspended by a task that ends.
            done = replace(state, phase=Phase.IDLE, due_at=None)
            return done, (Act.CANCEL, Complete(True))
    return state, ()


def _schedule(state: BackgroundRefresh, now: float) -> Result:
    if state.mode is not NotificationsMode.PERIODIC:
        return _change_mode(state, now)
    if state.phase not in (Phase.IDLE, Phase.SCHEDULED):
        return state, ()
    due_at = now + REFRESH_INTERVAL
    return replace(state, phase=Phase.SCHEDULED, due_at=due_at), (Submit(due_at),)


def _change_mode(state: BackgroundRefresh, now: float) -> Result:
    if state.mode is NotificationsMode.PERIODIC:
        return state, ()  # scheduled when the app is left
    if state.phase is Phase.SCHEDULED:
        return replace(state, phase=Phase.IDLE, due_at=None), (Act.CANCEL,)
    if state.is_running and state.due_at is not None:
        return replace(state, due_at=None), (Act.CANCEL,)
    return state, ()


def _wake(state: BackgroundRefresh, now: float) -> Result:
    """The next is scheduled first: a task that is killed must not be the last."""
    if state.mode is not NotificationsMode.PERIODIC:
        return replace(state, phase=Phase.IDLE, due_at=None), (Complete(True),)
    due_at = now + REFRESH_INTERVAL
    woken = replace(state, phase=Phase.ACTIVATING, due_at=due_at, started_at=now)
    return woken, (Submit(due_at), Act.ACTIVATE)


def _finish(state: BackgroundRefresh, success: bool) -> Result:
    phase = Phase.IDLE if state.due_at is None else Phase.SCHEDULED
    return replace(state, phase=phase), (Complete(success),)
