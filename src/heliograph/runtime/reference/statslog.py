"""Statistics over time: a line a day in the reference's format, and a copy for the next start.

Counters are never set back, as Prometheus likes them; a line has what was added since the one
before.
"""

import asyncio
import json
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

from heliograph.documents import JsonObject
from heliograph.runtime.files import private_opener, write_file
from heliograph.runtime.reference.periods import DAY

__all__ = ["StatsLog", "first_delay"]

logger = logging.getLogger(__name__)

SAVE_INTERVAL = 3600.0


def first_delay(now: float, start: float) -> float:
    """Return the seconds until the time of day `start`, given in seconds since midnight UTC."""
    return (start - now % DAY) % DAY


class StatsLog(ABC):
    """`run` writes lines and copies; call `save` at shutdown. A subclass has the counters."""

    def __init__(
        self,
        started_at: float,
        copy: Path,
        log: Path | None = None,
        start: float = 0.0,
        interval: float = DAY,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.since = started_at
        self._copy = copy
        self._log = log
        self._start = start
        self._interval = interval
        self._clock = clock
        self._before: dict[str, int] = {}
        self._keeping = asyncio.Lock()

    @abstractmethod
    def counts(self) -> dict[str, int]:
        """Return all counters."""

    @abstractmethod
    def columns(self, counted: dict[str, int], now: float) -> list[str]:
        """Return the columns of a line after the date, given what was counted since the last."""

    @abstractmethod
    def refresh(self, now: float) -> None:
        """Count what was only collected; called at least once a minute by `run`."""

    async def gather(self) -> None:  # noqa: B027  one process has all of them
        """Collect what other processes have counted; called before a line is written."""

    @abstractmethod
    def dump_counters(self) -> JsonObject: ...

    @abstractmethod
    def restore_counters(self, saved: JsonObject) -> None: ...

    def restore(self) -> None:
        """Continue from the copy; ignore one that cannot be read."""
        try:
            saved = json.loads(self._copy.read_bytes())
            self.restore_counters(saved["stats"])
            self.since = float(saved["since"])
            self._before = {str(name): int(value) for name, value in saved["before"].items()}
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
            logger.error("the saved statistics cannot be read, counting from zero: %s", exc)

    def save(self) -> None:
        self._store(self._document())

    async def keep(self) -> None:
        """Save without blocking the event loop, or log why not."""
        async with self._keeping:
            try:
                await asyncio.to_thread(self._store, self._document())
            except OSError as exc:
                logger.error("the statistics cannot be saved: %s", exc.strerror)

    def try_save(self) -> None:
        """Save, or log why not."""
        try:
            self.save()
        except OSError as exc:
            logger.error("the statistics cannot be saved: %s", exc.strerror)

    def period(self) -> dict[str, int]:
        """Return the counts since the last line."""
        return {name: value - self._before.get(name, 0) for name, value in self.counts().items()}

    def line(self, now: float) -> str:
        """Return the reference's columns in its order."""
        day = time.strftime("%Y-%m-%d", time.gmtime(self.since))
        return ",".join([day, *self.columns(self.period(), now)])

    def begin(self, now: float) -> None:
        """Begin a new period."""
        self._before = self.counts()
        self.since = now

    async def run(self) -> None:
        now = self._clock()
        line_at = now + first_delay(now, self._start)
        save_at = now + SAVE_INTERVAL
        while True:
            next_at = save_at if self._log is None else min(save_at, line_at)
            # In steps, so that a clock that is set does not put the line off for a day.
            await asyncio.sleep(min(max(next_at - self._clock(), 0.0), 60.0))
            now = self._clock()
            self.refresh(now)
            if self._log is not None and now >= line_at:
                await self.gather()
                await self._write(self.line(now))
                self.begin(now)
                while line_at <= now:
                    line_at += self._interval
                save_at = now  # else a crash would count the day again
            if now >= save_at:
                save_at = now + SAVE_INTERVAL
                await self.keep()

    async def _write(self, line: str) -> None:
        try:
            await asyncio.to_thread(self._append, line)
        except OSError as exc:
            logger.error("the statistics cannot be written: %s: %s", exc.strerror, line)

    def _append(self, line: str) -> None:
        assert self._log is not None  # noqa: S101
        with open(self._log, "a", opener=private_opener) as file:
            file.write(f"{line}\n")

    def _document(self) -> JsonObject:
        return {"since": self.since, "before": self._before, "stats": self.dump_counters()}

    def _store(self, document: JsonObject) -> None:
        write_file(self._copy, json.dumps(document).encode(), 0o600)
