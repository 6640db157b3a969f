"""The connection to one messaging router: subscribes queues in batches, receives notifications.

It keeps trying: growing, jittered delays. Statuses in the store say what is true now; what arrives
is handed on in batches.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from heliograph.db.errors import DatabaseError
from heliograph.ntf.asking import Asking, Findings
from heliograph.ntf.association import Association
from heliograph.ntf.backoff import Backoff
from heliograph.ntf.book import Book, Span
from heliograph.ntf.chronicle import Account
from heliograph.ntf.connections import abort, gone, hold, limit_received
from heliograph.ntf.inbox import Inbox
from heliograph.ntf.records import Incoming, QueueKey
from heliograph.ntf.subscriptions import Server
from heliograph.transport.client import Client, ClientConfig
from heliograph.transport.errors import AddressRefused, ClientError, Disconnected, HandshakeFailed
from heliograph.wire import smp
from heliograph.wire.addresses import ServerAddress
from heliograph.wire.errors import TransportError
from heliograph.wire.tokens import SubscriptionState

logger = logging.getLogger(__name__)

PAGES = 2
CONFIRMED = 2_000
"""Subscriptions by one statement: a notification that arrives meanwhile must not wait long."""
REFUSED = b"the router's address is private"

Told = tuple[bytes, SubscriptionState]
"""A subscription ID, and its state now."""

_SERVICE_REFUSED = (TransportError.HANDSHAKE_BAD_SERVICE, TransportError.HANDSHAKE_BAD_AUTH)


@dataclass(frozen=True, slots=True)
class SubscriberSettings:
    """`stable_after` is how long a connection lasts before the next delay is the first again."""

    batch: int = 900
    page: int = 9_000
    backoff: Backoff = field(default_factory=lambda: Backoff(first=0.5, last=60.0))
    stable_after: float = 2.0
    retry_errors: float = 60.0
    use_service: bool = False
    refused_delay: float = 3600.0
    """Between tries of a router whose addresses we do not connect to."""
    client: ClientConfig = field(default_factory=ClientConfig)


class Page(NamedTuple):
    """Queues to subscribe; `span` if they are all that the store has there."""

    queues: list[QueueKey]
    span: Span | None = None

    def spans(self) -> Iterator[Span]:
        """Its span in pieces."""
        if self.span is not None:
            for start in range(0, len(self.queues), CONFIRMED):
                some = self.queues[start : start + CONFIRMED]
                yield Span(some[0].subscription_id, some[-1].subscription_id, self.span.associated)


@dataclass(frozen=True, slots=True)
class SubscriberEvents:
    received: Callable[[int, list[Incoming]], asyncio.Future[None]]
    """Its result is there once they are durable."""
    connected: Callable[[int], None]
    disconnected: Callable[[int], None]
    repaired: Callable[[int, Account | None, Account | None], None]
    """Our associations, the last, differed from the router's, if it told, and were made anew."""
    subscribed: Callable[[int, Account, Account], None] = lambda server, found, expected: None
    """After connecting: what the router confirmed, and what we asked for."""
    statuses: Callable[[int, list[Told]], None] = lambda server, told: None
    """What was said of new subscriptions, and of those that are not active."""


