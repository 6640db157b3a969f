"""Several pushes in one process: order, what is passed on, deadlines, and who has the database."""

import itertools
from collections import deque

import pytest
from hypothesis import given, settings, strategies as st

from heliograph.device.chats.content import MUTED, DatabaseProblem, build
from heliograph.device.chats.model import (
    ChatEvent,
    ConnectionEvent,
    FetchedMessage,
    MessageReceived,
    NotifiedConnection,
)
from heliograph.device.extension.core import CLOSE, FOR_APP, OPEN, RESUME, WHEN_IDLE
from heliograph.device.extension.entity import MORE_FETCHES
from heliograph.device.extension.extension import (
    SUSPENDING_WAIT,
    TIME_BUDGET_SECONDS,
    AppStopped,
    Best,
    Broken,
    Deliver,
    Effect,
    Extension,
    FetchMessage,
    Original,
    ReadPush,
    content_of,
)
from heliograph.device.extension.service import ORIGINAL
from heliograph.device.states import AppState as S, CoreState, PreviewMode
from tests.device.support import ALICE, BOB, MUTED_USER, call, message, notified

NOW = 1000.0
A, B = notified("a", b"a5", 500), notified("b", b"b5", 500, BOB)


def text(number: int, of: str = "a") -> FetchedMessage:
    contact = ALICE if of == "a" else BOB
    return FetchedMessage(f"{of}{number}".encode(), number * 100, message(f"{of}{number}", contact))


def started(*pushes: int) -> Extension:
    """With these pushes, all of them looking."""
    extension = Extension()
    for push in pushes:
        extension.arrived(push, S.SUSPENDED, NOW)
    extension.core_opened(NOW)
    return extension


def default(connection: NotifiedConnection) -> ChatEvent:
    return ConnectionEvent(connection.user, connection.entity)


def delivered(effects: list[Effect]) -> dict[int, tuple[ChatEvent, ...]]:
    return {
        effect.push: effect.delivery.events
        for effect in effects
        if isinstance(effect, Deliver) and isinstance(effect.delivery, Best)
    }


def test_one_push_from_arrival_to_delivery() -> None:
    extension = Extension()
    assert extension.arrived(1, S.SUSPENDED, NOW) == [OPEN]
    assert extension.core_opened(NOW) == [ReadPush(1)]
    assert extension.found(1, [A], NOW) == [FetchMessage(1, "a")]
    effects = extension.got(1, "a", text(5), NOW)
    assert effects == [Deliver(1, Best((message("a5"),)), (A,)), WHEN_IDLE]
    assert extension.core_over() == [CLOSE]
    assert extension.core is CoreState.SUSPENDED


def test_a_push_about_several_connections_is_delivered_when_all_are_ready() -> None:
    extension = started(1)
    assert extension.found(1, [A, B], NOW) == [FetchMessage(1, "a"), FetchMessage(1, "b")]
    assert extension.got(1, "b", text(5, "b"), NOW) == []
    effects = extension.got(1, "a", text(5), NOW)
    assert delivered(effects) == {1: (message("a5"), message("b5", BOB))}


def test_older_messages_are_fetched_first_but_three_more_at_most() -> None:
    extension = started(1)
    effects = extension.found(1, [A], NOW)
    for number in range(1, 1 + MORE_FETCHES):
        assert effects == [FetchMessage(1, "a")]
        effects = extension.got(1, "a", text(number), NOW)
    assert effects == [FetchMessage(1, "a")]
    assert delivered(extension.got(1, "a", text(4), NOW)) == {1: (message("a4"),)}


def test_without_a_message_the_connection_is_named() -> None:
    extension = started(1)
    extension.found(1, [A], NOW)
    assert delivered(extension.no_message(1, "a", NOW)) == {1: (default(A),)}


def test_a_muted_user_and_what_was_shown_before_are_not_fetched() -> None:
    old = NotifiedConnection("c", A.user, A.entity, A.expected, is_old=True)
    extension = started(1)
    effects = extension.found(1, [notified("m", user=MUTED_USER), old], NOW)
    assert delivered(effects) == {1: ()}
    assert content_of(Best(()), ORIGINAL, PreviewMode.MESSAGE, 1) is MUTED


def test_pushes_of_one_connection_take_turns_in_the_order_of_arrival() -> None:
    extension = started(1, 2)
    later = notified("a", b"a6", 600)
    assert extension.found(2, [later], NOW) == [], "the first may be about the same"
    assert extension.found(1, [A], NOW) == [FetchMessage(1, "a")]
    effects = extension.got(1, "a", text(5), NOW)
    assert delivered(effects) == {1: (message("a5"),)}
    assert FetchMessage(2, "a") in effects
    assert delivered(extension.got(2, "a", text(6), NOW)) == {2: (message("a6"),)}


