"""Statistics over time: a line a day in the reference's format, and a copy that outlives a restart.

Counters are never set back, as Prometheus likes them; a line has what was added since the one
before.
"""

import asyncio
import json
import logging
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from heliograph.ntf.stats import DAY, ActiveIds, Stats
from heliograph.runtime.files import write_file

__all__ = ["StatsLog", "first_delay"]

logger = logging.getLogger(__name__)

SAVE_INTERVAL = 3600.0

_FIRST = (
    "tkn_created",
    "tkn_verified",
    "tkn_deleted",
    "sub_created",
    "sub_deleted",
    "ntf_received",
    "ntf_delivered",
)
_LAST = (
    "tkn_replaced",
    "ntf_failed",
    "ntf_cron_delivered",
    "ntf_cron_failed",
    "ntf_vrf_queued",
    "ntf_vrf_delivered",
    "ntf_vrf_failed",
    "ntf_vrf_invalid_tkn",
)


def first_delay(now: float, start: float) -> float:
    """Seconds until the time of day `start`, in seconds since midnight of UTC."""
    return (start - now % DAY) % DAY


class StatsLog:
    """`run` writes lines and copies; `save` is for the end."""

    def __init__(
        self,
        stats: Stats,
        copy: Path,
        log: Path | None = None,
        start: float = 0.0,
        interval: float = DAY,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.since = stats.started_at
        self._stats = stats
        self._copy = copy
        self._log = log
        self._start = start
        self._interval = interval
        self._clock = clock
        self._before: dict[str, int] = {}

    def restore(self) -> None:
        """Go on from the copy. One that cannot be read costs numbers, and never a start."""
        try:
            saved = json.loads(self._copy.read_bytes())
            self._stats.restore(json.dumps(saved["stats"]))
            self.since = float(saved["since"])
            self._before = {str(name): int(value) for name, value in saved["before"].items()}
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
            logger.error("the saved statistics cannot be read, counting anew: %s", exc)

    def save(self) -> None:
        write_file(self._copy, self._dump(), 0o600)

    def period(self) -> dict[str, int]:
        """What was counted since the last line, by the names of `Counters`."""
        return {
            name: value - self._before.get(name, 0)
            for name, value in asdict(self._stats.counters).items()
            if isinstance(value, int)
        }

    def line(self, now: float) -> str:
        """The columns of the reference, in its order. Weeks and months stand where they ended."""
        counted = self.period()
        day = time.strftime("%Y-%m-%d", time.gmtime(self.since))
        active = [
            *_active(self._stats.active_tokens, now),
            *_active(self._stats.active_subs, now),
        ]
        first = [str(counted[name]) for name in _FIRST]
        return ",".join([day, *first, *active, *(str(counted[name]) for name in _LAST)])

    def begin(self, now: float) -> None:
        """A new period."""
        counters: dict[str, Any] = asdict(self._stats.counters)
        self._before = {name: value for name, value in counters.items() if isinstance(value, int)}
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
            if self._log is not None and now >= line_at:
                await self._write(self.line(now))
                self.begin(now)
                while line_at <= now:
                    line_at += self._interval
                save_at = now  # else a crash would count the day again
            if now >= save_at:
                save_at = now + SAVE_INTERVAL
                await self._keep(self._dump())

    async def _write(self, line: str) -> None:
        try:
            await asyncio.to_thread(self._append, line)
        except OSError as exc:
            logger.error("the statistics cannot be written: %s: %s", exc.strerror, line)

    def _append(self, line: str) -> None:
        assert self._log is not None  # noqa: S101
        with self._log.open("a") as file:
            file.write(f"{line}\n")

    async def _keep(self, data: bytes) -> None:
        try:
            await asyncio.to_thread(write_file, self._copy, data, 0o600)
        except OSError as exc:
            logger.error("the statistics cannot be saved: %s", exc.strerror)

    def _dump(self) -> bytes:
        stats = json.loads(self._stats.dump())
        return json.dumps({"since": self.since, "before": self._before, "stats": stats}).encode()


def _active(ids: ActiveIds, now: float) -> list[str]:
    date = time.gmtime(now)
    return [
        str(ids.ended("day", now)),
        str(ids.ended("week", now)) if date.tm_wday == 0 else "",
        str(ids.ended("month", now)) if date.tm_mday == 1 else "",
    ]
