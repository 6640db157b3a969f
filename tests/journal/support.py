"""Journals for tests, and what is in them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from heliograph.journal.events import ClientConnected
from heliograph.journal.heads import HEADS, Head, decode_head
from heliograph.journal.identity import JournalIdentity
from heliograph.journal.storage.reader import read_events
from heliograph.journal.storage.settings import JournalSettings
from heliograph.journal.storage.writer import JournalWriter

IDENTITY = JournalIdentity("0123456789abcdef", bytes(range(32)))
FAST = JournalSettings(sync_interval=0.005, seal_after=0.02)
SLOW = JournalSettings(sync_interval=0.005, seal_after=3600.0)


def writer(directory: Path, settings: JournalSettings = FAST) -> JournalWriter:
    return JournalWriter(directory, IDENTITY, "ntf", settings)


def note(journal: JournalWriter, *numbers: int) -> None:
    """Events that differ by `count`."""
    for number in numbers:
        journal.record(ClientConnected(count=number))


def numbers(directory: Path) -> list[int]:
    """Those noted, in order."""
    return [event["count"] for event in events(directory) if event["kind"] == "client_connected"]


def events(directory: Path) -> Iterator[dict[str, Any]]:
    yield from read_events(directory)


def files(directory: Path, suffix: str) -> list[Path]:
    return sorted((directory / IDENTITY.router).glob(f"*{suffix}"))


def heads(directory: Path) -> list[Head]:
    """By boot."""
    found = (decode_head(path.read_bytes()) for path in (directory / HEADS).glob("[!_]*"))
    return sorted(found, key=lambda head: head.boot)
