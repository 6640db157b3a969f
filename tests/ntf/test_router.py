"""The router as a whole: starting, stopping, keeping up."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from heliograph.db.errors import DatabaseError
from heliograph.ntf.router import NtfRouter
from heliograph.ntf.store import receiving
from heliograph.ntf.store.records import Incoming
from heliograph.ntf.subscriber import inbox
from heliograph.transport.handshake import ServiceRequest
from heliograph.wire import ntf
from heliograph.wire.handshakes import ServiceRole
from heliograph.wire.ntf.tokens import SubscriptionState
from tests.db.postgres import Postgres
from tests.faults.relay import Relay
from tests.ntf.support import SETTINGS, NtfWorld, a_world
from tests.waiting import eventually, until


def delay_store(
    world: NtfWorld, monkeypatch: pytest.MonkeyPatch, wait: Callable[[], Awaitable[object]]
) -> None:
    """Have the router's store wait before it stores each batch of notifications."""
    receive = world.router.store.receive

    async def delayed(server_id: int, incoming: list[Incoming]) -> receiving.StoredBatch:
        await wait()
        return await receive(server_id, incoming)

    monkeypatch.setattr(world.router.store, "receive", delayed)


async def test_own_domains_are_counted_apart(small_world: NtfWorld) -> None:
    small_world.settings = replace(SETTINGS, own_domains=("0.0.1", "other.org"))
    await small_world.restart_ntf()
    phone = await small_world.registered()
    first, second = await small_world.queues(2)
    await phone.subscribe(first)
    deleted = await phone.subscribe(second)
    await phone.ask(ntf.SDEL(), deleted)
    await small_world.send(first, second)
    await phone.notified_of(first)
    counters = small_world.router.stats.counters
    await until(lambda: counters.ntf_received_auth)
    assert counters.received_own == {"127.0.0.1": 1}
    assert counters.received_auth_own == {"127.0.0.1": 1}
    assert small_world.router.observer.own_host(999) is None
    small_world.settings = replace(SETTINGS, own_domains=("7.0.0.1",))
    await small_world.restart_ntf(phone)
    await small_world.send(first)
    await phone.notified_of(first)
    assert small_world.router.stats.counters.received_own == {}


