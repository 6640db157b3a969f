"""The messaging router: connections in, commands executed in order, everything durable.

Thin: it loads the queues that commands name, has the commands verified and executed, and sends what
comes of it. All decisions are in `commands`, `messaging`, `notifying` and `delivery`.
"""

import asyncio
import logging
import os
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from heliograph.db.database import Database
from heliograph.journal.events import NO_JOURNAL, Journal
from heliograph.smp.chronicle import Chronicle
from heliograph.smp.clients import Client, Subscribers
from heliograph.smp.commands import Commands
from heliograph.smp.context import Context, Rules
from heliograph.smp.delivery import Delivery
from heliograph.smp.metrics import Counters
from heliograph.smp.outgoing import Outgoing
from heliograph.smp.queues import Name, Queues
from heliograph.smp.records import ID_SIZE, Service
from heliograph.smp.schema import MIGRATIONS
from heliograph.smp.store import Store
from heliograph.smp.verify import ENTITY_OF, check
from heliograph.transport.handshake import ServiceRequest
from heliograph.transport.server import ServerConnection
from heliograph.wire import smp
from heliograph.wire.errors import STORE, ErrorCode, TransportError
from heliograph.wire.requests import Request

logger = logging.getLogger(__name__)

DAY = 86_400


@dataclass(frozen=True, slots=True)
class SmpSettings:
    """Times in seconds."""

    rules: Rules = field(default_factory=Rules)
    ntf_delivery_interval: float = 1.5
    message_ttl: float = 21 * DAY
    notification_ttl: float = 7 * DAY
    expiration_interval: float = 3600
    cached_queues: int = 200_000


