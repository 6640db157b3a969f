"""Tables of Parquet files, and the one file that says which of them count.

`manifest.json` lists the files of every table together with what was taken from the journals. A
batch writes files under a name of its own and then replaces the manifest in one rename: before it,
nothing of the batch counts; after it, everything does. A process killed in between leaves files
that nothing lists, and the next one removes them. Readers need no lock: files that compaction
replaced are kept for a while, so what a manifest lists can be read.
"""

import fcntl
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from heliograph.pipeline.intervals import Pair
from heliograph.runtime.errors import StartError
from heliograph.runtime.files import sync_directory, write_file

MANIFEST = "manifest.json"
LOCK = "lock"
FORMAT = 1
KEEP_RETIRED = 600.0
"""Seconds that a file stays after it was replaced, for readers that began before."""

Taken = Mapping[str, Sequence[Pair]]
"""Intervals of numbers by ``ROUTER/BOOT``."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """`path` is below the tables' directory; `day` is in it, for tables that have days."""

    path: str
    size: int
    batch: int

    @property
    def day(self) -> str | None:
        name = self.path.rsplit("/", 2)[-2]
        return name.removeprefix("day=") if name.startswith("day=") else None


@dataclass(frozen=True, slots=True)
class Manifest:
    """What counts. `seen` are events by sequence number, `segments` the journal's files."""

    version: int = 0
    committed_at: float = 0.0
    files: Mapping[str, tuple[DataFile, ...]] = field(default_factory=dict)
    retired: tuple[tuple[str, float], ...] = ()
    seen: Taken = field(default_factory=dict)
    segments: Taken = field(default_factory=dict)
    other_segments: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)
    """What jobs want to find again, by job."""

    def of(self, table: str) -> tuple[DataFile, ...]:
        return self.files.get(table, ())


def encode(manifest: Manifest) -> bytes:
    return json.dumps({"format": FORMAT, **asdict(manifest)}, separators=(",", ":")).encode()


def decode(data: bytes) -> Manifest:
    """Raises `ValueError`."""
    try:
        value = json.loads(data)
        if value["format"] != FORMAT:
            raise ValueError(f"its format is {value['format']}, and this version knows {FORMAT}")
        return Manifest(
            version=value["version"],
            committed_at=value["committed_at"],
            files={
                table: tuple(DataFile(**file) for file in files)
                for table, files in value["files"].items()
            },
            retired=tuple((path, at) for path, at in value["retired"]),
            seen=_pairs(value["seen"]),
            segments=_pairs(value["segments"]),
            other_segments=tuple(value["other_segments"]),
            counts=value["counts"],
            notes=value["notes"],
        )
    except (KeyError, TypeError, AttributeError) as exc:
        raise ValueError(f"it is damaged: {exc!r}") from exc


def _pairs(taken: Mapping[str, Iterable[Sequence[int]]]) -> dict[str, list[Pair]]:
    return {key: [(low, high) for low, high in pairs] for key, pairs in taken.items()}


def read_manifest(directory: Path) -> Manifest:
    """Of a directory that may be empty. Raises `StartError`."""
    try:
        return decode((directory / MANIFEST).read_bytes())
    except FileNotFoundError:
        return Manifest()
    except (OSError, ValueError) as exc:
        raise StartError(
            f"{directory / MANIFEST} cannot be read: {exc}. The journals are the truth: move the"
            " directory away and the tables are made again"
        ) from exc


