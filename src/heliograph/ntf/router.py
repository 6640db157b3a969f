"""The notification router: connections in, commands executed in order, pushes out."""

import asyncio
import logging
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from heliograph.db.database import Database
from heliograph.db.errors import DatabaseError
from heliograph.journal.events import NO_JOURNAL, Journal
from heliograph.ntf import debts
from heliograph.ntf.chronicle import Account, Chronicle, ServerName
from heliograph.ntf.commands import Commands
from heliograph.ntf.cron import Cron
from heliograph.ntf.limits import ClientState, Limits
from heliograph.ntf.outbox import Outbox, OutboxEvents, OutboxSettings
from heliograph.ntf.records import DebtKind, Incoming, Owed, QueueKey, Token
from heliograph.ntf.recovering import tell_counts, tell_recovered
from heliograph.ntf.schema import MIGRATIONS
from heliograph.ntf.stats import Stats
from heliograph.ntf.store import Store
from heliograph.ntf.subscriber import SmpSubscriber, SubscriberEvents, SubscriberSettings
from heliograph.ntf.subscriptions import Server
from heliograph.push.provider import Accepted, Outcome, Provider, TokenInvalid
from heliograph.transport.handshake import ServiceRequest
from heliograph.transport.server import Answer, ServerConnection
from heliograph.wire import ntf
from heliograph.wire.addresses import ServerAddress, decode_address
from heliograph.wire.errors import ErrorCode, TransportError, WireError
from heliograph.wire.requests import Request
from heliograph.wire.tokens import PushProvider, TokenStatus

logger = logging.getLogger(__name__)

DAY = 86_400
MAX_STORE_DELAY = 1.0


@dataclass(frozen=True, slots=True)
class NtfSettings:
    """Times in seconds; `own_domains` are counted apart."""

    limits: Limits = field(default_factory=Limits)
    outbox: OutboxSettings = field(default_factory=OutboxSettings)
    subscriber: SubscriberSettings = field(default_factory=SubscriberSettings)
    debt_ttl: float = 3 * DAY
    own_domains: tuple[str, ...] = ()


