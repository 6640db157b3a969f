"""The world of the notification router's tests, where adversaries find their places."""

from tests.ntf.conftest import (
    pytest_asyncio_loop_factories,
    settings,
    small_world,
    sqlite_url,
)

__all__ = ["pytest_asyncio_loop_factories", "settings", "small_world", "sqlite_url"]
