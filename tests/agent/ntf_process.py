"""A process of its own with an agent that works on subscriptions until it is killed."""

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

from heliograph.agent.agent import Agent
from tests.agent.fast import settings
from tests.agent.ntf_settings import SETTINGS


async def run(directory: Path) -> None:
    async with await Agent.open(directory, settings=settings(ntf=replace(SETTINGS, batch=3))):
        sys.stdout.write("opened\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1])))
