"""A process of its own with an agent that works on subscriptions until it is killed."""

import asyncio
import sys
from dataclasses import replace

from heliograph.agent.agent import Agent
from tests.agent.fast import settings
from tests.agent.notifications.settings import SETTINGS


async def run(place: str) -> None:
    async with Agent.open(place, settings=settings(ntf=replace(SETTINGS, batch=3))):
        sys.stdout.write("opened\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1]))
