"""One messaging router: subscribe queues in batches, receive notifications, reconnect.

Statuses in the store stay true while connections come and go; notifications are stored in batches.
"""

import asyncio
import contextlib
import functools
import logging
import math
import os
import random
import time
from collections.abc import Callable
from dataclasses import replace

from heliograph.db.errors import DatabaseError
from heliograph.net.public import Address
from heliograph.ntf.observing.observer import NtfObserver
from heliograph.ntf.store.records import Incoming, QueueKey
from heliograph.ntf.store.repeats import STREAM_SIZE
from heliograph.ntf.store.restrictions import NO_RESTRICTIONS, Restrictions
from heliograph.ntf.store.subscriptions.servers import ServerRecord
from heliograph.ntf.store.subscriptions.subscription_store import SubscriptionStore
from heliograph.ntf.subscriber.association import ServiceAssociation
from heliograph.ntf.subscriber.budget import EventBudget
from heliograph.ntf.subscriber.dials import Dials, Place
from heliograph.ntf.subscriber.inbox import Confirmer, Inbox
from heliograph.ntf.subscriber.nonces import RecentNonces
from heliograph.ntf.subscriber.pausing import ReadingPauses, Throttle
from heliograph.ntf.subscriber.queues import QueueSubscriber
from heliograph.ntf.subscriber.settings import Receive, SubscriberSettings
from heliograph.runtime.clock import steady_time
from heliograph.tasks import TaskScope, is_cancelled
from heliograph.transport.client import Client
from heliograph.transport.errors import (
    AddressRefused,
    ClientError,
    Disconnected,
    HandshakeFailed,
    UnexpectedReply,
)
from heliograph.transport.protocols import Response
from heliograph.wire import smp
from heliograph.wire.addresses import ServerAddress
from heliograph.wire.errors import TransportError
from heliograph.wire.ntf.tokens import SubscriptionState

logger = logging.getLogger(__name__)

RECEIVE_BUFFER = 64 * 1024
"""Bytes in the kernel's buffer: a router that knows no confirmations has forgotten them."""
DRAIN_SECONDS = 0.2
"""Time to read what has arrived before a connection to such a router is aborted."""
ABUSE_ATTEMPTS = 20
"""Failed attempts that a router is taken to have had after it was left for abuse."""
KEPT_ATTEMPTS = 12
"""Failed attempts, some minutes, for which a router that worked keeps its place."""
LOG_INTERVAL = 60.0
MAX_EVENTS = 2_000
"""Pause reading while more END and DELD than this are not stored."""
PRIVATE_ADDRESS_ERROR = b"the router's address is private"

_SERVICE_REFUSED = (TransportError.HANDSHAKE_BAD_SERVICE, TransportError.HANDSHAKE_BAD_AUTH)


