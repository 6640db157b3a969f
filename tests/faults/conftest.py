"""Fixtures of the fault tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.faults.processes import SimulatorProcess


@pytest.fixture
async def apns(tmp_path: Path) -> AsyncIterator[SimulatorProcess]:
    simulator = SimulatorProcess(tmp_path / "apns")
    await simulator.start()
    try:
        yield simulator
    finally:
        await simulator.kill()