def test_other_connections_need_not_wait() -> None:
    extension = started(1, 2)
    extension.found(1, [A], NOW)
    assert extension.found(2, [B], NOW) == [FetchMessage(2, "b")]
    assert delivered(extension.got(2, "b", text(5, "b"), NOW)) == {2: (message("b5", BOB),)}


def test_a_later_message_is_kept_for_the_next_push() -> None:
    extension = started(1)
    extension.found(1, [A], NOW)
    effects = extension.got(1, "a", text(6), NOW)
    assert delivered(effects) == {1: (default(A),)}
    extension.arrived(2, S.SUSPENDED, NOW)
    effects = extension.found(2, [notified("a", b"a6", 600)], NOW)
    assert delivered(effects) == {2: (message("a6"),)}, "it is not fetched again"


def test_what_comes_too_late_goes_to_the_next_push() -> None:
    extension = started(1, 2)
    extension.found(1, [A], NOW)
    extension.found(2, [notified("a", b"a6", 600)], NOW)
    effects = extension.expired(1, NOW)
    assert delivered(effects) == {1: (default(A),)}
    assert FetchMessage(2, "a") in effects
    assert delivered(extension.got(1, "a", text(6), NOW)) == {2: (message("a6"),)}


def test_a_call_is_best_of_all() -> None:
    extension = started(1)
    extension.found(1, [A], NOW)
    extension.got(1, "a", FetchedMessage(b"a1", 100, call()), NOW)
    assert delivered(extension.got(1, "a", text(5), NOW)) == {1: (call(),)}


@pytest.mark.parametrize("app", [S.ACTIVE, S.ACTIVATING, S.BACKGROUND_REFRESH])
def test_while_the_app_runs_pushes_pass_through(app: S) -> None:
    extension = Extension()
    assert extension.arrived(1, app, NOW) == [Deliver(1, Original())]
    assert extension.core is CoreState.CREATED


def test_a_stopped_app() -> None:
    assert Extension().arrived(1, S.STOPPED, NOW) == [Deliver(1, AppStopped())]


def test_an_app_that_is_suspending_is_waited_for() -> None:
    extension = Extension()
    assert extension.arrived(1, S.SUSPENDING, NOW) == []
    assert extension.deadline == NOW + SUSPENDING_WAIT
    assert extension.app_changed(S.SUSPENDED, NOW + 2) == [OPEN]
    assert extension.deadline == NOW + TIME_BUDGET_SECONDS


def test_an_app_that_never_says_that_it_is_suspended() -> None:
    extension = Extension()
    extension.arrived(1, S.SUSPENDING, NOW)
    assert extension.tick(S.SUSPENDING, NOW + SUSPENDING_WAIT) == [OPEN]


def test_an_app_that_comes_back_gets_the_database() -> None:
    extension = started(1)
    extension.found(1, [A, B], NOW)
    extension.got(1, "a", text(5), NOW)
    effects = extension.app_changed(S.ACTIVATING, NOW)
    assert effects == [FOR_APP, Deliver(1, Best((message("a5"), default(B))), (A, B))]
    assert extension.core_over() == [CLOSE]


def test_an_app_that_comes_back_while_the_core_starts() -> None:
    extension = Extension()
    extension.arrived(1, S.SUSPENDED, NOW)
    assert extension.app_changed(S.ACTIVE, NOW) == [FOR_APP, Deliver(1, Original())]
    assert extension.core_opened(NOW) == []
    assert extension.core_over() == [CLOSE]


def test_a_push_that_arrives_during_suspension_resumes_the_core() -> None:
    extension = started(1)
    extension.found(1, [A], NOW)
    extension.no_message(1, "a", NOW)
    assert extension.core is CoreState.SUSPENDING
    assert extension.arrived(2, S.SUSPENDED, NOW) == [RESUME, ReadPush(2)]


@pytest.mark.parametrize("problem", DatabaseProblem)
def test_a_database_that_cannot_be_opened(problem: DatabaseProblem) -> None:
    extension = Extension()
    extension.arrived(1, S.SUSPENDED, NOW)
    assert extension.core_failed(problem, NOW) == [CLOSE, Deliver(1, Broken(problem))]
    assert extension.arrived(2, S.SUSPENDED, NOW) == [OPEN], "it is tried again"


def test_thirty_seconds() -> None:
    extension = started(1)
    extension.found(1, [A, B], NOW)
    extension.got(1, "a", text(5), NOW)
    assert extension.deadline == NOW + 30
    assert extension.tick(S.SUSPENDED, NOW + 29.9) == []
    effects = extension.tick(S.SUSPENDED, NOW + 30)
    assert delivered(effects) == {1: (message("a5"), default(B))}


def test_what_is_not_known_is_shown_as_it_came() -> None:
    for effects in (started(1).not_found(1, NOW), started(1).found(1, [], NOW)):
        assert effects[0] == Deliver(1, Original())


