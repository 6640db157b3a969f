"""The notification router: executes clients' commands, subscribes to messaging routers, pushes."""

import asyncio
import logging
import math
import time
from dataclasses import dataclass, field

from heliograph.db.database import Database
from heliograph.db.errors import DatabaseError
from heliograph.journal.journal import NO_JOURNAL, Journal
from heliograph.ntf.admission import Authorizer
from heliograph.ntf.background import collect, record_counts, record_recovered, record_traffic
from heliograph.ntf.cluster.member import ClusterMember
from heliograph.ntf.cluster.pauses import SharedPauses
from heliograph.ntf.cluster.roster import LEASE
from heliograph.ntf.cluster.subscribers import ShardSubscribers
from heliograph.ntf.cluster.tables import Process
from heliograph.ntf.commands import Commands
from heliograph.ntf.limits import ClientState, NtfLimits, QueuedCommand
from heliograph.ntf.observing.observer import NtfObserver
from heliograph.ntf.observing.stats import Stats
from heliograph.ntf.push.cron import Cron
from heliograph.ntf.push.outbox import Outbox, OutboxSettings
from heliograph.ntf.push.waker import Waker
from heliograph.ntf.store.receiving import NmsgOutcome
from heliograph.ntf.store.records import Incoming
from heliograph.ntf.store.schema import MIGRATIONS
from heliograph.ntf.store.store import NtfStore
from heliograph.ntf.subscriber.settings import SubscriberSettings
from heliograph.ntf.subscriber.subscribers import SmpSubscribers
from heliograph.opening import Closing, opening
from heliograph.push.provider import Provider
from heliograph.runtime.limits import allowance_for
from heliograph.tasks import TaskScope
from heliograph.transport.handshake import ServiceRequest
from heliograph.transport.server import Answer, ServerConnection
from heliograph.wire import ntf
from heliograph.wire.errors import ErrorCode, TransportError
from heliograph.wire.ntf import NtfCommand
from heliograph.wire.ntf.tokens import PushProvider
from heliograph.wire.requests import Request

logger = logging.getLogger(__name__)

DAY = 86_400
MAX_STORE_DELAY = 1.0
"""Seconds between attempts to store notifications."""
STORE_LOG_INTERVAL = 10.0
"""Seconds between log lines about notifications that cannot be stored, for each kind of error."""


@dataclass(frozen=True, slots=True)
class NtfSettings:
    """Times in seconds; messaging routers in `own_domains` are counted by name."""

    limits: NtfLimits = field(default_factory=NtfLimits)
    outbox: OutboxSettings = field(default_factory=OutboxSettings)
    subscriber: SubscriberSettings = field(default_factory=SubscriberSettings)
    push_ttl: float = 3 * DAY
    unverified_ttl: float | None = 7 * DAY
    """Time after which a token that was not verified is removed; None is never."""
    own_domains: tuple[str, ...] = ()
    lease: float = LEASE
    """Of each process, if several are one router."""


