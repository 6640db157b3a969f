"""The scenarios run in the world of the notification router's tests."""

from tests.ntf.conftest import pytest_asyncio_loop_factories, settings, sqlite_url, url, world

__all__ = ["pytest_asyncio_loop_factories", "settings", "sqlite_url", "url", "world"]
