"""Connected clients and their subscriptions.

A queue, a notifier and a service each have one subscriber at a time: a new subscription replaces
the previous one. Pure: notifying the replaced client is left to the caller.
"""

import itertools
import time
from dataclasses import dataclass
from typing import NamedTuple

from heliograph.runtime.limits import Allowance
from heliograph.smp.clients.outbox import NotificationOutbox
from heliograph.smp.store.records import QueueRecord, ServiceRecord, StoredMessage
from heliograph.transport.handshake import Established
from heliograph.transport.server import ServerConnection
from heliograph.wire.requests import Request
from heliograph.wire.smp import SmpCommand, max_message_length

_NUMBERS = itertools.count(1)


class UnacknowledgedMessage(NamedTuple):
    """The message that a client was sent and has not acknowledged."""

    seq: int
    msg_id: bytes
    notification: bool


@dataclass(slots=True, eq=False)
class QueueSubscription:
    """A subscription to one queue; with `by_get` the client receives only on request."""

    by_get: bool = False
    delivered: UnacknowledgedMessage | None = None
    answering: bool = False
    """SUB is not answered yet; the first message of the queue follows the answer."""

    def deliver(self, message: StoredMessage) -> None:
        self.delivered = UnacknowledgedMessage(message.seq, message.msg_id, message.notification)


class SmpClient:
    """A connected client and its subscriptions.

    Its attributes are all that the router knows of one connection, so that closing it frees all.
    """

    def __init__(
        self,
        connection: ServerConnection,
        established: Established,
        allowance: Allowance | None = None,
    ) -> None:
        self.connection = connection
        self.address = connection.peer_address
        self.number = next(_NUMBERS)
        self.connected_at = time.monotonic()
        self.allowance = allowance
        """How fast its commands are executed; None is without a limit."""
        self.established = established
        self.max_message_length = max_message_length(established.session.version)
        self.is_connected = True
        """Commands of a client that disconnected must not replace another's subscription."""
        self.subscriptions: dict[bytes, QueueSubscription] = {}
        self.waiting: dict[bytes, QueueRecord] = {}
        """Queues whose message was not sent because the client was not reading."""
        self.notifiers: set[bytes] = set()
        self.service = established.service
        self.service_id = None if self.service is None else self.service.service_id
        self.serving: ServiceRecord | None = None
        """The client's service, while the client is the service's subscriber."""
        self.is_busy = False
        """Its queues are being loaded, or it sent too much: commands wait in `backlog`."""
        self.backlog: list[Request[SmpCommand]] = []
        self.outbox = NotificationOutbox()
        self.forwarding_key: bytes | None = None
        """The key of the commands that this client forwards as a proxy, once there is one."""

    @property
    def session_private(self) -> bytes | None:
        return self.established.session_private

    def take_allowed(self, now: float) -> list[Request[SmpCommand]]:
        """Return the commands of the backlog that may be executed now; the others stay in it."""
        backlog, allowance = self.backlog, self.allowance
        allowed = len(backlog)
        if allowance is not None:
            allowed = next((i for i in range(allowed) if not allowance.take(now)), allowed)
        self.backlog = backlog[allowed:]
        return backlog[:allowed]

    def unsubscribe(self, recipient_id: bytes) -> None:
        self.subscriptions.pop(recipient_id, None)
        self.waiting.pop(recipient_id, None)

    @property
    def service_count(self) -> int:
        """Return how many queues of its service the client is subscribed to."""
        return 0 if self.serving is None else self.serving.count

    @property
    def is_subscribed(self) -> bool:
        """Return whether the router sends to the client unasked; after GET it does not."""
        return bool(self.notifiers or self.serving) or not all(
            subscription.by_get for subscription in self.subscriptions.values()
        )


class Subscribers:
    """The subscriber of each queue, each notifier and each service."""

    def __init__(self) -> None:
        self.recipients: dict[bytes, SmpClient] = {}
        self.notifiers: dict[bytes, SmpClient] = {}
        self.services: dict[bytes, SmpClient] = {}

    def take_recipient(self, client: SmpClient, recipient_id: bytes) -> SmpClient | None:
        """Make `client` the subscriber; return the one it replaced, if it is another."""
        previous = self.recipients.get(recipient_id)
        self.recipients[recipient_id] = client
        if previous is None or previous is client:
            return None
        previous.unsubscribe(recipient_id)
        return previous

    def take_notifier(self, client: SmpClient, notifier_id: bytes) -> SmpClient | None:
        previous = self.notifiers.get(notifier_id)
        self.notifiers[notifier_id] = client
        client.notifiers.add(notifier_id)
        if previous is None or previous is client:
            return None
        previous.notifiers.discard(notifier_id)
        return previous

    def take_service(self, client: SmpClient, service: ServiceRecord) -> SmpClient | None:
        previous = self.services.get(service.service_id)
        self.services[service.service_id] = client
        client.serving = service
        if previous is None or previous is client:
            return None
        previous.serving = None
        for recipient_id in [
            key for key, item in previous.subscriptions.items() if not item.by_get
        ]:
            previous.unsubscribe(recipient_id)
        return previous

    def of_queue(self, queue: QueueRecord) -> SmpClient | None:
        """Return the client that receives the messages of a queue."""
        if queue.service_id is not None:
            return self.services.get(queue.service_id)
        return self.recipients.get(queue.recipient_id)

    def drop_recipient(self, recipient_id: bytes) -> SmpClient | None:
        client = self.recipients.pop(recipient_id, None)
        if client is not None:
            client.unsubscribe(recipient_id)
        return client

    def drop_notifier(self, notifier_id: bytes) -> SmpClient | None:
        client = self.notifiers.pop(notifier_id, None)
        if client is not None:
            client.notifiers.discard(notifier_id)
        return client

    def restore_notifier(self, client: SmpClient, notifier_id: bytes) -> None:
        """Undo `drop_notifier`, unless there is a new subscriber since."""
        if notifier_id not in self.notifiers:
            self.notifiers[notifier_id] = client
            client.notifiers.add(notifier_id)

    def disconnect(self, client: SmpClient) -> None:
        for recipient_id in client.subscriptions:
            if self.recipients.get(recipient_id) is client:
                del self.recipients[recipient_id]
        for notifier_id in client.notifiers:
            if self.notifiers.get(notifier_id) is client:
                del self.notifiers[notifier_id]
        if client.service_id is not None and self.services.get(client.service_id) is client:
            del self.services[client.service_id]
        client.is_connected = False
        client.serving = None
        client.subscriptions.clear()
        client.waiting.clear()
        client.notifiers.clear()
