"""The messaging router: accepts connections, executes commands in order, makes changes durable.

It loads the queues that commands name, verifies and executes the commands, and sends the answers.
The decisions are made in the handlers of `heliograph.smp.commands.handlers`.
"""

import asyncio
import logging
import os
import time
from collections.abc import Sequence

from heliograph.db.database import Database
from heliograph.journal.journal import NO_JOURNAL, Journal
from heliograph.opening import Closing, opening
from heliograph.runtime.clock import steady_time
from heliograph.runtime.limits import AddressLimit, allowance_for
from heliograph.smp.clients.clients import SmpClient, Subscribers
from heliograph.smp.clients.forwarded import ForwardedSender
from heliograph.smp.clients.outgoing import ReplyBuffer, Requester
from heliograph.smp.commands.forwarded import ForwardedCommands
from heliograph.smp.commands.handlers import CommandHandlers
from heliograph.smp.context import STORE_FAILED, CommandContext
from heliograph.smp.notifications.delivery import NotificationDelivery
from heliograph.smp.observer import SmpObserver, report_recovered
from heliograph.smp.operator import QueueOperator
from heliograph.smp.relays import Relays
from heliograph.smp.settings import SmpSettings
from heliograph.smp.store.cache import Name, QueueCache
from heliograph.smp.store.records import ID_SIZE, ServiceRecord
from heliograph.smp.store.schema import MIGRATIONS
from heliograph.smp.store.store import SmpStore
from heliograph.smp.verify import CLAIMING, ENTITY_OF, check, claimed_names
from heliograph.tasks import TaskScope
from heliograph.transport.handshake import ServiceRequest
from heliograph.transport.server import ServerConnection
from heliograph.wire import smp
from heliograph.wire.errors import ErrorCode, TransportError
from heliograph.wire.requests import Request
from heliograph.wire.smp import SmpCommand

logger = logging.getLogger(__name__)


MIN_THROTTLE = 0.01
"""Seconds: a shorter pause would execute throttled commands one by one."""
SERVICES_PER_PAGE = 5_000
"""Unused services removed in one transaction."""
UNUSED_SERVICE_SECONDS = 3600.0
"""Seconds in which a service may come back after a restart of either router."""


