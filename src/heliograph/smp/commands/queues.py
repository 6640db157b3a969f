"""Commands about a queue as a whole: NEW, KEY, SKEY, RKEY, OFF, DEL, QUE."""

import hmac
import os
import time
from base64 import b64encode

from heliograph.crypto.errors import CryptoError
from heliograph.crypto.keys import dh, generate_key_pair
from heliograph.smp.clients.clients import SmpClient
from heliograph.smp.commands.messages import MessageCommands
from heliograph.smp.commands.notifiers import NotifierCommands, new_notifier
from heliograph.smp.commands.service_subscriptions import ServiceSubscriptions
from heliograph.smp.context import CommandContext, Requester
from heliograph.smp.store.changes import Peeked
from heliograph.smp.store.records import (
    ID_SIZE,
    LinkRecord,
    QueueRecord,
    QueueStatus,
    StoredLinkData,
    StoredMessage,
)
from heliograph.smp.verify import claimed_names
from heliograph.wire import smp
from heliograph.wire.errors import ErrorCode
from heliograph.wire.keys import Algorithm
from heliograph.wire.requests import Request
from heliograph.wire.smp import SmpResponse
from heliograph.wire.smp.fields import QueueInfo, QueueMode, ServerNtfCreds, SubscriptionMode
from heliograph.wire.smp.links import sender_id_of

OK = smp.OK()


