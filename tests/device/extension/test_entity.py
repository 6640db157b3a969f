import itertools
from dataclasses import replace

import pytest

from heliograph.device.chats.model import ChatEvent, ExpectedMessage, FetchedMessage
from heliograph.device.extension.entity import (
    FETCH,
    MORE_FETCHES,
    Drop,
    Effect,
    EntityEvent,
    EntityPhase,
    Input,
    NotificationEntity,
    step,
)
from tests.device.support import CONNECTED, call, message

EXPECTED = ExpectedMessage(b"5", 500)
DEFAULT, TEXT, OTHER, CALL = CONNECTED, message("hi"), message("earlier"), call()
THE_ONE = FetchedMessage(b"5", 500, TEXT)
EARLIER = FetchedMessage(b"4", 400, OTHER)
SAME_TIME = FetchedMessage(b"4", 500, OTHER)
LATER = FetchedMessage(b"6", 501, TEXT)
NOTHING = FetchedMessage(b"5", 500)
TURN, NONE, EXPIRED = EntityEvent.TURN, EntityEvent.NO_MESSAGE, EntityEvent.EXPIRED
QUEUED, FETCHING, READY = EntityPhase.QUEUED, EntityPhase.FETCHING, EntityPhase.READY

INPUTS: tuple[Input, ...] = (TURN, NONE, EXPIRED, THE_ONE, EARLIER, SAME_TIME, LATER, NOTHING)
# The phase after, the best attempt after, and what is to be done.
TABLE: dict[tuple[EntityPhase, Input], tuple[EntityPhase, ChatEvent, Effect | None]] = {
    (QUEUED, TURN): (FETCHING, DEFAULT, FETCH),
    (QUEUED, NONE): (QUEUED, DEFAULT, None),
    (QUEUED, EXPIRED): (READY, DEFAULT, None),
    **{
        (QUEUED, got): (QUEUED, DEFAULT, Drop(got))
        for got in INPUTS
        if isinstance(got, FetchedMessage)
    },
    (FETCHING, TURN): (FETCHING, DEFAULT, None),
    (FETCHING, NONE): (READY, DEFAULT, None),
    (FETCHING, EXPIRED): (READY, DEFAULT, None),
    (FETCHING, THE_ONE): (READY, TEXT, None),
    (FETCHING, EARLIER): (FETCHING, OTHER, FETCH),
    (FETCHING, SAME_TIME): (FETCHING, OTHER, FETCH),
    (FETCHING, LATER): (READY, DEFAULT, Drop(LATER)),
    (FETCHING, NOTHING): (READY, DEFAULT, None),
    (READY, TURN): (READY, DEFAULT, None),
    (READY, NONE): (READY, DEFAULT, None),
    (READY, EXPIRED): (READY, DEFAULT, None),
    **{
        (READY, got): (READY, DEFAULT, Drop(got))
        for got in INPUTS
        if isinstance(got, FetchedMessage)
    },
}


@pytest.mark.parametrize(("phase", "happened"), list(itertools.product(EntityPhase, INPUTS)))
def test_every_pair(phase: EntityPhase, happened: Input) -> None:
    after, effect = step(NotificationEntity(EXPECTED, DEFAULT, phase), happened)
    assert (after.phase, after.best, effect) == TABLE[phase, happened]


def test_the_table_has_every_pair() -> None:
    assert set(TABLE) == set(itertools.product(EntityPhase, INPUTS))


def test_three_more_are_fetched_and_no_fourth() -> None:
    entity, effect = step(NotificationEntity.of(EXPECTED, DEFAULT), TURN)
    fetches = 0
    while effect is FETCH:
        fetches += 1
        entity, effect = step(
            entity, FetchedMessage(bytes([fetches]), fetches, message(str(fetches)))
        )
    assert fetches == 1 + MORE_FETCHES
    assert (entity.phase, entity.best) == (READY, message("4"))


def test_nothing_is_fetched_if_nothing_is_expected() -> None:
    entity = NotificationEntity.of(None, None)
    assert entity.phase is READY
    assert step(replace(entity, phase=FETCHING), THE_ONE)[1] == Drop(THE_ONE)


@pytest.mark.parametrize(
    ("best", "event", "after"),
    [
        (DEFAULT, TEXT, TEXT),
        (TEXT, OTHER, OTHER),
        (CALL, TEXT, CALL),
        (CALL, call(), call()),
        (TEXT, CALL, CALL),
        (CALL, None, CALL),
    ],
)
def test_a_call_stays_the_best(best: ChatEvent, event: ChatEvent | None, after: ChatEvent) -> None:
    entity, _ = step(NotificationEntity(EXPECTED, best, FETCHING), FetchedMessage(b"5", 500, event))
    assert entity.best == after
