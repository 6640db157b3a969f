"""Tokens that were never verified are removed after a time."""

from dataclasses import replace
from pathlib import Path

import pytest

from heliograph.db.errors import DatabaseError
from heliograph.ntf import background
from heliograph.wire import ntf
from heliograph.wire.ntf.tokens import TokenStatus
from tests.ntf.support import AUTH, SETTINGS, NtfWorld
from tests.waiting import until


async def test_unverified_tokens_are_removed(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "COLLECTION_INTERVAL", 0.05)
    world = NtfWorld(sqlite_url, tmp_path, replace(SETTINGS, unverified_ttl=1.0))
    await world.start()
    verified = await world.registered()
    phone = await world.phone()
    await phone.tnew()
    collect = world.router.store.collect_unverified
    failures = 1

    async def failing(seconds: float, limit: int) -> list[bytes]:
        nonlocal failures
        if failures:
            failures -= 1
            raise DatabaseError("not now")
        return await collect(seconds, limit)

    monkeypatch.setattr(world.router.store, "collect_unverified", failing)
    await until(lambda: world.router.stats.counters.tkn_collected == 1)
    assert failures == 0
    assert await phone.ask(ntf.TCHK(), phone.token_id) == AUTH
    assert await verified.tchk() is TokenStatus.ACTIVE
    await world.stop()
