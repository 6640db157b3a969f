import itertools
from dataclasses import replace

import pytest

from heliograph.device.app.background import (
    QUIET_SECONDS,
    RECEIVE_LIMIT,
    REFRESH_INTERVAL,
    REFRESH_LIMIT,
    SUSPEND_TIMEOUT,
    BackgroundRefresh,
    Complete,
    Effect,
    Input,
    Leave,
    ModeChanged,
    RefreshAction,
    RefreshEvent,
    RefreshPhase,
    Submit,
    step,
)
from heliograph.wire.ntf.tokens import NotificationsMode as M

P, In = RefreshPhase, RefreshEvent
NOW = 1000.0
NEXT = NOW + REFRESH_INTERVAL
SUBMIT = Submit(NEXT)
INPUTS: tuple[Input, ...] = (*RefreshEvent, *map(Leave, M), *map(ModeChanged, M))

# In periodic mode, with the next one scheduled; what is not here changes nothing.
CHANGES: dict[tuple[RefreshPhase, Input], tuple[RefreshPhase, tuple[Effect, ...]]] = {
    (P.UNREGISTERED, In.REGISTER): (P.IDLE, (RefreshAction.REGISTER_HANDLER,)),
    (P.UNREGISTERED, In.WAKE): (P.UNREGISTERED, (Complete(False),)),
    (P.IDLE, In.WAKE): (P.ACTIVATING, (SUBMIT, RefreshAction.ACTIVATE)),
    (P.IDLE, Leave(M.PERIODIC)): (P.SCHEDULED, (SUBMIT,)),
    (P.SCHEDULED, In.WAKE): (P.ACTIVATING, (SUBMIT, RefreshAction.ACTIVATE)),
    (P.SCHEDULED, In.OPENED): (P.IDLE, (RefreshAction.CANCEL,)),
    (P.SCHEDULED, Leave(M.PERIODIC)): (P.SCHEDULED, (SUBMIT,)),
    **{
        (P.SCHEDULED, kind(mode)): (P.IDLE, (RefreshAction.CANCEL,))
        for kind in (Leave, ModeChanged)
        for mode in (M.INSTANT, M.OFF)
    },
    (P.ACTIVATING, In.ACTIVATED): (P.RECEIVING, ()),
    (P.ACTIVATING, In.FAILED): (P.SCHEDULED, (Complete(False),)),
    (P.ACTIVATING, In.EXPIRED): (P.SUSPENDING, (RefreshAction.SUSPEND,)),
    (P.RECEIVING, In.FAILED): (P.SUSPENDING, (RefreshAction.SUSPEND,)),
    (P.RECEIVING, In.TICK): (P.SUSPENDING, (RefreshAction.SUSPEND,)),
    (P.RECEIVING, In.EXPIRED): (P.SUSPENDING, (RefreshAction.SUSPEND,)),
    (P.SUSPENDING, In.EXPIRED): (P.SCHEDULED, (Complete(False),)),
    (P.SUSPENDING, In.SUSPENDED): (P.SCHEDULED, (Complete(True),)),
    **{
        (phase, In.WAKE): (phase, (Complete(True),))
        for phase in (P.ACTIVATING, P.RECEIVING, P.SUSPENDING)
    },
    **{
        (phase, In.OPENED): (P.IDLE, (RefreshAction.CANCEL, Complete(True)))
        for phase in (P.ACTIVATING, P.RECEIVING, P.SUSPENDING)
    },
    **{
        (phase, kind(mode)): (phase, (RefreshAction.CANCEL,))
        for phase in (P.ACTIVATING, P.RECEIVING, P.SUSPENDING)
        for kind in (Leave, ModeChanged)
        for mode in (M.INSTANT, M.OFF)
    },
}


def in_phase(phase: RefreshPhase) -> BackgroundRefresh:
    scheduled = phase not in (P.UNREGISTERED, P.IDLE)
    due_at = NOW + 500 if scheduled else None
    return BackgroundRefresh(phase, M.PERIODIC, due_at, NOW - RECEIVE_LIMIT, NOW - QUIET_SECONDS)


@pytest.mark.parametrize(("phase", "happened"), list(itertools.product(RefreshPhase, INPUTS)))
def test_every_pair(phase: RefreshPhase, happened: Input) -> None:
    after, effects = step(in_phase(phase), happened, NOW)
    assert (after.phase, effects) == CHANGES.get((phase, happened), (phase, ()))


@pytest.mark.parametrize(("phase", "happened"), list(itertools.product(RefreshPhase, INPUTS)))
def test_what_is_due_is_what_was_asked_of_the_platform(
    phase: RefreshPhase, happened: Input
) -> None:
    before = in_phase(phase)
    after, effects = step(before, happened, NOW)
    if SUBMIT in effects:
        assert after.due_at == NEXT
    elif RefreshAction.CANCEL in effects:
        assert after.due_at is None
    else:
        assert after.due_at == before.due_at
    assert (after.phase is P.SCHEDULED) <= (after.due_at is not None)


def test_a_message_gives_the_next_one_time() -> None:
    state = replace(in_phase(P.RECEIVING), started_at=NOW)
    state, effects = step(state, In.MESSAGE, NOW)
    assert effects == ()
    assert state.deadline == NOW + QUIET_SECONDS
    assert step(state, In.TICK, NOW + QUIET_SECONDS - 0.1) == (state, ())
    assert step(state, In.TICK, NOW + QUIET_SECONDS)[1] == (RefreshAction.SUSPEND,)


def test_a_stream_of_messages_ends_in_time_for_suspension() -> None:
    state, _ = step(in_phase(P.SCHEDULED), In.WAKE, NOW)
    state, _ = step(state, In.ACTIVATED, NOW + 1)
    now = NOW + 1
    while state.phase is P.RECEIVING:
        now += 1
        state, _ = step(state, In.MESSAGE, now)
        state, _ = step(state, In.TICK, now)
    assert now + SUSPEND_TIMEOUT < NOW + REFRESH_LIMIT


@pytest.mark.parametrize("mode", [M.INSTANT, M.OFF])
def test_only_periodic_mode_is_scheduled(mode: M) -> None:
    state = BackgroundRefresh(P.IDLE)
    state, effects = step(state, Leave(mode), NOW)
    assert (state.phase, effects) == (P.IDLE, ())
    expected = (RefreshAction.ACTIVATE,) if mode is M.INSTANT else (Complete(True),)
    assert step(state, In.WAKE, NOW)[1] == expected, "a silent push counts in instant mode too"


def test_one_that_ends_after_the_mode_changed_is_the_last() -> None:
    state, _ = step(in_phase(P.SUSPENDING), ModeChanged(M.OFF), NOW)
    assert step(state, In.SUSPENDED, NOW)[0].phase is P.IDLE
