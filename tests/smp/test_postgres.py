"""The router while its PostgreSQL is restarted, killed, or lost at the worst time."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from heliograph.db.errors import DatabaseLost
from heliograph.db.postgres import PostgresDialect
from heliograph.wire import smp
from heliograph.wire.errors import STORE
from tests.db.postgres import shared_postgres
from tests.smp.support import OK, Peer, Queue, World, a_world, create_notified
from tests.waiting import until


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with a_world(shared_postgres().new_url()) as running:
        yield running


async def test_a_restart_is_only_a_delay(world: World) -> None:
    alice, ntf = await world.connect(), await world.connect()
    queue = await create_notified(alice, subscribe=True)
    await queue.nsub(ntf)
    server = shared_postgres()
    await asyncio.to_thread(server.stop)
    sending = asyncio.create_task(queue.send(alice, b"hello"))
    await asyncio.sleep(0.1)
    assert not sending.done()
    await asyncio.to_thread(server.start)
    assert await sending == OK
    await until(lambda: alice.pushes and ntf.pushes)
    messages = dict([*alice.pushes, *ntf.pushes])
    assert queue.body(messages[queue.rcv_id]) == b"hello"
    assert isinstance(messages[queue.notifier_id], smp.NMSG)


async def test_killed_under_load(world: World) -> None:
    """Every message is stored once, though a commit may have succeeded without saying so."""
    alice = await world.connect()
    queues = [await create_notified(alice) for _ in range(3)]
    server = shared_postgres()

    async def send(peer: Peer, queue: Queue) -> None:
        for n in range(60):
            assert await queue.send(peer, b"%d" % n) == OK

    peers = [await world.connect() for _ in queues]
    load = [
        asyncio.create_task(send(peer, queue)) for peer, queue in zip(peers, queues, strict=True)
    ]
    for _ in range(3):
        await asyncio.sleep(0.03)
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
    await asyncio.gather(*load)
    for queue in queues:
        assert await queue.receive_all(alice) == [b"%d" % n for n in range(60)]
    assert await world.notifications() == 180


async def test_a_stop_does_not_wait_long_for_a_store_that_is_lost() -> None:
    """What was not answered OK may be gone; what was is there afterwards."""
    server, url = shared_postgres(), shared_postgres().new_url()
    async with a_world(url) as world:
        alice = await world.connect()
        queue = await create_notified(alice)
        assert await queue.send(alice, b"kept") == OK
        await asyncio.to_thread(server.kill)
        try:
            sending = asyncio.create_task(queue.send(alice, b"lost"))
            await asyncio.sleep(0.2)
            assert not sending.done()
            begin = time.monotonic()
            await world.router.close()
            assert time.monotonic() - begin < 15  # the store alone would try for 30 s
            assert await sending == smp.ERR(STORE("the router's store failed"))
        finally:
            await asyncio.to_thread(server.start)
        await world.restart()
        assert await queue.receive_all(await world.connect()) == [b"kept"]


@pytest.mark.parametrize("is_committed", [True, False])
async def test_lost_while_committing(
    world: World, monkeypatch: pytest.MonkeyPatch, is_committed: bool
) -> None:
    alice = await world.connect()
    queue = await create_notified(alice)
    commit = PostgresDialect.commit
    lost = 0

    def losing(dialect: PostgresDialect) -> None:
        nonlocal lost
        if lost < 2:
            lost += 1
            if is_committed:
                commit(dialect)
            raise DatabaseLost("the connection is gone")
        commit(dialect)

    monkeypatch.setattr(PostgresDialect, "commit", losing)
    assert await alice.ask_many([queue.sending(b"%d" % n) for n in range(5)]) == [OK] * 5
    assert lost == 2
    lost = 0
    assert await queue.receive_all(alice) == [b"%d" % n for n in range(5)]
    lost = 0
    assert await queue.delete(alice) == OK
    assert await world.router.store.counts() == (0, 0, 0, 0)
