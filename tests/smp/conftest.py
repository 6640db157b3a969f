"""Fixtures of the router's tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from heliograph.smp.settings import SmpSettings
from tests.smp.support import AT_ONCE, STORES, World, a_world, new_store


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store, once of each kind."""
    return new_store(request.param, tmp_path)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return new_store("sqlite", tmp_path)


@pytest.fixture
def settings() -> SmpSettings:
    """For a test to override."""
    return AT_ONCE


@pytest.fixture
async def world(url: str, settings: SmpSettings) -> AsyncIterator[World]:
    """A running router, once over each kind of store."""
    async with a_world(url, settings) as running:
        yield running


@pytest.fixture
async def small_world(sqlite_url: str, settings: SmpSettings) -> AsyncIterator[World]:
    """A running router over SQLite, where the kind of store makes no difference."""
    async with a_world(sqlite_url, settings) as running:
        yield running
