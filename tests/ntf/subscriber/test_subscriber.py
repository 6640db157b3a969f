"""A subscriber against a messaging router that misbehaves, and one that is simulated."""

import asyncio
import os
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import pytest

from heliograph.crypto.certificates import TlsCredentials
from heliograph.db.errors import DatabaseError
from heliograph.journal.journal import NO_JOURNAL
from heliograph.ntf.observing.observer import NtfObserver
from heliograph.ntf.store.records import AssociatedIds, Incoming, QueueDigest, QueueKey
from heliograph.ntf.store.subscriptions.servers import ServerRecord
from heliograph.ntf.store.subscriptions.subscription_store import SubscriptionRange
from heliograph.ntf.subscriber import budget, inbox, queues
from heliograph.ntf.subscriber.dials import Dials
from heliograph.ntf.subscriber.nsub import status_of
from heliograph.ntf.subscriber.settings import SubscriberSettings
from heliograph.ntf.subscriber.subscriber import RECEIVE_BUFFER, SmpSubscriber
from heliograph.runtime.backoff import Backoff
from heliograph.transport.client import ClientConfig
from heliograph.transport.errors import (
    ClientError,
    Disconnected,
    HandshakeFailed,
    RequestRefused,
    RequestTimeout,
    UnexpectedReply,
)
from heliograph.transport.handshake import ServiceCredentials
from heliograph.transport.protocols import SMP
from heliograph.transport.server import Answer, Listener, ServerConnection
from heliograph.wire import ntf, smp
from heliograph.wire.addresses import Scheme, ServerAddress, decode_host
from heliograph.wire.errors import STORE, ErrorCode, TransportError
from heliograph.wire.handshakes import ServiceRole
from heliograph.wire.ntf.tokens import NtfSubStatus, SubscriptionState
from heliograph.wire.requests import Request
from heliograph.wire.smp.confirmations import decode_confirmation
from tests.ntf.support import FAST, OK, SETTINGS, NtfWorld, Phone
from tests.smp.support import Queue, identity, keys
from tests.transport.support import receive_buffers
from tests.waiting import eventually, until

ACTIVE = SubscriptionState.ACTIVE
WITH_SERVICE = replace(SETTINGS, subscriber=replace(SETTINGS.subscriber, use_service=True))


class ScriptedRouter:
    """A messaging router that does as a test says."""

    def __init__(self) -> None:
        self.connections: list[ServerConnection] = []
        self.seen: list[bytes] = []
        self.answer: Any = smp.SOK()
        self.takes_confirmations = True
        self.confirmed: list[int] = []
        self.silent = False
        self.hang_up = False
        self.listener: Listener
        self.address: ServerAddress

    async def start(self) -> None:
        self.listener = Listener(SMP, identity(), self, request_client_certificate=True)
        port = await self.listener.start("127.0.0.1", 0)
        host = decode_host("127.0.0.1")
        self.address = ServerAddress(Scheme.SMP, (host,), str(port), identity().fingerprint)

    async def close(self) -> None:
        await self.listener.close(0.1)

    def connected(self, connection: ServerConnection) -> None:
        self.connections.append(connection)
        if self.hang_up:
            connection.abort()

    def received(self, connection: ServerConnection, requests: list[Request[Any]]) -> None:
        requests = self.answer_pings(connection, requests)
        self.seen += [request.entity_id for request in requests]
        if not self.silent:
            connection.answer(
                [Answer(request.corr_id, request.entity_id, self.answer) for request in requests]
            )

    def answer_pings(
        self, connection: ServerConnection, requests: list[Request[Any]]
    ) -> list[Request[Any]]:
        """Return the other requests."""
        others = []
        for request in requests:
            if isinstance(request.command, smp.PING):
                count = decode_confirmation(request.corr_id)
                assert count is not None
                self.confirmed.append(count)
                if self.takes_confirmations and not count:
                    connection.push([Answer(b"", b"", smp.PONG())])
                connection.answer([Answer(request.corr_id, b"", smp.PONG())])
            else:
                others.append(request)
        return others

    def service_requested(self, connection: ServerConnection, request: Any) -> None:
        connection.answer_service(TransportError.HANDSHAKE_BAD_SERVICE)

    def disconnected(self, connection: ServerConnection) -> None:
        pass

    def writable(self, connection: ServerConnection) -> None:
        pass

    def may_disconnect(self, connection: ServerConnection) -> bool:
        return True