class Tables:
    """The one writer of a directory. `open` waits for nobody."""

    def __init__(self, directory: Path, manifest: Manifest) -> None:
        self.directory = directory
        self.manifest = manifest

    def staging(self, table: str) -> Path:
        """Where a batch may write files that do not count yet."""
        return self.directory / table / f"{self.manifest.version + 1:08d}-{uuid.uuid4().hex[:8]}"

    def written(self, staging: Path) -> tuple[DataFile, ...]:
        """What was written there, made durable."""
        files = sorted(path for path in staging.rglob("*.parquet") if not _hidden(path, staging))
        for path in files:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        for parent in {folder for path in files for folder in path.parents}:
            if parent.is_relative_to(self.directory):
                sync_directory(parent)
        version = self.manifest.version + 1
        return tuple(
            DataFile(str(path.relative_to(self.directory)), path.stat().st_size, version)
            for path in files
        )

    def discard(self, files: Iterable[DataFile]) -> None:
        """Remove what was written and will never count."""
        paths = [file.path for file in files]
        for path in paths:
            (self.directory / path).unlink()
        self._remove_empty(self._batches(paths))

    def commit(
        self,
        added: Mapping[str, Iterable[DataFile]] | None = None,
        removed: Mapping[str, Iterable[DataFile]] | None = None,
        now: float | None = None,
        **changes: Any,
    ) -> Manifest:
        """Make all of it count at once. `changes` are fields of `Manifest`."""
        now = time.time() if now is None else now
        before = self.manifest
        gone = {table: {file.path for file in files} for table, files in (removed or {}).items()}
        files = {
            table: tuple(file for file in kept if file.path not in gone.get(table, ()))
            for table, kept in before.files.items()
        }
        for table, new in (added or {}).items():
            files[table] = (*files.get(table, ()), *new)
        retired = [(path, now) for paths in gone.values() for path in sorted(paths)]
        changes.setdefault("retired", (*before.retired, *retired))
        self.manifest = replace(
            before, version=before.version + 1, committed_at=now, files=files, **changes
        )
        try:
            write_file(self.directory / MANIFEST, encode(self.manifest))
        except BaseException:
            self.manifest = before
            raise
        return self.manifest

    def vacuum(self, now: float, keep: float = KEEP_RETIRED) -> int:
        """Remove what was replaced long enough ago; how many files."""
        old = [path for path, at in self.manifest.retired if at + keep <= now]
        if old:
            for path in old:
                (self.directory / path).unlink(missing_ok=True)
            left = tuple(item for item in self.manifest.retired if item[1] + keep > now)
            self.commit(now=now, retired=left)
            self._remove_empty(self._batches(old))
        return len(old)

    def remove_orphans(self) -> int:
        """Remove what a writer that was killed left behind; how many files."""
        known = {file.path for files in self.manifest.files.values() for file in files}
        known.update(path for path, _ in self.manifest.retired)
        count = 0
        for table in self._folders():
            for path in table.rglob("*"):
                if path.is_file() and str(path.relative_to(self.directory)) not in known:
                    path.unlink()
                    count += 1
            self._remove_empty(list(table.iterdir()))
        return count

    def _folders(self) -> Iterator[Path]:
        for path in self.directory.iterdir():
            if path.is_dir() and path.name in TABLES:
                yield path

    def _remove_empty(self, folders: Iterable[Path]) -> None:
        """Of folders of batches those without files."""
        for batch in folders:
            if batch.is_dir() and not any(path.is_file() for path in batch.rglob("*")):
                shutil.rmtree(batch, ignore_errors=True)

    def _batches(self, paths: Iterable[str]) -> set[Path]:
        """The folders of batches that files are in: others may be written to just now."""
        return {self.directory.joinpath(*Path(path).parts[:2]) for path in paths}


TABLES = ("events", "quarantine", "marks", "settlements", "counts", "actives", "fates")
"""Folders that are ours to tidy."""


@contextmanager
def open_tables(directory: Path) -> Iterator[Tables]:
    """Raises `StartError`, also when another process has them open."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as exc:
        raise StartError(f"{directory} cannot be written: {exc.strerror}") from exc
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise StartError(
                f"another pipeline is at work in {directory}: let it end, or choose another --dir"
            ) from exc
        tables = Tables(directory, read_manifest(directory))
        tables.remove_orphans()
        yield tables
    finally:
        os.close(lock)


def _hidden(path: Path, below: Path) -> bool:
    return any(part[0] in "._" for part in path.relative_to(below).parts)
