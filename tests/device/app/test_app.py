import itertools

import pytest

from heliograph.device.app.app import AppEffect as E, AppInput as In, step
from heliograph.device.states import AppState as S

CLAIM, ACTIVATE = (E.CLAIM_STORE,), (E.ACTIVATE,)
RESPOND = (E.ACTIVATE, E.RESPOND)
LEAVE = (E.SET_BADGE, E.SCHEDULE, E.SUSPEND)
END = (E.SET_BADGE, E.SUSPEND)
STOP = (E.SUSPEND, E.CLOSE_STORE)
CLOSE = (E.CLOSE_STORE,)

# What is not here leaves the state as it is, and does nothing.
CHANGES: dict[tuple[S, In], tuple[S, tuple[E, ...]]] = {
    (S.ACTIVE, In.BACKGROUND): (S.SUSPENDING, LEAVE),
    (S.ACTIVE, In.STOP): (S.STOPPED, STOP),
    (S.ACTIVATING, In.STORE_FREE): (S.ACTIVE, RESPOND),
    (S.ACTIVATING, In.BACKGROUND): (S.SUSPENDING, LEAVE),
    (S.ACTIVATING, In.STOP): (S.STOPPED, STOP),
    (S.BACKGROUND_REFRESH, In.OPEN): (S.ACTIVE, RESPOND),
    (S.BACKGROUND_REFRESH, In.STORE_FREE): (S.BACKGROUND_REFRESH, ACTIVATE),
    (S.BACKGROUND_REFRESH, In.DONE): (S.SUSPENDING, END),
    (S.BACKGROUND_REFRESH, In.STOP): (S.STOPPED, STOP),
    (S.SUSPENDING, In.OPEN): (S.ACTIVE, RESPOND),
    (S.SUSPENDING, In.WAKE): (S.BACKGROUND_REFRESH, ACTIVATE),
    (S.SUSPENDING, In.OVER): (S.SUSPENDED, CLOSE),
    (S.SUSPENDING, In.STOP): (S.STOPPED, CLOSE),
    (S.SUSPENDED, In.OPEN): (S.ACTIVATING, CLAIM),
    (S.SUSPENDED, In.WAKE): (S.BACKGROUND_REFRESH, CLAIM),
    (S.SUSPENDED, In.STOP): (S.STOPPED, ()),
    (S.STOPPED, In.START): (S.ACTIVATING, CLAIM),
}
PAIRS = list(itertools.product(S, In))


@pytest.mark.parametrize(("state", "happened"), PAIRS)
def test_every_pair(state: S, happened: In) -> None:
    assert step(state, happened) == CHANGES.get((state, happened), (state, ()))


@pytest.mark.parametrize("state", S)
def test_from_every_state_the_app_can_be_used_again(state: S) -> None:
    for happened in (In.START, In.OPEN, In.STORE_FREE):
        state, _ = step(state, happened)
    assert state is S.ACTIVE


@pytest.mark.parametrize("state", [state for state in S if state is not S.STOPPED])
def test_from_every_other_state_the_store_goes_to_the_extension(state: S) -> None:
    for happened in (In.BACKGROUND, In.DONE, In.OVER):
        state, _ = step(state, happened)
    assert state is S.SUSPENDED
