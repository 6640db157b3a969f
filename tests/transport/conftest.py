import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from heliograph.transport import loop
from heliograph.transport.loop import Net
from tests.transport.echo import TIMEOUT, Run


@pytest.fixture(params=list(Net))
def run(request: pytest.FixtureRequest) -> Run:
    """Run a test's coroutine on one of the stacks, for a bounded time."""

    def run_on(main: Coroutine[Any, Any, None]) -> None:
        loop.run(asyncio.wait_for(main, TIMEOUT), net=request.param)

    return run_on
