"""A subscriber against a messaging router that misbehaves, and one that is simulated."""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from heliograph.crypto.certificates import TlsCredentials
from heliograph.db.errors import DatabaseError
from heliograph.journal.journal import NO_JOURNAL
from heliograph.ntf.observer import NtfObserver
from heliograph.ntf.store.records import AssociatedIds, Incoming, QueueAccount, QueueKey
from heliograph.ntf.store.subscription_store import SubscriptionRange
from heliograph.ntf.store.subscriptions import ServerRecord
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


class Desk:
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


class Notebook:
    """A book in memory."""

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

    async def confirm(self, server_id: int, span: SubscriptionRange, associated: bool) -> None:
        self._fail()
        self.confirmed.append(span)
        for queue in self.queues:
            inactive = self._state(queue) is SubscriptionState.INACTIVE
            if inactive and span.first <= queue.subscription_id <= span.last:
                self.statuses[queue.notifier_id] = NtfSubStatus(ACTIVE)

    async def set_statuses(self, server_id: int, statuses: Sequence[Any]) -> None:
        self._fail()
        self.statuses.update({notifier_id: status for notifier_id, status, _ in statuses})
        self.named.update(notifier_id for notifier_id, _, _ in statuses)

    async def reclaim(self, server_id: int, notifier_ids: Sequence[bytes]) -> list[QueueKey]:
        return []

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

    async def delete_unused_servers(self) -> None:
        pass

    async def associated(self, server_id: int) -> AssociatedIds:
        return AssociatedIds()

    async def queue_keys(self, server_id: int, notifier_ids: Sequence[bytes]) -> list[QueueKey]:
        return [queue for queue in self.queues if queue.notifier_id in notifier_ids]

    async def forget_deleted(self, server_id: int, notifier_ids: Sequence[bytes]) -> None:
        pass

    async def set_surplus(self, server_id: int, count: int, ids_hash: bytes) -> None:
        pass

    async def clear_association(self, server_id: int) -> None:
        self.cleared += 1
        self.server = ServerRecord(1, "")

    def states(self) -> set[SubscriptionState]:
        return {status.state for status in self.statuses.values()}


class Story(NtfObserver):
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
        self, server: int, found: QueueAccount | None, expected: QueueAccount | None
    ) -> None:
        self.repairs += 1


class Scene:
    def __init__(self, desk: Desk, book: Notebook, settings: SubscriberSettings) -> None:
        self.desk, self.book, self.story = desk, book, Story()
        self.subscriber = SmpSubscriber(
            ServerRecord(1, str(desk.address)),
            desk.address,
            book,
            self.story,
            self.story.receive,
            settings,
            Dials(),
        )
        self.running = asyncio.create_task(self.subscriber.run())

    async def end(self) -> None:
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)
        await self.desk.close()


FAST_SETTINGS = SubscriberSettings(
    backoff=FAST, stable_after=0.3, retry_errors=0.1, client=ClientConfig(request_timeout=0.2)
)


@pytest.fixture
async def desk() -> Desk:
    desk = Desk()
    await desk.start()
    return desk


async def play(
    desk: Desk, book: Notebook | None = None, settings: SubscriberSettings = FAST_SETTINGS
) -> Scene:
    return Scene(desk, book or Notebook(), settings)


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


async def test_it_subscribes_what_the_book_has_and_then_what_is_new(desk: Desk) -> None:
    scene = await play(desk, Notebook(3))
    await until(lambda: len(scene.book.statuses) == 3)
    assert scene.book.states() == {ACTIVE}
    new = [QueueKey(b"new" * 8, os.urandom(24), keys().private) for _ in range(50)]
    for queue in new:
        scene.subscriber.add(queue)
    await until(lambda: len(scene.book.statuses) == 53)
    assert scene.subscriber.subscribed == 53
    assert len(desk.seen) == 53
    await scene.end()


