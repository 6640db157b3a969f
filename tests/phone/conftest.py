"""Fixtures of phones."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.agent.notifications.support import agent_world
from tests.phone.world import PhoneWorld


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[PhoneWorld]:
    async with agent_world(tmp_path) as routers:
        world = PhoneWorld(routers, await routers.smp())
        try:
            yield world
        finally:
            for phone in world.phones:
                await phone.close()
