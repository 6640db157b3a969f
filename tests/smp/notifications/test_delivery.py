"""Delivery of notifications under stress: slow readers, full outboxes, lost connections."""

import asyncio
import socket
from typing import Any

import pytest

from heliograph.smp.clients import outbox
from heliograph.smp.notifications import delivery
from heliograph.smp.store.records import StoredNotification
from heliograph.transport.connection import BlockConnection
from heliograph.wire import smp
from heliograph.wire.smp.confirmations import encode_confirmation
from tests.smp.support import (
    AT_ONCE,
    OK,
    QUIET,
    Peer,
    Queue,
    World,
    create_notified,
    service,
    with_settings,
)
from tests.transport.support import connected_sockets
from tests.waiting import eventually, until


async def send(peer: Peer, queues: list[Queue], count: int) -> None:
    """So many notifications of each queue; the messages are received by nobody."""
    for start in range(0, count, 100):
        batch = range(start, min(start + 100, count))
        requests = [queue.sending(b"%d" % n) for n in batch for queue in queues]
        assert await peer.ask_many(requests) == [OK] * len(requests)


def times(peer: Peer, queue: Queue) -> list[bytes]:
    """The messages that the peer was notified of, each once, in the order they came."""
    notifier = queue.notifier
    assert notifier is not None
    found = [notifier.decrypt(nmsg).msg_id for of, nmsg in peer.pushes if of == queue.notifier_id]
    return list(dict.fromkeys(found))


async def confirm(peer: Peer, count: int) -> None:
    assert await peer.client.request(smp.PING(), corr_id=encode_confirmation(count)) == smp.PONG()


async def expected(peer: Peer, queue: Queue) -> list[bytes]:
    found = []
    while (message := await queue.get(peer)) != OK:
        found.append(message.msg_id)
        await queue.ack(peer, message)
    return found


def stop_reading(peer: Peer) -> None:
    peer.client.pause_reading()


def read_again(peer: Peer) -> None:
    peer.client.resume_reading()


def shrink_buffers(world: World) -> None:
    """At both ends of each connection to a router."""
    for sock in connected_sockets(int(world.address.port)):
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, 16_384)


@pytest.fixture
def small_outbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "MAX_QUEUED", 10)
    monkeypatch.setattr(delivery, "NOTIFICATIONS_PER_PAGE", 4)
    monkeypatch.setattr(delivery, "MAX_BURST", 3)


