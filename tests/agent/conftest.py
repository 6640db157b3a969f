"""Fixtures of the agent's tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.agent.support import Router, User, a_router, users


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
