import itertools

import pytest

from heliograph.device.app.background_task import (
    MAX_TASK_DURATION,
    BackgroundTask,
    Effect,
    Input,
    TaskPhase,
    step,
)

P, In = TaskPhase, Input
NOW = 50.0
DUE = NOW
CHANGES = {
    (P.IDLE, In.BEGIN): (P.RUNNING, Effect.BEGIN_TASK),
    (P.RUNNING, In.END): (P.ENDED, Effect.END_TASK),
    (P.RUNNING, In.EXPIRED): (P.ENDED, Effect.END_TASK),
    (P.RUNNING, In.TICK): (P.ENDED, Effect.END_TASK),
}


@pytest.mark.parametrize(("phase", "happened"), list(itertools.product(TaskPhase, Input)))
def test_every_pair(phase: TaskPhase, happened: Input) -> None:
    task = BackgroundTask(phase, None if phase is P.IDLE else DUE)
    after, effect = step(task, happened, NOW)
    assert (after.phase, effect) == CHANGES.get((phase, happened), (phase, None))


def test_it_has_fifteen_seconds() -> None:
    task, _ = step(BackgroundTask(), In.BEGIN, NOW)
    assert MAX_TASK_DURATION == 15
    assert step(task, In.TICK, NOW + 14.9) == (task, None)
    assert step(task, In.TICK, NOW + 15)[1] is Effect.END_TASK


def test_time_is_given_back_once() -> None:
    task, _ = step(BackgroundTask(), In.BEGIN, NOW)
    given = 0
    for happened in (In.EXPIRED, In.END, In.TICK, In.BEGIN, In.END):
        task, effect = step(task, happened, NOW + 100)
        given += effect is Effect.END_TASK
    assert given == 1