def test_contents() -> None:
    mode = PreviewMode.MESSAGE
    assert content_of(Original(), ORIGINAL, mode, 1) is ORIGINAL
    assert content_of(AppStopped(), ORIGINAL, mode, 5).badge == 5
    assert (
        content_of(Broken(DatabaseProblem.DAMAGED), ORIGINAL, mode, 5).title
        == DatabaseProblem.DAMAGED.value
    )
    best = Best((message("hi"),))
    assert content_of(best, ORIGINAL, mode, 5) == build(message("hi"), mode, 5)


# Whatever happens, in whatever order.

inputs = st.lists(
    st.tuples(
        st.sampled_from(
            ["arrive", "open", "fail", "found", "lost", "get", "none", "over", "app", "wait"]
        ),
        st.integers(0, 7),
    ),
    max_size=60,
)


class World:
    """Messages in queues, and an extension that is driven by whatever comes."""

    def __init__(self) -> None:
        self.extension = Extension()
        self.now = 0.0
        self.numbers = itertools.count(1)
        self.app = S.SUSPENDED
        self.arrived: dict[int, float] = {}
        self.delivered: dict[int, Deliver] = {}
        self.looks: deque[int] = deque()
        self.fetches: deque[tuple[int, str]] = deque()
        self.opening = 0
        self.is_open = False
        self.closing = False
        self.stored: dict[str, int] = {"a": 0, "b": 0}
        self.shown: dict[str, list[int]] = {"a": [], "b": []}

    def take(self, effects: list[Effect]) -> None:
        for effect in effects:
            if effect is OPEN:
                self.opening += 1
            elif effect is CLOSE:
                self.is_open = False
            elif isinstance(effect, ReadPush):
                self.looks.append(effect.push)
            elif isinstance(effect, FetchMessage):
                self.fetches.append((effect.push, effect.conn_id))
            elif isinstance(effect, Deliver):
                assert effect.push not in self.delivered, "delivered twice"
                assert self.now <= self.arrived[effect.push] + TIME_BUDGET_SECONDS
                self.delivered[effect.push] = effect
                self.note(effect)

    def note(self, effect: Deliver) -> None:
        if isinstance(effect.delivery, Best):
            for event in effect.delivery.events:
                if isinstance(event, MessageReceived):
                    conn = event.item.text[0]
                    self.shown[conn].append(int(event.item.text[1:]))

    def step(self, what: str, value: int) -> None:
        e, now = self.extension, self.now
        match what:
            case "arrive":
                push = next(self.numbers)
                self.arrived[push] = now
                self.take(e.arrived(push, self.app, now))
            case "open" if self.opening:
                self.opening -= 1
                self.is_open = True
                self.take(e.core_opened(now))
            case "fail" if self.opening:
                self.opening -= 1
                self.take(e.core_failed(DatabaseProblem.DAMAGED, now))
            case "found" if self.looks:
                conns = ("a", "b")[: 1 + value % 2]
                items = [notified(c, f"{c}{value}".encode(), value * 100) for c in conns]
                self.take(e.found(self.looks.popleft(), items, now))
            case "lost" if self.looks:
                self.take(e.not_found(self.looks.popleft(), now))
            case "get" if self.fetches:
                push, conn = self.fetches.popleft()
                self.stored[conn] += 1
                number = self.stored[conn]
                self.take(e.got(push, conn, text(number, conn), now))
            case "none" if self.fetches:
                self.take(e.no_message(*self.fetches.popleft(), now))
            case "over":
                self.take(e.core_over())
            case "app":
                self.app = list(S)[value % len(S)]
                self.take(e.app_changed(self.app, now))
            case "wait":
                self.now += value * 2
                self.take_due()

    def take_due(self) -> None:
        while (deadline := self.extension.deadline) is not None and deadline <= self.now:
            late, self.now = self.now, deadline
            self.take(self.extension.tick(self.app, self.now))
            self.now = late


@settings(max_examples=300)
@given(inputs)
def test_every_push_is_delivered_once_in_its_time_and_in_order(
    steps: list[tuple[str, int]],
) -> None:
    world = World()
    for what, value in steps:
        world.step(what, value)
        running = world.app.is_running
        assert not (running and world.extension.core in (CoreState.STARTING, CoreState.ACTIVE))
    world.now += TIME_BUDGET_SECONDS
    world.take_due()
    assert world.delivered.keys() == world.arrived.keys()
    assert world.extension.pending == 0
    for numbers in world.shown.values():
        assert numbers == sorted(set(numbers)), "out of order, or shown twice"


def test_the_times() -> None:
    assert TIME_BUDGET_SECONDS == 30
    assert SUSPENDING_WAIT < TIME_BUDGET_SECONDS
