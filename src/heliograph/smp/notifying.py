"""Notifier credentials and who is subscribed to them: NKEY, NDEL, NSUB, NSUBS."""

import os
from typing import Any

from heliograph.crypto.errors import CryptoError
from heliograph.crypto.keys import dh, generate_key_pair
from heliograph.smp.changes import Peeked
from heliograph.smp.clients import Client
from heliograph.smp.context import Context
from heliograph.smp.records import ID_SIZE, Notifier, Queue, Service
from heliograph.wire import smp
from heliograph.wire.errors import ErrorCode
from heliograph.wire.keys import Algorithm
from heliograph.wire.requests import Request

OK = smp.OK()


def new_notifier(auth_key: bytes, dh_key: bytes) -> tuple[Notifier, bytes]:
    """Credentials with a new ID, and the router's public key of their secret."""
    keys = generate_key_pair(Algorithm.X25519)
    secret = dh(dh_key, keys.private)
    return Notifier(os.urandom(ID_SIZE), auth_key, secret), keys.public


class Notifying:
    def __init__(self, context: Context) -> None:
        self._context = context

    def nkey(self, client: Client, request: Request, queue: Queue) -> Any:
        context, command = self._context, request.command
        try:
            notifier, public = new_notifier(command.auth_key, command.dh_key)
        except CryptoError:
            return smp.ERR(ErrorCode.CRYPTO)
        self.remove(queue)
        queue.notifier = notifier
        context.queues.set_notifier(queue, None)
        context.change(queue)
        context.counters.notifiers_created += 1
        return context.answer_when_durable(client, request, smp.NID(notifier.notifier_id, public))

    def ndel(self, client: Client, request: Request, queue: Queue) -> Any:
        if queue.notifier is None:
            return self._context.answer(client, request, queue, OK)
        self.remove(queue)
        self._context.change(queue)
        self._context.counters.notifiers_deleted += 1
        return self._context.answer_when_durable(client, request, OK)

    def remove(self, queue: Queue) -> None:
        """The credentials, with what waits for them; whoever is subscribed to them is told."""
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
                self._tell(subscriber, notifier.notifier_id, smp.DELD())
            self._end_service(notifier.notifier_id, service, smp.DELD(), None)

        context.when_durable(removed)

    def nsub(self, client: Client, request: Request, queue: Queue) -> Any:
        notifier = queue.notifier
        if notifier is None:
            return smp.ERR(ErrorCode.AUTH)
        self._context.counters.notifier_subscribed += 1
        if client.service_id is None:
            return self._subscribe(client, request, queue, notifier)
        return self._associate(client, request, queue, notifier, client.service_id)

    def nsubs(self, client: Client, request: Request, _: None) -> Any:
        service = self._context.services[request.entity_id]
        self._take_service(client, service)
        self._context.delivery.service_subscribed(client, service)
        return smp.SOKS(service.count, service.ids_hash)

    def _subscribe(self, client: Client, request: Request, queue: Queue, notifier: Notifier) -> Any:
        context = self._context
        service = self._leave(notifier)
        previous = context.subscribers.take_notifier(client, notifier.notifier_id)
        if previous is not None:
            self._tell(previous, notifier.notifier_id, smp.END())
        context.delivery.subscribed(client, notifier.notifier_id)
        if service is None:
            return smp.SOK()
        notifier.service_id = None
        context.change(queue)
        context.counters.service_dissociated += 1

        def dissociated(_: Peeked) -> None:
            self._end_service(notifier.notifier_id, service, smp.END(), client)
            context.outgoing.answer(client, request, smp.SOK())

        return context.then(client, request, dissociated)

    def _associate(
        self, client: Client, request: Request, queue: Queue, notifier: Notifier, service_id: bytes
    ) -> Any:
        context = self._context
        service = context.services[service_id]
        self._take_service(client, service)
        if notifier.service_id == service_id:
            context.counters.service_associated_again += 1
            context.delivery.subscribed(client, notifier.notifier_id)
            return context.answer(client, request, queue, smp.SOK(service_id))
        former = self._leave(notifier)
        previous = context.subscribers.drop_notifier(notifier.notifier_id)
        context.delivery.subscribed(client, notifier.notifier_id)
        notifier.service_id = service_id
        service.toggle(notifier.notifier_id, 1)
        context.store.changes.services[service_id] = service
        context.change(queue)
        context.counters.service_associated += 1

        def associated(_: Peeked) -> None:
            if previous is not None:
                self._tell(previous, notifier.notifier_id, smp.END())
            self._end_service(notifier.notifier_id, former, smp.END(), client)
            context.outgoing.answer(client, request, smp.SOK(service_id))

        def undo() -> None:
            if previous is not None and previous.is_connected:
                context.subscribers.restore_notifier(previous, notifier.notifier_id)

        return context.then(client, request, associated, undo)

    def _take_service(self, client: Client, service: Service) -> None:
        previous = self._context.subscribers.take_service(client, service)
        if previous is not None:
            ended = smp.ENDS(service.count, service.ids_hash)
            self._tell(previous, service.service_id, ended)

    def _leave(self, notifier: Notifier) -> Service | None:
        """The queue is no longer one of its service, if it was one of any."""
        service = self._service_of(notifier)
        if service is not None:
            service.toggle(notifier.notifier_id, -1)
            self._context.store.changes.services[service.service_id] = service
        return service

    def _end_service(
        self, notifier_id: bytes, service: Service | None, event: Any, client: Client | None
    ) -> None:
        """The notifier was one of the service, whose subscriber is told, unless it did this."""
        if service is None:
            return
        subscriber = self._context.subscribers.services.get(service.service_id)
        if subscriber is not None and subscriber is not client:
            self._context.delivery.withdraw(subscriber, notifier_id)
            self._tell(subscriber, notifier_id, event)

    def _service_of(self, notifier: Notifier) -> Service | None:
        return self._context.services.get(notifier.service_id) if notifier.service_id else None

    def _tell(self, client: Client, entity_id: bytes, event: Any) -> None:
        self._context.delivery.taken_over(client)
        self._context.counters.subscription_ended += 1
        self._context.outgoing.push(client, entity_id, event)
