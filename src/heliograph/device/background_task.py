"""Protection of one call: extra time from the platform, given back once and after 15 s at most.

IDLE ──begin──> RUNNING ──end, expired, 15 s──> ENDED
"""

from dataclasses import dataclass, replace
from enum import Enum

MAX_TASK_DURATION = 15.0


class Phase(Enum):
    IDLE = "not begun"
    RUNNING = "the platform leaves the app running"
    ENDED = "the platform may suspend the app"


class Input(Enum):
    BEGIN = "a call begins"
    END = "it has ended"
    EXPIRED = "the platform takes the time away"
    TICK = "some time has passed"


class Effect(Enum):
    BEGIN_TASK = "ask the platform for time"
    END_TASK = "give it back"


@dataclass(frozen=True, slots=True)
class BackgroundTask:
    phase: Phase = Phase.IDLE
    deadline: float | None = None


def step(task: BackgroundTask, happened: Input, now: float) -> tuple[BackgroundTask, Effect | None]:
    match happened, task.phase:
        case Input.BEGIN, Phase.IDLE:
            return BackgroundTask(Phase.RUNNING, now + MAX_TASK_DURATION), Effect.BEGIN_TASK
        case ((Input.END | Input.EXPIRED), Phase.RUNNING):
            return replace(task, phase=Phase.ENDED), Effect.END_TASK
        case Input.TICK, Phase.RUNNING if task.deadline is not None and now >= task.deadline:
            return replace(task, phase=Phase.ENDED), Effect.END_TASK
    return task, None
