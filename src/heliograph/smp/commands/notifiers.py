"""Notifier credentials, subscriptions to them, and confirmations: NKEY, NDEL, NSUB, NSUBS, PING."""

import os

from heliograph.crypto.errors import CryptoError
from heliograph.crypto.keys import dh, generate_key_pair
from heliograph.smp.clients.clients import SmpClient
from heliograph.smp.commands.service_subscriptions import ServiceSubscriptions
from heliograph.smp.context import CommandContext
from heliograph.smp.counters import ServiceEvent
from heliograph.smp.store.changes import Peeked
from heliograph.smp.store.records import ID_SIZE, NotifierRecord, QueueRecord, ServiceRecord
from heliograph.wire import smp
from heliograph.wire.errors import ErrorCode
from heliograph.wire.keys import Algorithm
from heliograph.wire.requests import Request
from heliograph.wire.smp import SmpResponse
from heliograph.wire.smp.confirmations import decode_confirmation

OK = smp.OK()


def new_notifier(auth_key: bytes, dh_key: bytes) -> tuple[NotifierRecord, bytes]:
    """Return credentials with a new ID, and the router's public key of their secret."""
    keys = generate_key_pair(Algorithm.X25519)
    secret = dh(dh_key, keys.private)
    return NotifierRecord(os.urandom(ID_SIZE), auth_key, secret), keys.public


class NotifierCommands:
    def __init__(self, context: CommandContext, services: ServiceSubscriptions) -> None:
        self._context = context
        self._services = services

    def ping(self, client: SmpClient, request: Request[smp.PING], queue: None) -> SmpResponse:
        count = decode_confirmation(request.corr_id)
        if count is not None:
            if count == 0:
                self._context.outgoing.push(client, b"", smp.PONG())
            self._context.delivery.confirmed(client, count)
        return smp.PONG()

    def nkey(
        self, client: SmpClient, request: Request[smp.NKEY], queue: QueueRecord
    ) -> SmpResponse | None:
        context, command = self._context, request.command
        try:
            notifier, public = new_notifier(command.auth_key, command.dh_key)
        except CryptoError:
            return smp.ERR(ErrorCode.CRYPTO)
        self.remove(queue)
        queue.notifier = notifier
        context.queues.set_notifier(queue, None)
        context.change(queue)
        context.observer.notifier_created()
        return context.answer_when_durable(client, request, smp.NID(notifier.notifier_id, public))

    def ndel(
        self, client: SmpClient, request: Request[smp.NDEL], queue: QueueRecord
    ) -> SmpResponse | None:
        if queue.notifier is None:
            return self._context.answer(client, request, queue, OK)
        self.remove(queue)
        self._context.change(queue)
        self._context.observer.notifier_deleted()
        return self._context.answer_when_durable(client, request, OK)

    def remove(self, queue: QueueRecord) -> None:
        """Remove the notifier credentials and their notifications, and notify the subscriber."""
        context, notifier = self._context, queue.notifier
        if notifier is None:
            return
        queue.notifier = None
        context.queues.set_notifier(queue, notifier.notifier_id)
        context.store.changes.deleted_notifiers.append((notifier.notifier_id,))
        service = self._leave(notifier)

        def removed() -> None:
            subscriber = context.subscribers.drop_notifier(notifier.notifier_id)
            if subscriber is not None:
                self._notify(subscriber, notifier.notifier_id, smp.DELD())
            self._end_service(notifier.notifier_id, service, smp.DELD(), None)

        context.when_durable(removed)

    def nsub(
        self, client: SmpClient, request: Request[smp.NSUB], queue: QueueRecord
    ) -> SmpResponse | None:
        notifier = queue.notifier
        if notifier is None:
            return smp.ERR(ErrorCode.AUTH)
        again = notifier.notifier_id in client.notifiers
        self._context.observer.notifier_subscribed(again=again)
        if client.service_id is None:
            return self._subscribe(client, request, queue, notifier)
        return self._associate(client, request, queue, notifier, client.service_id)

    def _subscribe(
        self,
        client: SmpClient,
        request: Request[smp.NSUB],
        queue: QueueRecord,
        notifier: NotifierRecord,
    ) -> SmpResponse | None:
        context = self._context
        service = self._leave(notifier)
        previous = context.subscribers.take_notifier(client, notifier.notifier_id)
        if previous is not None:
            self._notify(previous, notifier.notifier_id, smp.END())
        context.delivery.subscribed(client, notifier.notifier_id)
        if service is None:
            return smp.SOK()
        notifier.service_id = None
        context.change(queue)
        context.observer.service_changed(service.role, ServiceEvent.DISSOCIATED)

        def dissociated(_: Peeked) -> None:
            self._end_service(notifier.notifier_id, service, smp.END(), client)
            context.outgoing.answer(client, request, smp.SOK())

        return context.then(client, request, dissociated)

    def _associate(
        self,
        client: SmpClient,
        request: Request[smp.NSUB],
        queue: QueueRecord,
        notifier: NotifierRecord,
        service_id: bytes,
    ) -> SmpResponse | None:
        context = self._context
        service = context.services[service_id]
        self._services.take(client, service)
        if notifier.service_id == service_id:
            context.observer.service_changed(service.role, ServiceEvent.ASSOCIATED_AGAIN)
            context.delivery.subscribed(client, notifier.notifier_id)
            return context.answer(client, request, queue, smp.SOK(service_id))
        former = self._leave(notifier)
        previous = context.subscribers.drop_notifier(notifier.notifier_id)
        context.delivery.subscribed(client, notifier.notifier_id)
        notifier.service_id = service_id
        self._services.change(service, notifier.notifier_id, 1)
        context.change(queue)
        self._services.associated(service, moved=former is not None)

        def associated(_: Peeked) -> None:
            if previous is not None:
                self._notify(previous, notifier.notifier_id, smp.END())
            self._end_service(notifier.notifier_id, former, smp.END(), client)
            context.outgoing.answer(client, request, smp.SOK(service_id))

        def undo() -> None:
            if previous is not None and previous.is_connected:
                context.subscribers.restore_notifier(previous, notifier.notifier_id)

        return context.then(client, request, associated, undo)

    def _leave(self, notifier: NotifierRecord) -> ServiceRecord | None:
        """Remove the notifier from its service, if it has one; return that service."""
        service = self._service_of(notifier)
        if service is not None:
            self._services.change(service, notifier.notifier_id, -1)
        return service

    def _end_service(
        self,
        notifier_id: bytes,
        service: ServiceRecord | None,
        event: SmpResponse,
        client: SmpClient | None,
    ) -> None:
        """Notify the subscriber of the notifier's former service, unless it is `client`."""
        if service is None:
            return
        subscriber = self._context.subscribers.services.get(service.service_id)
        if subscriber is not None and subscriber is not client:
            self._context.delivery.withdraw(subscriber, notifier_id)
            self._notify(subscriber, notifier_id, event)

    def _service_of(self, notifier: NotifierRecord) -> ServiceRecord | None:
        return self._context.services.get(notifier.service_id) if notifier.service_id else None

    def _notify(self, client: SmpClient, entity_id: bytes, event: SmpResponse) -> None:
        self._context.delivery.subscriber_replaced(client)
        self._context.observer.subscription_ended()
        self._context.outgoing.push(client, entity_id, event)