async def test_notifications_wait_for_a_store_that_fails(
    small_world: NtfWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    phone = await small_world.registered()
    queue = await small_world.queue()
    await phone.subscribe(queue)
    failures = [DatabaseError("the disk is full"), RuntimeError("a bug")]
    receive = small_world.router.store.receive

    async def failing(server_id: int, incoming: list[Incoming]) -> receiving.StoredBatch:
        if failures:
            raise failures.pop()
        return await receive(server_id, incoming)

    monkeypatch.setattr(small_world.router.store, "receive", failing)
    await small_world.send(queue)
    await phone.notified_of(queue)
    assert "1 notifications cannot be stored yet: the disk is full" in caplog.text
    assert "1 notifications cannot be stored yet: a bug" in caplog.text


async def test_a_store_that_fails_is_logged_once_for_all_that_waits(
    small_world: NtfWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    phone = await small_world.registered()
    queues = await small_world.queues(5)
    for queue in queues:
        await phone.subscribe(queue)
    tried, is_full = 0, True
    receive = small_world.router.store.receive

    async def failing(server_id: int, incoming: list[Incoming]) -> receiving.StoredBatch:
        nonlocal tried
        tried += 1
        if is_full:
            raise DatabaseError("the disk is full")
        return await receive(server_id, incoming)

    monkeypatch.setattr(small_world.router.store, "receive", failing)
    for queue in queues:
        before = tried
        await small_world.send(queue)
        await until(lambda before=before: tried > before)  # type: ignore[misc]
    await until(lambda: tried > 12)
    is_full = False
    await phone.notified_of(*queues)
    assert caplog.text.count("cannot be stored yet") == 1


async def test_messaging_routers_are_not_read_from_while_the_store_does_not_keep_up(
    small_world: NtfWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "FIRST_LIMIT", 50)
    phone = await small_world.registered()
    queue = await small_world.queue()
    subscription = await phone.subscribe(queue)
    [subscriber] = small_world.router.subscribers.values()
    held = asyncio.Event()
    delay_store(small_world, monkeypatch, held.wait)
    for _ in range(15):
        await small_world.sender.ask_many([queue.sending(b"x") for _ in range(8)])
    await until(lambda: subscriber.unstored > 50)
    before = subscriber.unstored
    for _ in range(15):
        await small_world.sender.ask_many([queue.sending(b"x") for _ in range(8)])
        await asyncio.sleep(0.005)
    await asyncio.sleep(0.1)
    assert subscriber.unstored <= before + 128  # what had been read already
    held.set()
    await until(lambda: subscriber.unstored == 0)
    await phone.notified_of(queue)
    assert (await phone.schk(subscription)).state is SubscriptionState.ACTIVE


async def test_what_has_arrived_is_stored_before_a_stop(
    small_world: NtfWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The messaging router would not send it again."""
    phone = await small_world.registered()
    queue = await small_world.queue()
    await phone.subscribe(queue)
    arrived = asyncio.Event()

    async def arrive() -> None:
        arrived.set()
        await asyncio.sleep(0.2)

    delay_store(small_world, monkeypatch, arrive)
    await small_world.send(queue)
    await arrived.wait()
    await asyncio.sleep(0.1)  # until the messaging router knows that it arrived
    await small_world.stop_ntf()
    await small_world.start_ntf()
    await phone.notified_of(queue)


async def test_stopping_at_any_moment_loses_nothing(small_world: NtfWorld) -> None:
    phone = await small_world.registered()
    queues = await small_world.queues(3)
    for queue in queues:
        await phone.subscribe(queue)
    for turn in range(16):
        queue = queues[turn % 3]
        sent = await small_world.send_and_receive(queue)
        await asyncio.sleep(turn * 0.0015)
        await small_world.restart_ntf()
        await until(lambda queue=queue, sent=sent: phone.was_notified(queue, sent))  # type: ignore[misc]
    await small_world.until_none_pending()


async def test_a_stop_waits_for_no_messaging_router(small_world: NtfWorld) -> None:
    """One is silent after it worked, with NSUB in flight; one never says a word of TLS.

    Time-outs of the network are 20 s and more, so a stop that waits for one exceeds the bound.
    """
    relay = Relay(int(small_world.smp.address.port))
    await relay.start()
    silent = socket.create_server(("127.0.0.1", 0))  # nobody accepts
    working = replace(small_world.smp.address, port=str(relay.port))
    mute = replace(working, port=str(silent.getsockname()[1]))
    phone = await small_world.registered()
    queue, unanswered, unreachable = await small_world.queues(3)
    try:
        await phone.subscribe(queue, address=working)
        await phone.snew(unreachable, address=mute)
        relay.stall()
        await phone.snew(unanswered, address=working)
        sent = await small_world.send_and_receive(queue)
        await until(lambda: small_world.router.subscribers.dials.in_flight == 1)
        async with asyncio.timeout(10):
            await small_world.stop_ntf()
        await relay.cut()
        await small_world.start_ntf()
        await until(lambda: phone.was_notified(queue, sent))
    finally:
        silent.close()
        await relay.close()


async def test_a_stop_leaves_no_task_behind(small_world: NtfWorld) -> None:
    before = asyncio.all_tasks()
    phone = await small_world.registered()
    await phone.subscribe(await small_world.queue())
    await small_world.restart_ntf()
    await small_world.stop_ntf()
    await asyncio.sleep(0)
    left = {
        task
        for task in asyncio.all_tasks() - before
        if "/ntf/" in task.get_coro().cr_code.co_filename  # type: ignore[union-attr]
    }
    assert not left
    await small_world.start_ntf()


async def test_services_are_not_for_clients(small_world: NtfWorld) -> None:
    class Connection:
        answer: object = None

        def answer_service(self, answer: object) -> None:
            self.answer = answer

    connection = Connection()
    request = ServiceRequest(ServiceRole.NOTIFIER, os.urandom(32), ())
    small_world.router.service_requested(connection, request)  # type: ignore[arg-type]
    assert connection.answer is not None
    small_world.router.writable(connection)  # type: ignore[arg-type]


async def test_a_router_without_a_journal(sqlite_url: str) -> None:
    running = await NtfRouter.start(sqlite_url, {})
    running.observer.smp_connected(1)
    assert running.journal.backlog == 0
    await running.close()


@pytest.mark.timeout(60)
async def test_a_database_that_dies_and_comes_back(tmp_path: object) -> None:
    """Killed while pushes are pending and notifications arrive."""
    server = Postgres()
    try:
        async with a_world(server.new_url(), tmp_path) as world:  # type: ignore[arg-type]
            phone = await world.registered()
            queues = await world.queues(4)
            for queue in queues:
                await phone.subscribe(queue)
            for _ in range(3):
                server.kill()
                sending = asyncio.create_task(world.send(*queues))
                await asyncio.sleep(0.1)
                await asyncio.to_thread(server.start)
                await sending
                await phone.notified_of(*queues)

            async def is_none_pending() -> bool:
                return await world.pending_pushes() == 0

            await eventually(is_none_pending, 20)
            assert (await phone.schk(phone.subscriptions[0])).state is SubscriptionState.ACTIVE
    finally:
        server.remove()


async def test_a_stalled_store_makes_nothing_delivered(
    small_world: NtfWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was received and not stored stays at the messaging router, in case of a kill."""
    phone = await small_world.registered()
    queue = await small_world.queue()
    await phone.subscribe(queue)
    [subscriber] = small_world.router.subscribers.values()
    stuck = asyncio.Event()
    delay_store(small_world, monkeypatch, stuck.wait)
    first = subscriber.client
    sent = await small_world.send_and_receive(queue)
    await until(lambda: subscriber.unstored)
    await asyncio.sleep(1.2)  # the messaging router confirms nothing by time alone
    assert subscriber.client is first
    assert await small_world.smp.notifications() == 1
    stuck.set()
    await until(lambda: phone.was_notified(queue, sent))
    await until(lambda: subscriber.unstored == 0)
    assert len(small_world.apns.accepted(phone.device)) == 2  # the code, and one push
    await phone.until_state(phone.subscriptions[0], SubscriptionState.ACTIVE)


async def test_a_store_that_is_slow_but_moves_keeps_its_connections(
    small_world: NtfWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    phone = await small_world.registered()
    queue = await small_world.queue()
    await phone.subscribe(queue)
    [subscriber] = small_world.router.subscribers.values()
    stored, turn = small_world.router.store.receive, asyncio.Lock()

    async def slow(server_id: int, incoming: list[Incoming]) -> receiving.StoredBatch:
        async with turn:
            await asyncio.sleep(0.05)
            return await stored(server_id, incoming)

    monkeypatch.setattr(small_world.router.store, "receive", slow)
    first = subscriber.client
    for _ in range(8):
        await small_world.send(queue)
        await asyncio.sleep(0.01)
    await until(lambda: small_world.router.stats.counters.ntf_received == 8)
    assert subscriber.client is first
