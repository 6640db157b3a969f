"""The segments of one router in its directory: an active log, and sealed ones, which are Parquet.

    DIRECTORY/<router>/<boot>-<number>.parquet    sealed: whole, never changed, anybody may read it
    DIRECTORY/<router>/_<boot>-<number>.log       active: only its writer knows it

A segment is sealed by writing the Parquet file under another name, fsync, rename, fsync of the
directory; only then its log goes. So a kill leaves a segment as a log or sealed or, for a moment,
as both, which `recover` settles. Names that begin with `_` are not read by Spark.
"""

import contextlib
import logging
import os
import re
import time
from collections import deque
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from heliograph.journal.arrow import REPETITIVE, complete
from heliograph.journal.log import Log, read_log
from heliograph.runtime.files import sync_directory

__all__ = ["SEALED", "Full", "Sealed", "SegmentWriter", "new_boot", "recover", "write_sealed"]

logger = logging.getLogger(__name__)

SEALED = ".parquet"
LOG = ".log"
UNREADABLE = ".unreadable"
_NAME = re.compile(r"_?([0-9]+)-([0-9]+)\.(parquet|log)")
_BLOCK = 4096
_RANGES = ("boot", "seq", "kind", "at", "ntf_seq")
"""Columns whose least and greatest values tell a reader something; those of hashes only cost."""


class Full(OSError):
    """There is as much as there may be."""


class Sealed:
    """The sealed segments of a router, oldest first, and how much disk they take."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.bytes = 0
        self._segments: deque[tuple[Path, int]] = deque()

    def scan(self) -> int:
        """Look at what there is; the greatest number of a run, 0 if there is none."""
        found = []
        newest = 0
        for entry in os.scandir(self.directory):
            match = _NAME.fullmatch(entry.name)
            if match is None:
                continue
            boot, number = int(match[1]), int(match[2])
            newest = max(newest, boot)
            if match[3] == "parquet" and not entry.name.startswith("_"):
                found.append((boot, number, Path(entry.path), _taken(entry.stat().st_size)))
        self._segments = deque((path, size) for _, _, path, size in sorted(found))
        self.bytes = sum(size for _, size in self._segments)
        return newest

    def add(self, path: Path) -> None:
        size = _taken(path.stat().st_size)
        self._segments.append((path, size))
        self.bytes += size

    def remove_oldest(self, most: int) -> tuple[int, int]:
        """Until there are at most so many bytes; how many segments and events went."""
        segments = events = 0
        while self.bytes > most and len(self._segments) > 1:
            path, size = self._segments[0]
            try:
                count = int(pq.read_metadata(path).num_rows)
                path.unlink()
            except FileNotFoundError:
                pass  # whoever read it removed it
            except pa.ArrowInvalid:
                path.unlink(missing_ok=True)
            else:
                segments += 1
                events += count
            self._segments.popleft()
            self.bytes -= size
        return segments, events


class SegmentWriter:
    """Appends to one active segment at a time. It keeps what is in it, in memory, until sealed.

    After an OSError nothing is lost yet: `seal` again, until it does not raise, and go on. What it
    writes then is whole, whatever became of the log.
    """

    def __init__(self, directory: Path, boot: int) -> None:
        self.directory = directory
        self.count = 0
        self.count_unsynced = 0
        """Of these the log knows nothing."""
        self.bytes = 0
        self.began_at = 0.0
        self._boot = boot
        self._number = 1
        self._tables: list[pa.Table] = []
        self._log: Log | None = None

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
        """The file; None if there is nothing to seal."""
        if not self._tables:
            return None
        path = self.directory / self._name(SEALED)
        write_sealed(path, complete(self._tables))
        self.abandon()
        return path

    def abandon(self) -> None:
        """Forget the segment, and begin the next."""
        self._drop_log()
        self._tables = []
        self.count = self.count_unsynced = self.bytes = 0
        self._number += 1

    def _drop_log(self) -> None:
        """If it stays, `recover` removes it."""
        log, self._log = self._log, None
        if log is not None:
            try:
                log.close()
                log.path.unlink()
            except OSError as exc:
                logger.debug("the log of a sealed segment stays: %s", exc.strerror)

    def _name(self, suffix: str, *, active: bool = False) -> str:
        return f"{'_' if active else ''}{self._boot}-{self._number:08}{suffix}"


def write_sealed(path: Path, table: pa.Table) -> None:
    """There wholly or not at all."""
    temporary = path.with_name(f"_{path.name}.tmp")
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        compression="zstd",
        use_dictionary=[*REPETITIVE],
        write_statistics=[*_RANGES],
        store_schema=False,
    )
    try:
        with temporary.open("wb") as file:
            file.write(sink.getvalue())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_directory(path.parent)


def recover(directory: Path) -> int:
    """Seal what a run that was killed left as logs; how many events that saved."""
    saved = 0
    for entry in sorted(os.scandir(directory), key=lambda entry: entry.name):
        path = Path(entry.path)
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
                # Nothing that this program wrote: for the operator to look at.
                logger.error("%s cannot be read, and is left aside: %s", path.name, exc)
                path.replace(path.with_suffix(UNREADABLE))
                continue
            if table is not None:
                write_sealed(sealed, table)
                saved += len(table)
        path.unlink()
    return saved


def new_boot(newest: int, now: float | None = None) -> int:
    """A number greater than that of every run before, also if the clock was set back."""
    return max(int((time.time() if now is None else now) * 1e6), newest + 1)


def _taken(size: int) -> int:
    """Of the disk, which is given in blocks."""
    return -(-size // _BLOCK) * _BLOCK