class SmpRouter(Closing):
    """A `heliograph.transport.server.Router`. Open one with `SmpRouter.start`.

    It makes the parts of the router and passes commands to them.
    """

    def __init__(self, database: Database, settings: SmpSettings, journal: Journal) -> None:
        self.settings = settings
        self.observer = SmpObserver(journal)
        self.clients: set[SmpClient] = set()
        self.subscribers = Subscribers()
        self.services: dict[bytes, ServiceRecord] = {}
        self._services_by_fingerprint: dict[bytes, ServiceRecord] = {}
        self._unused_since: dict[bytes, float] = {}
        self._database = database
        self._outgoing = ReplyBuffer()
        self._tasks = TaskScope()
        self._forwarded = ForwardedCommands(self.observer)
        self.relays = Relays(settings.proxy)
        self.store = SmpStore(
            database,
            self._store_failed,
            self._store_settled,
            self.observer.notifications_removed,
        )
        self.queues = QueueCache(self.store, settings.cached_queues)
        self._known = {command: self.queues.of(entity) for command, entity in ENTITY_OF.items()}
        self.delivery = NotificationDelivery(
            self.store,
            self.subscribers,
            self._outgoing,
            self.observer,
            interval=settings.ntf_delivery_interval,
        )
        context = CommandContext(
            settings.rules,
            self.store,
            self.queues,
            self.subscribers,
            self.services,
            self.delivery,
            self._outgoing,
            self.observer,
            AddressLimit(settings.limits.new_queues_per_minute),
        )
        self.handlers = CommandHandlers(context, self._forwarded, self.relays, self._tasks)
        self.operator = QueueOperator(context, self.handlers.queues)

    @classmethod
    @opening
    async def start(
        cls, url: str, settings: SmpSettings | None = None, journal: Journal | None = None
    ) -> "SmpRouter":
        """Open the store at `url`, and start to deliver notifications and expire messages."""
        database = await Database.open(url, MIGRATIONS, exclusive=True)
        router = cls(database, settings or SmpSettings(), journal or NO_JOURNAL)
        try:
            for service in await router.store.start():
                router._add_service(service)
        except BaseException:
            await database.close()
            raise
        observer, store = router.observer, router.store
        observer.started()
        spawn = router._tasks.spawn
        spawn(router.delivery.run(), name="deliver notifications")
        spawn(router._expire(), name="expire messages")
        spawn(
            report_recovered(observer, store, store.next_notification),
            name="report recovered notifications",
        )
        spawn(observer.report_counts(), name="report counts")
        return router

    async def close(self) -> None:
        """Stop the background work and close the store; everything answered is durable."""
        await self._tasks.close()
        await self.relays.close()
        await self.delivery.close()
        self.delivery.remove_confirmed(at_once=True)
        self._database.limit_wait()
        await self.store.drained()
        await self._database.close()
        self.observer.stopped()

    # heliograph.transport.server.Router

    def connected(self, connection: ServerConnection) -> None:
        if connection.established is not None:
            limit = self.settings.limits.commands_per_second
            allowance = allowance_for(limit, connection.peer_address, time.monotonic())
            connection.state = client = SmpClient(connection, connection.established, allowance)
            self.clients.add(client)
            self.observer.connected()

    def received(self, connection: ServerConnection, requests: list[Request[SmpCommand]]) -> None:
        client: SmpClient = connection.state
        self.observer.commanded(requests)
        if client.is_busy or client.allowance is not None:
            client.backlog += requests
            if not client.is_busy:
                self._serve_backlog(client)
            return
        self._serve(client, requests)

    def service_requested(self, connection: ServerConnection, request: ServiceRequest) -> None:
        service = self._services_by_fingerprint.get(request.fingerprint)
        if service is None:
            service = self._create_service(request)
        self._unused_since.pop(service.service_id, None)
        if service.role is not request.role:
            connection.answer_service(TransportError.HANDSHAKE_BAD_SERVICE)
            return
        if self.store.is_durable(service):
            connection.answer_service(service.service_id)
            return
        self.store.changes.then(
            lambda _: connection.answer_service(service.service_id),
            lambda _: connection.answer_service(TransportError.HANDSHAKE_BAD_SERVICE),
        )
        self.store.commit()

    def disconnected(self, connection: ServerConnection) -> None:
        client: SmpClient = connection.state
        self.clients.discard(client)
        self.subscribers.disconnect(client)
        self.delivery.disconnected(client)

    def writable(self, connection: ServerConnection) -> None:
        self.handlers.messages.resume(connection.state)
        self.store.commit()

    def may_disconnect(self, connection: ServerConnection) -> bool:
        return not connection.state.is_subscribed

    # Private.

    def _serve(self, client: Requester, requests: Sequence[Request[SmpCommand]]) -> None:
        if self._knows_all(requests):
            refused = self._execute(client, requests)
            if refused:
                self._tasks.spawn(self._refuse(client, refused), name="refuse commands")
            return
        names = {
            (entity, request.entity_id)
            for request in requests
            if (entity := ENTITY_OF.get(type(request.command))) is not None
        }
        names.update(*(claimed_names(request.command) for request in requests))
        if isinstance(client, SmpClient):
            client.is_busy = True
        self._tasks.spawn(self._load_and_serve(client, requests, names), name="load queues")

    def _serve_backlog(self, client: SmpClient) -> None:
        """Serve waiting commands as far as the client's allowance goes, and the rest later."""
        requests = client.take_allowed(time.monotonic())
        if requests:
            self._serve(client, requests)
        if client.backlog and not client.is_busy:
            client.is_busy = True
            self.observer.throttled()
            self._tasks.spawn(self._resume(client), name="throttle commands")

    async def _resume(self, client: SmpClient) -> None:
        wait = 0.0 if client.allowance is None else client.allowance.wait
        await asyncio.sleep(max(wait, MIN_THROTTLE))
        client.is_busy = False
        if client.is_connected:
            self._serve_backlog(client)

    def _knows_all(self, requests: Sequence[Request[SmpCommand]]) -> bool:
        for request in requests:
            kind = type(request.command)
            known = self._known.get(kind)
            if known is not None and request.entity_id not in known:
                return False
            if kind in CLAIMING and any(
                self.queues.get(*name) is None for name in claimed_names(request.command)
            ):
                return False  # only the store knows whether the ID is free
        return True

    async def _load_and_serve(
        self, client: Requester, requests: Sequence[Request[SmpCommand]], names: set[Name]
    ) -> None:
        """Load the named queues, then serve; the client's later commands wait, in order."""
        try:
            await self.queues.load(names)
        except Exception as exc:
            logger.error("loading queues failed: %s", exc)
            for request in requests:
                self._outgoing.answer(client, request, STORE_FAILED)
            self._outgoing.flush()
            requests = []
        connected = client.client if isinstance(client, ForwardedSender) else client
        if client is connected:
            connected.is_busy = False
        if not connected.is_connected:
            return
        try:
            self._answer_refused(client, self._execute(client, requests))
            if client is connected:
                self._serve_backlog(connected)
        except Exception as exc:
            logger.exception("the router failed on a connection")
            connected.connection.abort(exc)

    def _execute(
        self, client: Requester, requests: Sequence[Request[SmpCommand]]
    ) -> list[Request[SmpCommand]]:
        """Execute the authorized commands; return the unauthorized ones that name a queue."""
        refused = []
        handlers = self.handlers.by_command
        for request in requests:
            kind = type(request.command)
            known = self._known.get(kind)
            queue = None if known is None else known.get(request.entity_id)
            error = check(client, request, queue)
            if error is ErrorCode.AUTH and known is not None:
                refused.append(request)
                continue
            if error is not None:
                self.observer.command_refused(request.command)
                self._outgoing.answer(client, request, smp.ERR(error))
                continue
            answer = handlers[kind](client, request, queue)
            if answer is not None:
                self._outgoing.answer(client, request, answer)
        self._outgoing.flush()
        self.delivery.load()
        self.store.commit()
        self.queues.evict()
        for sender, request in self._forwarded.take():
            self._serve(sender, [request])
        return refused

    async def _refuse(self, client: Requester, refused: list[Request[SmpCommand]]) -> None:
        """Answer AUTH after a read of the store, so that known and unknown queues take as long."""
        random_names = {
            (ENTITY_OF[type(request.command)], os.urandom(ID_SIZE)) for request in refused
        }
        try:
            await self.queues.load(random_names)
        except Exception as exc:
            logger.error("loading queues failed: %s", exc)
        self._answer_refused(client, refused)

    def _answer_refused(self, client: Requester, refused: list[Request[SmpCommand]]) -> None:
        for request in refused:
            self.observer.command_refused(request.command)
            self._outgoing.answer(client, request, smp.ERR(ErrorCode.AUTH))
        self._outgoing.flush()

    def _create_service(self, request: ServiceRequest) -> ServiceRecord:
        service = ServiceRecord(os.urandom(ID_SIZE), request.role, request.fingerprint)
        self._add_service(service)
        changes = self.store.changes
        changes.services[service.service_id] = service

        def failed(_: Exception) -> None:
            del self.services[service.service_id]
            del self._services_by_fingerprint[service.fingerprint]

        changes.then(lambda _: None, failed)
        return service

    def _add_service(self, service: ServiceRecord) -> None:
        self.services[service.service_id] = service
        self._services_by_fingerprint[service.fingerprint] = service

    def _store_failed(self) -> None:
        """Drop the cached queues, which are ahead of the store."""
        self.observer.store_failed()
        self.queues.clear()

    def _store_settled(self) -> None:
        self.observer.commit_settled()
        self.delivery.committed()
        self._outgoing.flush()
        self.handlers.messages.committed()

    async def _expire(self) -> None:
        while True:
            try:
                await self.expire(steady_time())
            except Exception as exc:
                logger.error("expiring messages failed, retrying later: %s", exc)
            await asyncio.sleep(self.settings.expiration_interval)

    async def expire(self, now: float) -> None:
        """Delete expired messages and notifications, a page at a time, and unused services."""
        settings = self.settings
        before = int(now - settings.message_ttl)
        while expired := await self.store.expire_messages(before):
            self.observer.messages_expired(sum(len(seqs) for seqs, _ in expired.values()))
            self.queues.shrink(expired)
        more = True
        while more:
            before = int(now - settings.notification_ttl)
            expired_nonces, more = await self.store.expire_notifications(before)
            self.observer.notifications_expired(expired_nonces)
        await self._remove_unused_services(now)

    async def _remove_unused_services(self, now: float) -> None:
        """Remove services without queues that nobody has connected as for some time.

        Anybody can make any number. One that comes back is a new service.
        """
        used = {client.service_id for client in self.clients}
        unused = {id for id, service in self.services.items() if not service.count} - used
        self._unused_since = {id: self._unused_since.get(id, now) for id in unused}
        old = [id for id, at in self._unused_since.items() if at <= now - UNUSED_SERVICE_SECONDS]
        durable = [id for id in old if self.store.is_durable(self.services[id])]
        for start in range(0, len(durable), SERVICES_PER_PAGE):
            page = durable[start : start + SERVICES_PER_PAGE]
            for service_id in await self.store.delete_services(page):
                service = self.services[service_id]
                if service_id in self._unused_since:
                    del self.services[service_id]
                    del self._services_by_fingerprint[service.fingerprint]
                else:  # it came back meanwhile
                    self.store.changes.services[service_id] = service
            self.store.commit()
