"""A store that answers too late for a lease: pushes pause, nobody is removed, pushes resume.

Only renewals count: other writes may be as slow as they like.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from heliograph.db import postgres
from heliograph.db.dialects import open_dialect
from heliograph.ntf.cluster.member import ClusterMember
from heliograph.ntf.push import outbox
from heliograph.ntf.store import pending
from tests.ntf.cluster.support import LEASE, MemberWorld, a_cluster
from tests.waiting import eventually, until


@contextmanager
def holding(url: str, lock: str) -> Iterator[None]:
    dialect = open_dialect(url)
    try:
        dialect.begin()
        dialect.query(lock, ())
        yield
    finally:
        dialect.close()


LEASES = "SELECT 1 FROM leases FOR UPDATE"
"""What every renewal waits for."""
ORDER = postgres._ORDER
"""What writes in order wait for, and updates of the roster."""


def member_of(world: MemberWorld) -> ClusterMember:
    assert world.router.member is not None
    return world.router.member


def is_steady(world: MemberWorld) -> bool:
    """Whether it would remove others whose lease has ended."""
    return member_of(world)._clock.may_remove(time.monotonic())


def may_send(world: MemberWorld) -> bool:
    return member_of(world).may_send


async def stays(condition: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert condition()
        await asyncio.sleep(0.02)


@pytest.fixture
def lookups(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What due pushes were looked for; nothing but events starts a lookup."""
    made: list[str] = []
    due: Callable[..., Any] = pending.due

    def count(tx: Any, provider: str, *arguments: Any) -> Any:
        made.append(provider)
        return due(tx, provider, *arguments)

    monkeypatch.setattr(pending, "due", count)
    monkeypatch.setattr(outbox, "IDLE_CHECK", 3600.0)
    return made


async def test_a_late_renewal_removes_nobody_and_pushes_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two processes wait for longer than a lease: the first must not remove the other."""
    async with a_cluster(tmp_path, 2) as cluster:
        one, other = cluster.members
        phone = await one.registered()
        queue = await one.queue()
        await phone.subscribe(queue)
        await until(lambda: all(is_steady(world) for world in cluster.members))
        with holding(cluster.url, LEASES):
            await until(lambda: not (may_send(one) or may_send(other)))
            await one.send(queue)
            assert await phone.is_quiet(LEASE / 2)
        await phone.notified_of(queue)
        await until(lambda: may_send(one) and may_send(other))
        assert not any(member_of(world).fenced.is_set() for world in cluster.members)
        assert "raise [processes] lease_seconds" in caplog.text


async def test_writes_that_take_longer_than_a_lease_pause_nothing(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 2) as cluster:
        one, other = cluster.members
        phone = await one.registered()
        queue = await one.queue()
        await phone.subscribe(queue)
        await until(lambda: is_steady(other))
        for _ in range(2):
            with holding(cluster.url, ORDER):
                await one.send(queue)
                await stays(lambda: may_send(one) and may_send(other), 1.5 * LEASE)
            await phone.notified_of(queue)
        assert not any(member_of(world).fenced.is_set() for world in cluster.members)


async def test_a_process_with_many_slow_writes_keeps_its_lease(tmp_path: Path) -> None:
    """Another sees it between two transactions, and its next update is far behind in the queue."""
    async with a_cluster(tmp_path, 2) as cluster:
        one, other = (member_of(world) for world in cluster.members)
        await until(lambda: is_steady(cluster.members[0]))
        writes = [
            other.database.write_concurrently(lambda tx: tx.query("SELECT 1 FROM pg_sleep(0.2)"))
            for _ in range(round(2 * LEASE / 0.2))
        ]
        while not writes[-1].done():
            assert other.may_send
            assert other.process_id in one.roster.members
            await asyncio.sleep(0.05)
        await asyncio.gather(*writes)


async def test_a_paused_process_claims_nothing_until_it_resumes(
    tmp_path: Path, lookups: list[str]
) -> None:
    async with a_cluster(tmp_path, 1) as cluster:
        [one] = cluster.members
        phone = await one.registered()
        queue = await one.queue()
        await phone.subscribe(queue)
        with holding(cluster.url, LEASES):
            await until(lambda: not may_send(one))
            lookups.clear()
            await one.send(queue)
            await eventually(one.pending_pushes)
            one.router.outbox.wake()
            assert await phone.is_quiet(LEASE)
            assert not lookups
        await phone.notified_of(queue)
