"""Which handler executes which command; and the commands that concern a queue itself."""

import hmac
import os
import time
from collections.abc import Callable
from typing import Any

from heliograph.crypto.errors import CryptoError
from heliograph.crypto.keys import dh, generate_key_pair
from heliograph.smp.changes import Peeked
from heliograph.smp.clients import Client
from heliograph.smp.context import Context
from heliograph.smp.messaging import Messaging
from heliograph.smp.notifying import Notifying, new_notifier
from heliograph.smp.records import ID_SIZE, Message, Queue, QueueStatus
from heliograph.wire import smp
from heliograph.wire.errors import ErrorCode
from heliograph.wire.fields import QueueInfo, ServerNtfCreds, SubscriptionMode
from heliograph.wire.keys import Algorithm
from heliograph.wire.primitives import b64encode
from heliograph.wire.requests import Request

Handler = Callable[[Client, Request, Any], Any]
"""Gives the answer, or None if it follows once the changes are durable."""

OK = smp.OK()


class Commands:
    def __init__(self, context: Context) -> None:
        self._context = context
        self.messaging = messaging = Messaging(context)
        self.notifying = notifying = Notifying(context)
        self.handlers: dict[type, Handler] = {
            smp.PING: lambda client, request, queue: smp.PONG(),
            smp.NEW: self._new,
            smp.KEY: self._key,
            smp.SKEY: self._key,
            smp.OFF: self._off,
            smp.DEL: self._del,
            smp.QUE: self._que,
            smp.SUB: messaging.sub,
            smp.GET: messaging.get,
            smp.ACK: messaging.ack,
            smp.SEND: messaging.send,
            smp.NKEY: notifying.nkey,
            smp.NDEL: notifying.ndel,
            smp.NSUB: notifying.nsub,
            smp.NSUBS: notifying.nsubs,
            # Messages are not delivered to services.
            smp.SUBS: lambda client, request, queue: smp.ERR(ErrorCode.CMD_PROHIBITED),
        }

    def _new(self, client: Client, request: Request, _: None) -> Any:
        context, command = self._context, request.command
        if not self._may_create(command):
            return smp.ERR(ErrorCode.AUTH)
        if client.service_id is not None and command.mode is SubscriptionMode.CREATE_ONLY:
            return smp.ERR(ErrorCode.CMD_PROHIBITED)
        data = command.queue_data
        if data is not None and data.link is not None:
            return smp.ERR(ErrorCode.CMD_PROHIBITED)  # short links are not part of this router
        keys = generate_key_pair(Algorithm.X25519)
        notifier, creds = None, None
        try:
            secret = dh(command.rcv_dh_key, keys.private)
            if command.ntf_creds is not None:
                notifier, public = new_notifier(
                    command.ntf_creds.auth_key, command.ntf_creds.dh_key
                )
                creds = ServerNtfCreds(notifier.notifier_id, public)
                context.counters.notifiers_created += 1
        except CryptoError:
            return smp.ERR(ErrorCode.CRYPTO)
        queue = Queue(
            os.urandom(ID_SIZE),
            os.urandom(ID_SIZE),
            command.rcv_auth_key,
            secret,
            mode=data and data.mode,
            notifier=notifier,
        )
        context.queues.add(queue)
        context.change(queue)
        if command.mode is SubscriptionMode.SUBSCRIBE:
            self.messaging.subscribe(client, queue)
        context.counters.queues_created += 1
        ids = smp.IDS(queue.recipient_id, queue.sender_id, keys.public, queue.mode, ntf_creds=creds)
        return context.answer_when_durable(client, request, ids)

    def _may_create(self, command: smp.NEW) -> bool:
        rules = self._context.rules
        given = command.password or b""
        return rules.allow_new_queues and (
            rules.password is None or hmac.compare_digest(given, rules.password)
        )

    def _key(self, client: Client, request: Request, queue: Queue) -> Any:
        key = request.command.sender_key
        if queue.sender_key is not None:
            same = queue.sender_key == key
            answer = OK if same else smp.ERR(ErrorCode.AUTH)
            return self._context.answer(client, request, queue, answer)
        queue.sender_key = key
        self._context.change(queue)
        self._context.counters.queues_secured += 1
        return self._context.answer_when_durable(client, request, OK)

    def _off(self, client: Client, request: Request, queue: Queue) -> Any:
        queue.status = QueueStatus.OFF
        self._context.change(queue)
        return self._context.answer_when_durable(client, request, OK)

    def _del(self, client: Client, request: Request, queue: Queue) -> Any:
        context = self._context
        self.notifying.remove(queue)
        changes = context.store.changes
        changes.touched.add(queue.recipient_id)
        changes.deleted_queues.append((queue.recipient_id,))
        context.queues.delete(queue)
        context.counters.queues_deleted += 1

        def deleted(_: Peeked) -> None:
            subscriber = context.subscribers.drop_recipient(queue.recipient_id)
            client.unsubscribe(queue.recipient_id)
            if subscriber is not None and subscriber is not client:
                context.counters.subscription_ended += 1
                context.outgoing.push(subscriber, queue.recipient_id, smp.DELD())
            context.outgoing.answer(client, request, OK)

        return context.then(client, request, deleted)

    def _que(self, client: Client, request: Request, queue: Queue) -> Any:
        def describe(peeked: Peeked) -> None:
            info = _describe(client, queue, peeked.get(queue.recipient_id))
            self._context.outgoing.answer(client, request, smp.INFO(info))

        return self._context.then_with_message(client, request, queue, describe)


def _describe(client: Client, queue: Queue, message: Message | None) -> QueueInfo:
    subscription = client.subscriptions.get(queue.recipient_id)
    sub = None
    if subscription is not None:
        sub = {"qSubThread": "prohibitSub" if subscription.by_get else "noSub"}
        if subscription.delivered is not None:
            sub["qDelivered"] = b64encode(subscription.delivered.msg_id)
    msg = None
    if message is not None:
        msg = {
            "msgId": b64encode(message.msg_id),
            "msgTs": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(message.timestamp)),
            "msgType": "quota" if message.body is None else "message",
        }
    return QueueInfo(queue.sender_key is not None, queue.notifier is not None, queue.size, sub, msg)