class MemoryStore:
    """A store of subscriptions in memory."""

    def __init__(self, count: int = 1) -> None:
        self.queues = [
            QueueKey(number.to_bytes(24), os.urandom(24), keys().private)
            for number in range(1, count + 1)
        ]
        self.statuses: dict[bytes, NtfSubStatus] = {}
        self.named: set[bytes] = set()
        """Those whose status was written by itself."""
        self.confirmed: list[SubscriptionRange] = []
        self.ended: list[tuple[bytes, SubscriptionState]] = []
        self.server = ServerRecord(1, "")
        self.failures = 0
        self.cleared = 0

    def _fail(self) -> None:
        if self.failures:
            self.failures -= 1
            raise DatabaseError("lost")

    async def page(
        self, server_id: int, after: bytes, limit: int, associated: bool | None
    ) -> list[QueueKey]:
        self._fail()
        inactive = SubscriptionState.INACTIVE
        return [
            queue._replace(is_inactive=self._state(queue) is inactive)
            for queue in self.queues
            if queue.subscription_id > after
        ][:limit]

    def _state(self, queue: QueueKey) -> SubscriptionState | None:
        status = self.statuses.get(queue.notifier_id)
        return None if status is None else status.state

    async def mark_active(self, server_id: int, span: SubscriptionRange, associated: bool) -> None:
        self._fail()
        self.confirmed.append(span)
        for queue in self.queues:
            inactive = self._state(queue) is SubscriptionState.INACTIVE
            if inactive and span.first <= queue.subscription_id <= span.last:
                self.statuses[queue.notifier_id] = NtfSubStatus(ACTIVE)

    async def count_active(self, server_id: int) -> int:
        return sum(status.state is ACTIVE for status in self.statuses.values())

    async def set_statuses(self, server_id: int, statuses: Sequence[Any]) -> None:
        self._fail()
        self.statuses.update({notifier_id: status for notifier_id, status, _ in statuses})
        self.named.update(notifier_id for notifier_id, _, _ in statuses)

    async def reclaim(self, server_id: int, notifier_ids: Sequence[bytes]) -> list[QueueKey]:
        return []

    def may_subscribe(self) -> bool:
        return True

    async def set_ended(
        self, server_id: int, notifier_ids: Sequence[bytes], state: SubscriptionState
    ) -> list[bytes]:
        self._fail()
        self.ended += [(notifier_id, state) for notifier_id in notifier_ids]
        ids = {queue.notifier_id: queue.subscription_id for queue in self.queues}
        return [ids[notifier_id] for notifier_id in notifier_ids if notifier_id in ids]

    async def replace_state(
        self,
        server_id: int,
        before: SubscriptionState,
        after: SubscriptionState,
        associated: bool | None = None,
    ) -> None:
        self._fail()
        for notifier_id, status in self.statuses.items():
            if status.state is before:
                self.statuses[notifier_id] = NtfSubStatus(after)

    async def refuse(self, server_id: int, error: bytes) -> None:
        for queue in self.queues:
            refused = NtfSubStatus(SubscriptionState.ERR, error)
            self.statuses[queue.notifier_id] = refused

    async def service(self, server_id: int) -> ServerRecord:
        return self.server

    async def set_service(self, server: ServerRecord) -> None:
        self.server = server

    async def all_inactive(self) -> None:
        pass

    async def servers(self) -> list[ServerRecord]:
        return [self.server]

    async def proven_servers(self) -> set[int]:
        return set()

    async def delete_unused_servers(self, kept: Collection[int]) -> None:
        pass

    async def associated(self, server_id: int) -> AssociatedIds:
        return AssociatedIds()

    async def queue_keys(self, server_id: int, notifier_ids: Sequence[bytes]) -> list[QueueKey]:
        return [queue for queue in self.queues if queue.notifier_id in notifier_ids]

    async def keep_missing(self, server_id: int, notifier_ids: Sequence[bytes]) -> None:
        pass

    async def forget_deleted(self, server_id: int, notifier_ids: Sequence[bytes]) -> None:
        pass

    async def set_surplus(self, server_id: int, count: int, ids_hash: bytes) -> None:
        pass

    async def clear_association(self, server_id: int) -> None:
        self.cleared += 1
        self.server = ServerRecord(1, "")

    def states(self) -> set[SubscriptionState]:
        return {status.state for status in self.statuses.values()}


class RecordingObserver(NtfObserver):
    """What a subscriber reported."""

    def __init__(self) -> None:
        super().__init__(NO_JOURNAL)
        self.received: list[Incoming] = []
        self.batches = 0
        self.unknown = False
        """Nothing received is for a subscription."""
        self.ups = self.downs = self.repairs = 0
        self.storing: asyncio.Future[int] | None = None
        """Set, and done when what is received is durable."""

    def receive(self, server_id: int, incoming: list[Incoming]) -> "asyncio.Future[int]":
        self.received += incoming
        self.batches += 1
        storing = self.storing or asyncio.get_running_loop().create_future()
        if storing is not self.storing:
            storing.set_result(len(incoming) if self.unknown else 0)
        return storing

    def smp_connected(self, server: int) -> None:
        self.ups += 1

    def smp_disconnected(self, server: int) -> None:
        self.downs += 1

    def drift_repaired(
        self, server: int, found: QueueDigest | None, expected: QueueDigest | None
    ) -> None:
        self.repairs += 1