class SmpSubscriber:
    """A subscriber to one messaging router; `run` until cancelled.

    It joins the parts of one connection (queues, association, inbox, confirmations, budget).
    """

    def __init__(
        self,
        server: ServerRecord,
        address: ServerAddress,
        store: SubscriptionStore,
        observer: NtfObserver,
        receive: Receive,
        settings: SubscriberSettings,
        dials: Dials,
        *,
        is_proven: bool = False,
        restrictions: Restrictions = NO_RESTRICTIONS,
        on_resubscribed: Callable[[], None] = lambda: None,
    ) -> None:
        self.address = address
        self.is_resubscribed = False
        """All queues of the store were subscribed on this connection."""
        self.is_leaving = False
        """Another process takes over: serve this connection, and make no other."""
        self._on_resubscribed = on_resubscribed
        self.is_proven = is_proven
        """A queue was subscribed there, in this run or before."""
        self.added = 0
        """How many queues were added."""
        self._dials = dials
        self.client: Client | None = None
        self._store = store
        self._observer = observer
        self._receive = receive
        self._settings = settings
        self._association = ServiceAssociation(
            server, store, observer.drift_repaired, is_used=settings.use_service
        )
        self._queues = QueueSubscriber(self._association, store, observer, settings, self._add)
        self._ip = ""
        """The address that was dialed last, if no proxy resolves the name."""
        self._new: list[QueueKey] = []
        self._work = asyncio.Event()
        self._is_lost = False
        self._pauses = ReadingPauses(lambda: self.client)
        self._throttle = Throttle(restrictions, server.server_id, self._pauses)
        self._inbox = Inbox(functools.partial(self._pauses.set, "store"))
        self._confirmer: Confirmer | None = None
        self._nonces = RecentNonces()
        self._stream, self._order = os.urandom(STREAM_SIZE), 0
        self._budget: EventBudget | None = None
        self._is_abusive = False
        self._logged_at = -math.inf
        self._incoming: list[Incoming] = []
        self._ended: list[bytes] = []
        self._deleted: list[bytes] = []
        self._unknown = 0
        """Notifications of no subscription that were not judged yet."""

    @property
    def server(self) -> ServerRecord:
        return self._association.server

    def add(self, queue: QueueKey) -> None:
        """Subscribe a new queue; queues added in one turn go out together."""
        self.added += 1
        self._queues.unreported.add(queue.subscription_id)
        self._add([queue])

    def resubscribe(self, queue: QueueKey, *, was_active: bool) -> None:
        """Subscribe a queue again; one that was active is not counted twice."""
        if was_active:
            self._queues.subscribed = max(self.subscribed - 1, 0)
        self.add(queue)

    def _add(self, queues: list[QueueKey]) -> None:
        self._new += queues
        self._work.set()

    @property
    def subscribed(self) -> int:
        """Return how many queues are subscribed now."""
        return self._queues.subscribed

    @property
    def unstored(self) -> int:
        """Return how many received notifications are not durable yet."""
        return self._inbox.waiting

    async def run(self) -> None:
        """Connect and subscribe, again and again."""
        hosts = [host.text.lower().removesuffix(".") for host in self.address.hosts]
        with self._dials.named(hosts) as place:
            self._dials.keep(place, is_kept=self.is_proven)
            await self._run(hosts, place)

    async def _run(self, hosts: list[str], place: Place) -> None:
        attempts, healthy_at = 0, -math.inf
        while True:
            began = None
            try:
                await self._inbox.all_stored()
                host = self._dials.busiest(hosts)
                async with self._dials.slot(
                    host, is_proven=self.is_proven, failures=attempts, place=place
                ) as slot:
                    try:
                        await self._connect()
                        slot.connected(self._ip)
                        began = time.monotonic()
                        await self._serve()
                    finally:
                        slot.keeps_place = self.is_proven and attempts < KEPT_ATTEMPTS
                        await self._leave()
            except AddressRefused:
                logger.warning("a messaging router has only addresses that are not allowed")
                attempts = 0
                await self._wait_for_another_address()
            except ClientError as exc:
                self._log_failure(exc, is_news=not attempts or self._is_stable(began))
            except DatabaseError as exc:
                logger.error("subscriptions cannot be read or written, retrying: %s", exc)
            except Exception:
                logger.exception("a subscriber failed, restarting it")
            if self.is_leaving or is_cancelled():
                return
            now = time.monotonic()
            if self._is_abusive:
                attempts, healthy_at, self._is_abusive = ABUSE_ATTEMPTS, -math.inf, False
            elif self._is_stable(began):
                attempts, healthy_at = 0, now
            attempts += 1
            await asyncio.sleep(self._delay(attempts, now - healthy_at))

    def _log_failure(self, failure: ClientError, *, is_news: bool) -> None:
        """Log once a minute at most, and no repetition: a client may name any number of routers."""
        now = time.monotonic()
        if is_news and now - self._logged_at >= LOG_INTERVAL:
            self._logged_at = now
            logger.info("a messaging router cannot be reached: %s", type(failure).__name__)

    def _is_stable(self, began: float | None) -> bool:
        return began is not None and time.monotonic() - began >= self._settings.stable_after

    def _delay(self, attempts: int, since_healthy: float) -> float:
        """Return the seconds to wait before connecting; short if the router worked recently."""
        settings, backoff = self._settings, self._settings.backoff
        if not self.is_proven:
            backoff = replace(backoff, last=max(backoff.last, settings.unproven_delay))
        delay = backoff.delay(attempts, random.random())  # noqa: S311  jitter
        is_recent = since_healthy < settings.healthy_period
        return min(delay, settings.healthy_delay) if is_recent else delay

    async def _connect(self) -> None:
        service = await self._association.credentials()
        client = self._settings.client
        judges = client.socks is None or client.allow is not None  # else a proxy has no bounds
        self._is_lost = False
        self._work.clear()
        try:
            self.client = await Client.connect(
                self.address,
                replace(
                    client,
                    receive_buffer=RECEIVE_BUFFER,
                    allow=self._allow if judges else None,
                ),
                on_push=self._pushed,
                on_disconnect=self._client_disconnected,
                service=service,
            )
        except AddressRefused:
            self._new.clear()
            await self._store.refuse(self.server.server_id, PRIVATE_ADDRESS_ERROR)
            unreported = self._queues.unreported
            self._queues.report([(added, SubscriptionState.ERR) for added in unreported])
            raise
        except HandshakeFailed as exc:
            if service is not None and exc.error in _SERVICE_REFUSED:
                await self._association.rejected()
            raise
        self._observer.smp_connected(self.server.server_id)

    def _allow(self, ip: Address) -> bool:
        allow = self._settings.client.allow
        if allow is not None and not allow(ip):
            return False
        if not self.is_proven:
            self._dials.pace(str(ip))
        self._ip = str(ip)
        return True

    async def _wait_for_another_address(self) -> None:
        """Wait for a new subscription, or long: only the operator can help."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.refused_delay):
                await self._work.wait()

    async def _serve(self) -> None:
        """Serve a connection until it ends, confirming what is stored."""
        self._budget = EventBudget(time.monotonic(), self._settings.worthless_rate)
        self._pauses.reasons.clear()
        self._unknown = 0
        answered = functools.partial(self._observer.traffic.server_answered, self.server.server_id)
        self._confirmer = confirmer = Confirmer(self._connected(), answered)
        self._inbox.begin_connection(confirmer.stored)
        async with TaskScope() as tasks:
            await confirmer.negotiate()
            if confirmer.is_supported:
                tasks.spawn(confirmer.run(), name="confirm notifications")
            await self._subscribe_all()

    async def _subscribe_all(self) -> None:
        """Subscribe the queues of the store, then new ones, until the connection ends."""
        self._new.clear()  # they are in the store
        await self._queues.resubscribe(self._connected())
        self.is_resubscribed = True
        self._on_resubscribed()
        while not self._is_lost:
            self.is_proven = self.is_proven or self.subscribed > 0
            self._work.clear()
            await self._write_events()
            await self._spend_unknown()
            new, self._new = self._new, []
            if new and not self.is_leaving:
                await self._queues.subscribe(self._connected(), new)
            if not self._is_lost:
                await self._work.wait()
        raise Disconnected("the connection ended")

    async def _leave(self) -> None:
        client, self.client = self.client, None
        if client is None:
            return
        self._queues.subscribed = 0
        self.is_resubscribed = False
        if self._confirmer is None or not self._confirmer.is_supported:
            await client.drain(DRAIN_SECONDS)  # the router will not send it again
        self._confirmer = None
        client.abort()  # a TLS close would acknowledge what was sent and is not stored
        await client.wait_closed()
        self._hand_over_incoming()  # or it would be counted for the next connection
        try:
            await self._write_events()
            await self._store.replace_state(
                self.server.server_id, SubscriptionState.ACTIVE, SubscriptionState.INACTIVE
            )
        except DatabaseError as exc:
            logger.error("subscription statuses cannot be stored: %s", exc)
        self._ended.clear()
        self._observer.smp_disconnected(self.server.server_id)

    def _connected(self) -> Client:
        if self.client is None or not self.client.is_connected:
            raise Disconnected("the connection ended")
        return self.client

    # Receiving.

    def _pushed(self, entity_id: bytes, message: Response) -> None:
        match message:
            case smp.NMSG():
                if not self._incoming:
                    asyncio.get_running_loop().call_soon(self._hand_over_incoming)
                self._incoming.append(self._received(entity_id, message))
            case smp.END():
                self._ended.append(entity_id)
                self._work.set()
            case smp.DELD():
                self._deleted.append(entity_id)
                self._work.set()
            case smp.PONG() if self._confirmer is not None and not self._confirmer.is_supported:
                self._confirmer.is_supported = True
            case smp.ENDS():
                # Another connection took our service over: reconnect, the later one wins.
                self._disconnected()
            case _:
                self._spend(1)
        if len(self._ended) + len(self._deleted) > MAX_EVENTS:
            self._pauses.set("events", True)

    def _received(self, notifier_id: bytes, nmsg: smp.NMSG) -> Incoming:
        confirmer = self._confirmer
        repeats = confirmer is not None and confirmer.is_supported  # other routers send once
        is_repeat = repeats and self._nonces.is_repeat(nmsg.nonce)
        self._order += 1
        return Incoming(
            notifier_id, nmsg.nonce, nmsg.meta, time.time(), is_repeat, self._stream, self._order
        )

    def _hand_over_incoming(self) -> None:
        incoming, self._incoming = self._incoming, []
        if not incoming:
            return
        storing = self._receive(self.server.server_id, incoming)
        storing.add_done_callback(self._count_unknown)
        self._inbox.put(storing, len(incoming))
        self._throttle.spend(len(incoming), steady_time())

    def _count_unknown(self, storing: asyncio.Future[int]) -> None:
        if not storing.cancelled() and storing.exception() is None and storing.result():
            self._unknown += storing.result()
            self._work.set()

    async def _spend_unknown(self) -> None:
        """Take notifications of no subscription for abuse, unless subscriptions were deleted here.

        The messaging router does not learn of that, and goes on to notify.
        """
        unknown, self._unknown = self._unknown, 0
        if unknown and await self._queues.has_deleted():
            self._observer.worthless_events(self.server.server_id, unknown)
        else:
            self._spend(unknown)

    def _spend(self, worthless: int) -> None:
        """Pause reading from a router that sends too many useless events, or disconnect."""
        if self._budget is None or not worthless:
            return
        self._observer.worthless_events(self.server.server_id, worthless)
        pause = self._budget.spend(worthless, time.monotonic())
        if self._budget.is_exhausted:
            logger.warning("a messaging router sends too many useless events: disconnecting")
            self._is_abusive, self.is_proven, self._budget = True, False, None
            self._disconnected()
        elif pause:
            self._pauses.pause_for("budget", pause)

    async def _write_events(self) -> None:
        """Write END and DELD events of this session."""
        events = {SubscriptionState.END: self._ended, SubscriptionState.DELETED: self._deleted}
        for state, ids in events.items():
            if written := ids[:]:
                reclaimed = []
                if state is SubscriptionState.END:
                    reclaimed = await self._store.reclaim(self.server.server_id, written)
                kept = {queue.notifier_id for queue in reclaimed}
                over = [notifier_id for notifier_id in written if notifier_id not in kept]
                ended = await self._store.set_ended(self.server.server_id, over, state)
                if ended is not None:
                    self._queues.report([(ended_id, state) for ended_id in ended])
                    unexpected = self._queues.ended(len(written))
                    self._spend(min(len(over) - len(ended), unexpected))
                del ids[: len(written)]
                self._queues.subscribed = max(self.subscribed - len(written), 0)
                if reclaimed:
                    self._add(reclaimed)

        self._pauses.set("events", False)

    def _client_disconnected(self, client: Client, reason: Exception | None) -> None:
        if isinstance(reason, UnexpectedReply):
            self._is_abusive = True  # it sent what no router sends
        self._disconnected()

    def _disconnected(self) -> None:
        self._is_lost = True
        self._work.set()
