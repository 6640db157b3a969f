"""A log handler that never blocks: a thread writes, and excess lines are dropped.

Standard error may be a pipe that nobody reads, or a disk that hangs. Neither may block an event
loop that logs.
"""

import logging
import queue
import threading
from typing import TextIO

__all__ = ["BackgroundHandler", "dropped_lines"]

MAX_QUEUED = 4 * 1024 * 1024
"""Maximum number of queued characters; further lines are dropped."""
FLUSH_TIMEOUT = 1.0
"""Seconds to wait at exit for the last lines."""

_dropped = 0


def dropped_lines() -> int:
    """Return the number of log lines that this process dropped."""
    return _dropped


def _report_of(count: int) -> logging.LogRecord:
    message = "%d log lines were dropped: nobody read them in time"
    return logging.LogRecord(__name__, logging.WARNING, __file__, 0, message, (count,), None)


class BackgroundHandler(logging.Handler):
    """Write records to a stream on a thread of its own."""

    def __init__(self, stream: TextIO, max_queued: int = MAX_QUEUED) -> None:
        super().__init__()
        self._stream = stream
        self._max_queued = max_queued
        self._lines: queue.SimpleQueue[str | threading.Event | None] = queue.SimpleQueue()
        self._queued = 0  # changed by callers, under the handler's lock
        self._written = 0  # changed by the thread
        self._missing = 0
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        global _dropped
        try:
            line = self.format(record) + "\n"
        except Exception:
            self.handleError(record)
            return
        if self._queued - self._written + len(line) > self._max_queued:
            self._missing += 1
            _dropped += 1
            return
        if self._missing:
            line = self.format(_report_of(self._missing)) + "\n" + line
            self._missing = 0
        self._queued += len(line)
        self._lines.put(line)

    def flush(self) -> None:
        """Wait until all lines so far are written, at most `FLUSH_TIMEOUT`."""
        written = threading.Event()
        self._lines.put(written)
        written.wait(FLUSH_TIMEOUT)

    def close(self) -> None:
        self._lines.put(None)
        self._thread.join(FLUSH_TIMEOUT)
        super().close()

    def _run(self) -> None:
        while (item := self._lines.get()) is not None:
            if isinstance(item, threading.Event):
                item.set()
                continue
            try:
                self._stream.write(item)
                self._stream.flush()
            except (OSError, ValueError):
                pass  # the stream is closed: it cannot be reported anywhere
            self._written += len(item)
