"""Delivery of notifications to their subscribers, in cycles, from the store.

A notification is a row of the store until it is known to have reached the subscriber: the protocol
has no acknowledgement, so TCP's is taken, and the connection must outlive it by a moment, in which
the subscriber makes it durable. A connection that breaks before that, or a router that is killed,
costs a repetition and never a notification. Those of one notifier are sent
in the order of their messages. Memory is bounded: what does not fit a client's outbox waits in the
store.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from heliograph.db.dialects import MAX_IN
from heliograph.db.errors import DatabaseError
from heliograph.smp.clients import Client, Subscribers
from heliograph.smp.metrics import Counters
from heliograph.smp.outgoing import Outgoing
from heliograph.smp.records import Notification, Notifier, Service
from heliograph.smp.store import Store
from heliograph.wire import smp

logger = logging.getLogger(__name__)

MAX_OUTBOX = 20_000
MAX_UNCONFIRMED = 50_000
PAGE = 5_000
BURST = 500
CONFIRM_INTERVAL = 0.05
CONFIRM_AFTER = 1.0
"""So long a subscriber may take to make durable what it was sent."""
IMMEDIATE_INTERVAL = 0.05
RETRY_DELAY = 1.0

Read = Callable[[int, int], Awaitable[list[Notification]]]
"""Reads a page: what comes after a `seq`, and at most so many."""


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
        on_stored: Callable[[Notification], None] = lambda notification: None,
    ) -> None:
        self._store = store
        self._subscribers = subscribers
        self._outgoing = outgoing
        self._counters = counters
        self._interval = interval
        self._on_delivered = on_delivered
        self._on_stored = on_stored
        self._due: set[Client] = set()
        self._unconfirmed: set[Client] = set()
        self._removing: set[int] = set()
        """What arrived, and is still in the store."""
        self._new: dict[Client, list[bytes]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # Told by commands.

    def stored(self, notifier: Notifier, notification: Notification) -> None:
        """A notification became durable."""
        self._on_stored(notification)
        client = self._recipient(notifier.notifier_id, notifier.service_id)
        if client is None:
            return
        if client.loads == 0:
            self._enqueue(client, notification)
        elif len(client.held) < MAX_OUTBOX:
            client.held.append(notification)
        else:
            self._fall_behind(client)

    def subscribed(self, client: Client, notifier_id: bytes) -> None:
        """What waits for this notifier is wanted; `load` fetches it for many at once."""
        if client not in self._new:
            client.loads += 1  # from now on, what is stored must not overtake what waits
            self._new[client] = []
        self._new[client].append(notifier_id)

    def service_subscribed(self, client: Client, service: Service) -> None:
        self.confirm()
        client.loads += 1
        self._load(client, self._of_service(service))

    def withdraw(self, client: Client, notifier_id: bytes) -> None:
        """The notifier is no longer one of the client's service: it gets nothing more of it."""
        if client.loads:
            client.withdrawn.add(notifier_id)
            client.held = [item for item in client.held if item.notifier_id != notifier_id]
        if client.outbox:
            kept = [item for item in client.outbox if item.notifier_id != notifier_id]
            client.queued.difference_update(
                item.seq for item in client.outbox if item.notifier_id == notifier_id
            )
            client.outbox = deque(kept)

    def disconnected(self, client: Client) -> None:
        """What is not known to have arrived stays in the store."""
        if client.unconfirmed and client.connection.left_in_order:
            self._remove(client, len(client.unconfirmed))
        self._counters.notifications_redelivered += len(client.unconfirmed)
        self._due.discard(client)
        self._unconfirmed.discard(client)
        self._new.pop(client, None)

    # Driven by the router.

    def load(self) -> None:
        """Fetch what waits for the notifiers subscribed since the last call."""
        if not self._new:
            return
        new, self._new = self._new, {}
        for client, notifier_ids in new.items():
            self._load(client, self._of_notifiers(notifier_ids))

    def settled(self) -> None:
        """All that a commit led to has been done."""
        if self._interval == 0:
            self.deliver()

    async def run(self) -> None:
        """Deliver in cycles, for ever."""
        interval = self._interval or IMMEDIATE_INTERVAL
        step = min(interval, CONFIRM_INTERVAL)
        waited = 0.0
        while True:
            await asyncio.sleep(step)
            waited += step
            try:
                self.confirm()
                if waited >= interval:
                    waited = 0.0
                    self.deliver()
            except Exception:
                logger.exception("a cycle of delivery failed")

    def deliver(self) -> None:
        """Send all that is pending to every client that takes it."""
        for client in tuple(self._due):
            try:
                self._send(client)
            except Exception as exc:
                logger.exception("sending notifications to a client failed")
                client.connection.abort(exc)

    def taken_over(self, client: Client) -> None:
        """It lives, so what has arrived there need not be repeated to its successor."""
        self._confirm(client, time.monotonic(), 0.0)

    def confirm(self, *, at_once: bool = False) -> None:
        """Remove from the store what has arrived, a moment ago or `at_once`."""
        now = time.monotonic()
        for client in tuple(self._unconfirmed):
            self._confirm(client, now, 0.0 if at_once else CONFIRM_AFTER)
        self._store.commit()

    def _confirm(self, client: Client, now: float, after: float) -> None:
        """What was seen to have arrived so long ago: a slow reader may have got it just now."""
        if client.connection.is_closing:
            return
        if client.bursts and client.bursts[-1][0] is None and client.connection.has_arrived:
            client.bursts = deque((now if at is None else at, size) for at, size in client.bursts)
        count = 0
        for arrived_at, size in client.bursts:
            if arrived_at is None or arrived_at > now - after:
                break
            count += size
        if not count:
            return
        was_full = not self._takes_more(client)
        self._remove(client, count)
        if was_full and client in self._due:
            self._send(client)

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
            self._fall_behind(client)
            return
        client.outbox.append(notification)
        client.queued.add(notification.seq)
        self._due.add(client)

    def _fall_behind(self, client: Client) -> None:
        """The outbox takes no more: all that follows comes from the store, once it is empty."""
        client.behind = True
        client.held = []
        self._due.add(client)

    def _send(self, client: Client) -> None:
        """Everything pending, as far as the client reads it; the rest waits for the next cycle."""
        while client.outbox and self._takes_more(client):
            sent = 0
            for _ in range(min(BURST, len(client.outbox))):
                notification = client.outbox.popleft()
                if not self._is_wanted(client, notification.notifier_id):
                    client.queued.discard(notification.seq)
                    continue
                nmsg = smp.NMSG(notification.nonce, notification.meta)
                self._outgoing.push(client, notification.notifier_id, nmsg)
                client.unconfirmed.append(notification.seq)
                sent += 1
                self._on_delivered(notification)
            client.bursts.append((None, sent))
            if sent:
                self._unconfirmed.add(client)
                self._counters.notifications_delivered += sent
            self._outgoing.flush()
        if client.outbox or (client.behind and client.loads):
            return
        self._due.discard(client)
        if client.behind:
            self._catch_up(client)

    def _takes_more(self, client: Client) -> bool:
        return client.connection.is_writable and len(client.unconfirmed) < MAX_UNCONFIRMED

    def _is_wanted(self, client: Client, notifier_id: bytes) -> bool:
        """Whether the client is still the one to tell; a deleted notifier has nobody."""
        if notifier_id in client.notifiers:
            return self._subscribers.notifiers.get(notifier_id) is client
        return client.serving is not None

    def _remove(self, client: Client, count: int) -> None:
        """What the client got leaves the store; until it has, it must not be loaded again."""
        arrived, client.unconfirmed = client.unconfirmed[:count], client.unconfirmed[count:]
        left = count
        while left > 0:
            _, size = client.bursts.popleft()
            left -= size
        if not client.unconfirmed:
            self._unconfirmed.discard(client)

        def removed(_: object) -> None:
            self._removing.difference_update(arrived)
            client.removed += arrived
            self._forget_removed(client)

        def failed(_: object) -> None:
            self._removing.difference_update(arrived)
            client.unconfirmed = arrived + client.unconfirmed
            client.bursts.appendleft((0.0, len(arrived)))
            if client.is_connected:
                self._unconfirmed.add(client)

        self._removing.update(arrived)
        changes = self._store.changes
        changes.deleted_notifications += [(seq,) for seq in arrived]
        changes.then(removed, failed)

    def _forget_removed(self, client: Client) -> None:
        """But a load under way may have read it before it was removed."""
        if client.loads == 0:
            client.queued.difference_update(client.removed)
            client.removed = []

    def _catch_up(self, client: Client) -> None:
        """The outbox overflowed: what it missed is in the store."""
        client.behind = False
        client.loads += 1
        reads = self._of_notifiers(list(client.notifiers))
        if client.serving is not None:
            reads += self._of_service(client.serving)
        self._load(client, reads, at_once=True)

    def _load(self, client: Client, reads: Sequence[Read], *, at_once: bool = False) -> None:
        """Fetch what waits; the caller has counted it in `client.loads`."""
        task = asyncio.get_running_loop().create_task(self._fetch(client, reads, at_once))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _fetch(self, client: Client, reads: Sequence[Read], at_once: bool) -> None:
        try:
            for read in reads:
                await self._fetch_pages(client, read)
        except Exception as exc:
            logger.exception("loading notifications failed")
            client.connection.abort(exc)
        client.loads -= 1
        if client.loads == 0:
            self._forget_removed(client)
            client.withdrawn.clear()
            held, client.held = client.held, []
            for notification in held:
                self._enqueue(client, notification)
        if (at_once or self._interval == 0) and client in self._due:
            self._send(client)

    async def _fetch_pages(self, client: Client, read: Read) -> None:
        after = -1
        while client.is_connected and not client.behind:
            try:
                found = await read(after, PAGE)
            except DatabaseError as exc:
                logger.error("loading notifications failed, trying again: %s", exc)
                await asyncio.sleep(RETRY_DELAY)
                continue
            for notification in found:
                if not (
                    notification.seq in self._removing
                    or notification.notifier_id in client.withdrawn
                ):
                    self._enqueue(client, notification)
            if len(found) < PAGE:
                return
            after = found[-1].seq

    def _of_notifiers(self, notifier_ids: Sequence[bytes]) -> list[Read]:
        return [
            partial(self._store.notifications, notifier_ids[start : start + MAX_IN])
            for start in range(0, len(notifier_ids), MAX_IN)
        ]

    def _of_service(self, service: Service) -> list[Read]:
        return [partial(self._store.service_notifications, service.service_id)]
