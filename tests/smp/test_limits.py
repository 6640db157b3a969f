"""What one client may cost: messages on their way to it, and the work of refusing it."""

from typing import Any

import pytest

from heliograph.smp.messaging import MAX_PENDING
from heliograph.smp.outgoing import Outgoing
from heliograph.smp.store import Entity, Store
from heliograph.transport.client import ClientRequest
from heliograph.wire import smp
from heliograph.wire.errors import ErrorCode
from tests.smp.support import AUTH, OK, Queue, World, create, create_notified, keys, until

QUEUES = 3 * MAX_PENDING + 5


@pytest.fixture
def bursts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many messages were held in memory for one client, each time they were written."""
    sizes: list[int] = []
    flush = Outgoing.flush

    def counting(outgoing: Outgoing) -> None:
        sizes.extend(
            sum(isinstance(item.message, smp.MSG) for item in items)
            for items in outgoing._messages.values()
        )
        flush(outgoing)

    monkeypatch.setattr(Outgoing, "flush", counting)
    return sizes


async def full_queues(world: World) -> list[Queue]:
    alice = await world.connect()
    queues = [await create(alice, subscribe=False) for _ in range(QUEUES)]
    answers = await alice.ask_many([queue.sending(b"hello") for queue in queues])
    assert set(answers) == {OK}
    return queues


def subscribing(queues: list[Queue]) -> list[ClientRequest]:
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
    assert not small_world.router._commands.messaging._held_back
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
    assert not small_world.router._commands.messaging._held_back
    assert sum(bursts) == 0
    assert await queue.receive_all(alice) == [b"one", b"two"]


# Refusals


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Entity, int]]:
    """What was looked up in the store."""
    made: list[tuple[Entity, int]] = []
    load = Store.load

    async def counting(store: Store, entity: Entity, ids: Any) -> Any:
        made.append((entity, len(ids)))
        return await load(store, entity, ids)

    monkeypatch.setattr(Store, "load", counting)
    return made


async def test_a_stranger_costs_the_same_look_into_the_store(
    small_world: World, looks: list[tuple[Entity, int]]
) -> None:
    """Else the time of the answer would tell which queues are in use."""
    alice, stranger = await small_world.connect(), await small_world.connect()
    queue = await create_notified(alice)
    await queue.secure(alice)
    looks.clear()
    commands = (
        (smp.SUB(), queue.rcv_id, Entity.RECIPIENT),
        (queue.sending(b"x").command, queue.snd_id, Entity.SENDER),
        (smp.NSUB(), queue.notifier_id, Entity.NOTIFIER),
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
    small_world: World, looks: list[tuple[Entity, int]]
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
    assert looks == [(Entity.RECIPIENT, 1)] or looks == [(Entity.RECIPIENT, 2)]
    assert small_world.router.counters.auth_errors == 2


async def test_refused_though_the_look_fails(
    small_world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    alice = await small_world.connect()
    queue = await create(alice)

    async def fail(*_: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(Store, "load", fail)
    assert await alice.ask(smp.SUB(), queue.rcv_id, keys().private) == smp.ERR(ErrorCode.AUTH)
    assert "loading queues failed" in caplog.text
