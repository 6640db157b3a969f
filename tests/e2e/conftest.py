from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.e2e.support import World, a_world


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """Processes that a test may kill."""
    async with a_world(tmp_path) as world:
        yield world


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """For tests of one module that leave it as it was."""
    async with a_world(tmp_path_factory.mktemp("world")) as world:
        yield world
