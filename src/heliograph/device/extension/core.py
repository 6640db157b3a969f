"""The extension's core, and the hand-over of the database between extension and app.

    CREATED ──needed──> STARTING ──opened──> ACTIVE ──idle──> SUSPENDING ──over──> SUSPENDED
       ^                   │ └──app runs, idle──────────────────^  │ ^                 │
       └──────failed───────┘                    ACTIVE <──needed───┘ └──── STARTING <──needed

Only one of the two may have the database open. The extension closes it when the app publishes that
it runs, or when all pushes are delivered.
"""

from dataclasses import dataclass
from enum import Enum

from heliograph.device.states import CoreState

IDLE_DELAY = 2.0
"""Seconds between the last notification and suspension, for the core to finish its work."""
IDLE_TIMEOUT = 4.0
APP_TIMEOUT = 1.0
"""Seconds for the core to finish while the app waits for the database."""


class CoreInput(Enum):
    NEEDED = "a push needs the core"
    OPENED = "the database is open and the core runs"
    FAILED = "the database cannot be opened"
    IDLE = "all pushes are delivered"
    APP_RUNS = "the app opens the database"
    OVER = "the core has finished, or timed out"


class OpenStore(Enum):
    """Make or reopen the core's database; answered by OPENED or FAILED."""

    EFFECT = "open"


class CloseStore(Enum):
    EFFECT = "close"


@dataclass(frozen=True, slots=True)
class Suspend:
    """Give the core this time to finish, after a delay, then report OVER."""

    delay: float
    timeout: float


class Resume(Enum):
    """Keep the core active: its suspension is cancelled."""

    EFFECT = "resume"


CoreEffect = OpenStore | CloseStore | Suspend | Resume

OPEN, CLOSE, RESUME = OpenStore.EFFECT, CloseStore.EFFECT, Resume.EFFECT
WHEN_IDLE = Suspend(IDLE_DELAY, IDLE_TIMEOUT)
FOR_APP = Suspend(0.0, APP_TIMEOUT)

_S, _I = CoreState, CoreInput
_TABLE: dict[tuple[CoreState, CoreInput], tuple[CoreState, CoreEffect | None]] = {
    (_S.CREATED, _I.NEEDED): (_S.STARTING, OPEN),
    (_S.STARTING, _I.OPENED): (_S.ACTIVE, None),
    (_S.STARTING, _I.FAILED): (_S.CREATED, CLOSE),
    (_S.STARTING, _I.IDLE): (_S.SUSPENDING, WHEN_IDLE),
    (_S.STARTING, _I.APP_RUNS): (_S.SUSPENDING, FOR_APP),
    (_S.ACTIVE, _I.FAILED): (_S.CREATED, CLOSE),
    (_S.ACTIVE, _I.IDLE): (_S.SUSPENDING, WHEN_IDLE),
    (_S.ACTIVE, _I.APP_RUNS): (_S.SUSPENDING, FOR_APP),
    (_S.SUSPENDING, _I.NEEDED): (_S.ACTIVE, RESUME),
    (_S.SUSPENDING, _I.FAILED): (_S.CREATED, CLOSE),
    (_S.SUSPENDING, _I.APP_RUNS): (_S.SUSPENDING, FOR_APP),
    (_S.SUSPENDING, _I.OVER): (_S.SUSPENDED, CLOSE),
    (_S.SUSPENDED, _I.NEEDED): (_S.STARTING, OPEN),
}


def step(state: CoreState, happened: CoreInput) -> tuple[CoreState, CoreEffect | None]:
    """Return the next state and effects; the same state if the input does not apply."""
    return _TABLE.get((state, happened), (state, None))
