"""Delivery of notifications to their subscribers, in cycles, from the store.

A notification stays in the store until the subscriber has confirmed that it is durable there, by a
PING that counts it (`heliograph.wire.smp.confirmations`). If the connection breaks before that, or
a router is killed, the notification is sent again: it may be repeated, and is never lost.

The protocol itself has no acknowledgement. A subscriber that sends no such PING is taken to have
stored what TCP acknowledged, if the connection stays open for a second after it.

Those of one notifier are sent in the order of their messages.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial

from heliograph.db.errors import DatabaseError
from heliograph.db.sql import MAX_IN
from heliograph.smp.clients.clients import SmpClient, Subscribers
from heliograph.smp.clients.outgoing import ReplyBuffer
from heliograph.smp.notifications.removals import Removals
from heliograph.smp.observer import SmpObserver
from heliograph.smp.store.records import NotifierRecord, ServiceRecord, StoredNotification
from heliograph.smp.store.store import SmpStore
from heliograph.tasks import TaskScope
from heliograph.wire import smp

logger = logging.getLogger(__name__)

NOTIFICATIONS_PER_PAGE = 5_000
MAX_BURST = 500
CONFIRM_INTERVAL = 0.05
CONFIRM_AFTER = 1.0
"""Seconds that a subscriber may take to make durable what it was sent."""
CONFIRM_TIMEOUT = 60.0
"""Seconds without progress after which a subscriber that confirms is disconnected."""
IMMEDIATE_INTERVAL = 0.05
RETRY_DELAY = 1.0

ReadPage = Callable[[int, int], Awaitable[list[StoredNotification]]]
"""Reads a page of stored notifications: those after a `seq`, up to a limit."""


@dataclass(slots=True)
class _Backlog:
    """Subscriptions whose stored notifications are to be loaded."""

    notifier_ids: dict[bytes, None] = field(default_factory=dict)
    service: ServiceRecord | None = None


class NotificationDelivery:
    def __init__(
        self,
        store: SmpStore,
        subscribers: Subscribers,
        outgoing: ReplyBuffer,
        observer: SmpObserver,
        *,
        interval: float,
    ) -> None:
        self._store = store
        self._subscribers = subscribers
        self._outgoing = outgoing
        self._observer = observer
        self._interval = interval
        self._due: set[SmpClient] = set()
        self._unconfirmed: set[SmpClient] = set()
        self._removals = Removals()
        self._new: dict[SmpClient, _Backlog] = {}
        self._loading: set[SmpClient] = set()
        """Clients with a load in progress; what they subscribe meanwhile is loaded after it."""
        self._tasks = TaskScope()

    @property
    def unconfirmed_clients(self) -> int:
        return len(self._unconfirmed)

    # Called by commands.

    def stored(self, notifier: NotifierRecord, notification: StoredNotification) -> None:
        """Deliver a notification that became durable, if there is a subscriber."""
        self._observer.notification_stored(notification)
        client = self._subscriber(notifier.notifier_id, notifier.service_id)
        if client is not None:
            client.outbox.add(notification)
            if client.outbox.is_due:
                self._due.add(client)

    def subscribed(self, client: SmpClient, notifier_id: bytes) -> None:
        """Mark the stored notifications of a notifier for the next `load`."""
        self._backlog(client).notifier_ids[notifier_id] = None

    def service_subscribed(self, client: SmpClient, service: ServiceRecord) -> None:
        """Mark the stored notifications of a service for the next `load`."""
        self.remove_confirmed()
        self._backlog(client).service = service

    def withdraw(self, client: SmpClient, notifier_id: bytes) -> None:
        """Stop delivering a notifier that left the client's service."""
        client.outbox.withdraw(notifier_id)

    def disconnected(self, client: SmpClient) -> None:
        """Forget the client; what is unconfirmed stays in the store."""
        outbox = client.outbox
        if outbox.unconfirmed and not outbox.is_confirming and client.connection.left_in_order:
            self._remove(client, client.outbox.take_unconfirmed())
        self._observer.delivery_unconfirmed(client.outbox.unconfirmed)
        self._due.discard(client)
        self._unconfirmed.discard(client)
        self._new.pop(client, None)

    def confirmed(self, client: SmpClient, count: int) -> None:
        """Remove the first `count` of all notifications that the client was sent: it has them."""
        client.outbox.confirm(count)
        self._remove_confirmed(client, time.monotonic(), 0.0)

    def subscriber_replaced(self, client: SmpClient) -> None:
        """Remove at once what has arrived, so that it is not repeated to the new subscriber."""
        self._remove_confirmed(client, time.monotonic(), 0.0)

    # Driven by the router.

    def load(self) -> None:
        """Load what is stored for the notifiers and services subscribed since the last call."""
        if not self._new:
            return
        for client in self._new.keys() - self._loading:
            self._loading.add(client)
            self._tasks.spawn(self._fetch_new(client), name="load notifications")

    def committed(self) -> None:
        """Deliver at once after a commit, if the interval is 0."""
        if self._interval == 0:
            self.deliver()

    async def run(self) -> None:
        """Deliver in cycles until cancelled."""
        interval = self._interval or IMMEDIATE_INTERVAL
        step = min(interval, CONFIRM_INTERVAL)
        waited = 0.0
        while True:
            await asyncio.sleep(step)
            waited += step
            try:
                self.remove_confirmed()
                if waited >= interval:
                    waited = 0.0
                    self.deliver()
            except Exception:
                logger.exception("a delivery cycle failed")

    def deliver(self) -> None:
        """Send what is due to every client that can take it."""
        for client in tuple(self._due):
            try:
                self._send(client)
            except Exception as exc:
                logger.exception("sending notifications to a client failed")
                client.connection.abort(exc)

    def remove_confirmed(self, *, at_once: bool = False) -> None:
        """Remove from the store what has arrived, a moment ago or `at_once`."""
        now = time.monotonic()
        for client in tuple(self._unconfirmed):
            self._remove_confirmed(client, now, 0.0 if at_once else CONFIRM_AFTER)
        self._store.commit()

    async def close(self) -> None:
        await self._tasks.close()

    # Private.

    def _remove_confirmed(self, client: SmpClient, now: float, after: float) -> None:
        outbox, connection = client.outbox, client.connection
        if connection.is_closing:
            return
        if outbox.awaits_arrival and connection.has_arrived:
            outbox.arrived(now)
        elif outbox.is_overdue(now, CONFIRM_TIMEOUT):
            logger.warning("a subscriber does not confirm notifications: disconnecting it")
            connection.abort()
            return
        was_full = not self._can_send(client)
        confirmed = outbox.take_confirmed(now - after)
        if not confirmed:
            return
        self._remove(client, confirmed)
        if was_full and client in self._due:
            self._send(client)

    def _subscriber(self, notifier_id: bytes, service_id: bytes | None) -> SmpClient | None:
        if service_id is not None:
            return self._subscribers.services.get(service_id)
        return self._subscribers.notifiers.get(notifier_id)

    def _send(self, client: SmpClient) -> None:
        """Send as much as the client reads; the rest waits for the next cycle."""
        outbox = client.outbox
        is_wanted = partial(self._is_wanted, client)
        while outbox and self._can_send(client):
            burst = outbox.take(MAX_BURST, is_wanted)
            for notification in burst:
                nmsg = smp.NMSG(notification.nonce, notification.meta)
                self._outgoing.push(client, notification.notifier_id, nmsg)
            if burst:
                self._observer.notifications_delivered(burst)
                self._unconfirmed.add(client)
            self._outgoing.flush()
        if outbox or (outbox.overflowed and outbox.is_loading):
            return
        self._due.discard(client)
        if outbox.overflowed:
            self._catch_up(client)

    def _can_send(self, client: SmpClient) -> bool:
        return client.connection.is_writable and client.outbox.has_room

    def _is_wanted(self, client: SmpClient, notifier_id: bytes) -> bool:
        """Return whether the client is still the subscriber; a deleted notifier has none."""
        if notifier_id in client.notifiers:
            return self._subscribers.notifiers.get(notifier_id) is client
        return client.serving is not None

    def _remove(self, client: SmpClient, confirmed: list[int]) -> None:
        """Remove what the client got from the store; no load may read it again."""
        if not client.outbox.unconfirmed:
            self._unconfirmed.discard(client)

        def removed(_: object) -> None:
            self._removals.removed(confirmed)
            client.outbox.removed(confirmed)

        def failed(_: object) -> None:
            self._removals.failed(confirmed)
            client.outbox.restore(confirmed)
            if client.is_connected:
                self._unconfirmed.add(client)

        self._removals.begin(confirmed)
        changes = self._store.changes
        changes.deleted_notifications += [(seq,) for seq in confirmed]
        changes.then(removed, failed)

    def _catch_up(self, client: SmpClient) -> None:
        """Load what the outbox had no room for."""
        client.outbox.begin_catch_up()
        pages = self._pages(client.notifiers, client.serving)
        self._tasks.spawn(self._fetch(client, pages, at_once=True), name="load notifications")

    def _backlog(self, client: SmpClient) -> _Backlog:
        if client not in self._new:
            client.outbox.begin_load()  # new notifications must not overtake waiting ones
            self._new[client] = _Backlog()
        return self._new[client]

    async def _fetch_new(self, client: SmpClient) -> None:
        """Load what a client has subscribed, once for all commands during the last load.

        However often a client subscribes, one of its loads runs at a time.
        """
        while (new := self._new.pop(client, None)) is not None:
            await self._fetch(client, self._pages(new.notifier_ids, new.service))
        self._loading.discard(client)

    async def _fetch(
        self, client: SmpClient, pages: Sequence[ReadPage], *, at_once: bool = False
    ) -> None:
        """Load stored notifications; the caller has begun the load in the outbox."""
        try:
            for read_page in pages:
                await self._fetch_pages(client, read_page)
        except Exception as exc:
            logger.exception("loading notifications failed")
            client.connection.abort(exc)
        client.outbox.end_load()
        if client.outbox.is_due and client.is_connected:
            self._due.add(client)
            if at_once or self._interval == 0:
                self._send(client)

    async def _fetch_pages(self, client: SmpClient, read_page: ReadPage) -> None:
        after = -1
        while client.is_connected and not client.outbox.overflowed:
            try:
                with self._removals.reading():
                    page = await read_page(after, NOTIFICATIONS_PER_PAGE)
                    for notification in page:
                        if notification.seq not in self._removals:
                            client.outbox.add_loaded(notification)
            except DatabaseError as exc:
                logger.error("loading notifications failed, retrying: %s", exc)
                await asyncio.sleep(RETRY_DELAY)
                continue
            if client.outbox.is_due and client.is_connected:
                self._due.add(client)
            if len(page) < NOTIFICATIONS_PER_PAGE:
                return
            after = page[-1].seq

    def _pages(self, notifiers: Collection[bytes], service: ServiceRecord | None) -> list[ReadPage]:
        notifier_ids = list(notifiers)
        pages: list[ReadPage] = [
            partial(self._store.notifications, notifier_ids[start : start + MAX_IN])
            for start in range(0, len(notifier_ids), MAX_IN)
        ]
        if service is not None:
            pages.append(partial(self._store.service_notifications, service.service_id))
        return pages
