"""The scenarios run in the world of the notification router's tests, and with several processes."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from heliograph.ntf.router import NtfSettings
from tests.ntf.cluster.support import WorkersWorld
from tests.ntf.conftest import (
    pytest_asyncio_loop_factories,
    settings,
    small_world,
    sqlite_url,
)
from tests.ntf.support import STORES, NtfWorld, new_store

__all__ = ["pytest_asyncio_loop_factories", "settings", "small_world", "sqlite_url", "world"]


@pytest.fixture(params=[*STORES, "workers"])
async def world(
    request: pytest.FixtureRequest, tmp_path: Path, settings: NtfSettings
) -> AsyncIterator[NtfWorld]:
    """All that runs, once over each kind of store, and once with a router of three processes."""
    if request.param == "workers":
        running: NtfWorld = WorkersWorld(new_store("postgresql", tmp_path), tmp_path, settings)
    else:
        running = NtfWorld(new_store(request.param, tmp_path), tmp_path, settings)
    await running.start()
    try:
        yield running
    finally:
        await running.stop()
