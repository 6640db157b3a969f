"""After deletion, nothing of an attack is left: tasks, dials, rows, memory."""

import asyncio
import gc
import os
import resource
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from heliograph.ntf.subscriber import subscribers
from heliograph.wire import ntf
from tests.ntf.support import OK, NtfWorld, Phone
from tests.waiting import eventually

TABLES = ("tokens", "subscriptions", "servers", "last_notifications", "pending_pushes")


@pytest.fixture(autouse=True)
def fast_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscribers, "SWEEP_INTERVAL", 0.05)


def subscriber_tasks() -> int:
    return sum(task.get_name() == "subscribe at a router" for task in asyncio.all_tasks())


async def rows(world: NtfWorld) -> list[int]:
    columns = ", ".join(f"(SELECT COUNT(*) FROM {table})" for table in TABLES)
    [row] = await world.read(lambda tx: tx.query(f"SELECT {columns}"))
    return list(row)


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


async def attack(world: NtfWorld, phone: Phone, port: int, count: int) -> None:
    """Subscribe at so many routers, where nobody speaks."""
    [queue] = await world.queues(1)
    for _ in range(count):
        address = replace(world.smp.address, port=str(port), fingerprint=os.urandom(32))
        answer = await phone.snew(queue, address=address)
        phone.subscriptions.append(answer.subscription_id)


@pytest.mark.parametrize("by_token", [True, False])
async def test_routers_named_in_snew(small_world: NtfWorld, by_token: bool, is_large: bool) -> None:
    count = 2000 if is_large else 50
    phone = await small_world.registered()
    kept = await small_world.registered()
    queue = await small_world.queue()
    await kept.subscribe(queue)
    with socket.create_server(("127.0.0.1", 0), backlog=1000) as silent:
        port = silent.getsockname()[1]
        await small_world.until_none_pending()
        rows_before = await rows(small_world)
        memory: list[int] = []
        for _ in range(3):
            await attack(small_world, phone, port, count)
            if by_token:
                assert await phone.ask(ntf.TDEL(), phone.token_id) == OK
            else:
                for subscription_id in phone.subscriptions:
                    assert await phone.ask(ntf.SDEL(), subscription_id) == OK
            phone.subscriptions.clear()

            async def is_base() -> bool:
                dials = small_world.router.subscribers.dials
                return (
                    len(small_world.router.subscribers) == 1
                    and dials.in_flight == dials.waiting == 0
                    and subscriber_tasks() == 1
                )

            await eventually(is_base)
            if by_token:
                phone = await small_world.registered()
                await small_world.until_none_pending()
            assert await rows(small_world) == rows_before
            gc.collect()
            memory.append(resident())
        assert memory[-1] - memory[0] < 16 * 1024 * 1024
    await small_world.send(queue)
    await kept.notified_of(queue)
