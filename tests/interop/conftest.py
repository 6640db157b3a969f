"""The scenarios run in the world of the notification router's tests."""

from tests.ntf.conftest import settings, sqlite_url, url, world

__all__ = ["settings", "sqlite_url", "url", "world"]