@pytest.mark.parametrize(
    "settings", [AT_ONCE, with_settings(ntf_delivery_interval=0.05)], ids=["at once", "in cycles"]
)
@pytest.mark.usefixtures("small_outbox")
class TestSmallOutbox:
    """More waits than memory may hold: the rest comes from the store, and in order."""

    async def test_of_what_waits(self, world: World) -> None:
        alice, ntf = await world.connect(), await world.connect()
        queues = [await create_notified(alice) for _ in range(3)]
        await send(alice, queues, 20)
        for queue in queues:
            assert await queue.nsub(ntf) == smp.SOK()
        await until(lambda: len(ntf.pushes) >= 60)
        for queue in queues:
            assert times(ntf, queue) == await expected(alice, queue)

    async def test_of_a_service(self, world: World) -> None:
        alice, ntf = await world.connect(), await world.connect(service=service())
        queues = [await create_notified(alice) for _ in range(3)]
        await ntf.ask_many([queue.nsubscribing() for queue in queues])
        await ntf.close()
        await send(alice, queues, 20)
        ntf = await world.connect(service=service())
        await ntf.nsubs()
        await until(lambda: len(ntf.pushes) >= 60)
        for queue in queues:
            assert times(ntf, queue) == await expected(alice, queue)

    async def test_while_more_is_sent(self, world: World) -> None:
        alice, ntf = await world.connect(), await world.connect()
        queues = [await create_notified(alice) for _ in range(3)]
        await send(alice, queues, 20)
        sending = asyncio.create_task(send(alice, queues, 40))
        for queue in queues:
            assert await queue.nsub(ntf) == smp.SOK()
        await sending
        await until(lambda: sum(len(times(ntf, queue)) for queue in queues) == 180)
        for queue in queues:
            assert times(ntf, queue) == await expected(alice, queue)

    async def test_of_a_client_that_does_not_read(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        alice, ntf = await world.connect(), await world.connect()
        queue = await create_notified(alice)
        await queue.nsub(ntf)
        client = world.router.subscribers.notifiers[queue.notifier_id]
        await until(lambda: not client.outbox.is_loading)  # else nothing would be queued
        client.connection.pause_writing()
        await send(alice, [queue], 40)
        await until(lambda: client.outbox.overflowed)
        assert len(client.outbox) == 10
        assert ntf.pushes == type(ntf.pushes)()
        client.connection.resume_writing()
        await until(lambda: len(ntf.pushes) >= 40)
        assert times(ntf, queue) == await expected(alice, queue)
        await world.arrived()
        assert await world.notifications() == 0
        assert client.outbox.is_known_empty
        await send(alice, [queue], 1)
        await until(lambda: len(ntf.pushes) == 41)

    async def test_of_one_that_never_reads_again(self, world: World) -> None:
        alice, ntf = await world.connect(), await world.connect()
        queue = await create_notified(alice)
        await queue.nsub(ntf)
        world.router.subscribers.notifiers[queue.notifier_id].connection.pause_writing()
        await send(alice, [queue], 40)
        await asyncio.sleep(0.15)
        ntf.vanish()
        again = await world.connect()
        await queue.nsub(again)
        await until(lambda: len(again.pushes) == 40)
        assert times(again, queue) == await expected(alice, queue)

    async def test_taken_over_while_behind(self, world: World) -> None:
        alice, slow, quick = [await world.connect() for _ in range(3)]
        queue = await create_notified(alice)
        await queue.nsub(slow)
        client = world.router.subscribers.notifiers[queue.notifier_id]
        client.connection.pause_writing()
        await send(alice, [queue], 40)
        assert await queue.nsub(quick) == smp.SOK()
        await until(lambda: len(quick.pushes) == 40)
        client.connection.resume_writing()
        assert await slow.push(queue.notifier_id) == smp.END()
        assert await slow.is_quiet(0.15)
        assert times(quick, queue) == await expected(alice, queue)

    async def test_unconfirmed_is_bounded_too(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(outbox, "MAX_UNCONFIRMED", 6)
        alice, ntf = await world.connect(), await world.connect()
        queue = await create_notified(alice)
        await queue.nsub(ntf)
        client = world.router.subscribers.notifiers[queue.notifier_id]
        await send(alice, [queue], 30)
        longest = 0

        def all_there() -> bool:
            nonlocal longest
            longest = max(longest, client.outbox.unconfirmed)
            return len(ntf.pushes) >= 30

        await until(all_there)
        assert longest < 6 + 3
        assert times(ntf, queue) == await expected(alice, queue)


async def test_a_real_slow_reader_gets_everything_once_it_reads(small_world: World) -> None:
    """The kernel's buffers fill, the router keeps the rest, and memory stays small."""
    alice, ntf = await small_world.connect(), await small_world.connect()
    queues = [await create_notified(alice) for _ in range(60)]
    await ntf.ask_many([queue.nsubscribing() for queue in queues])
    client = small_world.router.subscribers.notifiers[queues[0].notifier_id]
    shrink_buffers(small_world)
    stop_reading(ntf)
    written = 0
    while client.connection.write_paused_at is None:
        await send(alice, queues, 1)
        written += 60
    await send(alice, queues, 2)
    written += 120
    await until(lambda: len(client.outbox) >= 60)
    assert not client.connection.has_arrived
    read_again(ntf)
    await until(lambda: len(ntf.pushes) >= written)
    for queue in queues[:5]:
        found = times(ntf, queue)
        assert found == (await expected(alice, queue))[: len(found)]
    await small_world.arrived()
    assert await small_world.notifications() == 0


async def test_a_lost_connection_costs_a_repetition_at_most(small_world: World) -> None:
    alice = await small_world.connect()
    queues = [await create_notified(alice) for _ in range(5)]
    seen: dict[bytes, set[bytes]] = {queue.notifier_id: set() for queue in queues}

    async def listen() -> None:
        while True:
            ntf = await small_world.connect()
            await ntf.ask_many([queue.nsubscribing() for queue in queues])
            await asyncio.sleep(0.01)
            ntf.vanish()
            for of, message in ntf.pushes:
                if isinstance(message, smp.NMSG):
                    notifier = next(q.notifier for q in queues if q.notifier_id == of)
                    assert notifier is not None
                    seen[of].add(notifier.decrypt(message).msg_id)

    async def wait() -> None:
        await until(lambda: sum(map(len, seen.values())) == 100)

    listening = asyncio.create_task(listen())
    await send(alice, queues, 20)
    try:
        await wait()
    finally:
        listening.cancel()
    for queue in queues:
        assert seen[queue.notifier_id] == set(await expected(alice, queue))


async def test_messages_held_back_from_a_slow_reader(small_world: World) -> None:
    """And also if the queue was put out of memory meanwhile."""
    alice, bob = await small_world.connect(), await small_world.connect()
    queues = [await create_notified(alice, subscribe=True) for _ in range(3)]
    client = small_world.router.subscribers.recipients[queues[0].rcv_id]
    client.connection.pause_writing()
    for queue in queues:
        assert await queue.send(bob, b"one") == OK
        assert await queue.send(bob, b"two") == OK
    assert await alice.is_quiet()
    small_world.router.queues.clear()
    client.connection.resume_writing()
    received: dict[bytes, Any] = {}
    for _ in queues:
        await until(lambda: alice.pushes)
        of, message = alice.pushes.popleft()
        received[of] = message
    for queue in queues:
        assert queue.body(received[queue.rcv_id]) == b"one"
        assert queue.body(await queue.ack(alice, received[queue.rcv_id])) == b"two"


async def test_held_back_and_taken_over(small_world: World) -> None:
    alice, phone, bob = [await small_world.connect() for _ in range(3)]
    queue = await create_notified(alice, subscribe=True)
    client = small_world.router.subscribers.recipients[queue.rcv_id]
    client.connection.pause_writing()
    await queue.send(bob, b"one")
    assert await queue.receive_all(phone) == [b"one"]
    client.connection.resume_writing()
    assert await alice.push(queue.rcv_id) == smp.END()
    assert await alice.is_quiet()


@pytest.mark.parametrize("settings", [with_settings(ntf_delivery_interval=60)])
async def test_withdrawn_before_it_was_sent(small_world: World) -> None:
    """Notifications not yet sent to a service go to the current subscriber only."""
    alice = await small_world.connect()
    ntf, plain = await small_world.connect(service=service()), await small_world.connect()
    queues = [await create_notified(alice) for _ in range(3)]
    await ntf.ask_many([queue.nsubscribing() for queue in queues])
    await send(alice, queues, 2)
    client = small_world.router.subscribers.services[ntf.service_id]
    await until(lambda: len(client.outbox) == 6)
    assert await queues[0].nsub(plain) == smp.SOK()
    assert await queues[1].ndel(alice) == OK
    assert len(client.outbox) == 2
    await until(lambda: small_world.router.subscribers.notifiers[queues[0].notifier_id].outbox)
    small_world.router.delivery.deliver()
    await until(lambda: len(ntf.pushes) == 4)
    await until(lambda: len(plain.pushes) == 2)
    events = [message for _, message in ntf.pushes if not isinstance(message, smp.NMSG)]
    assert events == [smp.END(), smp.DELD()]
    assert len(times(ntf, queues[2])) == 2
    assert len(times(plain, queues[0])) == 2


class TestWhatASubscriberMayHaveLost:
    """Received is not stored: one that dies at once gets it again, one that leaves does not."""

    async def _notified(self, world: World) -> tuple[Peer, Peer, Queue]:
        alice, ntf = await world.connect(), await world.connect()
        queue = await create_notified(alice)
        await queue.nsub(ntf)
        await send(alice, [queue], 1)
        await until(lambda: ntf.pushes)
        return alice, ntf, queue

    @pytest.mark.parametrize("settings", [AT_ONCE])
    async def test_killed(self, world: World) -> None:
        _, ntf, queue = await self._notified(world)
        ntf.client.abort()  # no close_notify, as when its process is killed
        await until(lambda: len(world.router.clients) == 1)
        again = await world.connect()
        await queue.nsub(again)
        await until(lambda: again.pushes)
        assert times(again, queue) == times(ntf, queue)

    @pytest.mark.parametrize("settings", [AT_ONCE])
    async def test_gone_in_order(self, world: World) -> None:
        alice, ntf, queue = await self._notified(world)
        await until(lambda: all(c.connection.has_arrived for c in world.router.clients))
        await ntf.close()
        await until(lambda: len(world.router.clients) == 1)
        again = await world.connect()
        await queue.nsub(again)
        await send(alice, [queue], 1)
        await until(lambda: again.pushes)
        assert len(times(again, queue)) == 1
        assert times(again, queue) != times(ntf, queue)

    @pytest.mark.parametrize("settings", [AT_ONCE])
    async def test_confirmed(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """If a subscriber confirms, arrival and a close_notify confirm nothing."""
        monkeypatch.setattr(delivery, "CONFIRM_AFTER", 0.0)
        alice, ntf = await world.connect(), await world.connect()
        await confirm(ntf, 0)
        assert list(ntf.pushes) == [(b"", smp.PONG())]
        queue = await create_notified(alice)
        await queue.nsub(ntf)
        await send(alice, [queue], 3)
        await until(lambda: len(times(ntf, queue)) == 3)
        await confirm(ntf, 2)
        await until(lambda: all(c.connection.has_arrived for c in world.router.clients))
        await asyncio.sleep(QUIET)
        await ntf.close()
        await until(lambda: len(world.router.clients) == 1)
        again = await world.connect()
        await queue.nsub(again)
        await until(lambda: again.pushes)
        assert times(again, queue) == times(ntf, queue)[2:]

    @pytest.mark.parametrize("settings", [AT_ONCE])
    async def test_not_confirmed_in_time(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(delivery, "CONFIRM_TIMEOUT", 0.2)
        alice, ntf = await world.connect(), await world.connect()
        await confirm(ntf, 0)
        queue = await create_notified(alice)
        await queue.nsub(ntf)
        await send(alice, [queue], 1)
        await until(lambda: len(world.router.clients) == 1)
        again = await world.connect()
        await queue.nsub(again)
        await until(lambda: again.pushes)
        assert times(again, queue) == times(ntf, queue)

    @pytest.mark.parametrize("settings", [AT_ONCE])
    async def test_taken_over(self, world: World) -> None:
        alice, _, queue = await self._notified(world)
        await until(lambda: all(c.connection.has_arrived for c in world.router.clients))
        other = await world.connect()
        await queue.nsub(other)
        await send(alice, [queue], 1)
        await until(lambda: other.pushes)
        assert len(times(other, queue)) == 1

    @pytest.mark.parametrize("settings", [AT_ONCE])
    async def test_removed_while_the_next_subscriber_reads(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A read that began before the removal does not repeat what was removed."""
        alice, _, queue = await self._notified(world)
        await until(lambda: all(c.connection.has_arrived for c in world.router.clients))
        store = world.router.store
        read = store.notifications
        page = await read([queue.notifier_id], -1, 10)
        assert len(page) == 1

        async def is_removed() -> bool:
            return page[0] not in await read([queue.notifier_id], -1, 10)

        async def slow(*_: object) -> list[StoredNotification]:
            await eventually(is_removed)
            return page

        monkeypatch.setattr(store, "notifications", slow)
        other = await world.connect()
        await queue.nsub(other)
        await send(alice, [queue], 1)
        await until(lambda: other.pushes)
        assert len(times(other, queue)) == 1

    @pytest.mark.parametrize("settings", [AT_ONCE])
    async def test_the_moment_begins_when_it_arrives(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Not when it was sent: a slow reader may get it much later."""
        arrived = False
        monkeypatch.setattr(BlockConnection, "has_arrived", property(lambda _: arrived))
        monkeypatch.setattr(delivery, "CONFIRM_AFTER", 0.2)
        _, _, queue = await self._notified(world)
        client = world.router.subscribers.notifiers[queue.notifier_id]
        await asyncio.sleep(0.3)
        arrived = True
        world.router.delivery.remove_confirmed()
        assert client.outbox.unconfirmed
        await until(lambda: not client.outbox.unconfirmed)

    @pytest.mark.parametrize("settings", [AT_ONCE])
    async def test_after_a_moment(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(delivery, "CONFIRM_AFTER", 0.1)
        _, ntf, _ = await self._notified(world)
        await until(lambda: not world.router.delivery.unconfirmed_clients)
        await world.router.store.drained()
        assert await world.notifications() == 0
        assert ntf.client.is_connected
