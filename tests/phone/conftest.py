"""Fixtures of phones."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.agent.notifications.support import agent_world
from tests.phone.street import Street


@pytest.fixture
async def street(tmp_path: Path) -> AsyncIterator[Street]:
    async with agent_world(tmp_path) as world:
        street = Street(world, await world.smp())
        try:
            yield street
        finally:
            for phone in street.phones:
                await phone.close()
