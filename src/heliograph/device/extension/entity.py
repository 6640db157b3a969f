"""One connection in one push: from the expected message to the event to show.

    QUEUED ──turn──> FETCHING ──the expected, a later one, none, no more tries──> READY
       └───────────────── expired ────────────────────────────────────────────────^

A push says which message to expect, but the messaging router gives the oldest first. So up to three
more are fetched; one that is later than expected is left to the next push of the connection.
"""

from dataclasses import dataclass, replace
from enum import Enum
from typing import assert_never

from heliograph.device.chats.model import CallInvited, ChatEvent, ExpectedMessage, FetchedMessage

MORE_FETCHES = 3


class EntityPhase(Enum):
    QUEUED = "another push has the connection"
    FETCHING = "a message is being fetched"
    READY = "the event to show is final"


class EntityEvent(Enum):
    TURN = "no earlier push has the connection"
    NO_MESSAGE = "the messaging router has none, or cannot be reached"
    EXPIRED = "the time of the push is over"


Input = FetchedMessage | EntityEvent


class Fetch(Enum):
    EFFECT = "fetch"


@dataclass(frozen=True, slots=True)
class Drop:
    """Keep a message for the next push of this connection."""

    message: FetchedMessage


Effect = Fetch | Drop
FETCH = Fetch.EFFECT


@dataclass(frozen=True, slots=True)
class NotificationEntity:
    expected: ExpectedMessage | None
    best: ChatEvent | None
    phase: EntityPhase = EntityPhase.QUEUED
    more: int = MORE_FETCHES
    """Fetches left after the first."""

    @classmethod
    def of(
        cls, expected: ExpectedMessage | None, default: ChatEvent | None
    ) -> "NotificationEntity":
        """Return the initial state: ready at once if no message is expected."""
        phase = EntityPhase.READY if expected is None else EntityPhase.QUEUED
        return cls(expected, default, phase)


def step(entity: NotificationEntity, happened: Input) -> tuple[NotificationEntity, Effect | None]:
    match entity.phase:
        case EntityPhase.QUEUED:
            return _queued(entity, happened)
        case EntityPhase.FETCHING:
            return _fetching(entity, happened)
        case EntityPhase.READY:
            return entity, Drop(happened) if isinstance(happened, FetchedMessage) else None
        case _:
            assert_never(entity.phase)


def _queued(
    entity: NotificationEntity, happened: Input
) -> tuple[NotificationEntity, Effect | None]:
    match happened:
        case EntityEvent.TURN:
            return replace(entity, phase=EntityPhase.FETCHING), FETCH
        case EntityEvent.EXPIRED:
            return replace(entity, phase=EntityPhase.READY), None
        case FetchedMessage():
            return entity, Drop(happened)
        case EntityEvent.NO_MESSAGE:
            return entity, None
        case _:
            assert_never(happened)


def _fetching(
    entity: NotificationEntity, happened: Input
) -> tuple[NotificationEntity, Effect | None]:
    match happened:
        case FetchedMessage():
            return _got(entity, happened)
        case EntityEvent.NO_MESSAGE | EntityEvent.EXPIRED:
            return replace(entity, phase=EntityPhase.READY), None
        case EntityEvent.TURN:
            return entity, None
        case _:
            assert_never(happened)


def _got(
    entity: NotificationEntity, message: FetchedMessage
) -> tuple[NotificationEntity, Effect | None]:
    expected = entity.expected
    if expected is None:
        return replace(entity, phase=EntityPhase.READY), Drop(message)
    if message.msg_id == expected.msg_id:
        return replace(
            entity, phase=EntityPhase.READY, best=_better(entity.best, message.event)
        ), None
    if message.timestamp > expected.timestamp:
        return replace(entity, phase=EntityPhase.READY), Drop(message)
    best = _better(entity.best, message.event)
    if entity.more:
        return replace(entity, best=best, more=entity.more - 1), FETCH
    return replace(entity, phase=EntityPhase.READY, best=best), None


def _better(best: ChatEvent | None, event: ChatEvent | None) -> ChatEvent | None:
    """Return the newer event, except that only a call replaces a call."""
    if event is None or (isinstance(best, CallInvited) and not isinstance(event, CallInvited)):
        return best
    return event