class SmpSubscriber:
    """Runs until cancelled."""

    def __init__(
        self,
        server: Server,
        address: ServerAddress,
        book: Book,
        events: SubscriberEvents,
        settings: SubscriberSettings,
    ) -> None:
        self.address = address
        self.client: Client | None = None
        self.subscribed = 0
        self._book = book
        self._events = events
        self._settings = settings
        self._association = Association(server, book, events.repaired, is_used=settings.use_service)
        self._new: list[QueueKey] = []
        self._untold: set[bytes] = set()
        """New subscriptions of which nobody was told what became of them."""
        self._work = asyncio.Event()
        self._lost = False
        self._inbox = Inbox(self._hold, self._let_go)
        self._incoming: list[Incoming] = []
        self._ended: list[bytes] = []
        self._deleted: list[bytes] = []

    @property
    def server(self) -> Server:
        return self._association.server

    def add(self, queue: QueueKey) -> None:
        """A new subscription; those made in one turn go out together."""
        self._new.append(queue)
        self._untold.add(queue.subscription_id)
        self._work.set()

    @property
    def unstored(self) -> int:
        """How many notifications arrived and are not durable yet."""
        return self._inbox.waiting

    async def run(self) -> None:
        attempts = 0
        while True:
            began = None
            try:
                await self._inbox.all_stored()
                await self._connect()
                began = time.monotonic()
                await self._serve()
            except AddressRefused:
                logger.warning("a messaging router has only addresses that are not allowed")
                attempts = 0
                await self._wait_for_another_address()
            except ClientError as exc:
                logger.info("a messaging router cannot be reached: %s", type(exc).__name__)
            except DatabaseError as exc:
                logger.error("subscriptions cannot be read or written, trying again: %s", exc)
            except Exception:
                logger.exception("a subscriber failed, and starts again")
            finally:
                await self._leave()
            lasted = 0.0 if began is None else time.monotonic() - began
            attempts = 1 if lasted >= self._settings.stable_after else attempts + 1
            # Jitter needs no secrecy.
            await asyncio.sleep(self._settings.backoff.delay(attempts, random.random()))  # noqa: S311

    async def _connect(self) -> None:
        service = await self._association.credentials()
        self._lost = False
        self._work.clear()
        try:
            self.client = await Client.connect(
                self.address,
                self._settings.client,
                on_push=self._pushed,
                on_disconnect=lambda client, reason: self._disconnected(),
                service=service,
            )
        except AddressRefused:
            self._new.clear()
            await self._book.refuse(self.server.server_id, REFUSED)
            self._tell([(untold, SubscriptionState.ERR) for untold in self._untold])
            raise
        except HandshakeFailed as exc:
            if service is not None and exc.error in _SERVICE_REFUSED:
                await self._association.refused()
            raise
        self._hold(self._inbox.is_held)
        limit_received(self.client)
        self._events.connected(self.server.server_id)

    async def _wait_for_another_address(self) -> None:
        """Long, as only the operator or a name server can help; a new subscription asks again."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.refused_delay):
                await self._work.wait()

    async def _serve(self) -> None:
        """Subscribe what the store has, then what is new, until the connection ends."""
        self._new.clear()  # they are in the store
        await self._resubscribe()
        while not self._lost:
            self._work.clear()
            await self._write_events()
            new, self._new = self._new, []
            if new:
                await self._subscribe(self._batches(new))
            if not self._lost:
                await self._work.wait()
        raise Disconnected("the connection ended")

    async def _leave(self) -> None:
        client, self.client = self.client, None
        if client is None:
            return
        self.subscribed = 0
        abort(client)
        await gone(client)
        try:
            await self._write_events()
            await self._book.replace_state(
                self.server.server_id, SubscriptionState.ACTIVE, SubscriptionState.INACTIVE
            )
        except DatabaseError as exc:
            logger.error("what became of subscriptions cannot be stored: %s", exc)
        self._ended.clear()
        self._events.disconnected(self.server.server_id)

    # Subscribing.

    async def _resubscribe(self) -> None:
        client = self._connected()
        associated: bool | None = None
        if client.established.service is not None:
            found = await self._association.subscribe(client)
            if found.count:
                self.subscribed += found.count
                self._events.subscribed(self.server.server_id, found, found)
            associated = False
        before = self.subscribed
        expected = await self._subscribe(self._pages(associated))
        if expected or not before:
            found = Account(self.subscribed - before)
            self._events.subscribed(self.server.server_id, found, Account(expected))

    async def _pages(self, associated: bool | None) -> AsyncGenerator[Page, None]:
        """What the store has."""
        after, limit = b"", self._settings.page
        while queues := await self._book.page(self.server.server_id, after, limit, associated):
            first, after = queues[0].subscription_id, queues[-1].subscription_id
            yield Page(queues, Span(first, after, associated))

    async def _batches(self, queues: list[QueueKey]) -> AsyncGenerator[Page, None]:
        for start in range(0, len(queues), self._settings.batch):
            yield Page(queues[start : start + self._settings.batch])

    async def _subscribe(self, pages: AsyncGenerator[Page, None]) -> int:
        """How many there are. One page is made, one answered and written, and one read ahead."""
        asking = Asking(self._connected(), self._settings.batch)
        turns = asyncio.Semaphore(PAGES)
        count = 0
        try:
            async with contextlib.aclosing(pages), asyncio.TaskGroup() as group:
                async for page in pages:
                    await turns.acquire()
                    if asking.is_over:
                        break
                    count += len(page.queues)
                    task = group.create_task(self._subscribe_page(page, asking))
                    task.add_done_callback(lambda _: turns.release())
        except ExceptionGroup as exc:
            raise exc.exceptions[0] from exc
        if asking.is_over:
            raise Disconnected("the connection ended, or the router does not answer")
        return count

    async def _subscribe_page(self, page: Page, asking: Asking) -> None:
        found = await asking.ask(page.queues)
        failed = [queue for queue, status in found.others if status.state is SubscriptionState.ERR]
        if failed:
            loop = asyncio.get_running_loop()
            loop.call_later(self._settings.retry_errors, self._retry, failed)
        await self._write(page, found)
        told = [(queue.subscription_id, status.state) for queue, status in found.others]
        if self._untold:
            told += [
                (queue.subscription_id, SubscriptionState.ACTIVE)
                for queue in (*found.active, *found.associated)
                if queue.subscription_id in self._untold
            ]
        self._tell(told)
        self.subscribed += found.subscribed

    async def _write(self, page: Page, found: Findings) -> None:
        """Most of a page is confirmed at once: row by row costs far more.

        What differs comes first, so that what is still inactive then is what is confirmed.
        """
        server_id = self.server.server_id
        confirming = page.span is not None and not found.unanswered
        if statuses := list(found.statuses(confirming=confirming)):
            await self._book.set_statuses(server_id, statuses)
        if confirming:
            for span in page.spans():
                await self._book.confirm(server_id, span, found.mostly_associated)

    def _tell(self, told: list[Told]) -> None:
        if told:
            self._untold.difference_update([subscription_id for subscription_id, _ in told])
            self._events.statuses(self.server.server_id, told)

    def _retry(self, queues: list[QueueKey]) -> None:
        """What a router refused for reasons of its own; if reconnected since, that is harmless."""
        self._new += queues
        self._work.set()

    def _connected(self) -> Client:
        if self.client is None or not self.client.is_connected:
            raise Disconnected("the connection ended")
        return self.client

    # Receiving.

    def _pushed(self, entity_id: bytes, message: Any) -> None:
        match message:
            case smp.NMSG():
                if not self._incoming:
                    asyncio.get_running_loop().call_soon(self._hand_on)
                self._incoming.append(Incoming(entity_id, message.nonce, message.meta, time.time()))
            case smp.END():
                self._ended.append(entity_id)
                self._work.set()
            case smp.DELD():
                self._deleted.append(entity_id)
                self._work.set()
            case smp.ENDS():
                # Another connection took our service over: start again, and let the later win.
                self._disconnected()
            case _:
                logger.debug("unexpected %s from a messaging router", type(message).__name__)

    def _hand_on(self) -> None:
        incoming, self._incoming = self._incoming, []
        self._inbox.put(self._events.received(self.server.server_id, incoming), len(incoming))

    def _hold(self, held: bool) -> None:
        if self.client is not None:
            hold(self.client, held)

    def _let_go(self) -> None:
        """So that the router keeps what has not been stored."""
        if self.client is not None:
            logger.warning("the store stands still: leaving a messaging router until it works")
            abort(self.client)

    async def _write_events(self) -> None:
        """Of this session: an END of one that is over would say nothing."""
        said = {SubscriptionState.END: self._ended, SubscriptionState.DELETED: self._deleted}
        for state, ids in said.items():
            if written := ids[:]:
                ended = await self._book.set_ended(self.server.server_id, written, state)
                self._tell([(ended_id, state) for ended_id in ended])
                del ids[: len(written)]
                self.subscribed = max(self.subscribed - len(written), 0)

    def _disconnected(self) -> None:
        self._lost = True
        self._work.set()
