"""One push in the extension: from its arrival to what is delivered, exactly once.

    NEW ──suspended──> STARTING ──opened──> LOOKING ──found──> RECEIVING ──ready──> DELIVERED
     ├──suspending──> WAITING ──suspended──> STARTING                                 ^
     └──the app runs, or is stopped; and from any state: the time is over ────────────┘

The states on the left are the app's.
"""

from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from heliograph.device.content import Problem
from heliograph.device.states import AppState


class Phase(Enum):
    NEW = "not seen yet"
    WAITING = "the app has not let go of the database yet"
    STARTING = "the core opens the database"
    LOOKING = "both layers are decrypted"
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
    """The app should have been suspended long ago; this is the state that it left."""

    app: AppState


@dataclass(frozen=True, slots=True)
class CoreFailed:
    problem: Problem


class Simple(Enum):
    CORE_OPENED = "the core runs"
    FOUND = "the push is about these connections"
    NOT_FOUND = "it does not open, or is about nothing that is known"
    ALL_READY = "nothing more is to be fetched"
    EXPIRED = "30 seconds are over, or the platform says so"


Input = Arrived | AppChanged | WaitOver | CoreFailed | Simple


class Action(Enum):
    WAIT_FOR_APP = "wait until the app is suspended"
    NEED_CORE = "start the core"
    LOOK = "ask which connections it is about"
    RECEIVE = "fetch the messages"
    DELIVER_ORIGINAL = "deliver as it came"
    DELIVER_APP_STOPPED = "deliver that the app is stopped"
    DELIVER_BEST = "deliver the best of all connections"


@dataclass(frozen=True, slots=True)
class DeliverProblem:
    problem: Problem


Effect = Action | DeliverProblem

_LOOKED = {
    Simple.CORE_OPENED: (Phase.STARTING, Phase.LOOKING, Action.LOOK),
    Simple.FOUND: (Phase.LOOKING, Phase.RECEIVING, Action.RECEIVE),
    Simple.NOT_FOUND: (Phase.LOOKING, Phase.DELIVERED, Action.DELIVER_ORIGINAL),
    Simple.ALL_READY: (Phase.RECEIVING, Phase.DELIVERED, Action.DELIVER_BEST),
}


def step(phase: Phase, happened: Input) -> tuple[Phase, Effect | None]:
    if phase is Phase.DELIVERED:
        return phase, None
    match happened:
        case Arrived(app):
            return _begin(app) if phase is Phase.NEW else (phase, None)
        case AppChanged(app) | WaitOver(app):
            return _app(phase, app, over=isinstance(happened, WaitOver))
        case CoreFailed(problem):
            if phase in (Phase.STARTING, Phase.LOOKING):
                return Phase.DELIVERED, DeliverProblem(problem)
            if phase is Phase.RECEIVING:
                return Phase.DELIVERED, Action.DELIVER_BEST
            return phase, None
        case Simple.EXPIRED:
            return Phase.DELIVERED, _what_there_is(phase)
        case Simple():
            before, after, action = _LOOKED[happened]
            return (after, action) if phase is before else (phase, None)
        case _:
            assert_never(happened)


def _begin(app: AppState) -> tuple[Phase, Effect]:
    match app:
        case AppState.STOPPED:
            return Phase.DELIVERED, Action.DELIVER_APP_STOPPED
        case AppState.SUSPENDED:
            return Phase.STARTING, Action.NEED_CORE
        case AppState.SUSPENDING:
            return Phase.WAITING, Action.WAIT_FOR_APP
        case AppState.ACTIVE | AppState.ACTIVATING | AppState.BACKGROUND_REFRESH:
            return Phase.DELIVERED, Action.DELIVER_ORIGINAL
        case _:
            assert_never(app)


def _app(phase: Phase, app: AppState, *, over: bool) -> tuple[Phase, Effect | None]:
    if app.is_running and phase is not Phase.NEW:
        # The app has the database now, and will receive what is missing.
        return Phase.DELIVERED, _what_there_is(phase)
    if phase is not Phase.WAITING:
        return phase, None
    if app is AppState.STOPPED:
        return Phase.DELIVERED, Action.DELIVER_APP_STOPPED
    if app is AppState.SUSPENDED or over:
        return Phase.STARTING, Action.NEED_CORE
    return phase, None


def _what_there_is(phase: Phase) -> Action:
    return Action.DELIVER_BEST if phase is Phase.RECEIVING else Action.DELIVER_ORIGINAL