class SmpRouter:
    """A `heliograph.transport.server.Router`. Make one by `SmpRouter.start`."""

    def __init__(self, database: Database, settings: SmpSettings, journal: Journal) -> None:
        self.settings = settings
        self.counters = Counters()
        self.clients: set[Client] = set()
        self.subscribers = Subscribers()
        self.services: dict[bytes, Service] = {}
        self._services_by_fingerprint: dict[bytes, Service] = {}
        self.journal = journal
        self.chronicle = Chronicle(journal)
        self._database = database
        self._outgoing = Outgoing()
        self.store = Store(
            database, self._store_failed, self._store_settled, self.chronicle.removed
        )
        self.queues = Queues(self.store, settings.cached_queues)
        self._known = {command: self.queues.of(entity) for command, entity in ENTITY_OF.items()}
        self._delivery = Delivery(
            self.store,
            self.subscribers,
            self._outgoing,
            self.counters,
            interval=settings.ntf_delivery_interval,
            on_delivered=self.chronicle.delivered,
            on_stored=self.chronicle.stored,
        )
        self._commands = Commands(
            Context(
                settings.rules,
                self.store,
                self.queues,
                self.subscribers,
                self.services,
                self._delivery,
                self._outgoing,
                self.counters,
            )
        )
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    async def start(
        cls, url: str, settings: SmpSettings | None = None, journal: Journal | None = None
    ) -> "SmpRouter":
        """Open the store at `url` and begin to deliver and expire."""
        database = await Database.open(url, MIGRATIONS, exclusive=True)
        router = cls(database, settings or SmpSettings(), journal or NO_JOURNAL)
        try:
            for service in await router.store.start():
                router._add_service(service)
        except BaseException:
            await database.close()
            raise
        chronicle, store = router.chronicle, router.store
        chronicle.started()
        for work in (
            router._delivery.run(),
            router._expire(),
            chronicle.tell_recovered(store, store.next_notification),
            chronicle.keep_counting(),
        ):
            router._run(work)
        return router

    async def close(self) -> None:
        """Finish what was begun; everything answered is durable already."""
        for task in self._tasks:
            task.cancel()
        self._delivery.close()
        self._delivery.confirm(at_once=True)
        self._database.hurry()
        await self.store.drained()
        await self._database.close()
        self.chronicle.stopped()

    # heliograph.transport.server.Router

    def connected(self, connection: ServerConnection) -> None:
        if connection.established is not None:
            connection.state = client = Client(connection, connection.established)
            self.clients.add(client)
            self.chronicle.connected()

    def received(self, connection: ServerConnection, requests: list[Request]) -> None:
        client: Client = connection.state
        self.chronicle.commanded(requests)
        if client.loading:
            client.backlog += requests
            return
        self._serve(client, requests)

    def service_requested(self, connection: ServerConnection, request: ServiceRequest) -> None:
        service = self._services_by_fingerprint.get(request.fingerprint)
        if service is None:
            service = self._create_service(request)
        elif service.role is not request.role:
            connection.answer_service(TransportError.HANDSHAKE_BAD_SERVICE)
            return
        elif self.store.is_durable(service):
            connection.answer_service(service.service_id)
            return
        self.store.changes.then(
            lambda _: connection.answer_service(service.service_id),
            lambda _: connection.answer_service(TransportError.HANDSHAKE_BAD_SERVICE),
        )
        self.store.commit()

    def disconnected(self, connection: ServerConnection) -> None:
        client: Client = connection.state
        self.clients.discard(client)
        self.subscribers.disconnect(client)
        self._delivery.disconnected(client)

    def writable(self, connection: ServerConnection) -> None:
        self._commands.messaging.resume(connection.state)
        self.store.commit()

    def may_disconnect(self, connection: ServerConnection) -> bool:
        return not connection.state.is_subscribed

    # Private.

    def _serve(self, client: Client, requests: list[Request]) -> None:
        if self._knows_all(requests):
            refused = self._execute(client, requests)
            if refused:
                self._run(self._refuse(client, refused))
            return
        names = {
            (entity, request.entity_id)
            for request in requests
            if (entity := ENTITY_OF.get(type(request.command))) is not None
        }
        client.loading = True
        self._run(self._load_and_serve(client, requests, names))

    def _knows_all(self, requests: list[Request]) -> bool:
        for request in requests:
            known = self._known.get(type(request.command))
            if known is not None and request.entity_id not in known:
                return False
        return True

    async def _load_and_serve(
        self, client: Client, requests: list[Request], names: set[Name]
    ) -> None:
        """Later commands of the client wait, so that they keep their order."""
        try:
            await self.queues.load(names)
        except Exception as exc:
            logger.error("loading queues failed: %s", exc)
            error = smp.ERR(STORE("the router's store failed"))
            for request in requests:
                self._outgoing.answer(client, request, error)
            self._outgoing.flush()
            requests = []
        client.loading = False
        if not client.is_connected:
            return
        try:
            self._answer_refused(client, self._execute(client, requests))
            if client.backlog:
                backlog, client.backlog = client.backlog, []
                self._serve(client, backlog)
        except Exception as exc:
            logger.exception("the router failed on a connection")
            client.connection.abort(exc)

    def _execute(self, client: Client, requests: list[Request]) -> list[Request]:
        """Do what may be done; the result are the commands that nobody authorized."""
        refused = []
        handlers = self._commands.handlers
        for request in requests:
            kind = type(request.command)
            known = self._known.get(kind)
            queue = None if known is None else known.get(request.entity_id)
            error = check(client, request, queue)
            if error is ErrorCode.AUTH and known is not None:
                refused.append(request)
                continue
            if error is not None:
                self.counters.auth_errors += 1
                self._outgoing.answer(client, request, smp.ERR(error))
                continue
            answer = handlers[kind](client, request, queue)
            if answer is not None:
                self._outgoing.answer(client, request, answer)
        self._outgoing.flush()
        self._delivery.load()
        self.store.commit()
        self.queues.evict()
        return refused

    async def _refuse(self, client: Client, refused: list[Request]) -> None:
        """An unknown queue costs a look into the store: so does a known one to a stranger."""
        nobody = {(ENTITY_OF[type(request.command)], os.urandom(ID_SIZE)) for request in refused}
        try:
            await self.queues.load(nobody)
        except Exception as exc:
            logger.error("loading queues failed: %s", exc)
        self._answer_refused(client, refused)

    def _answer_refused(self, client: Client, refused: list[Request]) -> None:
        for request in refused:
            self.counters.auth_errors += 1
            self._outgoing.answer(client, request, smp.ERR(ErrorCode.AUTH))
        self._outgoing.flush()

    def _create_service(self, request: ServiceRequest) -> Service:
        service = Service(os.urandom(ID_SIZE), request.role, request.fingerprint)
        self._add_service(service)
        changes = self.store.changes
        changes.services[service.service_id] = service

        def failed(_: Exception) -> None:
            del self.services[service.service_id]
            del self._services_by_fingerprint[service.fingerprint]

        changes.then(lambda _: None, failed)
        return service

    def _add_service(self, service: Service) -> None:
        self.services[service.service_id] = service
        self._services_by_fingerprint[service.fingerprint] = service

    def _store_failed(self) -> None:
        """Memory is ahead of the store: forget it. Clients are told, and subscribe again."""
        self.counters.store_failures += 1
        self.queues.clear()

    def _store_settled(self) -> None:
        self._delivery.settled()
        self._outgoing.flush()
        self._commands.messaging.settled()

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(self.settings.expiration_interval)
            try:
                await self.expire(time.time())
            except Exception as exc:
                logger.error("expiring messages failed, trying again later: %s", exc)

    async def expire(self, now: float) -> None:
        """Delete the messages and notifications that are too old, in small steps."""
        settings = self.settings
        before = int(now - settings.message_ttl)
        while expired := await self.store.expire_messages(before, int(now)):
            self.counters.messages_expired += sum(len(seqs) for seqs, _ in expired.values())
            self.queues.shrink(expired)
        more = True
        while more:
            before = int(now - settings.notification_ttl)
            expired_nonces, more = await self.store.expire_notifications(before)
            self.chronicle.expired(expired_nonces)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
