"""Fixtures of the notification router's tests."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from heliograph.db.dialects import Transaction
from heliograph.ntf.router import NtfSettings
from heliograph.transport.loop import new_event_loop
from tests.ntf.support import SETTINGS, STORES, NtfWorld, a_transaction, a_world, new_store


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """As routers run: loops differ, in when timers ring for instance."""
    return {"uvloop": new_event_loop}


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store, once of each kind."""
    return new_store(request.param, tmp_path)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return new_store("sqlite", tmp_path)


@pytest.fixture
def tx(url: str) -> Iterator[Transaction]:
    """A transaction over an empty store, once of each kind."""
    with a_transaction(url) as transaction:
        yield transaction


@pytest.fixture
def settings() -> NtfSettings:
    """For a test to override."""
    return SETTINGS


@pytest.fixture
async def world(url: str, tmp_path: Path, settings: NtfSettings) -> AsyncIterator[NtfWorld]:
    """All that runs, once over each kind of store."""
    async with a_world(url, tmp_path, settings) as running:
        yield running


@pytest.fixture
async def small_world(
    sqlite_url: str, tmp_path: Path, settings: NtfSettings
) -> AsyncIterator[NtfWorld]:
    """Over SQLite, where the kind of store makes no difference."""
    async with a_world(sqlite_url, tmp_path, settings) as running:
        yield running
