"""Messages: SEND, SUB, GET, ACK.

A subscriber gets one message at a time, and the next one when it has acknowledged it.
"""

import itertools
import os
import time
from collections.abc import Callable

from heliograph.crypto.boxes import NONCE_SIZE, box_padded, box_with
from heliograph.smp.clients.clients import QueueSubscription, SmpClient
from heliograph.smp.commands.service_subscriptions import ServiceSubscriptions
from heliograph.smp.context import CommandContext, Requester
from heliograph.smp.store.changes import Peeked
from heliograph.smp.store.records import (
    ID_SIZE,
    NotifierRecord,
    QueueRecord,
    QueueStatus,
    StoredMessage,
    StoredNotification,
)
from heliograph.wire import smp
from heliograph.wire.errors import ErrorCode
from heliograph.wire.ntf.push import NMSG_META_SIZE, NMsgMeta, encode_nmsg_meta
from heliograph.wire.primitives import pad
from heliograph.wire.requests import Request
from heliograph.wire.smp import SmpResponse
from heliograph.wire.smp.fields import MsgFlags
from heliograph.wire.smp.messages import RCV_MESSAGE_SIZE, RcvMessage, RcvQuota, encode_rcv_message

OK = smp.OK()
Push = Callable[[SmpClient, bytes, smp.MSG], None]
MAX_PENDING = 32
"""Messages buffered for one client, each a block, before further ones wait in the store."""


