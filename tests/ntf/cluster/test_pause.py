"""A store that answers too late for a lease: pushes pause, nobody is removed, pushes resume."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from heliograph.db import postgres
from heliograph.db.dialects import open_dialect
from heliograph.db.errors import DatabaseError
from heliograph.ntf.cluster.member import ClusterMember
from heliograph.ntf.push import outbox
from heliograph.ntf.store import pending
from tests.ntf.cluster.support import LEASE, MemberWorld, a_cluster
from tests.waiting import eventually, until


@contextmanager
def no_renewals(url: str) -> Iterator[None]:
    """Hold what every renewal, and other writes in order, wait for."""
    dialect = open_dialect(url)
    try:
        dialect.begin()
        dialect.query(postgres._ORDER, ())
        yield
    finally:
        dialect.close()


def member_of(world: MemberWorld) -> ClusterMember:
    assert world.router.member is not None
    return world.router.member


def is_steady(world: MemberWorld) -> bool:
    """Whether it would remove others whose lease has ended."""
    return member_of(world)._clock.may_remove(time.monotonic())


def may_send(world: MemberWorld) -> bool:
    return member_of(world).may_send


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
        with no_renewals(cluster.url):
            await until(lambda: not (may_send(one) or may_send(other)))
            await one.send(queue)
            assert await phone.is_quiet(LEASE / 2)
        await phone.notified_of(queue)
        await until(lambda: may_send(one) and may_send(other))
        assert not any(member_of(world).fenced.is_set() for world in cluster.members)
        assert "raise [processes] lease_seconds" in caplog.text


async def test_renewals_that_always_take_longer_than_a_lease_allow_pushes(tmp_path: Path) -> None:
    """A lease counts from when the store granted it, not from when it was asked for."""
    async with a_cluster(tmp_path, 1) as cluster:
        [one] = cluster.members
        phone = await one.registered()
        queue = await one.queue()
        await phone.subscribe(queue)

        async def keep_busy() -> None:
            while True:
                with no_renewals(cluster.url):
                    await asyncio.sleep(1.2 * LEASE)
                await asyncio.sleep(0.05)

        busy = asyncio.create_task(keep_busy())
        try:
            await until(lambda: not may_send(one))
            await one.send(queue)
            await phone.notified_of(queue)
        finally:
            busy.cancel()


async def test_a_paused_process_claims_nothing_until_it_resumes(
    tmp_path: Path, lookups: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_cluster(tmp_path, 1) as cluster:
        [one] = cluster.members
        phone = await one.registered()
        queue = await one.queue()
        await phone.subscribe(queue)
        with monkeypatch.context() as patched:
            patched.setattr(member_of(one), "renew", fail)
            await until(lambda: not may_send(one))
            lookups.clear()
            await one.send(queue)
            await eventually(one.pending_pushes)
            one.router.outbox.wake()
            assert await phone.is_quiet(LEASE)
            assert not lookups
        await phone.notified_of(queue)


async def fail() -> None:
    raise DatabaseError("the table is locked")