async def test_notifications_of_one_turn_are_handed_on_together(desk: Desk) -> None:
    scene = await play(desk)
    await until(lambda: scene.book.statuses)
    nmsg = [(os.urandom(24), smp.NMSG(os.urandom(24), b"meta")) for _ in range(20)]
    desk.connections[0].push([Answer(b"", entity_id, message) for entity_id, message in nmsg])
    await until(lambda: len(scene.story.received) == 20)
    assert scene.story.batches == 1
    assert [(item.notifier_id, item.nonce) for item in scene.story.received] == [
        (entity_id, message.nonce) for entity_id, message in nmsg
    ]
    await scene.end()


async def test_ends_and_deletions_are_written(desk: Desk) -> None:
    scene = await play(desk)
    await until(lambda: scene.book.statuses)
    desk.connections[0].push(
        [Answer(b"", b"one", smp.END()), Answer(b"", b"two", smp.DELD()), Answer(b"", b"", OK)]
    )
    await until(lambda: len(scene.book.ended) == 2)
    assert scene.book.ended == [
        (b"one", SubscriptionState.END),
        (b"two", SubscriptionState.DELETED),
    ]
    await scene.end()


async def test_what_was_said_last_is_written_although_the_connection_ended(desk: Desk) -> None:
    scene = await play(desk)
    await until(lambda: scene.book.statuses)
    desk.connections[0].push([Answer(b"", b"one", smp.END()), Answer(b"", b"two", smp.DELD())])
    desk.connections[0].close()
    await until(lambda: scene.story.downs)
    assert len(scene.book.ended) == 2
    await scene.end()


async def test_what_is_said_while_it_is_written_is_written_too(desk: Desk) -> None:
    scene = await play(desk)
    await until(lambda: scene.book.statuses)
    book, write = scene.book, scene.book.set_ended

    async def slow(server_id: int, ids: Sequence[bytes], state: SubscriptionState) -> None:
        desk.connections[0].push([Answer(b"", b"late", smp.END())] if len(book.ended) < 3 else [])
        await asyncio.sleep(0.03)
        await write(server_id, ids, state)

    book.set_ended = slow  # type: ignore[method-assign, assignment]
    desk.connections[0].push([Answer(b"", b"one", smp.END())])
    await until(lambda: (b"late", SubscriptionState.END) in book.ended)
    await scene.end()


async def test_a_lost_connection_makes_all_inactive_until_it_is_back(desk: Desk) -> None:
    scene = await play(desk, Notebook(2))
    await until(lambda: len(scene.book.statuses) == 2)
    desk.hang_up = True
    desk.connections[0].abort()
    await until(lambda: scene.book.states() == {SubscriptionState.INACTIVE})
    desk.hang_up = False
    await until(lambda: scene.book.states() == {ACTIVE})
    await scene.end()


