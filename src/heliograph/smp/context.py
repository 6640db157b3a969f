"""What all commands share: the router's state, and answers that wait until it is durable."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from heliograph.smp.changes import Peeked
from heliograph.smp.clients import Client, Subscribers
from heliograph.smp.delivery import Delivery
from heliograph.smp.metrics import Counters
from heliograph.smp.outgoing import Outgoing
from heliograph.smp.queues import Queues
from heliograph.smp.records import Queue, Service
from heliograph.smp.store import Store
from heliograph.wire import smp
from heliograph.wire.errors import STORE
from heliograph.wire.requests import Request


@dataclass(frozen=True, slots=True)
class Rules:
    """What the operator decides."""

    quota: int = 128
    password: bytes | None = None
    allow_new_queues: bool = True


@dataclass(slots=True)
class Context:
    """A command's handler decides in memory, notes the changes here, and says what to answer.

    It returns the answer if nothing changed, else None after one of the functions below. Handlers
    run one after another on the event loop, so each sees what all before it decided.
    """

    rules: Rules
    store: Store
    queues: Queues
    subscribers: Subscribers
    services: dict[bytes, Service]
    delivery: Delivery
    outgoing: Outgoing
    counters: Counters

    def change(self, queue: Queue) -> None:
        """The record of the queue is to be stored."""
        changes = self.store.changes
        changes.touched.add(queue.recipient_id)
        changes.queues[queue.recipient_id] = queue

    def then(
        self,
        client: Client,
        request: Request,
        done: Callable[[Peeked], None],
        undo: Callable[[], None] | None = None,
    ) -> None:
        """Continue once all changes so far are durable, or undo and answer that they could not be.

        Records need no undoing: they are forgotten, and read again.
        """

        def failed(_: Exception) -> None:
            if undo is not None:
                undo()
            error = smp.ERR(STORE("the router's store failed"))
            self.outgoing.answer(client, request, error)

        self.store.changes.then(done, failed)

    def when_durable(self, action: Callable[[], None]) -> None:
        """Do something once all changes so far are durable, and nothing if they could not be."""
        self.store.changes.then(lambda _: action(), lambda _: None)

    def answer(self, client: Client, request: Request, queue: Queue, message: Any) -> Any:
        """Answer a command that changes nothing, but not before what it relies on is durable."""
        if self.store.is_changing(queue.recipient_id):
            return self.answer_when_durable(client, request, message)
        return message

    def answer_when_durable(self, client: Client, request: Request, message: Any) -> None:
        self.then(client, request, lambda _: self.outgoing.answer(client, request, message))

    def then_with_message(
        self,
        client: Client,
        request: Request,
        queue: Queue,
        done: Callable[[Peeked], None],
        undo: Callable[[], None] | None = None,
    ) -> None:
        """As `then`, with the first message of the queue."""
        self.store.changes.peeks.add(queue.recipient_id)
        self.then(client, request, done, undo)
