"""Which service a queue belongs to, and which client is subscribed to the service."""

from heliograph.smp.clients.clients import SmpClient
from heliograph.smp.context import CommandContext
from heliograph.smp.counters import ServiceEvent
from heliograph.smp.store.records import QueueRecord, ServiceRecord
from heliograph.wire import smp


class ServiceSubscriptions:
    def __init__(self, context: CommandContext) -> None:
        self._context = context

    def take(self, client: SmpClient, service: ServiceRecord) -> None:
        """Make the client the subscriber of its service, and notify the previous one."""
        context = self._context
        if client.serving is None:
            context.observer.service_changed(service.role, ServiceEvent.SUBSCRIBED)
        previous = context.subscribers.take_service(client, service)
        if previous is not None:
            context.observer.service_changed(service.role, ServiceEvent.ENDED)
            context.delivery.subscriber_replaced(previous)
            context.observer.subscription_ended()
            ended = smp.ENDS(service.count, service.ids_hash)
            context.outgoing.push(previous, service.service_id, ended)

    def take_all(self, client: SmpClient, service: ServiceRecord) -> None:
        """Subscribe the client to all queues of its service."""
        if client.serving is not None:
            self._context.observer.service_changed(service.role, ServiceEvent.SUBSCRIBED_AGAIN)
        self._context.observer.service_changed(service.role, ServiceEvent.QUEUES, service.count)
        self.take(client, service)

    def associated(self, service: ServiceRecord, *, moved: bool) -> None:
        """Report that a queue was associated, `moved` from another service."""
        event = ServiceEvent.REASSOCIATED if moved else ServiceEvent.ASSOCIATED
        self._context.observer.service_changed(service.role, event)
        self._context.observer.service_changed(service.role, ServiceEvent.QUEUES)

    def change(self, service: ServiceRecord, queue_id: bytes, count: int) -> None:
        """Add (1) or remove (-1) a queue or notifier."""
        service.toggle(queue_id, count)
        self._context.store.changes.services[service.service_id] = service

    def set_recipient(self, client: SmpClient, queue: QueueRecord) -> bool:
        """Associate the queue with the client's service, or with none; return if it changed."""
        context, recipient_id = self._context, queue.recipient_id
        service = None if client.service_id is None else context.services[client.service_id]
        if service is not None:
            self.take(client, service)
        if queue.service_id == client.service_id:
            if service is not None:
                context.observer.service_changed(service.role, ServiceEvent.ASSOCIATED_AGAIN)
            return False
        former = queue.service_id
        self.leave(queue, client)
        if service is None and former is not None:
            role = context.services[former].role
            context.observer.service_changed(role, ServiceEvent.DISSOCIATED)
        if service is not None:
            self.associated(service, moved=former is not None)
            self.change(service, recipient_id, 1)
            queue.service_id = service.service_id
            previous = context.subscribers.drop_recipient(recipient_id)
            if previous is not None and previous is not client:
                context.observer.subscription_ended()
                context.outgoing.push(previous, recipient_id, smp.END())
        context.change(queue)
        return True

    def leave(self, queue: QueueRecord, client: SmpClient | None, *, deleted: bool = False) -> None:
        """Remove the queue from its service, if any, and notify the subscriber unless `client`."""
        context = self._context
        if queue.service_id is None:
            return
        service = context.services[queue.service_id]
        self.change(service, queue.recipient_id, -1)
        queue.service_id = None

        def left() -> None:
            subscriber = context.subscribers.services.get(service.service_id)
            if subscriber is None or subscriber is client:
                return
            subscriber.unsubscribe(queue.recipient_id)
            context.observer.subscription_ended()
            event = smp.DELD() if deleted else smp.END()
            context.outgoing.push(subscriber, queue.recipient_id, event)

        context.when_durable(left)