async def test_what_was_inactive_is_confirmed_many_at_a_time(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what was not, by itself."""
    monkeypatch.setattr(queues, "CONFIRM_ROWS", 3)
    book = Notebook(10)
    pending = {queue.notifier_id for queue in book.queues[::3]}
    for queue in book.queues:
        if queue.notifier_id not in pending:
            book.statuses[queue.notifier_id] = NtfSubStatus(SubscriptionState.INACTIVE)
    scene = await play(desk, book, replace(FAST_SETTINGS, batch=2, page=4))
    await until(lambda: scene.subscriber.subscribed == 10)
    assert book.states() == {ACTIVE}
    assert book.named == pending
    assert sorted(
        (int.from_bytes(first), int.from_bytes(last)) for first, last, _ in book.confirmed
    ) == [
        (1, 3),
        (4, 4),
        (5, 7),
        (8, 8),
        (9, 10),
    ]
    assert len(desk.seen) == len(set(desk.seen)) == 10
    await scene.end()


async def test_answers_are_written_although_others_never_came(desk: Desk) -> None:
    """Each by itself, as nothing is known of the rest of the page."""
    book = Notebook(9)
    for queue in book.queues:
        book.statuses[queue.notifier_id] = NtfSubStatus(SubscriptionState.INACTIVE)
    answered = {queue.notifier_id for queue in book.queues[:3]}
    refused = book.queues[1].notifier_id

    def some(connection: ServerConnection, requests: list[Request[Any]]) -> None:
        requests = desk.answer_pings(connection, requests)
        desk.seen += [request.entity_id for request in requests]
        said = {refused: smp.ERR(ErrorCode.AUTH)}
        connection.answer(
            [
                Answer(request.corr_id, request.entity_id, said.get(request.entity_id, smp.SOK()))
                for request in requests
                if request.entity_id in answered
            ]
        )

    desk.received = some  # type: ignore[method-assign]
    scene = await play(desk, book, replace(FAST_SETTINGS, batch=3, page=20))
    await until(lambda: len(desk.connections) >= 2)
    assert book.named == answered
    assert not book.confirmed
    assert book.statuses[refused].state is SubscriptionState.AUTH
    assert len(desk.seen) < 2 * len(book.queues)  # no more is asked once some is not answered
    await scene.end()


async def test_a_router_that_hangs_up_at_once_is_left_alone_more_and_more(desk: Desk) -> None:
    """No storm: a connection that does not last does not make the delay the first again."""
    desk.hang_up = True
    settings = replace(FAST_SETTINGS, backoff=Backoff(first=0.05, last=10.0, jitter=0.0))
    scene = await play(desk, settings=settings)
    await asyncio.sleep(0.8)
    assert len(desk.connections) <= 5
    await scene.end()


async def test_a_connection_that_lasted_makes_the_next_delay_short(desk: Desk) -> None:
    settings = replace(
        FAST_SETTINGS, stable_after=0.1, backoff=Backoff(first=0.02, last=60.0, jitter=0.0)
    )
    scene = await play(desk, settings=settings)
    for count in range(1, 8):
        await until(lambda count=count: len(desk.connections) == count)  # type: ignore[misc]
        await asyncio.sleep(0.12)
        desk.connections[-1].abort()
    await scene.end()


async def test_a_router_that_does_not_answer_is_connected_to_again(desk: Desk) -> None:
    """A subscription without an answer must not stay pending for ever."""
    desk.silent = True
    scene = await play(desk)
    await until(lambda: len(desk.connections) >= 2)
    assert not scene.book.statuses
    desk.silent = False
    await until(lambda: scene.book.states() == {ACTIVE})
    await scene.end()


async def test_what_a_router_refused_for_its_own_reasons_is_tried_again(desk: Desk) -> None:
    desk.answer = smp.ERR(ErrorCode.INTERNAL)
    scene = await play(desk)
    await until(lambda: scene.book.states() == {SubscriptionState.ERR})
    [status] = scene.book.statuses.values()
    assert status.error == b"SMP error INTERNAL"
    desk.answer = smp.SOK()
    await until(lambda: scene.book.states() == {ACTIVE})
    assert len(desk.connections) == 1
    await scene.end()


async def test_a_wrong_key_is_final(desk: Desk) -> None:
    desk.answer = smp.ERR(ErrorCode.AUTH)
    scene = await play(desk)
    await until(lambda: scene.book.states() == {SubscriptionState.AUTH})
    await asyncio.sleep(0.2)
    assert len(desk.seen) == 1
    await scene.end()


async def test_a_book_that_fails_is_never_the_end(desk: Desk) -> None:
    """Wherever it fails: reading, writing, and when the connection is left."""
    for failures in range(1, 6):
        book = Notebook(2)
        book.failures = failures
        scene = await play(desk, book)
        await until(lambda book=book: book.states() == {ACTIVE})  # type: ignore[misc]
        book.failures = failures
        desk.connections[-1].abort()
        await until(lambda book=book: not book.failures)  # type: ignore[misc]
        await until(lambda book=book: book.states() == {ACTIVE})  # type: ignore[misc]
        assert not scene.running.done()
        scene.running.cancel()
        await asyncio.gather(scene.running, return_exceptions=True)
    await desk.close()


async def test_cancelled_at_any_moment_it_leaves_cleanly(desk: Desk) -> None:
    for turns in range(0, 60, 3):
        scene = await play(desk, Notebook(3))
        for _ in range(turns):
            await asyncio.sleep(0.0005)
        scene.running.cancel()
        await asyncio.gather(scene.running, return_exceptions=True)
        assert scene.running.cancelled()
        assert scene.subscriber.client is None
        assert ACTIVE not in scene.book.states()
        assert scene.story.ups == scene.story.downs
    await until(lambda: not desk.listener.connections)
    await desk.close()


async def test_a_refused_service_is_skipped_for_one_connection(desk: Desk) -> None:
    scene = await play(desk, settings=replace(FAST_SETTINGS, use_service=True))
    await until(lambda: scene.book.states() == {ACTIVE})
    assert scene.story.repairs == scene.book.cleared == 1
    # It is tried again with other credentials.
    desk.connections[-1].abort()
    await until(lambda: scene.story.repairs == 2)
    await until(lambda: scene.book.states() == {ACTIVE})
    await scene.end()


def nmsg() -> list[Answer]:
    return [Answer(b"", os.urandom(24), smp.NMSG(os.urandom(24), b"meta"))]


async def test_no_more_is_read_than_the_store_takes(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "FIRST_LIMIT", 0)
    scene = await play(desk)
    await until(lambda: scene.book.statuses)
    storing = scene.story.storing = asyncio.get_running_loop().create_future()
    desk.connections[0].push(nmsg())
    await until(lambda: scene.story.received)
    desk.connections[0].push(nmsg())
    await asyncio.sleep(0.1)
    assert len(scene.story.received) == 1
    scene.story.storing = None
    storing.set_result(0)
    await until(lambda: len(scene.story.received) == 2)
    assert len(desk.connections) == 1
    await scene.end()


async def test_a_stalled_store_confirms_nothing_and_keeps_the_connection(
    desk: Desk,
) -> None:
    scene = await play(desk)
    await until(lambda: scene.book.states() == {ACTIVE})
    storing = scene.story.storing = asyncio.get_running_loop().create_future()
    desk.connections[0].push(nmsg() * 3)
    await until(lambda: len(scene.story.received) == 3)
    await asyncio.sleep(0.3)
    assert desk.confirmed == [0]
    scene.story.storing = None
    storing.set_result(0)
    await until(lambda: desk.confirmed == [0, 3])
    desk.connections[0].push(nmsg() * 2)
    await until(lambda: desk.confirmed == [0, 3, 5])
    assert len(desk.connections) == 1
    await scene.end()


async def test_each_connection_confirms_its_own_notifications(desk: Desk) -> None:
    """Also if the last ones of the connection before were still being stored when it ended."""
    scene = await play(desk)
    await until(lambda: scene.book.states() == {ACTIVE})
    storing = scene.story.storing = asyncio.get_running_loop().create_future()
    desk.connections[0].push(nmsg() * 3)
    await until(lambda: scene.story.received)
    desk.connections[0].abort()
    await asyncio.sleep(0.1)
    assert len(desk.connections) == 1  # it waits for the store
    scene.story.storing = None
    storing.set_result(0)
    await until(lambda: desk.confirmed == [0, 0])
    await until(lambda: scene.book.states() == {ACTIVE})
    desk.connections[1].push(nmsg())
    await until(lambda: desk.confirmed == [0, 0, 1])
    await scene.end()


async def test_a_router_that_takes_no_confirmations_gets_none(desk: Desk) -> None:
    desk.takes_confirmations = False
    scene = await play(desk)
    await until(lambda: scene.book.states() == {ACTIVE})
    desk.connections[0].push(nmsg())
    await until(lambda: scene.story.received)
    await asyncio.sleep(0.2)
    assert desk.confirmed == [0]
    await scene.end()


@pytest.mark.parametrize("message", [smp.DELD(), smp.END(), smp.OK(), smp.NMSG(bytes(24), b"meta")])
async def test_a_flood_of_useless_events_is_slowed_down_and_ended(
    desk: Desk,
    message: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(budget, "BURST_SECONDS", 0.5)
    monkeypatch.setattr(budget, "MAX_PAUSED_SECONDS", 0.5)
    scene = await play(desk)
    await until(lambda: scene.book.states() == {ACTIVE})
    scene.story.unknown = isinstance(message, smp.NMSG)
    [connection] = desk.connections
    sent = 0
    while not connection.is_closing:
        if connection.is_writable:
            flood = [Answer(b"", os.urandom(24), message) for _ in range(50)]
            connection.push(flood)
            sent += len(flood)
        await asyncio.sleep(0.001)
    assert sent < 20_000
    assert len(scene.book.ended) + len(scene.story.received) < 5_000
    assert caplog.text.count("\n") < 10
    await asyncio.sleep(0.3)
    assert len(desk.connections) == 1  # it is not connected to again soon
    await scene.end()


@pytest.mark.parametrize("takes_confirmations", [False, True])
async def test_what_has_arrived_is_read_before_leaving_a_router_that_does_not_repeat_it(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, takes_confirmations: bool
) -> None:
    """Also if reading was paused because the store is slow."""
    monkeypatch.setattr(inbox, "FIRST_LIMIT", 0)
    desk.takes_confirmations = takes_confirmations
    scene = await play(desk)
    await until(lambda: scene.book.states() == {ACTIVE})
    storing = scene.story.storing = asyncio.get_running_loop().create_future()
    desk.connections[0].push(nmsg())
    await until(lambda: scene.story.received)
    for _ in range(3):
        desk.connections[0].push(nmsg())
    await asyncio.sleep(0.1)
    assert len(scene.story.received) == 1
    scene.running.cancel()
    await asyncio.gather(scene.running, return_exceptions=True)
    assert len(scene.story.received) == (1 if takes_confirmations else 4)
    storing.set_result(0)
    await scene.end()


async def test_only_the_first_failure_is_logged(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    """Any client may name any number of routers that cannot be reached."""
    caplog.set_level("INFO")
    desk.hang_up = True
    scene = await play(desk)
    await until(lambda: len(desk.connections) >= 4)
    assert caplog.text.count("cannot be reached") <= 2
    await scene.end()


async def test_a_router_that_worked_is_soon_connected_to_again(desk: Desk) -> None:
    """Also if its next connections do not last."""
    settings = replace(
        FAST_SETTINGS,
        stable_after=0.1,
        healthy_delay=0.03,
        backoff=Backoff(first=0.02, last=60.0, jitter=0.0),
    )
    scene = await play(desk, settings=settings)
    await until(lambda: desk.connections)
    await asyncio.sleep(0.12)
    desk.hang_up = True
    desk.connections[-1].abort()
    await until(lambda: len(desk.connections) >= 20)
    await scene.end()


async def test_little_waits_in_the_systems_buffer(desk: Desk) -> None:
    scene = await play(desk)
    await until(lambda: scene.book.statuses)
    [size] = receive_buffers(int(desk.address.port))
    assert size <= 2 * RECEIVE_BUFFER  # the system doubles it, for its own accounts
    await scene.end()


async def test_it_never_says_that_it_took_all(desk: Desk) -> None:
    """Notifications that cross a close_notify would be taken for delivered."""
    scene = await play(desk)
    await until(lambda: scene.book.statuses)
    [connection] = desk.connections
    scene.running.cancel()
    await until(lambda: connection.is_closing)
    assert not connection.left_in_order
    await scene.end()


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
    """SDEL and TDEL do not reach the messaging router: its account has more than ours."""
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
