"""Messages: SEND, SUB, GET, ACK. One message at a time until it is acknowledged."""

import itertools
import os
import time
from typing import Any

from heliograph.crypto.boxes import NONCE_SIZE, box_padded, box_with
from heliograph.smp.changes import Peeked
from heliograph.smp.clients import Client, Subscription
from heliograph.smp.context import Context
from heliograph.smp.records import (
    ID_SIZE,
    Message,
    Notification,
    Notifier,
    Queue,
    QueueStatus,
)
from heliograph.wire import smp
from heliograph.wire.errors import ErrorCode
from heliograph.wire.fields import MsgFlags
from heliograph.wire.messages import RCV_MESSAGE_SIZE, RcvMessage, RcvQuota, encode_rcv_message
from heliograph.wire.primitives import pad
from heliograph.wire.push import NMSG_META_SIZE, NMsgMeta, encode_nmsg_meta
from heliograph.wire.requests import Request

OK = smp.OK()
MAX_PENDING = 32
"""Messages on their way to one client: each is a block, and counts before it is written."""


class Messaging:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._held_back: set[Client] = set()

    def send(self, client: Client, request: Request, queue: Queue) -> Any:
        context, command = self._context, request.command
        if len(command.body) > client.max_message_length:
            return smp.ERR(ErrorCode.LARGE_MSG)
        if queue.status is QueueStatus.OFF:
            return smp.ERR(ErrorCode.AUTH)
        was_empty = queue.size == 0
        if not (queue.accepts or was_empty):
            context.counters.messages_quota += 1
            return smp.ERR(ErrorCode.QUOTA)
        now = int(time.time())
        random = os.urandom(ID_SIZE + NONCE_SIZE)
        msg_id, nonce = random[:ID_SIZE], random[ID_SIZE:]
        if queue.size >= context.rules.quota:
            self._add_message(queue, msg_id, now, notification=False, body=None)
            queue.accepts = False
            context.counters.messages_quota += 1
            return context.answer_when_durable(client, request, smp.ERR(ErrorCode.QUOTA))
        notify = command.flags.notification
        message = self._add_message(queue, msg_id, now, notify, command.body)
        notifier, notification = queue.notifier, None
        if notify and notifier is not None:
            notification = self._add_notification(notifier, nonce, msg_id, now)
            context.counters.messages_notify_sent += 1
        context.counters.messages_sent += 1

        def sent(_: Peeked) -> None:
            context.outgoing.answer(client, request, OK)
            if notification is not None and notifier is not None:
                context.delivery.stored(notifier, notification)
            subscriber = context.subscribers.recipients.get(queue.recipient_id)
            if was_empty and subscriber is not None:
                self._deliver(subscriber, queue, message)

        return context.then(client, request, sent)

    def sub(self, client: Client, request: Request, queue: Queue) -> Any:
        context = self._context
        subscription = client.subscriptions.get(queue.recipient_id)
        if subscription is not None and subscription.by_get:
            return smp.ERR(ErrorCode.CMD_PROHIBITED)
        if subscription is None:
            subscription = self.subscribe(client, queue)
        subscription.delivered = None
        context.counters.subscribed += 1
        if queue.size == 0:
            return smp.SOK()
        subscription.answering = True

        def subscribed(peeked: Peeked) -> None:
            subscription.answering = False
            context.outgoing.answer(client, request, smp.SOK())
            if context.subscribers.recipients.get(queue.recipient_id) is not client:
                self._end(client, queue)  # which could not be said before
            self._push(client, queue, subscription, peeked.get(queue.recipient_id))

        def undo() -> None:
            subscription.answering = False

        return context.then_with_message(client, request, queue, subscribed, undo)

    def get(self, client: Client, request: Request, queue: Queue) -> Any:
        subscription = client.subscriptions.get(queue.recipient_id)
        if subscription is not None and not subscription.by_get:
            return smp.ERR(ErrorCode.CMD_PROHIBITED)
        if subscription is None:
            subscription = client.subscriptions[queue.recipient_id] = Subscription(by_get=True)
        self._context.counters.messages_get += 1
        if queue.size == 0:
            return OK
        return self._answer_with_message(client, request, queue, subscription)

    def ack(self, client: Client, request: Request, queue: Queue) -> Any:
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
            context.counters.messages_received += 1
        if subscription.by_get or queue.size == 0:
            return context.answer_when_durable(client, request, OK)
        return self._answer_with_message(client, request, queue, subscription)

    def subscribe(self, client: Client, queue: Queue) -> Subscription:
        recipient_id = queue.recipient_id
        subscribers = self._context.subscribers
        previous = subscribers.recipients.get(recipient_id)
        former = previous and previous.subscriptions.get(recipient_id)
        subscribers.take_recipient(client, recipient_id)
        if previous is not None and previous is not client and not (former and former.answering):
            self._end(previous, queue)
        subscription = client.subscriptions[recipient_id] = Subscription()
        return subscription

    def _end(self, client: Client, queue: Queue) -> None:
        self._context.counters.subscription_ended += 1
        self._context.outgoing.push(client, queue.recipient_id, smp.END())

    def resume(self, client: Client) -> None:
        """The client reads again: send some of what was held back."""
        changes = self._context.store.changes
        for recipient_id in list(itertools.islice(client.waiting, MAX_PENDING)):
            queue = client.waiting.pop(recipient_id)
            changes.peeks.add(recipient_id)
            changes.then(self._pusher(client, queue), lambda _: client.connection.abort())
        if client.waiting:
            self._held_back.add(client)

    def settled(self) -> None:
        """All that was pending has been written: whoever still reads gets more."""
        held_back, self._held_back = self._held_back, set()
        for client in held_back:
            if client.waiting and client.connection.is_writable:
                self.resume(client)

    def _pusher(self, client: Client, queue: Queue) -> Any:
        def push(peeked: Peeked) -> None:
            message = peeked.get(queue.recipient_id)
            if message is not None:
                self._deliver(client, queue, message)

        return push

    def _add_message(
        self, queue: Queue, msg_id: bytes, now: int, notification: bool, body: bytes | None
    ) -> Message:
        store = self._context.store
        message = Message(store.next_message, queue.recipient_id, msg_id, now, notification, body)
        store.next_message += 1
        changes = store.changes
        changes.touched.add(queue.recipient_id)
        changes.messages.append(message)
        queue.size += 1
        queue.accepts = True
        return message

    def _add_notification(
        self, notifier: Notifier, nonce: bytes, msg_id: bytes, now: int
    ) -> Notification:
        store = self._context.store
        meta = pad(encode_nmsg_meta(NMsgMeta(msg_id, now)), NMSG_META_SIZE)
        boxed = box_with(notifier.box_key, nonce, meta)
        notification = Notification(
            store.next_notification, notifier.notifier_id, nonce, boxed, now
        )
        store.next_notification += 1
        store.changes.notifications.append(notification)
        return notification

    def _deliver(self, client: Client, queue: Queue, message: Message) -> None:
        """To a subscriber, if it waits for a message."""
        subscription = client.subscriptions.get(queue.recipient_id)
        if (
            subscription is not None
            and not (subscription.by_get or subscription.answering)
            and subscription.delivered is None
        ):
            self._push(client, queue, subscription, message)

    def _push(
        self, client: Client, queue: Queue, subscription: Subscription, message: Message | None
    ) -> None:
        if message is None or client.subscriptions.get(queue.recipient_id) is not subscription:
            return
        pending = self._context.outgoing.pending(client)
        if not client.connection.is_writable or pending >= MAX_PENDING:
            client.waiting[queue.recipient_id] = queue
            self._held_back.add(client)
            return
        subscription.deliver(message)
        self._context.outgoing.push(client, queue.recipient_id, _encrypt(queue, message))

    def _answer_with_message(
        self, client: Client, request: Request, queue: Queue, subscription: Subscription
    ) -> None:
        context = self._context

        def answer(peeked: Peeked) -> None:
            message = peeked.get(queue.recipient_id)
            is_current = client.subscriptions.get(queue.recipient_id) is subscription
            if message is None or not is_current:
                context.outgoing.answer(client, request, OK)
            else:
                subscription.deliver(message)
                context.outgoing.answer(client, request, _encrypt(queue, message))

        context.then_with_message(client, request, queue, answer)


def _encrypt(queue: Queue, message: Message) -> smp.MSG:
    content = (
        RcvQuota(message.timestamp)
        if message.body is None
        else RcvMessage(message.timestamp, MsgFlags(message.notification), message.body)
    )
    plain = encode_rcv_message(content)
    box = box_padded(queue.secret, message.msg_id, plain, RCV_MESSAGE_SIZE)
    return smp.MSG(message.msg_id, box)
