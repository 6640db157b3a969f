"""State that the command handlers share, and answers that wait until changes are durable."""

from collections.abc import Callable
from dataclasses import dataclass

from heliograph.runtime.limits import AddressLimit
from heliograph.smp.clients.clients import Subscribers
from heliograph.smp.clients.outgoing import AnyRequest, ReplyBuffer, Requester
from heliograph.smp.notifications.delivery import NotificationDelivery
from heliograph.smp.observer import SmpObserver
from heliograph.smp.settings import Rules
from heliograph.smp.store.cache import QueueCache
from heliograph.smp.store.changes import Peeked
from heliograph.smp.store.records import QueueRecord, ServiceRecord
from heliograph.smp.store.store import SmpStore
from heliograph.wire import smp
from heliograph.wire.errors import STORE
from heliograph.wire.smp import SmpResponse

__all__ = ["STORE_FAILED", "CommandContext", "Requester"]

STORE_FAILED = smp.ERR(STORE("the router's store failed"))


@dataclass(slots=True)
class CommandContext:
    """The router's state, as command handlers see it.

    A handler decides in memory, records its changes here, and returns the answer if nothing
    changed, else None after one of the methods below. Handlers run one after another on the event
    loop, so each sees the decisions of all before it.
    """

    rules: Rules
    store: SmpStore
    queues: QueueCache
    subscribers: Subscribers
    services: dict[bytes, ServiceRecord]
    delivery: NotificationDelivery
    outgoing: ReplyBuffer
    observer: SmpObserver
    new_queues: AddressLimit

    def change(self, queue: QueueRecord) -> None:
        """Store the record of the queue with the next batch."""
        changes = self.store.changes
        changes.touched.add(queue.recipient_id)
        changes.queues[queue.recipient_id] = queue

    def delete_link(self, queue: QueueRecord) -> None:
        """Delete the link of a queue, with its data."""
        self.queues.set_link(queue, None)
        self.store.changes.links[queue.recipient_id] = None
        self.change(queue)

    def then(
        self,
        client: Requester,
        request: AnyRequest,
        done: Callable[[Peeked], None],
        undo: Callable[[], None] | None = None,
    ) -> SmpResponse | None:
        """Call `done` once all changes so far are durable; if that fails, undo and answer ERR.

        Return None, for a handler to return. Queue records need no undo: they are dropped from
        the cache, and loaded again.
        """

        def failed(_: Exception) -> None:
            if undo is not None:
                undo()
            self.outgoing.answer(client, request, STORE_FAILED)

        self.store.changes.then(done, failed)
        return None

    def when_durable(self, action: Callable[[], None]) -> None:
        """Call `action` once all changes so far are durable; not if that fails."""
        self.store.changes.then(lambda _: action(), lambda _: None)

    def answer(
        self,
        client: Requester,
        request: AnyRequest,
        queue: QueueRecord,
        message: SmpResponse,
    ) -> SmpResponse | None:
        """Answer a command that changes nothing, once the changes it relies on are durable."""
        if self.store.is_changing(queue.recipient_id):
            return self.answer_when_durable(client, request, message)
        return message

    def answer_when_durable(
        self, client: Requester, request: AnyRequest, message: SmpResponse
    ) -> SmpResponse | None:
        return self.then(client, request, lambda _: self.outgoing.answer(client, request, message))

    def then_with_message(
        self,
        client: Requester,
        request: AnyRequest,
        queue: QueueRecord,
        done: Callable[[Peeked], None],
        undo: Callable[[], None] | None = None,
    ) -> SmpResponse | None:
        """Do as `then` does; `done` also gets the first message of the queue."""
        self.store.changes.peeks.add(queue.recipient_id)
        return self.then(client, request, done, undo)
