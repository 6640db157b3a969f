"""What one client may cost: messages on their way to it, and the work of refusing it."""

import asyncio
import time
from typing import Any

import pytest

from heliograph.runtime.limits import RateLimit
from heliograph.smp.commands.messages import MAX_PENDING
from heliograph.smp.settings import SmpLimits
from heliograph.smp.store.store import EntityKind, SmpStore
from heliograph.transport.client import ClientRequest
from heliograph.transport.server import Answer, ServerConnection
from heliograph.wire import smp
from heliograph.wire.errors import ErrorCode
from heliograph.wire.handshakes import ServiceRole
from tests.smp.support import (
    AUTH,
    OK,
    Queue,
    World,
    a_world,
    create,
    create_notified,
    keys,
    service,
    with_settings,
)
from tests.waiting import until

QUEUES = 3 * MAX_PENDING + 5


@pytest.fixture
def bursts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many messages were held in memory for one client, each time they were written."""
    sizes: list[int] = []
    send_all = ServerConnection.send_all

    def counting(connection: ServerConnection, messages: list[Answer], answered: int) -> None:
        sizes.append(sum(isinstance(item.message, smp.MSG) for item in messages))
        send_all(connection, messages, answered)

    monkeypatch.setattr(ServerConnection, "send_all", counting)
    return sizes


async def full_queues(world: World) -> list[Queue]:
    alice = await world.connect()
    queues = [await create(alice, subscribe=False) for _ in range(QUEUES)]
    answers = await alice.ask_many([queue.sending(b"hello") for queue in queues])
    assert set(answers) == {OK}
    return queues


def subscribing(queues: list[Queue]) -> list[ClientRequest[Any]]:
    return [ClientRequest(smp.SUB(), queue.rcv_id, queue.recipient.private) for queue in queues]


async def test_all_messages_come_but_never_many_at_once(
    small_world: World, bursts: list[int]
) -> None:
    queues = await full_queues(small_world)
    phone = await small_world.connect()
    assert set(await phone.ask_many(subscribing(queues))) == {smp.SOK()}
    await until(lambda: len(phone.pushes) == QUEUES)
    assert {entity_id for entity_id, _ in phone.pushes} == {queue.rcv_id for queue in queues}
    assert max(bursts) <= MAX_PENDING
    assert sum(bursts) == QUEUES


async def test_a_slow_reader_costs_no_memory_and_misses_nothing(
    small_world: World, bursts: list[int]
) -> None:
    alice, phone = await small_world.connect(), await small_world.connect()
    queues = [await create(phone) for _ in range(QUEUES)]
    client = small_world.router.subscribers.recipients[queues[0].rcv_id]
    client.connection.pause_writing()
    for start in range(0, QUEUES, 20):
        batch = [queue.sending(b"hello") for queue in queues[start : start + 20]]
        assert set(await alice.ask_many(batch)) == {OK}
    assert len(client.waiting) == QUEUES
    assert sum(bursts) == 0
    client.connection.resume_writing()
    await until(lambda: len(phone.pushes) == QUEUES)
    assert max(bursts) <= MAX_PENDING
    assert not client.waiting
    assert not small_world.router.handlers.messages.is_pausing
    for queue in queues:
        message = next(item for entity_id, item in phone.pushes if entity_id == queue.rcv_id)
        assert await queue.ack(phone, message) == OK


async def test_what_is_held_back_goes_with_its_client(
    small_world: World, bursts: list[int]
) -> None:
    alice, phone = await small_world.connect(), await small_world.connect()
    queue = await create(phone)
    client = small_world.router.subscribers.recipients[queue.rcv_id]
    client.connection.pause_writing()
    assert await queue.send(alice, b"one") == OK
    assert client.waiting
    client.connection.abort()
    await until(lambda: client not in small_world.router.clients)
    assert not client.waiting
    assert await queue.send(alice, b"two") == OK
    assert not small_world.router.handlers.messages.is_pausing
    assert sum(bursts) == 0
    assert await queue.receive_all(alice) == [b"one", b"two"]


# Rates


async def test_new_queues_of_one_address(sqlite_url: str) -> None:
    limits = SmpLimits(new_queues_per_minute=RateLimit(3))
    async with a_world(sqlite_url, with_settings(limits=limits)) as world:
        alice, bob = await world.connect(), await world.connect()
        first = await create(alice)
        for peer in (alice, bob):
            await create(peer)
        with pytest.raises(AssertionError, match="QUOTA"):
            await create(bob)
        assert await first.send(bob, b"hello") == OK
        assert await first.delete(alice) == OK
        assert world.router.observer.counters.queues_refused == 1
        assert world.router.observer.counters.queues_created == 3


async def test_commands_beyond_the_rate_wait(sqlite_url: str) -> None:
    """A refused SUB would look like a queue that is lost, so none is refused."""
    limits = SmpLimits(commands_per_second=RateLimit(50))
    async with a_world(sqlite_url, with_settings(limits=limits)) as world:
        busy, idle = await world.connect(), await world.connect()
        queue = await create(busy)
        started = time.monotonic()
        sending = [queue.sending(b"%d" % number, notify=False) for number in range(100)]
        answers = asyncio.ensure_future(busy.ask_many(sending))
        await until(lambda: world.router.observer.counters.throttled)
        assert await idle.ask(smp.PING()) == smp.PONG()
        assert await answers == [OK] * 100
        assert time.monotonic() - started >= 0.9
        reader = await world.connect()
        received = asyncio.ensure_future(queue.receive_all(reader))
        assert await received == [b"%d" % number for number in range(100)]


async def test_a_throttled_client_may_leave(sqlite_url: str) -> None:
    limits = SmpLimits(commands_per_second=RateLimit(1))
    async with a_world(sqlite_url, with_settings(limits=limits)) as world:
        busy = await world.connect()
        pending = asyncio.ensure_future(busy.ask_many([ClientRequest(smp.PING(), b"", None)] * 9))
        await until(lambda: world.router.observer.counters.throttled)
        busy.vanish()
        await until(lambda: not world.router.clients)
        assert await asyncio.gather(pending, return_exceptions=True)


# Refusals


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[EntityKind, int]]:
    """What was looked up in the store."""
    made: list[tuple[EntityKind, int]] = []
    load = SmpStore.load

    async def counting(store: SmpStore, entity: EntityKind, ids: Any) -> Any:
        made.append((entity, len(ids)))
        return await load(store, entity, ids)

    monkeypatch.setattr(SmpStore, "load", counting)
    return made


async def test_a_stranger_costs_the_same_look_into_the_store(
    small_world: World, looks: list[tuple[EntityKind, int]]
) -> None:
    """Else the time of the answer would tell which queues are in use."""
    alice, stranger = await small_world.connect(), await small_world.connect()
    queue = await create_notified(alice)
    await queue.secure(alice)
    looks.clear()
    commands = (
        (smp.SUB(), queue.rcv_id, EntityKind.RECIPIENT),
        (queue.sending(b"x").command, queue.snd_id, EntityKind.SENDER),
        (smp.NSUB(), queue.notifier_id, EntityKind.NOTIFIER),
    )
    for command, known, entity in commands:
        for entity_id in (known, bytes(24)):
            looks.clear()
            assert await stranger.ask(command, entity_id, keys().private) == AUTH
            assert looks == [(entity, 1)]
    looks.clear()
    assert await queue.sub(alice) == smp.SOK()
    assert looks == []


async def test_refused_beside_what_is_not(
    small_world: World, looks: list[tuple[EntityKind, int]]
) -> None:
    alice = await small_world.connect()
    queue = await create(alice)
    looks.clear()
    answers = await alice.ask_many(
        [
            ClientRequest(smp.SUB(), queue.rcv_id, keys().private),
            ClientRequest(smp.SUB(), queue.rcv_id, queue.recipient.private),
            ClientRequest(smp.SUB(), queue.rcv_id, keys().private),
        ]
    )
    assert answers == [AUTH, smp.SOK(), AUTH]
    assert looks == [(EntityKind.RECIPIENT, 1)] or looks == [(EntityKind.RECIPIENT, 2)]
    assert small_world.router.observer.counters.auth_errors == 2


async def test_refused_though_the_look_fails(
    small_world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    alice = await small_world.connect()
    queue = await create(alice)

    async def fail(*_: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(SmpStore, "load", fail)
    assert await alice.ask(smp.SUB(), queue.rcv_id, keys().private) == smp.ERR(ErrorCode.AUTH)
    assert "loading queues failed" in caplog.text


# Subscriptions, repeated


@pytest.mark.parametrize("command", ["NSUB", "NSUBS", "SUBS"])
async def test_a_client_that_subscribes_again_and_again_has_one_load_at_a_time(
    small_world: World, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """A load reads all that waits in the store, which everybody else reads, too."""
    load = {"NSUB": "notifications", "NSUBS": "service_notifications", "SUBS": "waiting_queues"}
    read = getattr(SmpStore, load[command])
    loads, running, most = 0, 0, 0

    async def counting(store: SmpStore, *arguments: Any) -> Any:
        nonlocal loads, running, most
        loads, running = loads + 1, running + 1
        most = max(most, running)
        await asyncio.sleep(0.05)
        running -= 1
        return await read(store, *arguments)

    monkeypatch.setattr(SmpStore, load[command], counting)
    role = {"NSUBS": ServiceRole.NOTIFIER, "SUBS": ServiceRole.MESSAGING}.get(command)
    alice = await small_world.connect()
    greedy = await small_world.connect(service=service(role=role) if role else None)
    queue = await create_notified(alice)
    await (queue.sub(greedy) if command == "SUBS" else queue.nsub(greedy))
    session = greedy.client.established.service
    request: ClientRequest[Any] = queue.nsubscribing()
    if session is not None:
        kind = smp.SUBS if command == "SUBS" else smp.NSUBS
        request = ClientRequest(kind(0), session.service_id, session.key)
    await greedy.ask_many([request] * 300)
    await queue.send(alice, b"hello")
    if command == "SUBS":
        while not isinstance(await greedy.push(), smp.MSG):
            pass
    else:
        assert isinstance(await greedy.push(queue.notifier_id), smp.NMSG)
    assert most == 1
    assert loads < 20
