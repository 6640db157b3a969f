"""Fixtures of the agent's tests."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.agent.places import place_of, stores_in_postgres
from tests.agent.support import Router, User, a_router, users


@pytest.fixture(params=["sqlite", "postgresql"])
def store_kind(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run a test with the stores of its agents in files, and again in PostgreSQL."""
    if request.param == "sqlite":
        yield request.param
        return
    with stores_in_postgres():
        yield request.param


@pytest.fixture
def place(store_kind: str, tmp_path: Path) -> Path | str:
    """Where a test has a store, of either kind."""
    return place_of(tmp_path)


@pytest.fixture
async def router(tmp_path: Path) -> AsyncIterator[Router]:
    """A running messaging router."""
    async with a_router(tmp_path) as running:
        yield running


@pytest.fixture
async def other_router(tmp_path: Path) -> AsyncIterator[Router]:
    async with a_router(tmp_path, "other") as running:
        yield running


@pytest.fixture
async def alice(tmp_path: Path) -> AsyncIterator[User]:
    async with users(tmp_path, "alice") as [user]:
        yield user


@pytest.fixture
async def bob(tmp_path: Path) -> AsyncIterator[User]:
    async with users(tmp_path, "bob") as [user]:
        yield user
