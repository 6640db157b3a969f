import itertools

import pytest

from heliograph.device.extension.core import (
    CLOSE,
    FOR_APP,
    OPEN,
    RESUME,
    WHEN_IDLE,
    CoreEffect,
    CoreInput,
    step,
)
from heliograph.device.states import CoreState as S

In = CoreInput
SAME = None

# Rows are states, columns are inputs: the state after, and what is to be done.
TABLE: dict[tuple[S, In], tuple[S, CoreEffect | None]] = {
    (S.CREATED, In.NEEDED): (S.STARTING, OPEN),
    (S.CREATED, In.OPENED): (S.CREATED, SAME),
    (S.CREATED, In.FAILED): (S.CREATED, SAME),
    (S.CREATED, In.IDLE): (S.CREATED, SAME),
    (S.CREATED, In.APP_RUNS): (S.CREATED, SAME),
    (S.CREATED, In.OVER): (S.CREATED, SAME),
    (S.STARTING, In.NEEDED): (S.STARTING, SAME),
    (S.STARTING, In.OPENED): (S.ACTIVE, SAME),
    (S.STARTING, In.FAILED): (S.CREATED, CLOSE),
    (S.STARTING, In.IDLE): (S.SUSPENDING, WHEN_IDLE),
    (S.STARTING, In.APP_RUNS): (S.SUSPENDING, FOR_APP),
    (S.STARTING, In.OVER): (S.STARTING, SAME),
    (S.ACTIVE, In.NEEDED): (S.ACTIVE, SAME),
    (S.ACTIVE, In.OPENED): (S.ACTIVE, SAME),
    (S.ACTIVE, In.FAILED): (S.CREATED, CLOSE),
    (S.ACTIVE, In.IDLE): (S.SUSPENDING, WHEN_IDLE),
    (S.ACTIVE, In.APP_RUNS): (S.SUSPENDING, FOR_APP),
    (S.ACTIVE, In.OVER): (S.ACTIVE, SAME),
    (S.SUSPENDING, In.NEEDED): (S.ACTIVE, RESUME),
    (S.SUSPENDING, In.OPENED): (S.SUSPENDING, SAME),
    (S.SUSPENDING, In.FAILED): (S.CREATED, CLOSE),
    (S.SUSPENDING, In.IDLE): (S.SUSPENDING, SAME),
    (S.SUSPENDING, In.APP_RUNS): (S.SUSPENDING, FOR_APP),
    (S.SUSPENDING, In.OVER): (S.SUSPENDED, CLOSE),
    (S.SUSPENDED, In.NEEDED): (S.STARTING, OPEN),
    (S.SUSPENDED, In.OPENED): (S.SUSPENDED, SAME),
    (S.SUSPENDED, In.FAILED): (S.SUSPENDED, SAME),
    (S.SUSPENDED, In.IDLE): (S.SUSPENDED, SAME),
    (S.SUSPENDED, In.APP_RUNS): (S.SUSPENDED, SAME),
    (S.SUSPENDED, In.OVER): (S.SUSPENDED, SAME),
}


@pytest.mark.parametrize("pair", TABLE, ids=lambda pair: f"{pair[0].name}-{pair[1].name}")
def test_every_pair(pair: tuple[S, In]) -> None:
    assert step(*pair) == TABLE[pair]


def test_the_table_has_every_pair() -> None:
    assert set(TABLE) == set(itertools.product(S, In))


@pytest.mark.parametrize("state", S)
def test_the_store_is_never_left_open(state: S) -> None:
    """A transition from a state with the store to one without closes it."""
    for happened in In:
        after, effect = step(state, happened)
        if state.has_store and not after.has_store:
            assert effect is CLOSE
        if not state.has_store and after.has_store:
            assert effect is OPEN


@pytest.mark.parametrize("state", S)
def test_an_app_that_runs_gets_the_store(state: S) -> None:
    after, _ = step(state, In.APP_RUNS)
    after, _ = step(after, In.OVER)
    assert not after.has_store
