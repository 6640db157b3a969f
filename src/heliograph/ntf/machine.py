"""Statistics and state of all workers of a machine as one, for the supervisor."""

import asyncio
import hashlib
import json
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path

from heliograph.documents import JsonObject
from heliograph.ntf.cluster.reports import server_states
from heliograph.ntf.cluster.supervisor import WORKERS
from heliograph.ntf.observing.live import snapshot
from heliograph.ntf.observing.stats import Stats
from heliograph.ntf.reference.control import RouterState
from heliograph.ntf.reference.statslog import NtfStatsLog
from heliograph.ntf.store.totals import Totals
from heliograph.runtime.config.operations import STATS_NAME, StatsOptions

__all__ = ["MachineState", "WorkersStatsLog", "absorb_workers", "finish_absorbing"]

logger = logging.getLogger(__name__)

Ask = Callable[[], Awaitable[Mapping[int, JsonObject]]]
"""Asks all workers, and returns the reports of those that answer, by their number."""


class WorkersStatsLog(NtfStatsLog):
    """The statistics of a machine: what its workers have saved, added up.

    Its copy has what one process counted before there were workers, and where the last line ended.
    """

    def __init__(self, directory: Path, options: StatsOptions, ask: Ask, workers: int) -> None:
        super().__init__(
            Stats(),
            directory / STATS_NAME,
            options.path_in(directory),
            options.start_seconds,
            options.log_interval_seconds,
        )
        self._directory = directory
        self._ask = ask
        self._workers = workers
        self._base: JsonObject = Stats().dump()

    async def gather(self) -> None:
        reports = await self._ask()
        self.stats = await asyncio.to_thread(self._read)
        self.scope = scope(reports, self._workers, "these counts are")

    def _read(self) -> Stats:
        stats = Stats()
        stats.restore(self._base)
        for saved in _saved(self._directory).values():
            stats.restore(saved)
        return stats

    def dump_counters(self) -> JsonObject:
        return self._base

    def restore_counters(self, saved: JsonObject) -> None:
        Stats().restore(saved)  # raises if it is damaged
        self._base = saved


class MachineState:
    """A `heliograph.ntf.reference.control.StateSource` of all workers of this machine."""

    def __init__(
        self,
        stats: WorkersStatsLog,
        ask: Ask,
        workers: int,
        count: Callable[[], Awaitable[Totals]],
        own_domains: Collection[str] = (),
    ) -> None:
        self.stats = stats
        self._ask = ask
        self._workers = workers
        self._count = count
        self._own_domains = own_domains

    async def state(self) -> RouterState:
        reports = await self._ask()
        totals: Totals | None = None
        try:
            totals = await self._count()
        except Exception as exc:
            logger.warning("what is pending cannot be counted: %s", exc)
        found = [state for item in reports.values() for state in server_states(item)]
        return RouterState(
            sum(item["threads"] for item in reports.values()),
            sum(item["clients"] for item in reports.values()),
            sum(item["in_flight"] for item in reports.values()),
            snapshot(found, totals, self._own_domains),
            totals,
            scope(reports, self._workers, "all but what is pending is"),
        )


def scope(reports: Mapping[int, JsonObject], workers: int, what: str) -> tuple[str, ...]:
    """Return lines about the processes that answered, and those of other machines."""
    processes = max((item["processes"] for item in reports.values()), default=0)
    lines = [f"Processes of this machine: {workers}, of which {len(reports)} answered"]
    if processes > workers:
        lines.append(f"Processes of the router: {processes}; {what} of this machine only")
    return tuple(lines)


def absorb_workers(stats: NtfStatsLog, directory: Path) -> None:
    """Add what workers counted to the statistics of one process, once there are no workers."""
    finish_absorbing(directory)
    saved = _saved(directory)
    if not saved:
        return
    for counted in saved.values():
        stats.restore_counters(counted)
    stats.absorbed = tuple(map(_digest, saved))
    stats.save()
    for file in saved:
        file.unlink()


def finish_absorbing(directory: Path) -> None:
    """Remove the statistics of workers that a process had added to its own when it was killed."""
    try:
        copy = json.loads((directory / STATS_NAME).read_bytes())
        absorbed = {str(digest) for digest in copy["stats"]["absorbed"]}
    except (OSError, ValueError, KeyError, TypeError):
        return  # there are none, or they are damaged, which is logged when they are restored
    for file in _files(directory) if absorbed else ():
        if _digest(file) in absorbed:
            file.unlink()


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _files(directory: Path) -> list[Path]:
    return sorted(directory.glob(f"{WORKERS}/*/{STATS_NAME}"))


def _saved(directory: Path) -> dict[Path, JsonObject]:
    """Return the statistics that workers saved, by file."""
    found: dict[Path, JsonObject] = {}
    for file in _files(directory):
        try:
            counted = json.loads(file.read_bytes())["stats"]
            Stats().restore(counted)  # raises if it is damaged
            found[file] = counted
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
            logger.error("the statistics of a worker cannot be read: %s: %s", file, exc)
    return found