class SubscriberRun:
    def __init__(
        self, scripted: ScriptedRouter, store: MemoryStore, settings: SubscriberSettings
    ) -> None:
        self.scripted, self.store, self.observer = scripted, store, RecordingObserver()
        self.subscriber = SmpSubscriber(
            ServerRecord(1, str(scripted.address)),
            scripted.address,
            store,
            self.observer,
            self.observer.receive,
            settings,
            Dials(),
        )
        self.running = asyncio.create_task(self.subscriber.run())

    async def end(self) -> None:
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)
        await self.scripted.close()


FAST_SETTINGS = SubscriberSettings(
    backoff=FAST, stable_after=0.3, retry_errors=0.1, client=ClientConfig(request_timeout=0.2)
)


@pytest.fixture
async def scripted() -> ScriptedRouter:
    scripted = ScriptedRouter()
    await scripted.start()
    return scripted


async def start_subscriber(
    scripted: ScriptedRouter,
    store: MemoryStore | None = None,
    settings: SubscriberSettings = FAST_SETTINGS,
) -> SubscriberRun:
    return SubscriberRun(scripted, store or MemoryStore(), settings)


@pytest.mark.parametrize(
    ("answer", "state", "text"),
    [
        (smp.SOK(), "ACTIVE", b""),
        (smp.SOK(b"service"), "ACTIVE", b""),
        (smp.OK(), "ACTIVE", b""),
        (RequestRefused(ErrorCode.AUTH), "AUTH", b""),
        (RequestRefused(ErrorCode.SERVICE), "SERVICE", b""),
        (RequestRefused(ErrorCode.QUOTA), "ERR", b"SMP error QUOTA"),
        (RequestRefused(STORE("full")), "ERR", b"SMP error STORE full"),
        (ClientError("a key that is none"), "ERR", b"ResponseError"),
        (UnexpectedReply("nonsense"), "ERR", b"ResponseError"),
        (smp.PONG(), "ERR", b"UnexpectedResponse"),
        (Disconnected(""), None, b""),
        (RequestTimeout(""), None, b""),
        (HandshakeFailed(TransportError.VERSION), None, b""),
    ],
)
def test_what_answers_mean(answer: Any, state: str | None, text: bytes) -> None:
    status = status_of(answer)
    if state is None:
        assert status is None
    else:
        assert status == NtfSubStatus(SubscriptionState(state), text)


async def test_it_subscribes_what_the_store_has_and_then_what_is_new(
    scripted: ScriptedRouter,
) -> None:
    run = await start_subscriber(scripted, MemoryStore(3))
    await until(lambda: len(run.store.statuses) == 3)
    assert run.store.states() == {ACTIVE}
    new = [QueueKey(b"new" * 8, os.urandom(24), keys().private) for _ in range(50)]
    for queue in new:
        run.subscriber.add(queue)
    await until(lambda: len(run.store.statuses) == 53)
    assert run.subscriber.subscribed == 53
    assert len(scripted.seen) == 53
    await run.end()


async def test_notifications_of_one_turn_are_handed_on_together(scripted: ScriptedRouter) -> None:
    run = await start_subscriber(scripted)
    await until(lambda: run.store.statuses)
    nmsg = [(os.urandom(24), smp.NMSG(os.urandom(24), b"meta")) for _ in range(20)]
    scripted.connections[0].push([Answer(b"", entity_id, message) for entity_id, message in nmsg])
    await until(lambda: len(run.observer.received) == 20)
    assert run.observer.batches == 1
    assert [(item.notifier_id, item.nonce) for item in run.observer.received] == [
        (entity_id, message.nonce) for entity_id, message in nmsg
    ]
    await run.end()


async def test_ends_and_deletions_are_written(scripted: ScriptedRouter) -> None:
    run = await start_subscriber(scripted)
    await until(lambda: run.store.statuses)
    scripted.connections[0].push(
        [Answer(b"", b"one", smp.END()), Answer(b"", b"two", smp.DELD()), Answer(b"", b"", OK)]
    )
    await until(lambda: len(run.store.ended) == 2)
    assert run.store.ended == [
        (b"one", SubscriptionState.END),
        (b"two", SubscriptionState.DELETED),
    ]
    await run.end()


async def test_what_was_said_last_is_written_although_the_connection_ended(
    scripted: ScriptedRouter,
) -> None:
    run = await start_subscriber(scripted)
    await until(lambda: run.store.statuses)
    scripted.connections[0].push([Answer(b"", b"one", smp.END()), Answer(b"", b"two", smp.DELD())])
    scripted.connections[0].close()
    await until(lambda: run.observer.downs)
    assert len(run.store.ended) == 2
    await run.end()


async def test_what_is_said_while_it_is_written_is_written_too(scripted: ScriptedRouter) -> None:
    run = await start_subscriber(scripted)
    await until(lambda: run.store.statuses)
    store, write = run.store, run.store.set_ended

    async def slow(server_id: int, ids: Sequence[bytes], state: SubscriptionState) -> None:
        scripted.connections[0].push(
            [Answer(b"", b"late", smp.END())] if len(store.ended) < 3 else []
        )
        await asyncio.sleep(0.03)
        await write(server_id, ids, state)

    store.set_ended = slow  # type: ignore[method-assign, assignment]
    scripted.connections[0].push([Answer(b"", b"one", smp.END())])
    await until(lambda: (b"late", SubscriptionState.END) in store.ended)
    await run.end()


