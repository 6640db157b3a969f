"""Subscribe the queues of the store at one messaging router: in pages, with NSUB or NSUBS."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import NamedTuple

from heliograph.ntf.observing.observer import NtfObserver
from heliograph.ntf.store.records import QueueDigest, QueueKey
from heliograph.ntf.store.subscriptions.subscription_store import (
    SubscriptionRange,
    SubscriptionStore,
)
from heliograph.ntf.subscriber.association import ServiceAssociation
from heliograph.ntf.subscriber.nsub import NsubResults, NsubSender
from heliograph.ntf.subscriber.settings import (
    SubscriberSettings,
    SubscriptionReport,
)
from heliograph.transport.client import Client
from heliograph.transport.errors import Disconnected
from heliograph.transport.handshake import Service
from heliograph.wire.ntf.tokens import SubscriptionState

logger = logging.getLogger(__name__)

MAX_PAGES_IN_FLIGHT = 2
RANGE_ROWS = 2_000
"""Rows updated by one statement: a notification that arrives meanwhile must not wait long."""


class Page(NamedTuple):
    """Queues to subscribe. `span` is set if they are all queues of the store in that range."""

    queues: list[QueueKey]
    span: SubscriptionRange | None = None

    def spans(self) -> Iterator[SubscriptionRange]:
        """Yield the span in pieces of at most `RANGE_ROWS`."""
        if self.span is not None:
            for start in range(0, len(self.queues), RANGE_ROWS):
                some = self.queues[start : start + RANGE_ROWS]
                yield SubscriptionRange(
                    some[0].subscription_id, some[-1].subscription_id, self.span.associated
                )


class QueueSubscriber:
    """Subscribe queues on one connection after another; `retry` gets queues to subscribe later."""

    def __init__(
        self,
        association: ServiceAssociation,
        store: SubscriptionStore,
        observer: NtfObserver,
        settings: SubscriberSettings,
        retry: Callable[[list[QueueKey]], None],
    ) -> None:
        self.subscribed = 0
        self.unreported: set[bytes] = set()
        """New subscriptions whose first state was not reported yet."""
        self._open = 0
        """Queues that the router notifies on this connection, also those deleted here since."""
        self._has_deleted = False
        self._association = association
        self._store = store
        self._observer = observer
        self._settings = settings
        self._retry = retry

    @property
    def _server_id(self) -> int:
        return self._association.server.server_id

    async def resubscribe(self, client: Client) -> None:
        """Subscribe all queues of the store."""
        self.subscribed = self._open = 0
        self._has_deleted = False
        service = client.established.service
        if service is None:
            await self._subscribe_stored(client, None)
            return
        resumed = await self._association.resume(client, service)
        self._open += resumed.count + self._association.deleted
        if resumed.count:
            self.subscribed += resumed.count
            self._observer.smp_subscribed(self._server_id, resumed, resumed)
        await self._subscribe_stored(client, False)
        if self._association.differs:
            await self._repair(client, service)

    def ended(self, count: int) -> int:
        """Record END or DELD of `count` queues; return how many more than the router notified."""
        expected = min(count, self._open)
        self._open -= expected
        return count - expected

    async def has_deleted(self) -> bool:
        """Return whether the router notifies of queues that were deleted here."""
        if not self._has_deleted:
            self._has_deleted = self._open > await self._store.count_active(self._server_id)
        return self._has_deleted

    async def subscribe(self, client: Client, queues: list[QueueKey]) -> None:
        """Subscribe new queues."""
        await self._subscribe(client, self._batches(queues))

    async def _subscribe_stored(self, client: Client, associated: bool | None) -> None:
        before = self.subscribed
        expected = await self._subscribe(client, self._pages(associated))
        if expected or not before:
            found = QueueDigest(self.subscribed - before)
            self._observer.smp_subscribed(self._server_id, found, QueueDigest(expected))

    async def _repair(self, client: Client, service: Service) -> None:
        """Find the queues in which the router's digest differs from ours, with as few NSUB as
        possible: those that explain the difference, or page after page until both agree.
        """
        association = self._association
        if await association.agrees(client, service):
            return  # the queues just subscribed were the difference
        logger.warning("a messaging router's service subscriptions differ from ours: repairing")
        association.report_drift()
        others = self.subscribed - association.active
        if suspects := await association.explain():
            await self._subscribe(client, self._batches(suspects))
        if not await association.agrees(client, service):
            async with contextlib.aclosing(self._pages(True)) as pages:
                async for page in pages:
                    await self._subscribe(client, _one(page))
                    if await association.agrees(client, service):
                        break
                else:
                    await association.accept_surplus()
        self.subscribed = others + association.active

    async def _pages(self, associated: bool | None) -> AsyncGenerator[Page, None]:
        """Yield the queues of the store."""
        after, limit = b"", self._settings.page
        while queues := await self._store.page(self._server_id, after, limit, associated):
            first, after = queues[0].subscription_id, queues[-1].subscription_id
            yield Page(queues, SubscriptionRange(first, after, associated))

    async def _batches(self, queues: list[QueueKey]) -> AsyncGenerator[Page, None]:
        for start in range(0, len(queues), self._settings.batch):
            yield Page(queues[start : start + self._settings.batch])

    async def _subscribe(self, client: Client, pages: AsyncGenerator[Page, None]) -> int:
        """Subscribe all pages, reading one ahead, and return the number of queues."""
        sender = NsubSender(client, self._settings.batch, self._store.may_subscribe)
        slots = asyncio.Semaphore(MAX_PAGES_IN_FLIGHT)
        count = 0
        try:
            # Not a TaskScope: the tasks end with this call, and the first failure is its own.
            async with contextlib.aclosing(pages), asyncio.TaskGroup() as group:
                async for page in pages:
                    await slots.acquire()
                    if sender.has_failed:
                        break
                    count += len(page.queues)
                    task = group.create_task(self._subscribe_page(page, sender))
                    task.add_done_callback(lambda _: slots.release())
        except ExceptionGroup as exc:
            raise exc.exceptions[0] from exc
        if sender.has_failed:
            raise Disconnected("the connection ended, or the router does not answer")
        return count

    async def _subscribe_page(self, page: Page, sender: NsubSender) -> None:
        results = await sender.send(page.queues)
        failed = results.failed
        retried = [queue for queue, status in failed if status.state is SubscriptionState.ERR]
        if retried:
            loop = asyncio.get_running_loop()
            loop.call_later(self._settings.retry_errors, self._retry, retried)
        await self._write(page, results)
        reports = [(queue.subscription_id, status.state) for queue, status in failed]
        if self.unreported:
            reports += [
                (queue.subscription_id, SubscriptionState.ACTIVE)
                for queue in (*results.active, *results.associated)
                if queue.subscription_id in self.unreported
            ]
        self.report(reports)
        self.subscribed += results.subscribed
        self._open += results.subscribed

    async def _write(self, page: Page, results: NsubResults) -> None:
        """Mark most of a page ACTIVE in one statement: row by row costs far more.

        Other statuses are written first, so that the rows still INACTIVE are those to mark.
        """
        server_id = self._server_id
        by_range = page.span is not None and not results.unanswered
        if statuses := list(results.statuses(by_range=by_range)):
            await self._store.set_statuses(server_id, statuses)
        if by_range:
            for span in page.spans():
                await self._store.mark_active(server_id, span, results.mostly_associated)
        if results.associated:
            ids = [queue.notifier_id for queue in results.associated]
            await self._store.keep_missing(server_id, ids)

    def report(self, reports: list[SubscriptionReport]) -> None:
        if reports:
            self.unreported.difference_update([subscription_id for subscription_id, _ in reports])
            self._observer.subscription_statuses(self._server_id, reports)


async def _one(page: Page) -> AsyncGenerator[Page, None]:
    yield page
