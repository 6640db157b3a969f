"""A person at a router's control port."""

import asyncio


async def talk(port: int, greeting: str, *lines: str) -> list[str]:
    """Send commands and return all answers after the greeting."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write("".join(f"{line}\n" for line in (*lines, "quit")).encode())
    async with asyncio.timeout(30):
        answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    found = answer.decode().splitlines()
    assert found[:2] == [greeting, "'help' for supported commands"]
    return found[2:]