class QueueCommands:
    def __init__(
        self,
        context: CommandContext,
        messages: MessageCommands,
        notifiers: NotifierCommands,
        services: ServiceSubscriptions,
    ) -> None:
        self._context = context
        self._messages = messages
        self._notifiers = notifiers
        self._services = services

    def new(self, client: SmpClient, request: Request[smp.NEW], _: None) -> SmpResponse | None:
        context, command = self._context, request.command
        if not self._may_create(command):
            return smp.ERR(ErrorCode.AUTH)
        if not context.new_queues.take(client.address, time.monotonic()):
            context.observer.queue_refused()
            return smp.ERR(ErrorCode.QUOTA)
        if client.service_id is not None and command.mode is SubscriptionMode.CREATE_ONLY:
            return smp.ERR(ErrorCode.CMD_PROHIBITED)
        data = command.queue_data
        link = None if data is None else data.link
        if link is not None:
            if link.sender_id != sender_id_of(request.corr_id):
                return smp.ERR(ErrorCode.CMD_PROHIBITED)
            if not all(map(context.queues.is_free, claimed_names(command))):
                return smp.ERR(ErrorCode.AUTH)
        keys = generate_key_pair(Algorithm.X25519)
        notifier, creds = None, None
        try:
            secret = dh(command.rcv_dh_key, keys.private)
            if command.ntf_creds is not None:
                notifier, public = new_notifier(
                    command.ntf_creds.auth_key, command.ntf_creds.dh_key
                )
                creds = ServerNtfCreds(notifier.notifier_id, public)
        except CryptoError:
            return smp.ERR(ErrorCode.CRYPTO)
        queue = QueueRecord(
            os.urandom(ID_SIZE),
            os.urandom(ID_SIZE) if link is None else link.sender_id,
            (command.rcv_auth_key,),
            secret,
            mode=None if data is None else data.mode,
            notifier=notifier,
        )
        if link is not None:
            link_id = link.link_id
            if queue.mode is QueueMode.MESSAGING:
                link_id = os.urandom(ID_SIZE)
            queue.link = LinkRecord.of(link_id, link.fixed_data)
            link_data = StoredLinkData(link.fixed_data, link.user_data)
            context.store.changes.links[queue.recipient_id] = link_data
        context.queues.add(queue)
        context.change(queue)
        if command.mode is SubscriptionMode.SUBSCRIBE:
            self._services.set_recipient(client, queue)
            self._messages.subscribe(client, queue)
        context.observer.queue_created(with_notifier=notifier is not None)
        ids = smp.IDS(
            queue.recipient_id,
            queue.sender_id,
            keys.public,
            queue.mode,
            queue.link and queue.link.link_id,
            queue.service_id,
            creds,
        )
        return context.answer_when_durable(client, request, ids)

    def _may_create(self, command: smp.NEW) -> bool:
        rules = self._context.rules
        given = command.password or b""
        return rules.allow_new_queues and (
            rules.password is None or hmac.compare_digest(given, rules.password)
        )

    def key(
        self, client: Requester, request: Request[smp.KEY] | Request[smp.SKEY], queue: QueueRecord
    ) -> SmpResponse | None:
        key = request.command.sender_key
        if queue.sender_key is not None:
            same = queue.sender_key == key
            answer = OK if same else smp.ERR(ErrorCode.AUTH)
            return self._context.answer(client, request, queue, answer)
        self.secure(queue, key)
        return self._context.answer_when_durable(client, request, OK)

    def secure(self, queue: QueueRecord, key: bytes) -> None:
        """Set the sender's key, if there is none."""
        if queue.sender_key is None:
            queue.sender_key = key
            self._context.change(queue)
            self._context.observer.queue_secured()

    def rkey(
        self, client: SmpClient, request: Request[smp.RKEY], queue: QueueRecord
    ) -> SmpResponse | None:
        if queue.mode is not QueueMode.CONTACT:
            return smp.ERR(ErrorCode.AUTH)
        queue.recipient_keys = request.command.recipient_keys
        self._context.change(queue)
        return self._context.answer_when_durable(client, request, OK)

    def off(
        self, client: SmpClient, request: Request[smp.OFF], queue: QueueRecord
    ) -> SmpResponse | None:
        queue.status, queue.blocked = QueueStatus.OFF, None
        self._context.change(queue)
        return self._context.answer_when_durable(client, request, OK)

    def delete(
        self, client: SmpClient, request: Request[smp.DEL], queue: QueueRecord
    ) -> SmpResponse | None:
        self.remove(queue, client)
        return self._context.answer_when_durable(client, request, OK)

    def remove(self, queue: QueueRecord, client: SmpClient | None = None) -> None:
        """Delete a queue with its messages, and notify its subscriber unless it is `client`."""
        context = self._context
        self._notifiers.remove(queue)
        self._services.leave(queue, client, deleted=True)
        changes = context.store.changes
        changes.touched.add(queue.recipient_id)
        changes.deleted_queues.append((queue.recipient_id,))
        context.queues.delete(queue)
        context.observer.queue_deleted(secured=queue.sender_key is not None)

        def deleted() -> None:
            subscriber = context.subscribers.drop_recipient(queue.recipient_id)
            if client is not None:
                client.unsubscribe(queue.recipient_id)
            if subscriber is not None and subscriber is not client:
                context.observer.subscription_ended()
                context.outgoing.push(subscriber, queue.recipient_id, smp.DELD())

        context.when_durable(deleted)

    def que(
        self, client: SmpClient, request: Request[smp.QUE], queue: QueueRecord
    ) -> SmpResponse | None:
        def describe(peeked: Peeked) -> None:
            info = _describe(client, queue, peeked.messages.get(queue.recipient_id))
            self._context.outgoing.answer(client, request, smp.INFO(info))

        return self._context.then_with_message(client, request, queue, describe)


def _describe(client: SmpClient, queue: QueueRecord, message: StoredMessage | None) -> QueueInfo:
    subscription = client.subscriptions.get(queue.recipient_id)
    sub = None
    if subscription is not None:
        sub = {"qSubThread": "prohibitSub" if subscription.by_get else "noSub"}
        if subscription.delivered is not None:
            sub["qDelivered"] = _b64(subscription.delivered.msg_id)
    msg = None
    if message is not None:
        msg = {
            "msgId": _b64(message.msg_id),
            "msgTs": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(message.timestamp)),
            "msgType": "quota" if message.body is None else "message",
        }
    return QueueInfo(queue.sender_key is not None, queue.notifier is not None, queue.size, sub, msg)


def _b64(data: bytes) -> str:
    """Encode with the standard alphabet, which QUE has unlike everything else."""
    return b64encode(data).decode()
