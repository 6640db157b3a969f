"""The segments of one router in its directory: an active log, and sealed ones, which are Parquet.

    DIRECTORY/<router>/<boot>-<number>.parquet    sealed: complete, immutable, readable by anybody
    DIRECTORY/<router>/_<boot>-<number>.log       active: used by its writer only
    DIRECTORY/<router>/_<boot>.live               locked by a run beside others: see `LiveRuns`
    DIRECTORY/_heads/<router>-<boot>.json         how far a run has sealed: see `journal.heads`

A segment is sealed by writing the Parquet file under another name, fsync, rename, fsync of the
directory; only then its log is removed. So a kill leaves a segment as a log, sealed, or both, which
`recover` resolves. Spark ignores names that begin with `_`.
"""

import contextlib
import fcntl
import logging
import os
import re
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from heliograph.journal.readers import read_acknowledged
from heliograph.journal.storage.arrow import REPETITIVE, complete
from heliograph.journal.storage.log import Log, read_log
from heliograph.runtime.files import private_opener, sync_directory

__all__ = [
    "SEALED",
    "Full",
    "LiveRuns",
    "Recovered",
    "Removed",
    "Sealed",
    "SegmentWriter",
    "new_boot",
    "recover",
    "write_sealed",
]

logger = logging.getLogger(__name__)

SEALED = ".parquet"
LOG = ".log"
UNREADABLE = ".unreadable"
_NAME = re.compile(r"_?([0-9]+)-([0-9]+)\.(parquet|log)")
_BOOT = re.compile(r"_?([0-9]+)[-.]")
LIVE = ".live"
_BLOCK = 4096
_RANGES = ("boot", "seq", "kind", "at", "ntf_seq")
"""Columns whose statistics help a reader; those of hashes are useless."""


class Full(OSError):
    """The journal has reached its size limit."""


class _SealedSegment(NamedTuple):
    boot: int
    number: int
    path: Path
    size: int


class Removed(NamedTuple):
    """Segments and events that were removed before a pipeline acknowledged them."""

    segments: int = 0
    events: int = 0


class Recovered(NamedTuple):
    """A segment that was sealed from the log of a killed run."""

    boot: int
    number: int
    last_seq: int
    events: int


