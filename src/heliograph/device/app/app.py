"""The app's own states: which process has the database, and when the app may open it.

    SUSPENDED ──open──> ACTIVATING ──store free──> ACTIVE ──background──> SUSPENDING
        └──wake──> BACKGROUND_REFRESH ──done──> SUSPENDING ──over──> SUSPENDED
    any ──stop──> STOPPED ──start──> ACTIVATING

Every change is published to the extension before its effects are performed.
"""

from enum import Enum

from heliograph.device.states import AppState

SUSPEND_TIMEOUT = 15.0
"""Seconds for the core to finish when the app goes to the background."""
REFRESH_SUSPEND_TIMEOUT = 5.0
STORE_TIMEOUT = 10.0
"""Seconds to wait for the extension, which may have been killed with the store open."""


class AppInput(Enum):
    OPEN = "the user opens the app"
    STORE_FREE = "the extension closed the database, or timed out"
    BACKGROUND = "the user leaves the app"
    WAKE = "the system wakes the app in the background"
    DONE = "the background refresh is complete"
    OVER = "the core is suspended, or timed out"
    STOP = "the user stops the chat"
    START = "the user starts it again"


class AppEffect(Enum):
    CLAIM_STORE = "wait for the extension, then open the database"
    ACTIVATE = "start to receive"
    RESPOND = "process the response that was kept while inactive"
    SUSPEND = "wait for the core to finish"
    CLOSE_STORE = "close the database"
    SET_BADGE = "set the badge to the unread items of all users"
    SCHEDULE = "ask for the next background refresh"


_S, _I, _E = AppState, AppInput, AppEffect
_LEAVE = (_E.SET_BADGE, _E.SCHEDULE, _E.SUSPEND)
_STOP = (_E.SUSPEND, _E.CLOSE_STORE)
_TABLE: dict[tuple[AppState, AppInput], tuple[AppState, tuple[AppEffect, ...]]] = {
    (_S.ACTIVE, _I.BACKGROUND): (_S.SUSPENDING, _LEAVE),
    (_S.ACTIVE, _I.STOP): (_S.STOPPED, _STOP),
    (_S.ACTIVATING, _I.STORE_FREE): (_S.ACTIVE, (_E.ACTIVATE, _E.RESPOND)),
    (_S.ACTIVATING, _I.BACKGROUND): (_S.SUSPENDING, _LEAVE),
    (_S.ACTIVATING, _I.STOP): (_S.STOPPED, _STOP),
    (_S.BACKGROUND_REFRESH, _I.OPEN): (_S.ACTIVE, (_E.ACTIVATE, _E.RESPOND)),
    (_S.BACKGROUND_REFRESH, _I.STORE_FREE): (_S.BACKGROUND_REFRESH, (_E.ACTIVATE,)),
    (_S.BACKGROUND_REFRESH, _I.DONE): (_S.SUSPENDING, (_E.SET_BADGE, _E.SUSPEND)),
    (_S.BACKGROUND_REFRESH, _I.STOP): (_S.STOPPED, _STOP),
    (_S.SUSPENDING, _I.OPEN): (_S.ACTIVE, (_E.ACTIVATE, _E.RESPOND)),
    (_S.SUSPENDING, _I.WAKE): (_S.BACKGROUND_REFRESH, (_E.ACTIVATE,)),
    (_S.SUSPENDING, _I.OVER): (_S.SUSPENDED, (_E.CLOSE_STORE,)),
    (_S.SUSPENDING, _I.STOP): (_S.STOPPED, (_E.CLOSE_STORE,)),
    (_S.SUSPENDED, _I.OPEN): (_S.ACTIVATING, (_E.CLAIM_STORE,)),
    (_S.SUSPENDED, _I.WAKE): (_S.BACKGROUND_REFRESH, (_E.CLAIM_STORE,)),
    (_S.SUSPENDED, _I.STOP): (_S.STOPPED, ()),
    (_S.STOPPED, _I.START): (_S.ACTIVATING, (_E.CLAIM_STORE,)),
}


def step(state: AppState, happened: AppInput) -> tuple[AppState, tuple[AppEffect, ...]]:
    """Return the next state and effects; the same state if the input does not apply."""
    return _TABLE.get((state, happened), (state, ()))
