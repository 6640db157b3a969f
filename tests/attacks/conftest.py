"""The world that attacks happen in, and how large they are."""

import os

import pytest

from tests.ntf.conftest import (
    pytest_asyncio_loop_factories,
    settings,
    small_world,
    sqlite_url,
)

__all__ = ["pytest_asyncio_loop_factories", "settings", "small_world", "sqlite_url"]


@pytest.fixture
def is_large() -> bool:
    """Whether `make attack` runs: attacks have their full size."""
    return os.environ.get("HELIOGRAPH_ATTACK") == "large"
