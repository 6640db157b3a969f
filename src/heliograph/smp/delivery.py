"""Delivery of notifications to their subscribers, in cycles, from the store.

A notification is a row of the store until it is known to have reached the subscriber's machine:
the protocol has no acknowledgement, so TCP's is taken. A connection that ends before that, or a
router that is killed, costs a repetition and never a notification. Memory is bounded: what does
not fit a client's outbox waits in the store.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from heliograph.smp.clients import Client, Subscribers
from heliograph.smp.metrics import Counters
from heliograph.smp.outgoing import Outgoing
from heliograph.smp.records import Notification, Notifier, Service
from heliograph.smp.store import Store
from heliograph.wire import smp

logger = logging.getLogger(__name__)

MAX_OUTBOX = 20_000
PAGE = 5_000
BURST = 500
CONFIRM_INTERVAL = 0.05
IMMEDIATE_INTERVAL = 0.05


class Delivery:
    def __init__(
        self,
        store: Store,
        subscribers: Subscribers,
        outgoing: Outgoing,
        counters: Counters,
        *,
        interval: float,
        on_delivered: Callable[[Notification], None],
    ) -> None:
        self._store = store
        self._subscribers = subscribers
        self._outgoing = outgoing
        self._counters = counters
        self._interval = interval
        self._on_delivered = on_delivered
        self._due: set[Client] = set()
        self._unconfirmed: set[Client] = set()
        self._new: dict[Client, list[bytes]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # Told by commands.

    def stored(self, notifier: Notifier, notification: Notification) -> None:
        """A notification became durable."""
        client = self._recipient(notifier.notifier_id, notifier.service_id)
        if client is not None:
            self._enqueue(client, notification)
            if self._interval == 0:
                self._send(client)

    def subscribed(self, client: Client, notifier_id: bytes) -> None:
        """What waits for this notifier is wanted; `load` fetches it for many at once."""
        self._new.setdefault(client, []).append(notifier_id)

    def service_subscribed(self, client: Client, service: Service) -> None:
        self._start(self._load_service(client, service.service_id))

    def disconnected(self, client: Client) -> None:
        """What is not known to have arrived stays in the store."""
        self._counters.notifications_redelivered += len(client.unconfirmed)
        self._due.discard(client)
        self._unconfirmed.discard(client)
        self._new.pop(client, None)

    # Driven by the router.

    def load(self) -> None:
        """Fetch what waits for the notifiers subscribed since the last call."""
        new, self._new = self._new, {}
        for client, notifier_ids in new.items():
            self._start(self._load(client, notifier_ids))

    async def run(self) -> None:
        """Deliver in cycles, for ever."""
        interval = self._interval or IMMEDIATE_INTERVAL
        step = min(interval, CONFIRM_INTERVAL)
        waited = 0.0
        while True:
            await asyncio.sleep(step)
            waited += step
            self.confirm()
            if waited >= interval:
                waited = 0.0
                self.deliver()

    def deliver(self) -> None:
        """Send all that is pending to every client that takes it."""
        for client in tuple(self._due):
            self._send(client)
        self._outgoing.flush()

    def confirm(self) -> None:
        """Remove from the store what has arrived."""
        for client in tuple(self._unconfirmed):
            if client.connection.has_arrived:
                self._store.changes.deleted_notifications += [(seq,) for seq in client.unconfirmed]
                client.queued.difference_update(client.unconfirmed)
                client.unconfirmed = []
                self._unconfirmed.discard(client)
        self._store.commit()

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    # Private.

    def _recipient(self, notifier_id: bytes, service_id: bytes | None) -> Client | None:
        if service_id is not None:
            return self._subscribers.services.get(service_id)
        return self._subscribers.notifiers.get(notifier_id)

    def _enqueue(self, client: Client, notification: Notification) -> None:
        if client.behind or notification.seq in client.queued:
            return
        if len(client.outbox) >= MAX_OUTBOX:
            client.behind = True
            return
        client.outbox.append(notification)
        client.queued.add(notification.seq)
        self._due.add(client)

    def _send(self, client: Client) -> None:
        """Everything pending, as far as the client reads it; the rest waits for the next cycle."""
        outbox = client.outbox
        while outbox and client.connection.is_writable:
            for _ in range(min(BURST, len(outbox))):
                notification = outbox.popleft()
                if not self._is_wanted(client, notification.notifier_id):
                    client.queued.discard(notification.seq)
                    continue
                nmsg = smp.NMSG(notification.nonce, notification.meta)
                self._outgoing.push(client, notification.notifier_id, nmsg)
                client.unconfirmed.append(notification.seq)
                self._unconfirmed.add(client)
                self._counters.notifications_delivered += 1
                self._on_delivered(notification)
            self._outgoing.flush()
        if not outbox:
            self._due.discard(client)
            if client.behind:
                self._catch_up(client)

    def _is_wanted(self, client: Client, notifier_id: bytes) -> bool:
        """Whether the client is still the one to tell; a deleted notifier has nobody."""
        if notifier_id in client.notifiers:
            return self._subscribers.notifiers.get(notifier_id) is client
        return (
            client.service_id is not None
            and self._subscribers.services.get(client.service_id) is client
        )

    def _catch_up(self, client: Client) -> None:
        """The outbox overflowed: what it missed is in the store."""
        client.behind = False
        if client.notifiers:
            self._start(self._load(client, list(client.notifiers)))
        if client.service_id is not None:
            self._start(self._load_service(client, client.service_id))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("loading notifications failed: %s", task.exception())

    async def _load(self, client: Client, notifier_ids: list[bytes]) -> None:
        for start in range(0, len(notifier_ids), PAGE):
            found = await self._store.notifications(notifier_ids[start : start + PAGE])
            self._add(client, found)

    async def _load_service(self, client: Client, service_id: bytes) -> None:
        after = -1
        while not client.connection.is_closing and not client.behind:
            found = await self._store.service_notifications(service_id, after, PAGE)
            self._add(client, found)
            if len(found) < PAGE:
                break
            after = found[-1].seq

    def _add(self, client: Client, found: list[Notification]) -> None:
        if client.connection.is_closing:
            return
        for notification in found:
            self._enqueue(client, notification)
        if self._interval == 0:
            self._send(client)
            self._outgoing.flush()
