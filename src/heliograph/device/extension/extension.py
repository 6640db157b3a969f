"""The extension's process: several pushes at once, each delivered once and in its 30 seconds.

It joins the machines of `pushes`, `entity` and `core`. Pushes about the same connection get its
messages in the order in which the pushes arrived; a message that is later than its push expects is
kept for the next push. No I/O: inputs are methods, and each returns effects.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from heliograph.device.app.app import SUSPEND_TIMEOUT
from heliograph.device.chats.content import (
    Content,
    DatabaseProblem,
    build_all,
    create_app_stopped,
    create_error,
)
from heliograph.device.chats.model import (
    ChatEvent,
    ConnectionEvent,
    FetchedMessage,
    NotifiedConnection,
)
from heliograph.device.extension import core, entity, pushes
from heliograph.device.extension.core import CoreEffect, CoreInput
from heliograph.device.extension.entity import Drop, NotificationEntity
from heliograph.device.extension.pushes import DeliverProblem, PushAction, PushPhase
from heliograph.device.states import AppState, CoreState, PreviewMode

TIME_BUDGET_SECONDS = 30.0
"""Seconds that the platform allows for one push."""
SUSPENDING_WAIT = SUSPEND_TIMEOUT + 1.0
"""Seconds to wait for an app that is suspending, in case it never reports the end."""

PushId = int


# Deliveries.


@dataclass(frozen=True, slots=True)
class Original:
    """Show the push unchanged: the app handles it, or nothing better is known."""


@dataclass(frozen=True, slots=True)
class AppStopped:
    pass


@dataclass(frozen=True, slots=True)
class Broken:
    problem: DatabaseProblem


@dataclass(frozen=True, slots=True)
class Best:
    events: tuple[ChatEvent, ...]


Delivery = Original | AppStopped | Broken | Best


def content_of(
    delivery: Delivery, original: Content, mode: PreviewMode, badge: int | None
) -> Content:
    match delivery:
        case Original():
            return original
        case AppStopped():
            return create_app_stopped(badge)
        case Broken(problem):
            return create_error(problem, badge)
        case Best(events):
            return build_all(events, mode, badge)


# Effects.


@dataclass(frozen=True, slots=True)
class ReadPush:
    """Decrypt both layers; answered by `found` or `not_found`."""

    push: PushId


@dataclass(frozen=True, slots=True)
class FetchMessage:
    """Answered by `got` or `no_message`."""

    push: PushId
    conn_id: str


@dataclass(frozen=True, slots=True)
class Deliver:
    push: PushId
    delivery: Delivery
    connections: Sequence[NotifiedConnection] = ()


Effect = CoreEffect | ReadPush | FetchMessage | Deliver


@dataclass(slots=True)
class _PushInProgress:
    expires_at: float
    phase: PushPhase = PushPhase.NEW
    wait_until: float | None = None
    connections: tuple[NotifiedConnection, ...] = ()
    entities: dict[str, NotificationEntity] = field(default_factory=dict)

    @property
    def is_ready(self) -> bool:
        return all(item.phase is entity.EntityPhase.READY for item in self.entities.values())


class Extension:
    def __init__(self) -> None:
        self.core = CoreState.CREATED
        self._pushes: dict[PushId, _PushInProgress] = {}
        self._dropped: dict[str, deque[FetchedMessage]] = {}
        self._effects: list[Effect] = []

    # Inputs.

    def arrived(self, push_id: PushId, app: AppState, now: float) -> list[Effect]:
        """Add a push, with a unique number."""
        self._pushes[push_id] = _PushInProgress(now + TIME_BUDGET_SECONDS)
        return self._step(push_id, pushes.Arrived(app), now)

    def app_changed(self, app: AppState, now: float) -> list[Effect]:
        if app.is_running:
            self._core(CoreInput.APP_RUNS)
        return self._step_all(pushes.AppChanged(app), now)

    def core_opened(self, now: float) -> list[Effect]:
        self._core(CoreInput.OPENED)
        if self.core is not CoreState.ACTIVE:
            return self._take()  # the app has started meanwhile
        return self._step_all(pushes.PushEvent.CORE_OPENED, now)

    def core_failed(self, problem: DatabaseProblem, now: float) -> list[Effect]:
        self._core(CoreInput.FAILED)
        return self._step_all(pushes.CoreFailed(problem), now)

    def core_over(self) -> list[Effect]:
        """Handle the end of the core's suspension."""
        self._core(CoreInput.OVER)
        if self.core is CoreState.SUSPENDED:
            self._dropped.clear()  # the chat store has them
        return self._take()

    def found(
        self, push_id: PushId, connections: Iterable[NotifiedConnection], now: float
    ) -> list[Effect]:
        push = self._pushes.get(push_id)
        if push is None or push.phase is not PushPhase.LOOKING:
            return self._take()
        push.connections = tuple(connections)
        push.entities = {item.conn_id: _entity(item) for item in push.connections}
        happened = pushes.PushEvent.FOUND if push.connections else pushes.PushEvent.NOT_FOUND
        return self._step(push_id, happened, now)

    def not_found(self, push_id: PushId, now: float) -> list[Effect]:
        return self._step(push_id, pushes.PushEvent.NOT_FOUND, now)

    def got(
        self, push_id: PushId, conn_id: str, message: FetchedMessage, now: float
    ) -> list[Effect]:
        return self._fetched(push_id, conn_id, message, now)

    def no_message(self, push_id: PushId, conn_id: str, now: float) -> list[Effect]:
        return self._fetched(push_id, conn_id, entity.EntityEvent.NO_MESSAGE, now)

    def expired(self, push_id: PushId, now: float) -> list[Effect]:
        """Deliver all pushes, because the platform will end the process."""
        return self._step(push_id, pushes.PushEvent.EXPIRED, now)

    def tick(self, app: AppState, now: float) -> list[Effect]:
        """Handle the time. Call it when `deadline` is reached, with the app's current state."""
        for push_id, push in list(self._pushes.items()):
            if now >= push.expires_at:
                self._change(push_id, pushes.PushEvent.EXPIRED, now)
            elif push.wait_until is not None and now >= push.wait_until:
                push.wait_until = None
                self._change(push_id, pushes.WaitOver(app), now)
        return self._advance(now)

    @property
    def deadline(self) -> float | None:
        times = [push.expires_at for push in self._pushes.values()]
        times += [push.wait_until for push in self._pushes.values() if push.wait_until is not None]
        return min(times, default=None)

    @property
    def pending(self) -> int:
        """Return the pushes that are not delivered yet."""
        return len(self._pushes)

    # Composition of the machines.

    def _step(self, push_id: PushId, happened: pushes.Input, now: float) -> list[Effect]:
        self._change(push_id, happened, now)
        return self._advance(now)

    def _step_all(self, happened: pushes.Input, now: float) -> list[Effect]:
        for push_id in list(self._pushes):
            self._change(push_id, happened, now)
        return self._advance(now)

    def _change(self, push_id: PushId, happened: pushes.Input, now: float) -> None:
        push = self._pushes.get(push_id)
        if push is None:
            return
        push.phase, effect = pushes.step(push.phase, happened)
        match effect:
            case PushAction.WAIT_FOR_APP:
                push.wait_until = now + SUSPENDING_WAIT
            case PushAction.NEED_CORE:
                push.wait_until = None
                self._core(CoreInput.NEEDED)
                if self.core is CoreState.ACTIVE:
                    self._change(push_id, pushes.PushEvent.CORE_OPENED, now)
            case PushAction.LOOK:
                self._effects.append(ReadPush(push_id))
            case PushAction.RECEIVE | None:
                pass
            case DeliverProblem(problem):
                self._deliver(push_id, Broken(problem))
            case PushAction.DELIVER_APP_STOPPED:
                self._deliver(push_id, AppStopped())
            case PushAction.DELIVER_ORIGINAL:
                self._deliver(push_id, Original())
            case PushAction.DELIVER_BEST:
                best = (item.best for item in push.entities.values())
                self._deliver(push_id, Best(tuple(event for event in best if event is not None)))

    def _deliver(self, push_id: PushId, delivery: Delivery) -> None:
        push = self._pushes.pop(push_id)
        self._effects.append(Deliver(push_id, delivery, push.connections))
        if not self._pushes:
            self._core(CoreInput.IDLE)

    def _core(self, happened: CoreInput) -> None:
        self.core, effect = core.step(self.core, happened)
        if effect is not None:
            self._effects.append(effect)

    def _fetched(
        self, push_id: PushId, conn_id: str, happened: entity.Input, now: float
    ) -> list[Effect]:
        push = self._pushes.get(push_id)
        if push is not None and conn_id in push.entities:
            self._feed(push_id, push, conn_id, happened)
        elif isinstance(happened, FetchedMessage):
            self._offer(conn_id, happened)
        return self._advance(now)

    def _offer(self, conn_id: str, message: FetchedMessage) -> None:
        """Offer a message of a push that timed out to the next push of its connection."""
        for push_id, push in self._pushes.items():
            item = push.entities.get(conn_id)
            if item is not None and item.phase is entity.EntityPhase.FETCHING:
                self._feed(push_id, push, conn_id, message)
                return
        self._dropped.setdefault(conn_id, deque()).append(message)

    def _feed(
        self, push_id: PushId, push: _PushInProgress, conn_id: str, happened: entity.Input
    ) -> None:
        """Give an input to a connection; a message kept for it is used before any is fetched."""
        while True:
            push.entities[conn_id], effect = entity.step(push.entities[conn_id], happened)
            match effect:
                case None:
                    return
                case Drop(message):
                    self._dropped.setdefault(conn_id, deque()).append(message)
                    return
                case entity.Fetch():
                    kept = self._dropped.get(conn_id)
                    if not kept:
                        self._effects.append(FetchMessage(push_id, conn_id))
                        return
                    happened = kept.popleft()

    def _advance(self, now: float) -> list[Effect]:
        """Start fetches in the order of arrival, and deliver pushes that are ready."""
        busy: set[str] = set()
        for push_id, push in list(self._pushes.items()):
            if push.phase is not PushPhase.RECEIVING:
                break  # its connections are not known yet: later pushes must wait
            for conn_id, item in list(push.entities.items()):
                if item.phase is entity.EntityPhase.QUEUED and conn_id not in busy:
                    self._feed(push_id, push, conn_id, entity.EntityEvent.TURN)
                if push.entities[conn_id].phase is not entity.EntityPhase.READY:
                    busy.add(conn_id)
            if push.is_ready:
                self._change(push_id, pushes.PushEvent.ALL_READY, now)
        return self._take()

    def _take(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects


def _entity(connection: NotifiedConnection) -> NotificationEntity:
    if connection.is_muted or connection.is_old:
        return NotificationEntity.of(None, None)
    default = ConnectionEvent(connection.user, connection.entity)
    return NotificationEntity.of(connection.expected, default)
