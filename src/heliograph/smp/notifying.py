"""Notifier credentials and who is subscribed to them: NKEY, NDEL, NSUB, NSUBS."""

import os
from typing import Any

from heliograph.crypto.errors import CryptoError
from heliograph.crypto.keys import dh, generate_key_pair
from heliograph.smp.clients import Client
from heliograph.smp.context import Context
from heliograph.smp.records import HASH_SIZE, ID_SIZE, Notifier, Queue, Service, id_hash, xor
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
            return OK
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
        subscriber = context.subscribers.drop_notifier(notifier.notifier_id)
        if subscriber is not None:
            self._tell(subscriber, notifier.notifier_id, smp.DELD())
        service = self._service_of(notifier)
        if service is not None:
            self._leave(notifier, service, smp.DELD(), None)

    def nsub(self, client: Client, request: Request, queue: Queue) -> Any:
        notifier = queue.notifier
        if notifier is None:
            return smp.ERR(ErrorCode.AUTH)
        self._context.counters.notifier_subscribed += 1
        if client.service_id is None:
            return self._subscribe(client, request, queue, notifier)
        return self._associate(client, request, queue, notifier, client.service_id)

    def nsubs(self, client: Client, request: Request, _: None) -> Any:
        context = self._context
        service = context.services[request.entity_id]
        self._take_service(client, service)
        client.service_count, client.service_hash = service.count, service.ids_hash
        context.delivery.service_subscribed(client, service)
        return smp.SOKS(service.count, service.ids_hash)

    def _subscribe(self, client: Client, request: Request, queue: Queue, notifier: Notifier) -> Any:
        context = self._context
        service = self._service_of(notifier)
        if service is not None:
            self._dissociate(queue, notifier, service, client)
        previous = context.subscribers.take_notifier(client, notifier.notifier_id)
        if previous is not None:
            self._tell(previous, notifier.notifier_id, smp.END())
        context.delivery.subscribed(client, notifier.notifier_id)
        if service is None:
            return smp.SOK()
        return context.answer_when_durable(client, request, smp.SOK())

    def _associate(
        self, client: Client, request: Request, queue: Queue, notifier: Notifier, service_id: bytes
    ) -> Any:
        context = self._context
        service = context.services[service_id]
        self._take_service(client, service)
        if notifier.service_id == service_id:
            context.counters.service_associated_again += 1
            context.delivery.subscribed(client, notifier.notifier_id)
            return smp.SOK(service_id)
        former = self._service_of(notifier)
        if former is not None:
            self._dissociate(queue, notifier, former, client)
        previous = context.subscribers.drop_notifier(notifier.notifier_id)
        if previous is not None and previous is not client:
            self._tell(previous, notifier.notifier_id, smp.END())
        notifier.service_id = service_id
        service.toggle(notifier.notifier_id, 1)
        client.service_count += 1
        client.service_hash = xor(client.service_hash, id_hash(notifier.notifier_id))
        context.store.changes.services[service_id] = service
        context.change(queue)
        context.counters.service_associated += 1
        context.delivery.subscribed(client, notifier.notifier_id)
        return context.answer_when_durable(client, request, smp.SOK(service_id))

    def _take_service(self, client: Client, service: Service) -> None:
        previous = self._context.subscribers.take_service(client, service.service_id)
        if previous is not None:
            ended = smp.ENDS(previous.service_count, previous.service_hash)
            previous.service_count, previous.service_hash = 0, bytes(HASH_SIZE)
            self._tell(previous, service.service_id, ended)

    def _dissociate(
        self, queue: Queue, notifier: Notifier, service: Service, client: Client
    ) -> None:
        notifier.service_id = None
        self._leave(notifier, service, smp.END(), client)
        self._context.change(queue)
        self._context.counters.service_dissociated += 1

    def _leave(
        self, notifier: Notifier, service: Service, event: Any, client: Client | None
    ) -> None:
        """The queue is no longer the service's; its subscriber is told, unless it did this."""
        service.toggle(notifier.notifier_id, -1)
        self._context.store.changes.services[service.service_id] = service
        subscriber = self._context.subscribers.services.get(service.service_id)
        if subscriber is not None and subscriber is not client:
            subscriber.service_count = max(subscriber.service_count - 1, 0)
            subscriber.service_hash = xor(subscriber.service_hash, id_hash(notifier.notifier_id))
            self._tell(subscriber, notifier.notifier_id, event)

    def _service_of(self, notifier: Notifier) -> Service | None:
        return self._context.services.get(notifier.service_id) if notifier.service_id else None

    def _tell(self, client: Client, entity_id: bytes, event: Any) -> None:
        self._context.counters.subscription_ended += 1
        self._context.outgoing.push(client, entity_id, event)
