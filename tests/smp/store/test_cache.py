"""Queues in memory: put out, loaded again, and what may happen while they are loaded."""

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest

from heliograph.smp.store.records import QueueRecord
from heliograph.smp.store.store import EntityKind
from heliograph.transport.client import ClientRequest
from heliograph.wire import smp
from tests.smp.support import AUTH, OK, World, create, create_notified, with_settings
from tests.waiting import until

SMALL = with_settings(cached_queues=3)


class Gate:
    """Loads of queues, the first of them, wait here, having read, until it is opened."""

    def __init__(self, world: World, first: int = 100) -> None:
        self._first = first
        self._load = world.router.store.load
        self._open = asyncio.Event()
        self.waiting = 0
        world.router.store.load = self.load  # type: ignore[method-assign]

    async def load(self, entity: EntityKind, ids: Sequence[bytes]) -> list[QueueRecord]:
        found = await self._load(entity, ids)
        self.waiting += 1
        if self.waiting <= self._first:
            await self._open.wait()
        return found

    def open(self) -> None:
        self._open.set()


@pytest.mark.parametrize("settings", [SMALL])
async def test_a_small_cache_loses_nothing(world: World) -> None:
    chance = random.Random(0)
    peers = [await world.connect() for _ in range(3)]
    queues = [await create_notified(peers[0]) for _ in range(20)]
    sent: dict[bytes, list[bytes | None]] = {queue.rcv_id: [] for queue in queues}
    for n in range(15):
        some = [chance.sample(queues, 6) for _ in peers]
        for queue in (queue for group in some for queue in group):
            sent[queue.rcv_id].append(b"%d" % n)
        answers = await asyncio.gather(
            *(
                peer.ask_many([queue.sending(b"%d" % n) for queue in group])
                for peer, group in zip(peers, some, strict=True)
            )
        )
        assert answers == [[OK] * 6] * 3
    assert len(world.router.queues) < 20
    for queue in queues:
        assert await queue.receive_all(peers[1]) == sent[queue.rcv_id]
    total = sum(map(len, sent.values()))
    assert await world.notifications() == total


@pytest.mark.parametrize("settings", [SMALL])
async def test_a_block_about_known_and_unknown_queues(world: World) -> None:
    """Loading the unknown must not put out the known ones that the same block names."""
    alice = await world.connect()
    queues = [await create(alice, subscribe=False) for _ in range(8)]
    for _ in range(4):
        for queue in queues:
            requests = [queue.sending(b"x") for queue in (queues[0], queue, queues[-1])]
            assert await alice.ask_many(requests) == [OK] * 3


@pytest.mark.parametrize("settings", [SMALL])
async def test_subscribers_of_queues_that_were_put_out(world: World) -> None:
    alice, bob, ntf = [await world.connect() for _ in range(3)]
    queues = [await create_notified(alice, subscribe=True) for _ in range(8)]
    for queue in queues:
        assert await queue.nsub(ntf) == smp.SOK()
    for queue in queues:
        assert await queue.send(bob, b"hello") == OK
        message = await alice.push(queue.rcv_id)
        assert queue.body(message) == b"hello"
        assert await queue.ack(alice, message) == OK
        assert queue.notifier is not None
        nmsg = await ntf.push(queue.notifier_id)
        assert queue.notifier.decrypt(nmsg).msg_id == message.msg_id


@pytest.mark.parametrize("settings", [SMALL])
async def test_memory_is_bounded_while_loads_never_end(world: World) -> None:
    peers = [await world.connect() for _ in range(4)]
    queues = [await create(peers[0], subscribe=False) for _ in range(40)]
    most = 0

    async def use(peer: Any, start: int) -> None:
        nonlocal most
        for n in range(40):
            await queues[(start + n) % 40].send(peer, b"x")
            most = max(most, len(world.router.queues))

    await asyncio.gather(*(use(peer, n * 10) for n, peer in enumerate(peers)))
    assert most <= 3 + 2 * len(peers)


async def test_deleted_while_it_is_loaded(world: World) -> None:
    alice, bob = await world.connect(), await world.connect()
    queue = await create_notified(alice)
    record = world.router.queues.get(EntityKind.RECIPIENT, queue.rcv_id)
    assert record is not None
    world.router.queues.clear()
    gate = Gate(world)
    sending = asyncio.create_task(queue.send(bob, b"late"))
    await until(lambda: gate.waiting == 1)
    world.router.queues.add(record)  # as if another load had been quicker
    assert await queue.delete(alice) == OK
    gate.open()
    assert await sending == AUTH
    assert await queue.sub(alice) == AUTH
    assert await world.router.store.counts() == (0, 0, 0, 0)


