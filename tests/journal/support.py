"""Journals for tests, and what is in them."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from heliograph.journal.identity import JournalIdentity
from heliograph.journal.reader import read_events
from heliograph.journal.writer import JournalSettings, JournalWriter

IDENTITY = JournalIdentity("0123456789abcdef", bytes(range(32)))
FAST = JournalSettings(sync_interval=0.005, seal_after=0.02)
SLOW = JournalSettings(sync_interval=0.005, seal_after=3600.0)


def until(condition: Callable[[], Any], timeout: float = 30.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


def writer(directory: Path, settings: JournalSettings = FAST) -> JournalWriter:
    return JournalWriter(directory, IDENTITY, "ntf", settings)


def note(journal: JournalWriter, *numbers: int) -> None:
    """Events that can be told apart: by `count`."""
    for number in numbers:
        journal("client_connected", count=number)


def numbers(directory: Path) -> list[int]:
    """Those noted, in order."""
    return [event["count"] for event in events(directory) if event["kind"] == "client_connected"]


def events(directory: Path) -> Iterator[dict[str, Any]]:
    yield from read_events(directory)


def files(directory: Path, suffix: str) -> list[Path]:
    return sorted((directory / IDENTITY.router).glob(f"*{suffix}"))
