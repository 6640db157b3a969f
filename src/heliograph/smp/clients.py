"""Connected clients, and which of them is subscribed to what.

One subscriber at a time: whoever subscribes takes over, and the one before is told. Pure: telling
is the caller's.
"""

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from heliograph.smp.records import Message, Notification, Queue, Service
from heliograph.transport.handshake import Established
from heliograph.transport.server import ServerConnection
from heliograph.wire.requests import Request
from heliograph.wire.smp import max_message_length


class Delivered(NamedTuple):
    """The message a client was sent and has not acknowledged."""

    seq: int
    msg_id: bytes


@dataclass(slots=True, eq=False)
class Subscription:
    """To one queue. `by_get` ones receive only what they ask for."""

    by_get: bool = False
    delivered: Delivered | None = None
    answering: bool = False
    """SUB is not answered yet; what waits in the queue comes with the answer."""

    def deliver(self, message: Message) -> None:
        self.delivered = Delivered(message.seq, message.msg_id)


class Client:
    """A connection and its subscriptions."""

    def __init__(self, connection: ServerConnection, established: Established) -> None:
        self.connection = connection
        self.established = established
        self.version = established.session.version
        self.max_message_length = max_message_length(self.version)
        self.is_connected = True
        """What a client that is gone asked for must not take over from one that is there."""
        self.subscriptions: dict[bytes, Subscription] = {}
        self.waiting: dict[bytes, Queue] = {}
        """Queues whose message was not sent because the client was not reading."""
        self.notifiers: set[bytes] = set()
        service = established.service
        self.service_id = None if service is None else service.service_id
        self.serving: Service | None = None
        """Its service, while it is the one that receives the notifications of it."""
        self.loading = False
        """Queues of its commands are being loaded; later commands wait in `backlog`."""
        self.backlog: list[Request] = []
        self.outbox: deque[Notification] = deque()
        self.queued: set[int] = set()
        """What is in the outbox, or sent and not known to have arrived."""
        self.unconfirmed: list[int] = []
        self.bursts: deque[tuple[float | None, int]] = deque()
        """When the unconfirmed were first seen to have arrived, and how many at a time."""
        self.removed: list[int] = []
        """What is still in `queued` though it has left the store."""
        self.behind = False
        """More waits in the store than the outbox may hold."""
        self.loads = 0
        """How many loads from the store are under way; what is stored meanwhile is `held`."""
        self.held: list[Notification] = []
        self.withdrawn: set[bytes] = set()
        """Notifiers that ceased to be the client's since a load began."""

    def unsubscribe(self, recipient_id: bytes) -> None:
        self.subscriptions.pop(recipient_id, None)
        self.waiting.pop(recipient_id, None)

    @property
    def service_count(self) -> int:
        """How many queues of its service it is subscribed to."""
        return 0 if self.serving is None else self.serving.count

    @property
    def is_subscribed(self) -> bool:
        return bool(self.subscriptions or self.notifiers or self.serving)


class Subscribers:
    """Who receives the messages of a queue, its notifications, those of a service."""

    def __init__(self) -> None:
        self.recipients: dict[bytes, Client] = {}
        self.notifiers: dict[bytes, Client] = {}
        self.services: dict[bytes, Client] = {}

    def take_recipient(self, client: Client, recipient_id: bytes) -> Client | None:
        """The client that was subscribed before, if it is another one."""
        previous = self.recipients.get(recipient_id)
        self.recipients[recipient_id] = client
        if previous is None or previous is client:
            return None
        previous.unsubscribe(recipient_id)
        return previous

    def take_notifier(self, client: Client, notifier_id: bytes) -> Client | None:
        previous = self.notifiers.get(notifier_id)
        self.notifiers[notifier_id] = client
        client.notifiers.add(notifier_id)
        if previous is None or previous is client:
            return None
        previous.notifiers.discard(notifier_id)
        return previous

    def take_service(self, client: Client, service: Service) -> Client | None:
        previous = self.services.get(service.service_id)
        self.services[service.service_id] = client
        client.serving = service
        if previous is None or previous is client:
            return None
        previous.serving = None
        return previous

    def drop_recipient(self, recipient_id: bytes) -> Client | None:
        client = self.recipients.pop(recipient_id, None)
        if client is not None:
            client.unsubscribe(recipient_id)
        return client

    def drop_notifier(self, notifier_id: bytes) -> Client | None:
        client = self.notifiers.pop(notifier_id, None)
        if client is not None:
            client.notifiers.discard(notifier_id)
        return client

    def restore_notifier(self, client: Client, notifier_id: bytes) -> None:
        """What it was dropped for did not happen; but somebody else may have come since."""
        if notifier_id not in self.notifiers:
            self.notifiers[notifier_id] = client
            client.notifiers.add(notifier_id)

    def disconnect(self, client: Client) -> None:
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
