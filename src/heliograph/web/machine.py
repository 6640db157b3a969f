"""CPU, memory, disk space and open files of this machine and of the system's processes.

Values that only Linux offers are None elsewhere, and for processes of other users.
"""

import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from heliograph.documents import JsonObject

__all__ = ["Processes", "disks", "machine"]

_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def machine() -> JsonObject:
    """Return load, memory and uptime of this machine."""
    memory = _meminfo()
    try:
        load = round(os.getloadavg()[0], 2)
    except OSError:
        load = None
    return {
        "cores": os.cpu_count() or 1,
        "load": load,
        "memory_total": memory.get("MemTotal"),
        "memory_available": memory.get("MemAvailable"),
        "uptime_seconds": _uptime(),
    }


def disks(places: Mapping[str, Path]) -> list[JsonObject]:
    """Return size and free space of each file system, with the places that are on it."""
    found: dict[int, JsonObject] = {}
    for name, place in places.items():
        try:
            device, usage = place.stat().st_dev, shutil.disk_usage(place)
        except OSError:
            continue
        entry = found.setdefault(device, {"places": [], "total": usage.total, "free": usage.free})
        entry["places"].append(name)
    return list(found.values())


class Processes:
    """CPU use of processes between two measurements, and their memory and open files.

    What a process starts counts as its own: the pipeline runs Spark in a child.
    """

    def __init__(self) -> None:
        self._before: dict[int, tuple[float, float]] = {}

    def measure(self, pids: Iterable[int]) -> dict[int, JsonObject]:
        """Return cpu_percent (of one core), memory and open_files by process."""
        now = time.monotonic()
        found, seconds = {}, {}
        for pid in pids:
            usages = list(_usages(pid))
            if not usages:
                continue
            spent = sum(usage.seconds for usage in usages)
            seconds[pid] = (now, spent)
            at, before = self._before.get(pid, (now, spent))
            percent = 100 * max(spent - before, 0.0) / (now - at) if now > at else None
            found[pid] = {
                "cpu_percent": None if percent is None else round(percent, 1),
                "memory": sum(usage.memory for usage in usages),
                "open_files": _total([usage.open_files for usage in usages]),
            }
        self._before = seconds
        return found


@dataclass(frozen=True, slots=True)
class _Usage:
    seconds: float
    memory: int
    open_files: int | None


def _usages(pid: int) -> Iterator[_Usage]:
    """Yield what a process uses, then its children and theirs."""
    place = _PROC / str(pid)
    try:
        fields = (place / "stat").read_text().rpartition(")")[2].split()
        ticks = sum(map(int, fields[11:15]))  # children that ended included
        yield _Usage(ticks / _TICKS, int(fields[21]) * _PAGE, _open_files(pid))
        children = [
            int(child)
            for task in (place / "task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    except (OSError, IndexError, ValueError):
        return
    for child in children:
        yield from _usages(child)


def _total(numbers: list[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


def _open_files(pid: int) -> int | None:
    try:
        return len(os.listdir(_PROC / str(pid) / "fd"))
    except OSError:
        return None


def _meminfo() -> dict[str, int]:
    try:
        lines = (_PROC / "meminfo").read_text().splitlines()
        return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
    except (OSError, ValueError, IndexError):
        return {}


def _uptime() -> float | None:
    try:
        return float((_PROC / "uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None