class Sealed:
    """The sealed segments of a router, oldest first, and their disk usage."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.bytes = 0
        self._segments: list[_SealedSegment] = []

    def scan(self) -> int:
        """List the segments; return the greatest boot number, 0 if there are none."""
        found = []
        newest = 0
        for entry in os.scandir(self.directory):
            match = _NAME.fullmatch(entry.name)
            if match is None:
                continue
            boot, number = int(match[1]), int(match[2])
            newest = max(newest, boot)
            if match[3] == "parquet" and not entry.name.startswith("_"):
                with contextlib.suppress(FileNotFoundError):  # another process removed it
                    size = _disk_usage(entry.stat().st_size)
                    found.append(_SealedSegment(boot, number, Path(entry.path), size))
        self._segments = sorted(found)
        self.bytes = sum(item.size for item in found)
        return newest

    def add(self, path: Path) -> None:
        match = _NAME.fullmatch(path.name)
        assert match is not None  # noqa: S101
        size = _disk_usage(path.stat().st_size)
        self._segments.append(_SealedSegment(int(match[1]), int(match[2]), path, size))
        self.bytes += size

    def remove_acknowledged(self, before: float) -> None:
        """Remove acknowledged segments that were sealed before Unix time `before`."""
        acknowledged = read_acknowledged(self.directory)
        gone = []
        for item in self._segments:
            if acknowledged.has(item.boot, item.number):
                with contextlib.suppress(FileNotFoundError):
                    if item.path.stat().st_mtime < before:
                        gone.append(item)
        self._remove(gone)

    def remove_oldest(self, most: int, *, unread: bool = True) -> Removed:
        """Remove segments down to `most` bytes, but never the newest; return what was unread.

        Acknowledged ones go first. The last segment of a run goes last: while it exists, a
        pipeline can tell from its sequence numbers how many events are missing.
        """
        acknowledged = read_acknowledged(self.directory)
        last = {item.boot: item.number for item in self._segments}
        order = sorted(
            (not acknowledged.has(item.boot, item.number), item.number == last[item.boot], item)
            for item in self._segments[:-1]
        )
        chosen: list[_SealedSegment] = []
        losing = []
        size = self.bytes
        for is_unread, _, item in order:
            if size <= most or (is_unread and not unread):
                break
            chosen.append(item)
            size -= item.size
            if is_unread and (events := _events_in(item.path)) is not None:
                losing.append(events)
        self._remove(chosen)
        return Removed(len(losing), sum(losing))

    def _remove(self, chosen: list[_SealedSegment]) -> None:
        for item in chosen:
            item.path.unlink(missing_ok=True)
            self.bytes -= item.size
        gone = {*chosen}
        self._segments = [item for item in self._segments if item not in gone]


def _events_in(path: Path) -> int | None:
    """Return the number of events, None if a reader removed the file; 0 if it is damaged."""
    try:
        return int(pq.read_metadata(path).num_rows)
    except FileNotFoundError:
        return None
    except pa.ArrowInvalid:
        return 0


class SegmentWriter:
    """Appends to one active segment at a time, and keeps its events in memory until sealed.

    After an OSError nothing is lost yet: call `seal` again until it succeeds. The sealed segment is
    complete, whatever the state of the log.
    """

    def __init__(self, directory: Path, boot: int) -> None:
        self.directory = directory
        self.count = 0
        self.count_unsynced = 0
        """Number of events that are not in the log."""
        self.bytes = 0
        self.began_at = 0.0
        self._boot = boot
        self._number = 1
        self._tables: list[pa.Table] = []
        self._log: Log | None = None

    @property
    def sealed(self) -> int:
        """Number of the last segment that was sealed or abandoned; 0 if there is none."""
        return self._number - 1

    def append(self, table: pa.Table, now: float) -> None:
        if not self._tables:
            self.began_at = now
        self._tables.append(table)
        self.count += len(table)
        self.bytes += table.nbytes
        self.count_unsynced += len(table)
        if self._log is None:
            self._log = Log(self.directory / self._name(LOG, active=True))
        self._log.append(table)
        self.count_unsynced = 0

    def seal(self) -> Path | None:
        """Seal the segment and return its file, None if it is empty."""
        if not self._tables:
            return None
        path = self.directory / self._name(SEALED)
        write_sealed(path, complete(self._tables))
        self.abandon()
        return path

    def abandon(self) -> None:
        """Drop the segment and begin the next."""
        self._drop_log()
        self._tables = []
        self.count = self.count_unsynced = self.bytes = 0
        self._number += 1

    def _drop_log(self) -> None:
        """Remove the log. If that fails, `recover` removes it later."""
        log, self._log = self._log, None
        if log is not None:
            try:
                log.close()
                log.path.unlink()
            except OSError as exc:
                logger.debug("the log of a sealed segment cannot be removed: %s", exc.strerror)

    def _name(self, suffix: str, *, active: bool = False) -> str:
        return f"{'_' if active else ''}{self._boot}-{self._number:08}{suffix}"


def write_sealed(path: Path, table: pa.Table) -> None:
    """Write a sealed segment atomically and durably."""
    temporary = path.with_name(f"_{path.name}.tmp")
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        compression="zstd",
        use_dictionary=[*REPETITIVE],
        write_statistics=[*_RANGES],
        store_schema=False,
        write_page_checksum=True,
    )
    try:
        with open(temporary, "wb", opener=private_opener) as file:
            file.write(sink.getvalue())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_directory(path.parent)


def recover(directory: Path, live: Collection[int] = ()) -> list[Recovered]:
    """Seal the logs that a killed run left, and return what was saved.

    Leave alone those of runs that are `live`, in other processes.
    """
    saved = []
    for entry in sorted(os.scandir(directory), key=lambda entry: entry.name):
        path = Path(entry.path)
        boot = _BOOT.match(entry.name)
        if boot is not None and int(boot[1]) in live:
            continue
        if entry.name.endswith(LIVE):
            path.unlink(missing_ok=True)
            continue
        if entry.name.startswith("_") and entry.name.endswith(".tmp"):
            path.unlink(missing_ok=True)
            continue
        match = _NAME.fullmatch(entry.name)
        if match is None or match[3] != "log":
            continue
        sealed = directory / f"{match[1]}-{match[2]}{SEALED}"
        if not sealed.exists():
            try:
                tables = read_log(path)
                table = complete(tables) if tables else None
            except (pa.ArrowInvalid, pa.ArrowTypeError, KeyError) as exc:
                # Not written by this program: leave it to the operator.
                logger.error("%s cannot be read, and is renamed to .unreadable: %s", path.name, exc)
                path.replace(path.with_suffix(UNREADABLE))
                continue
            if table is not None:
                write_sealed(sealed, table)
                last_seq = pc.max(table["seq"]).as_py()
                saved.append(Recovered(int(match[1]), int(match[2]), last_seq, len(table)))
        path.unlink()
    return saved


class LiveRuns:
    """Runs of several processes that write to one directory at a time.

    Each holds a lock on a file named after its boot, which the kernel frees with the process.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._own: int | None = None

    @contextlib.contextmanager
    def starting(self) -> Iterator[set[int]]:
        """Let one process start at a time; yield the boots of those that run."""
        descriptor = os.open(self._directory / "_start", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield {
                int(path.name.removeprefix("_").removesuffix(LIVE))
                for path in self._directory.glob(f"_*{LIVE}")
                if _is_locked(path)
            }
        finally:
            os.close(descriptor)

    def hold(self, boot: int) -> None:
        """Be a live run until the process ends or `release` is called."""
        path = self._directory / f"_{boot}{LIVE}"
        self._own = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._own, fcntl.LOCK_EX)

    def release(self) -> None:
        own, self._own = self._own, None
        if own is not None:
            os.close(own)


def _is_locked(path: Path) -> bool:
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def new_boot(newest: int, now: float | None = None) -> int:
    """Return a number greater than that of every earlier run, even if the clock was set back."""
    return max(int((time.time() if now is None else now) * 1e6), newest + 1)


def _disk_usage(size: int) -> int:
    """Return the disk space that a file takes, in whole blocks."""
    return -(-size // _BLOCK) * _BLOCK
