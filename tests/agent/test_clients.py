"""The pool: one connection for all, delays that grow, connections that come back or go."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from heliograph.agent.clients import ClientPool, ClientPurpose, ClientSettings, is_temporary
from heliograph.runtime.backoff import Backoff
from heliograph.transport.client import Client
from heliograph.transport.errors import (
    ConnectFailed,
    Disconnected,
    HandshakeFailed,
    RequestRefused,
    RequestTimeout,
)
from heliograph.wire import smp
from heliograph.wire.errors import (
    BLOCKED,
    STORE,
    BlockingReason,
    ErrorCode,
    TransportError,
)
from tests.agent.support import FAST, Router
from tests.smp.support import Peer, create
from tests.waiting import until

SETTINGS = ClientSettings(backoff=FAST, stable_after=0.5)
SLOW = replace(SETTINGS, backoff=Backoff(first=60.0, last=60.0))


class Heard:
    """What a pool tells."""

    def __init__(self) -> None:
        self.connected: list[Client] = []
        self.disconnected: list[Client] = []
        self.received: list[Any] = []

    def hear(self, client: Client, entity_id: bytes, message: Any) -> None:
        self.received.append(message)


@contextlib.asynccontextmanager
async def a_pool(
    settings: ClientSettings = SETTINGS, heard: Heard | None = None
) -> AsyncIterator[ClientPool]:
    heard = heard or Heard()
    clients = ClientPool(
        settings,
        on_received=heard.hear,
        on_connected=heard.connected.append,
        on_disconnected=heard.disconnected.append,
    )
    try:
        yield clients
    finally:
        await clients.close()


async def test_one_connection_for_all(router: Router) -> None:
    async with a_pool() as pool:
        found = await asyncio.gather(*[pool.smp(router.address) for _ in range(10)])
        assert len(set(map(id, found))) == 1
        assert await found[0].request(smp.PING()) == smp.PONG()
        assert pool.connected(router.address) is found[0]


async def test_get_has_its_own(router: Router) -> None:
    async with a_pool() as pool:
        commands = await pool.smp(router.address)
        assert await pool.smp(router.address, ClientPurpose.GET) is not commands


async def test_one_who_gives_up_does_not_take_it_from_the_others(router: Router) -> None:
    async with a_pool() as pool:
        first = asyncio.create_task(pool.smp(router.address))
        second = asyncio.create_task(pool.smp(router.address))
        await asyncio.sleep(0)
        first.cancel()
        assert (await second).is_connected


async def test_a_failure_is_not_repeated_at_once(router: Router) -> None:
    await router.stop()
    async with a_pool(SLOW) as pool:
        with pytest.raises(ConnectFailed):
            await pool.smp(router.address)
        await router.start()
        with pytest.raises(ConnectFailed, match="next attempt in"):
            await pool.smp(router.address)
        assert (await pool.smp(router.address, at_once=True)).is_connected


async def test_a_kept_connection_comes_back(router: Router) -> None:
    heard = Heard()
    async with a_pool(heard=heard) as pool:
        pool.keep(router.address)
        await until(lambda: len(heard.connected) == 1)
        await router.stop()
        await until(lambda: heard.disconnected)
        await asyncio.sleep(0.1)
        await router.start()
        await until(lambda: len(heard.connected) == 2)
        assert heard.disconnected == heard.connected[:1]
        assert pool.connected(router.address) is heard.connected[1]


async def test_another_does_not_come_back(router: Router) -> None:
    heard = Heard()
    async with a_pool(heard=heard) as pool:
        await pool.smp(router.address)
        await router.restart()
        await until(lambda: heard.disconnected)
        await asyncio.sleep(0.2)
        assert pool.connected(router.address) is None
        assert (await pool.smp(router.address, at_once=True)).is_connected


async def test_an_idle_connection_is_closed(router: Router) -> None:
    async with a_pool(replace(SETTINGS, idle_after=0.1)) as pool:
        client = await pool.smp(router.address)
        await until(lambda: not client.is_connected)
        assert (await pool.smp(router.address)).is_connected


async def test_a_used_or_kept_connection_is_not_closed(router: Router) -> None:
    async with a_pool(replace(SETTINGS, idle_after=1.0)) as pool:
        client = await pool.smp(router.address)
        for _ in range(24):
            await asyncio.sleep(0.05)
            assert await pool.smp(router.address) is client
        pool.keep(router.address)
        await asyncio.sleep(1.5)
        assert client.is_connected
        pool.keep(router.address, wanted=False)
        await until(lambda: not client.is_connected)


async def test_a_router_moves(router: Router) -> None:
    heard = Heard()
    async with a_pool(SLOW, heard) as pool:
        pool.keep(router.address)
        await until(lambda: heard.connected)
        await router.stop()
        await until(lambda: heard.disconnected)
        await router.start(port=0)
        pool.moved(router.address)
        await until(lambda: len(heard.connected) == 2)


async def test_a_closed_pool(router: Router) -> None:
    async with a_pool() as pool:
        pool.keep(router.address)
    with pytest.raises(ConnectFailed, match="closed"):
        await pool.smp(router.address)


async def test_closing_does_not_wait_for_delays(router: Router) -> None:
    await router.stop()
    async with asyncio.timeout(10.0), a_pool(SLOW) as pool:
        pool.keep(router.address)
        with pytest.raises(ConnectFailed):
            await pool.smp(router.address)


async def test_what_a_router_says_unasked_is_heard(router: Router) -> None:
    heard = Heard()
    async with a_pool(heard=heard) as pool, a_pool() as other:
        first, second = Peer(), Peer()
        first.client = await pool.smp(router.address)
        second.client = await other.smp(router.address)
        queue = await create(first)
        await queue.sub(second)
        await until(lambda: heard.received == [smp.END()])


@pytest.mark.parametrize(
    ("error", "temporary"),
    [
        (ConnectFailed("x"), True),
        (Disconnected("x"), True),
        (RequestTimeout("x"), True),
        (HandshakeFailed(TransportError.VERSION), True),
        (RequestRefused(ErrorCode.QUOTA), True),
        (RequestRefused(ErrorCode.INTERNAL), True),
        (RequestRefused(ErrorCode.EXPIRED), True),
        (RequestRefused(STORE("busy")), True),
        (RequestRefused(ErrorCode.AUTH), False),
        (RequestRefused(ErrorCode.CMD_PROHIBITED), False),
        (RequestRefused(BLOCKED(BlockingReason.SPAM)), False),
        (ValueError(), False),
    ],
)
def test_what_may_succeed_later(error: Exception, temporary: bool) -> None:
    assert is_temporary(error) is temporary


async def test_a_connection_that_comes_too_late_is_closed(router: Router) -> None:
    """However far it has come when the pool is closed, nobody hears of it and nothing is left."""
    for turns in range(0, 60, 3):
        heard = Heard()
        async with a_pool(heard=heard) as pool:
            pool.keep(router.address)
            for _ in range(turns):
                await asyncio.sleep(0)
            before = len(heard.connected)
        await asyncio.sleep(0)
        assert len(heard.connected) == before
    await until(lambda: not router.connections)
    gc.collect()  # a transport that was not closed warns here, not in a later test


async def test_one_who_waits_while_the_pool_is_closed(router: Router) -> None:
    pool = ClientPool(SETTINGS)
    waiting = asyncio.create_task(pool.smp(router.address))
    await asyncio.sleep(0)
    await pool.close()
    with pytest.raises(ConnectFailed, match="closed"):
        await waiting