async def test_a_lost_connection_makes_all_inactive_until_it_is_back(
    scripted: ScriptedRouter,
) -> None:
    run = await start_subscriber(scripted, MemoryStore(2))
    await until(lambda: len(run.store.statuses) == 2)
    scripted.hang_up = True
    scripted.connections[0].abort()
    await until(lambda: run.store.states() == {SubscriptionState.INACTIVE})
    scripted.hang_up = False
    await until(lambda: run.store.states() == {ACTIVE})
    await run.end()


async def test_what_was_inactive_is_confirmed_many_at_a_time(
    scripted: ScriptedRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what was not, by itself."""
    monkeypatch.setattr(queues, "RANGE_ROWS", 3)
    store = MemoryStore(10)
    pending = {queue.notifier_id for queue in store.queues[::3]}
    for queue in store.queues:
        if queue.notifier_id not in pending:
            store.statuses[queue.notifier_id] = NtfSubStatus(SubscriptionState.INACTIVE)
    run = await start_subscriber(scripted, store, replace(FAST_SETTINGS, batch=2, page=4))
    await until(lambda: run.subscriber.subscribed == 10)
    assert store.states() == {ACTIVE}
    assert store.named == pending
    assert sorted(
        (int.from_bytes(first), int.from_bytes(last)) for first, last, _ in store.confirmed
    ) == [
        (1, 3),
        (4, 4),
        (5, 7),
        (8, 8),
        (9, 10),
    ]
    assert len(scripted.seen) == len(set(scripted.seen)) == 10
    await run.end()


async def test_answers_are_written_although_others_never_came(scripted: ScriptedRouter) -> None:
    """Each by itself, as nothing is known of the rest of the page."""
    store = MemoryStore(9)
    for queue in store.queues:
        store.statuses[queue.notifier_id] = NtfSubStatus(SubscriptionState.INACTIVE)
    answered = {queue.notifier_id for queue in store.queues[:3]}
    refused = store.queues[1].notifier_id

    def some(connection: ServerConnection, requests: list[Request[Any]]) -> None:
        requests = scripted.answer_pings(connection, requests)
        scripted.seen += [request.entity_id for request in requests]
        said = {refused: smp.ERR(ErrorCode.AUTH)}
        connection.answer(
            [
                Answer(request.corr_id, request.entity_id, said.get(request.entity_id, smp.SOK()))
                for request in requests
                if request.entity_id in answered
            ]
        )

    scripted.received = some  # type: ignore[method-assign]
    run = await start_subscriber(scripted, store, replace(FAST_SETTINGS, batch=3, page=20))
    await until(lambda: len(scripted.connections) >= 2)
    assert store.named == answered
    assert not store.confirmed
    assert store.statuses[refused].state is SubscriptionState.AUTH
    assert len(scripted.seen) < 2 * len(store.queues)  # no more is asked once some is not answered
    await run.end()


async def test_a_router_that_hangs_up_at_once_is_left_alone_more_and_more(
    scripted: ScriptedRouter,
) -> None:
    """No storm: a connection that does not last does not make the delay the first again."""
    scripted.hang_up = True
    settings = replace(FAST_SETTINGS, backoff=Backoff(first=0.05, last=10.0, jitter=0.0))
    run = await start_subscriber(scripted, settings=settings)
    await asyncio.sleep(0.8)
    assert len(scripted.connections) <= 5
    await run.end()


async def test_a_connection_that_lasted_makes_the_next_delay_short(
    scripted: ScriptedRouter,
) -> None:
    settings = replace(
        FAST_SETTINGS, stable_after=0.1, backoff=Backoff(first=0.02, last=60.0, jitter=0.0)
    )
    run = await start_subscriber(scripted, settings=settings)
    for count in range(1, 8):
        await until(lambda count=count: len(scripted.connections) == count)  # type: ignore[misc]
        await asyncio.sleep(0.12)
        scripted.connections[-1].abort()
    await run.end()


async def test_a_router_that_does_not_answer_is_connected_to_again(
    scripted: ScriptedRouter,
) -> None:
    """A subscription without an answer must not stay pending for ever."""
    scripted.silent = True
    run = await start_subscriber(scripted)
    await until(lambda: len(scripted.connections) >= 2)
    assert not run.store.statuses
    scripted.silent = False
    await until(lambda: run.store.states() == {ACTIVE})
    await run.end()


async def test_what_a_router_refused_for_its_own_reasons_is_tried_again(
    scripted: ScriptedRouter,
) -> None:
    scripted.answer = smp.ERR(ErrorCode.INTERNAL)
    run = await start_subscriber(scripted)
    await until(lambda: run.store.states() == {SubscriptionState.ERR})
    [status] = run.store.statuses.values()
    assert status.error == b"SMP error INTERNAL"
    scripted.answer = smp.SOK()
    await until(lambda: run.store.states() == {ACTIVE})
    assert len(scripted.connections) == 1
    await run.end()


async def test_a_wrong_key_is_final(scripted: ScriptedRouter) -> None:
    scripted.answer = smp.ERR(ErrorCode.AUTH)
    run = await start_subscriber(scripted)
    await until(lambda: run.store.states() == {SubscriptionState.AUTH})
    await asyncio.sleep(0.2)
    assert len(scripted.seen) == 1
    await run.end()


async def test_a_book_that_fails_is_never_the_end(scripted: ScriptedRouter) -> None:
    """Wherever it fails: reading, writing, and when the connection is left."""
    for failures in range(1, 6):
        store = MemoryStore(2)
        store.failures = failures
        run = await start_subscriber(scripted, store)
        await until(lambda store=store: store.states() == {ACTIVE})  # type: ignore[misc]
        store.failures = failures
        scripted.connections[-1].abort()
        await until(lambda store=store: not store.failures)  # type: ignore[misc]
        await until(lambda store=store: store.states() == {ACTIVE})  # type: ignore[misc]
        assert not run.running.done()
        run.running.cancel()
        await asyncio.gather(run.running, return_exceptions=True)
    await scripted.close()


async def test_cancelled_at_any_moment_it_leaves_cleanly(scripted: ScriptedRouter) -> None:
    for turns in range(0, 60, 3):
        run = await start_subscriber(scripted, MemoryStore(3))
        for _ in range(turns):
            await asyncio.sleep(0.0005)
        run.running.cancel()
        await asyncio.gather(run.running, return_exceptions=True)
        assert run.running.cancelled()
        assert run.subscriber.client is None
        assert ACTIVE not in run.store.states()
        assert run.observer.ups == run.observer.downs
    await until(lambda: not scripted.listener.connections)
    await scripted.close()


async def test_a_refused_service_is_skipped_for_one_connection(scripted: ScriptedRouter) -> None:
    run = await start_subscriber(scripted, settings=replace(FAST_SETTINGS, use_service=True))
    await until(lambda: run.store.states() == {ACTIVE})
    assert run.observer.repairs == run.store.cleared == 1
    # It is tried again with other credentials.
    scripted.connections[-1].abort()
    await until(lambda: run.observer.repairs == 2)
    await until(lambda: run.store.states() == {ACTIVE})
    await run.end()


def nmsg() -> list[Answer]:
    return [Answer(b"", os.urandom(24), smp.NMSG(os.urandom(24), b"meta"))]


async def test_no_more_is_read_than_the_store_takes(
    scripted: ScriptedRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "FIRST_LIMIT", 0)
    run = await start_subscriber(scripted)
    await until(lambda: run.store.statuses)
    storing = run.observer.storing = asyncio.get_running_loop().create_future()
    scripted.connections[0].push(nmsg())
    await until(lambda: run.observer.received)
    scripted.connections[0].push(nmsg())
    await asyncio.sleep(0.1)
    assert len(run.observer.received) == 1
    run.observer.storing = None
    storing.set_result(0)
    await until(lambda: len(run.observer.received) == 2)
    assert len(scripted.connections) == 1
    await run.end()


async def test_a_stalled_store_confirms_nothing_and_keeps_the_connection(
    scripted: ScriptedRouter,
) -> None:
    run = await start_subscriber(scripted)
    await until(lambda: run.store.states() == {ACTIVE})
    storing = run.observer.storing = asyncio.get_running_loop().create_future()
    scripted.connections[0].push(nmsg() * 3)
    await until(lambda: len(run.observer.received) == 3)
    await asyncio.sleep(0.3)
    assert scripted.confirmed == [0]
    run.observer.storing = None
    storing.set_result(0)
    await until(lambda: scripted.confirmed == [0, 3])
    scripted.connections[0].push(nmsg() * 2)
    await until(lambda: scripted.confirmed == [0, 3, 5])
    assert len(scripted.connections) == 1
    await run.end()


async def test_each_connection_confirms_its_own_notifications(scripted: ScriptedRouter) -> None:
    """Also if the last ones of the connection before were still being stored when it ended."""
    run = await start_subscriber(scripted)
    await until(lambda: run.store.states() == {ACTIVE})
    storing = run.observer.storing = asyncio.get_running_loop().create_future()
    scripted.connections[0].push(nmsg() * 3)
    await until(lambda: run.observer.received)
    scripted.connections[0].abort()
    await asyncio.sleep(0.1)
    assert len(scripted.connections) == 1  # it waits for the store
    run.observer.storing = None
    storing.set_result(0)
    await until(lambda: scripted.confirmed == [0, 0])
    await until(lambda: run.store.states() == {ACTIVE})
    scripted.connections[1].push(nmsg())
    await until(lambda: scripted.confirmed == [0, 0, 1])
    await run.end()


async def test_a_router_that_takes_no_confirmations_gets_none(scripted: ScriptedRouter) -> None:
    scripted.takes_confirmations = False
    run = await start_subscriber(scripted)
    await until(lambda: run.store.states() == {ACTIVE})
    scripted.connections[0].push(nmsg())
    await until(lambda: run.observer.received)
    await asyncio.sleep(0.2)
    assert scripted.confirmed == [0]
    await run.end()


@pytest.mark.parametrize(
    "message", [smp.DELD(), smp.END(), smp.OK(), smp.PONG(), smp.NMSG(bytes(24), b"meta")]
)
async def test_a_flood_of_useless_events_is_slowed_down_and_ended(
    scripted: ScriptedRouter,
    message: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(budget, "BURST_SECONDS", 0.5)
    monkeypatch.setattr(budget, "MAX_PAUSED_SECONDS", 0.5)
    run = await start_subscriber(scripted)
    await until(lambda: run.store.states() == {ACTIVE})
    run.observer.unknown = isinstance(message, smp.NMSG)
    [connection] = scripted.connections
    sent = 0
    while not connection.is_closing:
        if connection.is_writable:
            size = 0 if isinstance(message, smp.PONG) else 24
            flood = [Answer(b"", os.urandom(size), message) for _ in range(50)]
            connection.push(flood)
            sent += len(flood)
        await asyncio.sleep(0.001)
    assert sent < 20_000
    assert len(run.store.ended) + len(run.observer.received) < 5_000
    assert caplog.text.count("\n") < 10
    await asyncio.sleep(0.3)
    assert len(scripted.connections) == 1  # it is not connected to again soon
    await run.end()


@pytest.mark.parametrize("takes_confirmations", [False, True])
async def test_what_has_arrived_is_read_before_leaving_a_router_that_does_not_repeat_it(
    scripted: ScriptedRouter, monkeypatch: pytest.MonkeyPatch, takes_confirmations: bool
) -> None:
    """Also if reading was paused because the store is slow."""
    monkeypatch.setattr(inbox, "FIRST_LIMIT", 0)
    scripted.takes_confirmations = takes_confirmations
    run = await start_subscriber(scripted)
    await until(lambda: run.store.states() == {ACTIVE})
    storing = run.observer.storing = asyncio.get_running_loop().create_future()
    scripted.connections[0].push(nmsg())
    await until(lambda: run.observer.received)
    for _ in range(3):
        scripted.connections[0].push(nmsg())
    await asyncio.sleep(0.1)
    assert len(run.observer.received) == 1
    run.running.cancel()
    await asyncio.gather(run.running, return_exceptions=True)
    assert len(run.observer.received) == (1 if takes_confirmations else 4)
    storing.set_result(0)
    await run.end()


async def test_only_the_first_failure_is_logged(
    scripted: ScriptedRouter, caplog: pytest.LogCaptureFixture
) -> None:
    """Any client may name any number of routers that cannot be reached."""
    caplog.set_level("INFO")
    scripted.hang_up = True
    run = await start_subscriber(scripted)
    await until(lambda: len(scripted.connections) >= 4)
    assert caplog.text.count("cannot be reached") <= 2
    await run.end()


async def test_a_router_that_worked_is_soon_connected_to_again(scripted: ScriptedRouter) -> None:
    """Also if its next connections do not last."""
    settings = replace(
        FAST_SETTINGS,
        stable_after=0.1,
        healthy_delay=0.03,
        backoff=Backoff(first=0.02, last=60.0, jitter=0.0),
    )
    run = await start_subscriber(scripted, settings=settings)
    await until(lambda: scripted.connections)
    await asyncio.sleep(0.12)
    scripted.hang_up = True
    scripted.connections[-1].abort()
    await until(lambda: len(scripted.connections) >= 20)
    await run.end()


async def test_a_router_that_sends_garbage_is_left_alone(scripted: ScriptedRouter) -> None:
    """Also if it worked for a while before each time."""
    settings = replace(FAST_SETTINGS, stable_after=0.1, backoff=Backoff(first=0.02, last=60.0))
    run = await start_subscriber(scripted, settings=settings)
    await until(lambda: run.store.states() == {ACTIVE})
    await asyncio.sleep(0.2)
    [connection] = scripted.connections
    connection._transport.write(os.urandom(16_384))  # type: ignore[union-attr]
    await until(lambda: connection.is_closing)
    await asyncio.sleep(0.5)
    assert scripted.connections == [connection]
    await run.end()


async def test_little_waits_in_the_systems_buffer(scripted: ScriptedRouter) -> None:
    run = await start_subscriber(scripted)
    await until(lambda: run.store.statuses)
    [size] = receive_buffers(int(scripted.address.port))
    assert size <= 2 * RECEIVE_BUFFER  # the system doubles it, for its own accounts
    await run.end()


async def test_it_never_says_that_it_took_all(scripted: ScriptedRouter) -> None:
    """Notifications that cross a close_notify would be taken for delivered."""
    run = await start_subscriber(scripted)
    await until(lambda: run.store.statuses)
    [connection] = scripted.connections
    run.running.cancel()
    await until(lambda: connection.is_closing)
    assert not connection.left_in_order
    await run.end()


# With our messaging router.


async def test_a_service_taken_over_by_another_connection(small_world: NtfWorld) -> None:
    """ENDS: begin again, and let the later win."""
    small_world.settings = WITH_SERVICE
    await small_world.restart_ntf()
    phone = await small_world.registered()
    queue = await small_world.queue()
    await phone.subscribe(queue)
    [subscriber] = small_world.router.subscribers.values()
    server = subscriber.server
    assert server.service_chain is not None
    assert server.service_key is not None
    tls = TlsCredentials((server.service_chain,), server.service_key)
    credentials = ServiceCredentials(ServiceRole.NOTIFIER, tls)
    other = await small_world.smp.connect(service=credentials)
    [service] = small_world.smp.router.services.values()
    assert await other.nsubs(1, service.ids_hash) == smp.SOKS(1, service.ids_hash)
    assert isinstance(await other.push(), smp.ENDS)  # it has been taken back
    await small_world.send(queue)
    await phone.notified_of(queue)


async def test_what_leaves_a_service_in_order_is_no_drift(small_world: NtfWorld) -> None:
    """END and DELD while we are connected: both sides know."""
    small_world.settings = WITH_SERVICE
    await small_world.restart_ntf()
    phone = await small_world.registered()
    queues = await small_world.queues(4)
    for queue in queues:
        await phone.subscribe(queue)
    assert await queues[0].delete(small_world.sender) == smp.OK()
    other = await small_world.smp.connect()
    assert await queues[1].nsub(other) == smp.SOK()
    await phone.until_state(phone.subscriptions[0], SubscriptionState.DELETED)
    await phone.until_state(phone.subscriptions[1], SubscriptionState.END)
    before = small_world.smp.router.observer.counters.notifier_subscribed
    await small_world.restart_ntf(phone)
    for subscription in phone.subscriptions[2:]:
        await phone.until_state(subscription, ACTIVE)
    assert small_world.smp.router.observer.counters.notifier_subscribed == before
    assert small_world.router.stats.counters.drift_repaired == 0
    await small_world.send(*queues[2:])
    await phone.notified_of(*queues[2:])


async def services(world: NtfWorld, phone: Phone, count: int) -> list[Queue]:
    """Subscribe queues through a service."""
    world.settings = WITH_SERVICE
    await world.restart_ntf(phone)
    created = await world.queues(count)
    for queue in created:
        await phone.subscribe(queue)
    return created


def nsubs(world: NtfWorld) -> int:
    return world.smp.router.observer.counters.notifier_subscribed


@pytest.mark.parametrize("token", [False, True])
async def test_what_is_deleted_here_is_no_drift(world: NtfWorld, token: bool) -> None:
    """SDEL and TDEL do not reach the messaging router: its digest has more than ours."""
    phone, other = await world.registered(), await world.registered()
    world.settings = WITH_SERVICE
    await world.restart_ntf(phone, other)
    first, second, third = await world.queues(3)
    await phone.subscribe(first)
    for queue in (second, third):
        await other.subscribe(queue)
    command = ntf.TDEL() if token else ntf.SDEL()
    entity = other.token_id if token else other.subscriptions[0]
    assert await other.ask(command, entity) == OK
    before = nsubs(world)
    for deleted in (False, True):
        if deleted:  # there too, while we are connected: expect it no longer
            assert await second.delete(world.sender) == OK
            await asyncio.sleep(0.2)
        await world.restart_ntf(phone)
        await phone.until_state(phone.subscriptions[0], ACTIVE)
        await world.send(first)
        await phone.notified_of(first)
        assert world.router.stats.counters.drift_repaired == 0
    assert nsubs(world) == before
    assert len(world.smp.router.services) == 1


async def test_what_is_deleted_before_nsub_is_answered_is_no_drift(world: NtfWorld) -> None:
    """The messaging router has associated the queue by then."""
    phone = await world.registered()
    [kept] = await services(world, phone, 1)
    [subscriber] = world.router.subscribers.values()
    [service] = world.smp.router.services.values()
    subscriber._pauses.set("test", True)
    answer = await phone.snew(await world.queue())
    await until(lambda: service.count == 2)
    assert await phone.ask(ntf.SDEL(), answer.subscription_id) == OK
    subscriber._pauses.set("test", False)
    await phone.subscribe(another := await world.queue())
    before = nsubs(world)
    await world.restart_ntf(phone)
    for subscription in phone.subscriptions:
        await phone.until_state(subscription, ACTIVE)
    await world.send(kept, another)
    await phone.notified_of(kept, another)
    assert world.router.stats.counters.drift_repaired == 0
    assert nsubs(world) == before


@pytest.mark.parametrize("count", [1, 2])
async def test_queues_deleted_while_we_were_away_are_found_by_their_hash(
    world: NtfWorld, count: int
) -> None:
    phone = await world.registered()
    created = await services(world, phone, 8)
    await world.stop_ntf()
    for queue in created[:count]:
        assert await queue.delete(world.sender) == OK
    before = nsubs(world)
    await world.start_ntf()
    phone.client = await world.connect()
    for subscription in phone.subscriptions[:count]:
        await phone.until_state(subscription, SubscriptionState.AUTH)
    for subscription in phone.subscriptions[count:]:
        await phone.until_state(subscription, ACTIVE)
    await until(lambda: world.router.stats.counters.drift_repaired == 1)
    assert nsubs(world) == before  # none of the others was subscribed by itself
    [subscriber] = world.router.subscribers.values()
    await until(lambda: subscriber.subscribed == 8 - count)
    await world.restart_ntf(phone)
    await phone.until_state(phone.subscriptions[count], ACTIVE)
    await world.send(created[count])
    await phone.notified_of(created[count])
    assert world.router.stats.counters.drift_repaired == 0


async def test_a_queue_deleted_here_and_later_there_is_explained(world: NtfWorld) -> None:
    phone = await world.registered()
    created = await services(world, phone, 3)
    assert await phone.ask(ntf.SDEL(), phone.subscriptions[0]) == OK
    await world.stop_ntf()
    assert await created[0].delete(world.sender) == OK
    before = nsubs(world)
    for _ in range(2):
        await world.start_ntf()
        phone.client = await world.connect()
        await phone.until_state(phone.subscriptions[1], ACTIVE)
        await world.send(created[1])
        await phone.notified_of(created[1])
        await world.stop_ntf()
    assert nsubs(world) == before
    assert len(world.smp.router.services) == 1
    await world.start_ntf()


async def test_a_drift_without_explanation_keeps_the_service(world: NtfWorld) -> None:
    """As after a restored backup: the router has queues that we know nothing of."""
    phone = await world.registered()
    created = await services(world, phone, 4)
    [service] = world.smp.router.services.values()
    for name in (b"some", b"queues", b"of", b"before"):
        service.toggle(name, 1)

    async def is_accepted() -> bool:
        rows = await world.read(lambda tx: tx.query("SELECT surplus_count FROM servers"))
        return bool(rows == [(4,)])

    for drifts in (1, 0):
        await world.restart_ntf(phone)
        for subscription in phone.subscriptions:
            await phone.until_state(subscription, ACTIVE)
        await world.send(*created)
        await phone.notified_of(*created)
        assert world.router.stats.counters.drift_repaired == drifts
        await eventually(is_accepted)
    assert list(world.smp.router.services.values()) == [service]


async def test_a_router_that_gives_the_service_another_id_gets_all_queues_again(
    world: NtfWorld,
) -> None:
    phone = await world.registered()
    created = await services(world, phone, 3)
    await world.router.store.database.write(
        lambda tx: tx.execute("UPDATE servers SET service_id = ?", (b"the one before",))
    )
    await world.restart_ntf(phone)
    for subscription in phone.subscriptions:
        await phone.until_state(subscription, ACTIVE)
    await world.send(*created)
    await phone.notified_of(*created)
    assert world.router.stats.counters.drift_repaired == 1


async def test_a_refused_nsubs_is_repaired(
    small_world: NtfWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_world.settings = WITH_SERVICE
    await small_world.restart_ntf()
    phone = await small_world.registered()
    queue = await small_world.queue()
    await phone.subscribe(queue)
    handlers = small_world.smp.router.handlers.by_command
    refusal = smp.ERR(ErrorCode.SERVICE)
    monkeypatch.setitem(handlers, smp.NSUBS, lambda client, request, queue: refusal)
    await small_world.restart_ntf(phone)
    await phone.until_state(phone.subscriptions[0], ACTIVE)
    assert small_world.router.stats.counters.drift_repaired == 1
    await small_world.send(queue)
    await phone.notified_of(queue)


async def test_a_router_without_services_is_subscribed_to_queue_by_queue(
    small_world: NtfWorld,
) -> None:
    small_world.settings = replace(
        WITH_SERVICE,
        subscriber=replace(
            WITH_SERVICE.subscriber,
            client=ClientConfig(versions=replace(SMP.versions, max=15)),
        ),
    )
    await small_world.restart_ntf()
    phone = await small_world.registered()
    queue = await small_world.queue()
    await phone.subscribe(queue)
    assert not small_world.smp.router.services
    await small_world.restart_smp()
    await phone.until_state(phone.subscriptions[0], ACTIVE)
    await small_world.send(queue)
    await phone.notified_of(queue)


async def test_restarts_in_every_gap(small_world: NtfWorld) -> None:
    """Whenever the messaging router goes away, it is found again and nothing is lost."""
    phone = await small_world.registered()
    queues = await small_world.queues(6)
    for queue in queues:
        await phone.subscribe(queue)
    for turn in range(12):
        queue = queues[turn % 6]
        sent = await small_world.send_and_receive(queue)
        await asyncio.sleep(turn * 0.002)
        await small_world.restart_smp()
        await until(lambda queue=queue, sent=sent: phone.was_notified(queue, sent))  # type: ignore[misc]
        if turn % 3 == 2:
            for subscription in phone.subscriptions:
                await phone.until_state(subscription, ACTIVE)
