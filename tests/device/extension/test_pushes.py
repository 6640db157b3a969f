import itertools

import pytest

from heliograph.device.chats.content import DatabaseProblem
from heliograph.device.extension.pushes import (
    AppChanged,
    Arrived,
    CoreFailed,
    DeliverProblem,
    Effect,
    Input,
    PushAction,
    PushEvent,
    PushPhase,
    WaitOver,
    step,
)
from heliograph.device.states import AppState as S

P, A = PushPhase, PushAction
ORIGINAL = (P.DELIVERED, A.DELIVER_ORIGINAL)
BEST = (P.DELIVERED, A.DELIVER_BEST)
STOPPED = (P.DELIVERED, A.DELIVER_APP_STOPPED)
START = (P.STARTING, A.NEED_CORE)
RUNNING = (S.ACTIVE, S.ACTIVATING, S.BACKGROUND_REFRESH)
FAILED = CoreFailed(DatabaseProblem.DAMAGED)
BROKEN = (P.DELIVERED, DeliverProblem(DatabaseProblem.DAMAGED))

INPUTS: tuple[Input, ...] = (
    *map(Arrived, S),
    *map(AppChanged, S),
    *map(WaitOver, S),
    FAILED,
    *PushEvent,
)
# What is not here leaves the phase as it is, and does nothing.
CHANGES: dict[tuple[PushPhase, Input], tuple[PushPhase, Effect]] = {
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
    (P.STARTING, PushEvent.CORE_OPENED): (P.LOOKING, A.LOOK),
    (P.LOOKING, PushEvent.FOUND): (P.RECEIVING, A.RECEIVE),
    (P.LOOKING, PushEvent.NOT_FOUND): ORIGINAL,
    (P.RECEIVING, PushEvent.ALL_READY): BEST,
    **{(phase, PushEvent.EXPIRED): ORIGINAL for phase in (P.NEW, P.WAITING, P.STARTING, P.LOOKING)},
    (P.RECEIVING, PushEvent.EXPIRED): BEST,
}


@pytest.mark.parametrize(("phase", "happened"), list(itertools.product(PushPhase, INPUTS)))
def test_every_pair(phase: PushPhase, happened: Input) -> None:
    assert step(phase, happened) == CHANGES.get((phase, happened), (phase, None))


@pytest.mark.parametrize("happened", INPUTS)
def test_it_is_delivered_once(happened: Input) -> None:
    assert step(P.DELIVERED, happened) == (P.DELIVERED, None)


@pytest.mark.parametrize("phase", [phase for phase in P if phase is not P.DELIVERED])
def test_when_time_is_over_something_is_delivered(phase: PushPhase) -> None:
    after, effect = step(phase, PushEvent.EXPIRED)
    assert after is P.DELIVERED
    assert effect in (A.DELIVER_ORIGINAL, A.DELIVER_BEST)
