"""Wait for a condition by polling it, for a bounded time."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Literal, TypeVar

T = TypeVar("T")

TIMEOUT = 60.0
"""Seconds: enough for a busy machine, and less than a test has."""

_INTERVAL = 0.005


async def until(condition: Callable[[], object], within: float = TIMEOUT) -> None:
    """Wait until `condition()` is true."""
    async with asyncio.timeout(within):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(_INTERVAL)


async def eventually(condition: Callable[[], Awaitable[object]], within: float = TIMEOUT) -> None:
    """Wait until `await condition()` is true."""
    async with asyncio.timeout(within):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(_INTERVAL)


def block_until(condition: Callable[[], T | Literal[False] | None], within: float = TIMEOUT) -> T:
    """Wait outside of an event loop until `condition()` is true, and return its result."""
    deadline = time.monotonic() + within
    while not (result := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(_INTERVAL)
    return result
