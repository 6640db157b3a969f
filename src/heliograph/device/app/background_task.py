"""A background task: extra time from the platform for one operation, ended once, within 15 s.

IDLE ──begin──> RUNNING ──end, expired, 15 s──> ENDED
"""

from dataclasses import dataclass, replace
from enum import Enum

MAX_TASK_DURATION = 15.0


class TaskPhase(Enum):
    IDLE = "not begun"
    RUNNING = "the platform keeps the app running"
    ENDED = "the platform may suspend the app"


class Input(Enum):
    BEGIN = "an operation begins"
    END = "it has ended"
    EXPIRED = "the platform ends the task"
    TICK = "some time has passed"


class Effect(Enum):
    BEGIN_TASK = "ask the platform for time"
    END_TASK = "end the task at the platform"


@dataclass(frozen=True, slots=True)
class BackgroundTask:
    phase: TaskPhase = TaskPhase.IDLE
    deadline: float | None = None


def step(task: BackgroundTask, happened: Input, now: float) -> tuple[BackgroundTask, Effect | None]:
    match happened, task.phase:
        case Input.BEGIN, TaskPhase.IDLE:
            return BackgroundTask(TaskPhase.RUNNING, now + MAX_TASK_DURATION), Effect.BEGIN_TASK
        case ((Input.END | Input.EXPIRED), TaskPhase.RUNNING):
            return replace(task, phase=TaskPhase.ENDED), Effect.END_TASK
        case Input.TICK, TaskPhase.RUNNING if task.deadline is not None and now >= task.deadline:
            return replace(task, phase=TaskPhase.ENDED), Effect.END_TASK
    return task, None