async def test_loaded_while_it_is_being_deleted(world: World) -> None:
    """The row is still there, but the decision is made."""
    for _ in range(10):
        alice, bob = await world.connect(), await world.connect()
        queue = await create_notified(alice)
        answers = await asyncio.gather(
            queue.delete(alice), queue.send(bob, b"late"), queue.nsub(bob)
        )
        assert answers[0] == OK
        assert await queue.secure(bob) == AUTH
        assert await world.router.store.counts() == (0, 0, 0, 0)
        assert len(world.router.queues) == 0


async def test_loaded_and_changed_by_two_at_once(world: World) -> None:
    """Both must see the same queue, not one copy each."""
    alice, bob = await world.connect(), await world.connect()
    queue = await create(alice, subscribe=False)
    world.router.queues.clear()
    gate = Gate(world)
    by_recipient = asyncio.create_task(queue.secure(alice))
    sending = asyncio.create_task(bob.ask(queue.sending(b"x").command, queue.snd_id))
    await until(lambda: gate.waiting == 2)
    gate.open()
    assert await by_recipient == OK
    answer = await sending
    assert answer in (OK, AUTH)
    world.router.queues.clear()
    assert await queue.size(alice) == (answer == OK)
    assert await queue.send(bob, b"signed") == OK


async def test_forgotten_while_it_is_loaded(world: World) -> None:
    """What a load read may be older than what was known, and forgotten, meanwhile."""
    alice, bob = await world.connect(), await world.connect()
    queue = await create(alice, subscribe=False)
    record = world.router.queues.get(EntityKind.RECIPIENT, queue.rcv_id)
    assert record is not None
    world.router.queues.clear()
    gate = Gate(world)
    asking = asyncio.create_task(queue.by_recipient(bob, smp.QUE()))
    await until(lambda: gate.waiting == 1)
    world.router.queues.add(record)
    assert await queue.send(alice, b"newer") == OK
    world.router.queues.clear()
    gate.open()
    answer = await asking
    assert answer.info.size == 1


async def test_gone_while_its_commands_wait(world: World) -> None:
    """A client that reconnected must not lose its subscriptions to its former self."""
    alice, ntf = await world.connect(), await world.connect()
    queue = await create_notified(alice, subscribe=False)
    world.router.queues.clear()
    gate = Gate(world, first=2)
    requests = [ClientRequest(smp.SUB(), queue.rcv_id, queue.recipient.private)]
    asking = asyncio.create_task(alice.client.request_many(requests))
    nsub = asyncio.create_task(ntf.client.request_many([queue.nsubscribing()]))
    await until(lambda: gate.waiting == 2)
    alice.vanish()
    ntf.vanish()
    await asyncio.gather(asking, nsub)
    await until(lambda: not world.router.clients)
    again = await world.connect()
    assert await queue.sub(again) == smp.SOK()
    assert await queue.nsub(again) == smp.SOK()
    gate.open()
    assert await again.is_quiet()
    assert await queue.send(again, b"hello") == OK
    assert {of for of, _ in [await one(again), await one(again)]} == {
        queue.rcv_id,
        queue.notifier_id,
    }


async def one(peer: Any) -> Any:
    await until(lambda: peer.pushes)
    return peer.pushes.popleft()


async def test_commands_keep_their_order_while_queues_are_loaded(world: World) -> None:
    alice = await world.connect()
    queue = await create(alice, subscribe=False)
    other = await create(alice, subscribe=False)
    world.router.queues.clear()
    gate = Gate(world)
    first = asyncio.create_task(other.send(alice, b"x"))
    await until(lambda: gate.waiting == 1)
    sends = [asyncio.create_task(queue.send(alice, b"%d" % n)) for n in range(5)]
    ping = asyncio.create_task(alice.ask(smp.PING()))
    await asyncio.sleep(0.02)
    assert not ping.done()
    gate.open()
    assert await asyncio.gather(first, *sends) == [OK] * 6
    assert await ping == smp.PONG()
    assert await queue.receive_all(alice) == [b"%d" % n for n in range(5)]
