"""One push in the extension: from its arrival to its delivery, exactly once.

    NEW ──suspended──> STARTING ──opened──> LOOKING ──found──> RECEIVING ──ready──> DELIVERED
     ├──suspending──> WAITING ──suspended──> STARTING                                 ^
     └──the app runs, or is stopped; and from any state: the time is over ────────────┘

The states on the left are the app's.
"""

from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from heliograph.device.chats.content import DatabaseProblem
from heliograph.device.states import AppState


class PushPhase(Enum):
    NEW = "not seen yet"
    WAITING = "the app has not closed the database yet"
    STARTING = "the core opens the database"
    LOOKING = "both layers are being decrypted"
    RECEIVING = "messages are fetched"
    DELIVERED = "the platform has the notification"


@dataclass(frozen=True, slots=True)
class Arrived:
    app: AppState


@dataclass(frozen=True, slots=True)
class AppChanged:
    app: AppState


@dataclass(frozen=True, slots=True)
class WaitOver:
    """The app did not finish suspending in time; `app` is its state now."""

    app: AppState


@dataclass(frozen=True, slots=True)
class CoreFailed:
    problem: DatabaseProblem


class PushEvent(Enum):
    CORE_OPENED = "the core runs"
    FOUND = "the push is about these connections"
    NOT_FOUND = "the push cannot be decrypted, or names no known connection"
    ALL_READY = "all connections are ready"
    EXPIRED = "30 seconds have passed, or the platform ends the process"


Input = Arrived | AppChanged | WaitOver | CoreFailed | PushEvent


class PushAction(Enum):
    WAIT_FOR_APP = "wait until the app is suspended"
    NEED_CORE = "start the core"
    LOOK = "find the connections of the push"
    RECEIVE = "fetch the messages"
    DELIVER_ORIGINAL = "deliver the push unchanged"
    DELIVER_APP_STOPPED = "deliver that the app is stopped"
    DELIVER_BEST = "deliver the best of all connections"


@dataclass(frozen=True, slots=True)
class DeliverProblem:
    problem: DatabaseProblem


Effect = PushAction | DeliverProblem

_LOOKED = {
    PushEvent.CORE_OPENED: (PushPhase.STARTING, PushPhase.LOOKING, PushAction.LOOK),
    PushEvent.FOUND: (PushPhase.LOOKING, PushPhase.RECEIVING, PushAction.RECEIVE),
    PushEvent.NOT_FOUND: (PushPhase.LOOKING, PushPhase.DELIVERED, PushAction.DELIVER_ORIGINAL),
    PushEvent.ALL_READY: (PushPhase.RECEIVING, PushPhase.DELIVERED, PushAction.DELIVER_BEST),
}


def step(phase: PushPhase, happened: Input) -> tuple[PushPhase, Effect | None]:
    if phase is PushPhase.DELIVERED:
        return phase, None
    match happened:
        case Arrived(app):
            return _begin(app) if phase is PushPhase.NEW else (phase, None)
        case AppChanged(app) | WaitOver(app):
            return _app(phase, app, over=isinstance(happened, WaitOver))
        case CoreFailed(problem):
            if phase in (PushPhase.STARTING, PushPhase.LOOKING):
                return PushPhase.DELIVERED, DeliverProblem(problem)
            if phase is PushPhase.RECEIVING:
                return PushPhase.DELIVERED, PushAction.DELIVER_BEST
            return phase, None
        case PushEvent.EXPIRED:
            return PushPhase.DELIVERED, _what_there_is(phase)
        case PushEvent():
            before, after, action = _LOOKED[happened]
            return (after, action) if phase is before else (phase, None)
        case _:
            assert_never(happened)


def _begin(app: AppState) -> tuple[PushPhase, Effect]:
    match app:
        case AppState.STOPPED:
            return PushPhase.DELIVERED, PushAction.DELIVER_APP_STOPPED
        case AppState.SUSPENDED:
            return PushPhase.STARTING, PushAction.NEED_CORE
        case AppState.SUSPENDING:
            return PushPhase.WAITING, PushAction.WAIT_FOR_APP
        case AppState.ACTIVE | AppState.ACTIVATING | AppState.BACKGROUND_REFRESH:
            return PushPhase.DELIVERED, PushAction.DELIVER_ORIGINAL
        case _:
            assert_never(app)


def _app(phase: PushPhase, app: AppState, *, over: bool) -> tuple[PushPhase, Effect | None]:
    if app.is_running and phase is not PushPhase.NEW:
        # The app has the database now, and will receive what is missing.
        return PushPhase.DELIVERED, _what_there_is(phase)
    if phase is not PushPhase.WAITING:
        return phase, None
    if app is AppState.STOPPED:
        return PushPhase.DELIVERED, PushAction.DELIVER_APP_STOPPED
    if app is AppState.SUSPENDED or over:
        return PushPhase.STARTING, PushAction.NEED_CORE
    return phase, None


def _what_there_is(phase: PushPhase) -> PushAction:
    return PushAction.DELIVER_BEST if phase is PushPhase.RECEIVING else PushAction.DELIVER_ORIGINAL
