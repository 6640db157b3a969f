"""One connection in one push: from the message that is expected to what can be said of it.

    QUEUED ──turn──> FETCHING ──the expected, a later one, none, no more tries──> READY
       └───────────────── expired ────────────────────────────────────────────────^

A push says which message to expect, but the messaging router gives the oldest first. So up to three
more are fetched; one that is later than expected is left to the next push of the connection.
"""

from dataclasses import dataclass, replace
from enum import Enum
from typing import assert_never

from heliograph.device.chat import CallInvited, ChatEvent, ExpectedMessage

MORE_FETCHES = 3


class Phase(Enum):
    QUEUED = "another push has the connection"
    FETCHING = "a message is being fetched"
    READY = "there is no more to wait for"


@dataclass(frozen=True, slots=True)
class Got:
    """A message, processed and stored; without an event it is nothing to notify of."""

    msg_id: bytes
    timestamp: int
    event: ChatEvent | None = None


class Simple(Enum):
    TURN = "no earlier push has the connection"
    NO_MESSAGE = "the messaging router has none, or cannot be asked"
    EXPIRED = "the time of the push is over"


Input = Got | Simple


class Fetch(Enum):
    EFFECT = "fetch"


@dataclass(frozen=True, slots=True)
class Drop:
    """Keep a message for the next push of this connection."""

    message: Got


Effect = Fetch | Drop
FETCH = Fetch.EFFECT


@dataclass(frozen=True, slots=True)
class Entity:
    expected: ExpectedMessage | None
    best: ChatEvent | None
    phase: Phase = Phase.QUEUED
    more: int = MORE_FETCHES
    """Fetches that are left after the first."""

    @classmethod
    def of(cls, expected: ExpectedMessage | None, default: ChatEvent | None) -> "Entity":
        """Nothing is fetched if nothing is expected: the chat is muted, or up to date."""
        phase = Phase.READY if expected is None else Phase.QUEUED
        return cls(expected, default, phase)


def step(entity: Entity, happened: Input) -> tuple[Entity, Effect | None]:
    match entity.phase:
        case Phase.QUEUED:
            return _queued(entity, happened)
        case Phase.FETCHING:
            return _fetching(entity, happened)
        case Phase.READY:
            return entity, Drop(happened) if isinstance(happened, Got) else None
        case _:
            assert_never(entity.phase)


def _queued(entity: Entity, happened: Input) -> tuple[Entity, Effect | None]:
    match happened:
        case Simple.TURN:
            return replace(entity, phase=Phase.FETCHING), FETCH
        case Simple.EXPIRED:
            return replace(entity, phase=Phase.READY), None
        case Got():
            return entity, Drop(happened)
        case Simple.NO_MESSAGE:
            return entity, None
        case _:
            assert_never(happened)


def _fetching(entity: Entity, happened: Input) -> tuple[Entity, Effect | None]:
    match happened:
        case Got():
            return _got(entity, happened)
        case Simple.NO_MESSAGE | Simple.EXPIRED:
            return replace(entity, phase=Phase.READY), None
        case Simple.TURN:
            return entity, None
        case _:
            assert_never(happened)


def _got(entity: Entity, message: Got) -> tuple[Entity, Effect | None]:
    expected = entity.expected
    if expected is None:
        return replace(entity, phase=Phase.READY), Drop(message)
    if message.msg_id == expected.msg_id:
        return replace(entity, phase=Phase.READY, best=_better(entity.best, message.event)), None
    if message.timestamp > expected.timestamp:
        return replace(entity, phase=Phase.READY), Drop(message)
    best = _better(entity.best, message.event)
    if entity.more:
        return replace(entity, best=best, more=entity.more - 1), FETCH
    return replace(entity, phase=Phase.READY, best=best), None


def _better(best: ChatEvent | None, event: ChatEvent | None) -> ChatEvent | None:
    """The newest, but nothing takes the place of a call except another call."""
    if event is None or (isinstance(best, CallInvited) and not isinstance(event, CallInvited)):
        return best
    return event
