import itertools

import pytest

from heliograph.device.content import Problem
from heliograph.device.pushes import (
    Action,
    AppChanged,
    Arrived,
    CoreFailed,
    DeliverProblem,
    Effect,
    Input,
    Phase,
    Simple,
    WaitOver,
    step,
)
from heliograph.device.states import AppState as S

P, A = Phase, Action
ORIGINAL = (P.DELIVERED, A.DELIVER_ORIGINAL)
BEST = (P.DELIVERED, A.DELIVER_BEST)
STOPPED = (P.DELIVERED, A.DELIVER_APP_STOPPED)
START = (P.STARTING, A.NEED_CORE)
RUNNING = (S.ACTIVE, S.ACTIVATING, S.BACKGROUND_REFRESH)
FAILED = CoreFailed(Problem.DAMAGED)
BROKEN = (P.DELIVERED, DeliverProblem(Problem.DAMAGED))

INPUTS: tuple[Input, ...] = (
    *map(Arrived, S),
    *map(AppChanged, S),
    *map(WaitOver, S),
    FAILED,
    *Simple,
)
# What is not here leaves the phase as it is, and does nothing.
CHANGES: dict[tuple[Phase, Input], tuple[Phase, Effect]] = {
    **{(P.NEW, Arrived(app)): ORIGINAL for app in RUNNING},
    (P.NEW, Arrived(S.STOPPED)): STOPPED,
    (P.NEW, Arrived(S.SUSPENDED)): START,
    (P.NEW, Arrived(S.SUSPENDING)): (P.WAITING, A.WAIT_FOR_APP),
    (P.WAITING, AppChanged(S.SUSPENDED)): START,
    (P.WAITING, AppChanged(S.STOPPED)): STOPPED,
    (P.WAITING, WaitOver(S.SUSPENDED)): START,
    (P.WAITING, WaitOver(S.SUSPENDING)): START,
    (P.WAITING, WaitOver(S.STOPPED)): STOPPED,
    **{
        (phase, kind(app)): BEST if phase is P.RECEIVING else ORIGINAL
        for phase in (P.WAITING, P.STARTING, P.LOOKING, P.RECEIVING)
        for kind in (AppChanged, WaitOver)
        for app in RUNNING
    },
    (P.STARTING, FAILED): BROKEN,
    (P.LOOKING, FAILED): BROKEN,
    (P.RECEIVING, FAILED): BEST,
    (P.STARTING, Simple.CORE_OPENED): (P.LOOKING, A.LOOK),
    (P.LOOKING, Simple.FOUND): (P.RECEIVING, A.RECEIVE),
    (P.LOOKING, Simple.NOT_FOUND): ORIGINAL,
    (P.RECEIVING, Simple.ALL_READY): BEST,
    **{(phase, Simple.EXPIRED): ORIGINAL for phase in (P.NEW, P.WAITING, P.STARTING, P.LOOKING)},
    (P.RECEIVING, Simple.EXPIRED): BEST,
}


@pytest.mark.parametrize(("phase", "happened"), list(itertools.product(Phase, INPUTS)))
def test_every_pair(phase: Phase, happened: Input) -> None:
    assert step(phase, happened) == CHANGES.get((phase, happened), (phase, None))


@pytest.mark.parametrize("happened", INPUTS)
def test_it_is_delivered_once(happened: Input) -> None:
    assert step(P.DELIVERED, happened) == (P.DELIVERED, None)


@pytest.mark.parametrize("phase", [phase for phase in P if phase is not P.DELIVERED])
def test_when_time_is_over_something_is_delivered(phase: Phase) -> None:
    after, effect = step(phase, Simple.EXPIRED)
    assert after is P.DELIVERED
    assert effect in (A.DELIVER_ORIGINAL, A.DELIVER_BEST)