class MessageCommands:
    def __init__(self, context: CommandContext, services: ServiceSubscriptions) -> None:
        self._context = context
        self._services = services
        self._paused: set[SmpClient] = set()

    @property
    def is_pausing(self) -> bool:
        """Return whether messages wait for a client that is not reading."""
        return bool(self._paused)

    def send(
        self, client: Requester, request: Request[smp.SEND], queue: QueueRecord
    ) -> SmpResponse | None:
        context, command = self._context, request.command
        if len(command.body) > client.max_message_length:
            context.observer.message_too_large()
            return smp.ERR(ErrorCode.LARGE_MSG)
        if queue.status is QueueStatus.OFF:
            return smp.ERR(ErrorCode.AUTH)
        if queue.blocked is not None:
            return smp.ERR(queue.blocked)
        was_empty = queue.size == 0
        if not (queue.accepts or was_empty):
            context.observer.quota_exceeded()
            return smp.ERR(ErrorCode.QUOTA)
        now = int(time.time())
        random = os.urandom(ID_SIZE + NONCE_SIZE)
        msg_id, nonce = random[:ID_SIZE], random[ID_SIZE:]
        if queue.size >= context.rules.quota:
            self._add_message(queue, msg_id, now, notification=False, body=None)
            queue.accepts = False
            context.observer.quota_exceeded()
            return context.answer_when_durable(client, request, smp.ERR(ErrorCode.QUOTA))
        if queue.link is not None and queue.is_secured_messaging:
            context.delete_link(queue)  # an invitation that was accepted
        notify = command.flags.notification
        message = self._add_message(queue, msg_id, now, notify, command.body)
        notifier, notification = queue.notifier, None
        if notify and notifier is not None:
            notification = self._add_notification(notifier, nonce, msg_id, now)
        context.observer.message_sent(queue.recipient_id, notified=notification is not None)

        def sent(_: Peeked) -> None:
            subscriber = context.subscribers.of_queue(queue)
            if was_empty and subscriber is not None:
                self._deliver(subscriber, queue, message)
                if subscriber is client:  # as the reference: the message, then the answer
                    context.outgoing.end_block(subscriber)
            context.outgoing.answer(client, request, OK)
            if notification is not None and notifier is not None:
                context.delivery.stored(notifier, notification)

        return context.then(client, request, sent)

    def sub(
        self, client: SmpClient, request: Request[smp.SUB], queue: QueueRecord
    ) -> SmpResponse | None:
        context = self._context
        subscription = client.subscriptions.get(queue.recipient_id)
        if subscription is not None and subscription.by_get:
            context.observer.subscribe_prohibited()
            return smp.ERR(ErrorCode.CMD_PROHIBITED)
        context.observer.queue_subscribed(again=subscription is not None, pending=queue.size > 0)
        has_changed = self._services.set_recipient(client, queue)
        if subscription is None:
            subscription = self.subscribe(client, queue)
        subscription.delivered = None
        sok = smp.SOK(queue.service_id)
        if queue.size == 0:
            return context.answer_when_durable(client, request, sok) if has_changed else sok
        subscription.answering = True

        def subscribed(peeked: Peeked) -> None:
            subscription.answering = False
            context.outgoing.answer(client, request, sok)
            if context.subscribers.of_queue(queue) is not client:
                self._end(client, queue)  # END must not come before the answer
            message = peeked.messages.get(queue.recipient_id)
            self._push(client, queue, subscription, message, context.outgoing.push_last)

        def undo() -> None:
            subscription.answering = False

        return context.then_with_message(client, request, queue, subscribed, undo)

    def get(
        self, client: SmpClient, request: Request[smp.GET], queue: QueueRecord
    ) -> SmpResponse | None:
        observer = self._context.observer
        subscription = client.subscriptions.get(queue.recipient_id)
        if subscription is not None and not subscription.by_get:
            observer.get_prohibited()
            return smp.ERR(ErrorCode.CMD_PROHIBITED)
        if subscription is None:
            subscription = client.subscriptions[queue.recipient_id] = QueueSubscription(by_get=True)
        observer.message_requested(empty=queue.size == 0, again=subscription.delivered is not None)
        if queue.size == 0:
            return OK
        return self._answer_with_message(client, request, queue, subscription)

    def ack(
        self, client: SmpClient, request: Request[smp.ACK], queue: QueueRecord
    ) -> SmpResponse | None:
        context = self._context
        subscription = client.subscriptions.get(queue.recipient_id)
        delivered = None if subscription is None else subscription.delivered
        wanted = request.command.msg_id
        if subscription is None or delivered is None or wanted not in (b"", delivered.msg_id):
            return smp.ERR(ErrorCode.NO_MSG)
        subscription.delivered = None
        if delivered.seq >= queue.first:  # else another connection acknowledged it, or it expired
            changes = context.store.changes
            changes.touched.add(queue.recipient_id)
            changes.deleted_messages.append((delivered.seq,))
            queue.lose(1, delivered.seq + 1)
            context.observer.message_received(
                queue.recipient_id, notified=delivered.notification, by_get=subscription.by_get
            )
        if subscription.by_get or queue.size == 0:
            return context.answer_when_durable(client, request, OK)
        return self._answer_with_message(client, request, queue, subscription)

    def subscribe(self, client: SmpClient, queue: QueueRecord) -> QueueSubscription:
        """Make the client the subscriber of a queue, and notify the previous one."""
        recipient_id = queue.recipient_id
        subscribers = self._context.subscribers
        if queue.service_id is not None:
            subscription = client.subscriptions[recipient_id] = QueueSubscription()
            return subscription
        previous = subscribers.recipients.get(recipient_id)
        former = previous and previous.subscriptions.get(recipient_id)
        subscribers.take_recipient(client, recipient_id)
        if previous is not None and previous is not client and not (former and former.answering):
            self._end(previous, queue)
        subscription = client.subscriptions[recipient_id] = QueueSubscription()
        return subscription

    def _end(self, client: SmpClient, queue: QueueRecord) -> None:
        self._context.observer.subscription_ended()
        self._context.outgoing.push(client, queue.recipient_id, smp.END())

    def resume(self, client: SmpClient) -> None:
        """Send some of the messages that waited while the client was not reading."""
        for recipient_id in list(itertools.islice(client.waiting, MAX_PENDING)):
            self.deliver_first(client, client.waiting.pop(recipient_id))
        if client.waiting:
            self._paused.add(client)

    def deliver_first(self, client: SmpClient, queue: QueueRecord) -> None:
        """Send the first message of a queue with the next commit."""
        changes = self._context.store.changes
        changes.peeks.add(queue.recipient_id)
        changes.then(self._pusher(client, queue), lambda _: client.connection.abort())

    def committed(self) -> None:
        """Send more to the clients that are still reading, after a commit."""
        paused, self._paused = self._paused, set()
        for client in paused:
            if client.waiting and client.connection.is_writable:
                self.resume(client)

    def _pusher(self, client: SmpClient, queue: QueueRecord) -> Callable[[Peeked], None]:
        def push(peeked: Peeked) -> None:
            message = peeked.messages.get(queue.recipient_id)
            if message is not None:
                self._deliver(client, queue, message)

        return push

    def _add_message(
        self, queue: QueueRecord, msg_id: bytes, now: int, notification: bool, body: bytes | None
    ) -> StoredMessage:
        store = self._context.store
        message = StoredMessage(
            store.next_message, queue.recipient_id, msg_id, now, notification, body
        )
        store.next_message += 1
        changes = store.changes
        changes.touched.add(queue.recipient_id)
        changes.messages.append(message)
        queue.size += 1
        queue.accepts = True
        return message

    def _add_notification(
        self, notifier: NotifierRecord, nonce: bytes, msg_id: bytes, now: int
    ) -> StoredNotification:
        store = self._context.store
        meta = pad(encode_nmsg_meta(NMsgMeta(msg_id, now)), NMSG_META_SIZE)
        boxed = box_with(notifier.box_key, nonce, meta)
        notification = StoredNotification(
            store.next_notification, notifier.notifier_id, nonce, boxed, now
        )
        store.next_notification += 1
        store.changes.notifications.append(notification)
        return notification

    def _deliver(self, client: SmpClient, queue: QueueRecord, message: StoredMessage) -> None:
        """Send a message to a subscriber that has none to acknowledge."""
        subscription = client.subscriptions.get(queue.recipient_id)
        if subscription is None and client.serving is not None:
            subscription = self.subscribe(client, queue)
        if (
            subscription is not None
            and not (subscription.by_get or subscription.answering)
            and subscription.delivered is None
        ):
            self._push(client, queue, subscription, message)

    def _push(
        self,
        client: SmpClient,
        queue: QueueRecord,
        subscription: QueueSubscription,
        message: StoredMessage | None,
        push: Push | None = None,
    ) -> None:
        if message is None or client.subscriptions.get(queue.recipient_id) is not subscription:
            return
        outgoing = self._context.outgoing
        if not client.connection.is_writable or outgoing.pending(client) >= MAX_PENDING:
            client.waiting[queue.recipient_id] = queue
            self._paused.add(client)
            return
        subscription.deliver(message)
        (push or outgoing.push)(client, queue.recipient_id, _encrypt(queue, message))

    def _answer_with_message(
        self,
        client: SmpClient,
        request: Request[smp.GET] | Request[smp.ACK],
        queue: QueueRecord,
        subscription: QueueSubscription,
    ) -> SmpResponse | None:
        context = self._context

        def answer(peeked: Peeked) -> None:
            message = peeked.messages.get(queue.recipient_id)
            is_current = client.subscriptions.get(queue.recipient_id) is subscription
            if message is None or not is_current:
                context.outgoing.answer(client, request, OK)
            else:
                subscription.deliver(message)
                context.outgoing.answer(client, request, _encrypt(queue, message))

        return context.then_with_message(client, request, queue, answer)


def _encrypt(queue: QueueRecord, message: StoredMessage) -> smp.MSG:
    content = (
        RcvQuota(message.timestamp)
        if message.body is None
        else RcvMessage(message.timestamp, MsgFlags(message.notification), message.body)
    )
    plain = encode_rcv_message(content)
    box = box_padded(queue.secret, message.msg_id, plain, RCV_MESSAGE_SIZE)
    return smp.MSG(message.msg_id, box)
