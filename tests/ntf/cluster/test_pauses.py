"""Pauses of providers and hosts, shared through a real PostgreSQL."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from heliograph.db.database import Database
from heliograph.db.dialects import Transaction
from heliograph.ntf.cluster.pauses import SharedPauses
from heliograph.ntf.push.lanes import Lane, Pause
from heliograph.ntf.store.records import PendingPush, PushKind
from heliograph.ntf.store.schema import MIGRATIONS
from heliograph.push.null import NullProvider
from heliograph.wire.ntf.tokens import PushProvider, WPDeviceToken
from tests.db.postgres import shared_postgres
from tests.waiting import eventually, until

WEB_PUSH = PushProvider.WEB_PUSH


class Sharing:
    """One process: its lane, and what it shares."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.lane = Lane(NullProvider(), 100)
        self.pauses = SharedPauses(
            database, lambda provider, pause: self.lane.pause(pause, time.monotonic())
        )

    def delay(self, host: str) -> float:
        device = WPDeviceToken(host, "443", "/push", os.urandom(16), os.urandom(65))
        push = PendingPush(b"t" * 24, PushKind.MESSAGE, device, b"", b"", 1, 0.0, 0, 0.0)
        return self.lane.delay(push, time.monotonic())


@asynccontextmanager
async def two_processes() -> AsyncIterator[tuple[Sharing, Sharing]]:
    url = shared_postgres().new_url()
    both = [Sharing(await Database.join(url, MIGRATIONS, lambda tx: None)) for _ in range(2)]
    running = [asyncio.create_task(item.pauses.run()) for item in both]
    try:
        yield both[0], both[1]
    finally:
        for task in running:
            task.cancel()
        await asyncio.wait(running)
        for item in both:
            await item.database.close()


def hosts(tx: Transaction) -> list[str]:
    return [host for (host,) in tx.query("SELECT host FROM pauses ORDER BY host")]


async def test_a_host_that_is_silent_for_one_process_is_left_alone_by_the_other() -> None:
    async with two_processes() as (one, other):
        one.pauses.add(WEB_PUSH, Pause("silent:443", time.monotonic() + 60, 6))
        await until(lambda: other.delay("silent") > 0)
        assert 50 < other.delay("silent") <= 60
        assert other.delay("answers") == 0
        other.pauses.add(WEB_PUSH, Pause("silent:443", time.monotonic() + 100, 7))
        await until(lambda: one.delay("silent") > 90)


async def test_a_pause_of_a_provider() -> None:
    async with two_processes() as (one, other):
        one.pauses.add(WEB_PUSH, Pause("", time.monotonic() + 60, 1))
        await until(lambda: not other.lane.has_room(time.monotonic()))
        assert other.lane.has_room(time.monotonic() + 61)


async def test_pauses_that_have_ended_are_removed() -> None:
    async with two_processes() as (one, other):
        one.pauses.add(WEB_PUSH, Pause("short:443", time.monotonic() + 2.0, 1))

        async def are_stored() -> bool:
            return await one.database.read(hosts) == ["short:443"]

        await eventually(are_stored)
        await asyncio.sleep(2.1)
        other.pauses.add(WEB_PUSH, Pause("long:443", time.monotonic() + 60, 1))
        other.pauses.add(WEB_PUSH, Pause("past:443", time.monotonic() - 1, 1))

        async def is_removed() -> bool:
            return await one.database.read(hosts) == ["long:443"]

        await eventually(is_removed)
