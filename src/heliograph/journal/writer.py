"""Writes events as JSON lines, on a thread of its own: a router never waits for its journal."""

import json
import logging
import os
import queue
import threading
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO

from heliograph.journal.events import SCHEMA_VERSION, Event

logger = logging.getLogger(__name__)

CAPACITY = 100_000


class JsonLinesWriter:
    """A journal in one file. What cannot be written is counted in `lost`, and said once."""

    def __init__(self, path: Path) -> None:
        self.lost = 0
        self._path = path
        self._failing = False
        self._is_whole = False
        """Whether the file is known to end with the end of a line."""
        self._events: queue.Queue[Event | None] = queue.Queue(CAPACITY)
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def __call__(self, event: Event) -> None:
        try:
            self._events.put_nowait(event)
        except queue.Full:
            self._lose(1)

    def close(self) -> None:
        """Write what is left."""
        self._events.put(None)
        self._thread.join()

    def _run(self) -> None:
        open_ended = True
        while open_ended:
            event = self._events.get()
            batch = []
            while event is not None:
                batch.append(event)
                try:
                    event = self._events.get_nowait()
                except queue.Empty:
                    break
            else:
                open_ended = False
            if batch:
                try:
                    self._write(batch)
                except Exception:
                    logger.exception("events could not be put into words")
                    self._lose(len(batch))

    def _write(self, batch: list[Event]) -> None:
        lines = "".join(
            json.dumps({"schema": SCHEMA_VERSION, **asdict(event)}, separators=(",", ":")) + "\n"
            for event in batch
        )
        try:
            with self._path.open("ab") as file:
                if not self._is_whole:
                    self._end_line(file)
                file.write(lines.encode())
        except OSError as exc:
            if not self._failing:
                logger.error("the journal cannot be written: %s", exc.strerror)
            self._failing = True
            self._is_whole = False
            self._lose(len(batch))
        else:
            self._failing = False
            self._is_whole = True

    def _end_line(self, file: BinaryIO) -> None:
        """A line that was cut, by a kill or a full disk, must not spoil the next one."""
        if file.tell() > 0:
            with self._path.open("rb") as written:
                written.seek(-1, os.SEEK_END)
                if written.read(1) != b"\n":
                    file.write(b"\n")

    def _lose(self, count: int) -> None:
        self.lost += count