class NtfRouter:
    """A `heliograph.transport.server.Router`. Make one by `NtfRouter.start`."""

    def __init__(
        self,
        database: Database,
        providers: dict[PushProvider, Provider],
        settings: NtfSettings,
        journal: Journal,
    ) -> None:
        self.settings = settings
        self.stats = Stats()
        self.clients: set[ServerConnection] = set()
        self.subscribers: dict[int, SmpSubscriber] = {}
        self.store = Store(database, settings.debt_ttl)
        self._database = database
        self.journal = journal
        self.chronicle = Chronicle(journal, lambda: self.store.last_seq, self._server_name)
        events = OutboxEvents(
            self._attempted, self._settled, self._expired, self._changed, self.chronicle.settled
        )
        self.outbox = Outbox(database, providers, events, settings.outbox)
        self._cron = Cron(database, self.outbox, settings.debt_ttl)
        self._commands = Commands(
            self.store,
            self.outbox,
            self.stats,
            settings.limits,
            frozenset(providers),
            self._subscribe,
            self.chronicle,
        )
        self._subscriber_events = SubscriberEvents(
            self._received,
            self._smp_up,
            self._smp_down,
            self._repaired,
            self.chronicle.smp_subscribed,
            self.chronicle.subscription_statuses,
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._subscriber_tasks: set[asyncio.Task[None]] = set()
        self._receiving_tasks: set[asyncio.Task[None]] = set()

    @classmethod
    async def start(
        cls,
        url: str,
        providers: dict[PushProvider, Provider],
        settings: NtfSettings | None = None,
        journal: Journal | None = None,
    ) -> "NtfRouter":
        """Open the store at `url`, subscribe to all messaging routers, and pay what is owed."""
        database = await Database.open(url, MIGRATIONS, exclusive=True)
        router = cls(database, providers, settings or NtfSettings(), journal or NO_JOURNAL)
        await router.store.start()
        router.chronicle.started()
        for work in (
            router.outbox.run(),
            router._cron.run(),
            router._resubscribe(),
            tell_recovered(router.chronicle, router.store, router.store.last_seq),
            tell_counts(router.chronicle),
        ):
            _run(work, router._tasks)
        return router

    async def close(self, grace: float = 10.0) -> None:
        """Stop in the order that loses nothing: what has arrived is stored, and stays owed."""
        self._database.hurry(grace)
        await _cancel(self._tasks, grace)
        await _cancel(self._subscriber_tasks, grace)
        if self._receiving_tasks:
            await asyncio.wait(tuple(self._receiving_tasks), timeout=grace)
        await _cancel(self._receiving_tasks, grace)
        await self.outbox.close()
        await self._database.close()
        self.chronicle.stopped()

    # heliograph.transport.server.Router

    def connected(self, connection: ServerConnection) -> None:
        established = connection.established
        private = None if established is None else established.session_private
        connection.state = ClientState(private, connection.peer_address)
        self.clients.add(connection)
        self.chronicle.connected()

    def received(self, connection: ServerConnection, requests: list[Request]) -> None:
        client: ClientState = connection.state
        self.chronicle.commanded(requests)
        if not client.busy:
            requests = self._answer_now(connection, client, requests)
            if not requests:
                return
        client.backlog += requests
        if not client.busy:
            client.busy = True
            _run(self._serve(connection, client), self._tasks)

    def service_requested(self, connection: ServerConnection, request: ServiceRequest) -> None:
        connection.answer_service(TransportError.HANDSHAKE_BAD_SERVICE)

    def disconnected(self, connection: ServerConnection) -> None:
        self.clients.discard(connection)

    def writable(self, connection: ServerConnection) -> None:
        """Answers are all this router sends, and they wait for nobody."""

    def may_disconnect(self, connection: ServerConnection) -> bool:
        return True

    # Commands.

    def _answer_now(
        self, connection: ServerConnection, client: ClientState, requests: list[Request]
    ) -> list[Request]:
        """Answer the first ones, as far as that needs no store; the others are left."""
        answers = []
        for request in requests:
            message = self._commands.answer_now(client, request)
            if message is None:
                break
            answers.append(Answer(request.corr_id, request.entity_id, message))
        if answers:
            connection.answer(answers)
        return requests[len(answers) :]

    async def _serve(self, connection: ServerConnection, client: ClientState) -> None:
        while client.backlog:
            requests, client.backlog = client.backlog, []
            try:
                answers = await self._commands.execute(client, requests)
            except Exception:
                logger.exception("commands failed in an unexpected way")
                answers = [ntf.ERR(ErrorCode.INTERNAL)] * len(requests)
            connection.answer(
                [
                    Answer(request.corr_id, request.entity_id, answer)
                    for request, answer in zip(requests, answers, strict=True)
                ]
            )
        client.busy = False

    # Messaging routers.

    async def _resubscribe(self) -> None:
        """All routers at once; each pages its queues by itself."""
        while True:
            try:
                await self.store.all_inactive()
                servers = await self.store.servers()
                break
            except DatabaseError as exc:
                logger.error("messaging routers cannot be read, trying again: %s", exc)
                await asyncio.sleep(1.0)
        for server in servers:
            try:
                self._subscriber(server)
            except WireError:
                logger.error("the address of a messaging router cannot be understood")

    def _subscriber(self, server: Server) -> SmpSubscriber:
        subscriber = self.subscribers.get(server.server_id)
        if subscriber is None:
            subscriber = self.subscribers[server.server_id] = SmpSubscriber(
                server,
                decode_address(server.address),
                self.store,
                self._subscriber_events,
                self.settings.subscriber,
            )
            _run(subscriber.run(), self._subscriber_tasks)
        return subscriber

    def _subscribe(self, server: Server, queue: QueueKey) -> None:
        self._subscriber(server).add(queue)

    def _received(self, server_id: int, incoming: list[Incoming]) -> "asyncio.Task[None]":
        return _run(self._store_incoming(server_id, incoming), self._receiving_tasks)

    async def _store_incoming(self, server_id: int, incoming: list[Incoming]) -> None:
        """Retried until stored: not every messaging router sends it again."""
        delay = 0.1
        while True:
            try:
                stored = await self.store.receive(server_id, incoming)
                break
            except Exception as exc:
                logger.error("%d notifications cannot be stored yet: %s", len(incoming), exc)
                await asyncio.sleep(delay)
                delay = min(delay * 2, MAX_STORE_DELAY)
        self.outbox.offer(stored.owed)
        counters, now = self.stats.counters, time.time()
        known = len(incoming) - stored.unknown
        counters.ntf_received += known
        counters.ntf_received_auth += stored.unknown
        counters.pushes_coalesced += max(known - len(stored.owed), 0)
        self._count_own(server_id, known, stored.unknown)
        active = {item.subscription_id for item in stored.fated if item.subscription_id is not None}
        self.stats.active_subs.add(active, now)
        self.stats.active_tokens.add({*stored.newest}, now)
        self.chronicle.stored(server_id, stored)

    def _count_own(self, server_id: int, known: int, unknown: int) -> None:
        host = self.own_host(server_id)
        if host is not None:
            counters = self.stats.counters
            _add(counters.received_own, host, known)
            if unknown:
                _add(counters.received_auth_own, host, unknown)

    def own_host(self, server_id: int) -> str | None:
        """The host of a messaging router of our own; others are nobody's business."""
        subscriber = self.subscribers.get(server_id)
        return None if subscriber is None else self._own(subscriber.address)

    def _own(self, address: ServerAddress) -> str | None:
        host = address.hosts[0].text
        own = any(
            host == domain or host.endswith(f".{domain}") for domain in self.settings.own_domains
        )
        return host if own else None

    def _server_name(self, server_id: int) -> ServerName:
        subscriber = self.subscribers.get(server_id)
        address = "" if subscriber is None else subscriber.server.address
        return ServerName(address, self.own_host(server_id))

    def _smp_up(self, server_id: int) -> None:
        self.chronicle.smp("smp_up", server_id)

    def _smp_down(self, server_id: int) -> None:
        self.chronicle.smp("smp_down", server_id)

    def _repaired(self, server_id: int, found: Account | None, expected: Account | None) -> None:
        self.stats.counters.drift_repaired += 1
        self.chronicle.smp_drift(server_id, found, expected)

    # Pushes.

    def _attempted(self, owed: Owed) -> None:
        self.chronicle.attempted(owed)
        if owed.attempts and owed.device.provider is not PushProvider.APNS_NULL:
            self.stats.counters.ntf_retried += 1

    def _settled(self, owed: Owed, outcome: Outcome) -> None:
        accepted = isinstance(outcome, Accepted)
        if owed.device.provider is not PushProvider.APNS_NULL:
            self.stats.answered(owed.device.provider.text, accepted)
            if not isinstance(outcome, Accepted):
                reason = outcome.reason
                self.stats.failed(reason if isinstance(reason, str) else reason.value)
            self._count_push(owed, outcome, accepted)

    def _count_push(self, owed: Owed, outcome: Outcome, accepted: bool) -> None:
        counters = self.stats.counters
        match owed.kind:
            case DebtKind.VERIFICATION:
                if accepted:
                    counters.ntf_vrf_delivered += 1
                elif isinstance(outcome, TokenInvalid):
                    counters.ntf_vrf_invalid_tkn += 1
                else:
                    counters.ntf_vrf_failed += 1
            case DebtKind.CHECK:
                if accepted:
                    counters.ntf_cron_delivered += 1
                else:
                    counters.ntf_cron_failed += 1
            case DebtKind.MESSAGE:
                if accepted:
                    counters.ntf_delivered += 1
                    self.stats.push_latency.observe(time.time() - owed.since)
                else:
                    counters.ntf_failed += 1
                self._count_push_of_own(owed, accepted)

    def _count_push_of_own(self, owed: Owed, accepted: bool) -> None:
        """A push is its newest notification's: that one made it owed."""
        if owed.notices and self.settings.own_domains:
            host = self._own(_decoded(owed.notices[-1].address))
            if host is not None:
                counters = self.stats.counters
                _add(counters.delivered_own if accepted else counters.failed_own, host, 1)

    def _expired(self, expired: list[debts.Expired]) -> None:
        self.stats.counters.ntf_expired += len(expired)
        logger.warning("%d pushes were not delivered in time and are given up", len(expired))
        self.chronicle.expired(expired)

    def _changed(self, changed: list[Token]) -> None:
        self.store.refresh(changed)
        for token in changed:
            if token.status.is_invalid:
                self.chronicle.token_ended(token)
            elif token.status is TokenStatus.CONFIRMED:
                self.chronicle.token("token_confirmed", token.token_id, token.device)


_decoded = lru_cache(maxsize=1024)(decode_address)


def _add(counts: dict[str, int], host: str, number: int) -> None:
    counts[host] = counts.get(host, 0) + number


def _run(work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> "asyncio.Task[None]":
    task = asyncio.get_running_loop().create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task


async def _cancel(tasks: set[asyncio.Task[None]], grace: float) -> None:
    """What does not end in time ends with the process."""
    ending = tuple(tasks)
    for task in ending:
        task.cancel()
    if ending:
        await asyncio.wait(ending, timeout=grace)