class NtfRouter(Closing):
    """A `heliograph.transport.server.Router`. Create it with `NtfRouter.start`."""

    def __init__(
        self,
        database: Database,
        providers: dict[PushProvider, Provider],
        settings: NtfSettings,
        journal: Journal,
        member: ClusterMember | None = None,
    ) -> None:
        self.settings = settings
        self.member = member
        """Set if several processes are this router."""
        self.clients: set[ServerConnection] = set()
        self.store = NtfStore(database, settings.push_ttl, member)
        self.observer = NtfObserver(journal, lambda: self.store.last_seq, settings.own_domains)
        self.outbox = Outbox(self.store, providers, self.observer, settings.outbox)
        self._database = database
        self._cron = Cron(database, self.outbox, settings.push_ttl, member)
        self._waker = Waker(
            database, self.outbox, self.observer, settings.push_ttl, self.store.coordinator
        )
        self._authorizer = Authorizer(self.store, self.outbox, self.observer)
        self._commands = Commands(
            self.store,
            self.outbox,
            self.observer,
            settings.limits,
            frozenset(providers),
            lambda server, queue: self.subscribers.add(server, queue),
        )
        self._tasks = TaskScope()
        self.subscribers: SmpSubscribers | ShardSubscribers = (
            SmpSubscribers(
                self.store.servers,
                self.observer,
                self._receive,
                settings.subscriber,
                self.store.restrictions,
            )
            if member is None
            else ShardSubscribers(
                member, self.observer, self._receive, settings.subscriber, self.store.restrictions
            )
        )
        self._storing_tasks = TaskScope()
        self._unstored = 0
        """Received notifications that are not durable yet."""
        self._store_failures: dict[type[Exception], float] = {}
        """When each kind of failure was logged."""
        self._lease_tasks = TaskScope()

    @classmethod
    @opening
    async def start(
        cls,
        url: str,
        providers: dict[PushProvider, Provider],
        settings: NtfSettings | None = None,
        journal: Journal | None = None,
    ) -> "NtfRouter":
        """Open the store at `url`, subscribe to all messaging routers, and deliver pushes."""
        database = await Database.open(url, MIGRATIONS, exclusive=True)
        router = cls(database, providers, settings or NtfSettings(), journal or NO_JOURNAL)
        return await router._begin()

    @classmethod
    @opening
    async def join(
        cls,
        url: str,
        process: Process,
        providers: dict[PushProvider, Provider],
        settings: NtfSettings | None = None,
        journal: Journal | None = None,
    ) -> "NtfRouter":
        """Be one of several processes that are one router, on PostgreSQL.

        `member.fenced` is set once others have removed this one: end the process then.
        """
        settings = settings or NtfSettings()
        member = await ClusterMember.join(
            url, process, lease=settings.lease, registrations=settings.limits.new_tokens_per_minute
        )
        router = cls(member.database, providers, settings, journal or NO_JOURNAL, member)
        member.resumed = router.outbox.wake
        pauses = SharedPauses(member.database, router.outbox.keep_pause)
        router.outbox.paused = pauses.add
        router._tasks.spawn(pauses.run(), name="pauses of providers")
        router._lease_tasks.spawn(member.run(), name="lease")
        return await router._begin()

    async def _begin(self) -> "NtfRouter":
        router, database = self, self._database
        observer, store, spawn = router.observer, router.store, router._tasks.spawn
        try:
            await store.start()
        except BaseException:
            await router._lease_tasks.close()
            await database.close()
            raise
        observer.started()
        spawn(router.outbox.run(), name="outbox")
        spawn(router._cron.run(), name="periodic pushes")
        spawn(router._waker.run(), name="wakes")
        spawn(router.subscribers.run(), name="subscribers")
        spawn(record_recovered(observer, store, store.last_seq), name="recovered pushes")
        spawn(record_counts(observer), name="command counts")
        spawn(record_traffic(observer), name="traffic counts")
        spawn(collect(store, observer, router.settings.unverified_ttl), name="collection")
        return router

    async def close(self, grace: float = 10.0) -> None:
        """Shut down in an order that loses nothing: received notifications are stored."""
        self._database.limit_wait(grace if self.member is None else 2 * grace)
        await self._hand_over()
        await self._tasks.close(grace)
        await self.subscribers.close(grace)
        if storing := {*self._storing_tasks}:
            await asyncio.wait(storing, timeout=grace)
        await self._storing_tasks.close(grace)
        await self.outbox.close()
        await self._leave()
        await self._database.close()
        self.observer.stopped()

    async def _hand_over(self) -> None:
        if isinstance(self.subscribers, ShardSubscribers):
            try:
                await self.subscribers.hand_over()
            except DatabaseError as exc:
                logger.error("subscriptions cannot be handed over: %s", exc)

    async def _leave(self) -> None:
        await self._lease_tasks.close()
        if self.member is not None:
            try:
                await self.member.leave()
            except DatabaseError as exc:
                logger.error("others will take over when the lease ends: %s", exc)

    @property
    def stats(self) -> Stats:
        return self.observer.stats

    @property
    def journal(self) -> Journal:
        return self.observer.journal

    # heliograph.transport.server.Router

    def connected(self, connection: ServerConnection) -> None:
        established = connection.established
        private = None if established is None else established.session_private
        address = connection.peer_address
        allowance = allowance_for(
            self.settings.limits.commands_per_second, address, time.monotonic()
        )
        connection.state = ClientState(private, address, allowance)
        self.clients.add(connection)
        self.observer.connected()

    def received(self, connection: ServerConnection, requests: list[Request[NtfCommand]]) -> None:
        client: ClientState = connection.state
        self.observer.commanded(requests)
        if client.busy:
            client.backlog += map(QueuedCommand, requests)
            return
        queued = self._answer_at_once(connection, client, requests)
        if queued:
            client.backlog += queued
            client.busy = True
            self._tasks.spawn(self._serve(connection, client), name="commands of a client")

    def service_requested(self, connection: ServerConnection, request: ServiceRequest) -> None:
        connection.answer_service(TransportError.HANDSHAKE_BAD_SERVICE)

    def disconnected(self, connection: ServerConnection) -> None:
        self.clients.discard(connection)

    def writable(self, connection: ServerConnection) -> None:
        """Do nothing: this router sends only answers."""

    def may_disconnect(self, connection: ServerConnection) -> bool:
        return True

    # Commands.

    def _answer_at_once(
        self, connection: ServerConnection, client: ClientState, requests: list[Request[NtfCommand]]
    ) -> list[QueuedCommand]:
        """Answer commands up to the first that needs the store; return the rest."""
        answers: list[Answer] = []
        queued: list[QueuedCommand] = []
        for index, request in enumerate(requests):
            answer = self._authorizer.answer_at_once(client, request)
            if answer is None or isinstance(answer, QueuedCommand):
                first = QueuedCommand(request) if answer is None else answer
                queued = [first, *map(QueuedCommand, requests[index + 1 :])]
                break
            answers.append(Answer(request.corr_id, request.entity_id, answer))
        connection.throttle(client.take_excess())
        if answers:
            connection.answer(answers)
        return queued

    async def _serve(self, connection: ServerConnection, client: ClientState) -> None:
        """Execute a client's commands in order; refuse unauthorized ones before the others."""
        while client.backlog:
            queued, client.backlog = client.backlog, []
            unanswered = [item.request for item in queued]
            try:
                admission = await self._authorizer.admit(client, queued)
                connection.throttle(client.take_excess())
                if admission.refused:
                    connection.answer(admission.refused)
                unanswered = [item.request for item in admission.admitted]
                answers = await self._commands.execute(client, admission)
            except Exception:
                logger.exception("commands failed in an unexpected way")
                answers = [ntf.ERR(ErrorCode.INTERNAL)] * len(unanswered)
            if answers:
                connection.answer(
                    [
                        Answer(request.corr_id, request.entity_id, answer)
                        for request, answer in zip(unanswered, answers, strict=True)
                    ]
                )
        client.busy = False

    # Messaging routers.

    def _receive(self, server_id: int, incoming: list[Incoming]) -> "asyncio.Task[int]":
        return self._storing_tasks.spawn(self._store_incoming(server_id, incoming), name="store")

    async def _store_incoming(self, server_id: int, incoming: list[Incoming]) -> int:
        """Store notifications and return how many were for no subscription.

        Retry until stored: not every messaging router sends a notification again.
        """
        delay = 0.1
        self._unstored += len(incoming)
        try:
            while True:
                try:
                    stored = await self.store.receive(server_id, incoming)
                    break
                except Exception as exc:
                    self._log_unstored(exc)
                    await asyncio.sleep(delay)
                    delay = min(delay * 2, MAX_STORE_DELAY)
        finally:
            self._unstored -= len(incoming)
        self.outbox.offer(stored.pushes)
        self.observer.notifications_stored(server_id, stored)
        if not stored.undeliverable:
            return 0
        return sum(item.outcome is NmsgOutcome.UNKNOWN for item in stored.received)

    def _log_unstored(self, failure: Exception) -> None:
        """Log a failure, but not for each batch that waits: there may be thousands."""
        now, kind = time.monotonic(), type(failure)
        if now - self._store_failures.get(kind, -math.inf) >= STORE_LOG_INTERVAL:
            self._store_failures[kind] = now
            logger.error("%d notifications cannot be stored yet: %s", self._unstored, failure)
