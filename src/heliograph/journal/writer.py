"""Writes events as JSON lines, on a thread of its own: a router never waits for its journal."""

import json
import logging
import queue
import threading
from dataclasses import asdict
from pathlib import Path

from heliograph.journal.events import SCHEMA_VERSION, Event

logger = logging.getLogger(__name__)

CAPACITY = 100_000


class JsonLinesWriter:
    """A journal in one file. What cannot be written is counted in `lost`, and said once."""

    def __init__(self, path: Path) -> None:
        self.lost = 0
        self._path = path
        self._failing = False
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
                self._write(batch)

    def _write(self, batch: list[Event]) -> None:
        lines = "".join(
            json.dumps({"schema": SCHEMA_VERSION, **asdict(event)}, separators=(",", ":")) + "\n"
            for event in batch
        )
        try:
            with self._path.open("a") as file:
                file.write(lines)
        except OSError as exc:
            if not self._failing:
                logger.error("the journal cannot be written: %s", exc.strerror)
            self._failing = True
            self._lose(len(batch))
        else:
            self._failing = False

    def _lose(self, count: int) -> None:
        self.lost += count
