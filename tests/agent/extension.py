"""A process of its own with an agent over a store that another process has open too.

It reads commands as lines of JSON and answers each with a line of JSON.
"""

import asyncio
import json
import sys
from typing import Any

from heliograph.agent.agent import Agent
from tests.agent.fast import settings


async def run(place: str, passphrase: str | None) -> None:
    agent = await Agent.open(place, passphrase=passphrase, settings=settings(workers=False))
    answer("opened")
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command = json.loads(line)
        answer(await perform(agent, **command))
    await agent.close()


async def perform(agent: Agent, do: str, conn_id: str = "", count: int = 0) -> Any:
    match do:
        case "connections":
            return await agent.connections()
        case "send":
            return [await agent.send(conn_id, b"extension %d" % n) for n in range(count)]
        case "fetch":
            return await fetch(agent, conn_id, count)
        case "subscribe":
            return [str(error) for error in (await agent.subscribe()).values() if error]
        case "delete":
            return await agent.delete_connection(conn_id)
    raise ValueError(do)


async def fetch(agent: Agent, conn_id: str, count: int) -> list[str]:
    """So many messages, each fetched and acknowledged, as they come."""
    bodies: list[str] = []
    while len(bodies) < count:
        message = await agent.get_message(conn_id)
        if message is None:
            await asyncio.sleep(0.01)
            continue
        bodies.append(message.body.decode())
        await agent.ack(conn_id, message.message_id)
    return bodies


def answer(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None))
