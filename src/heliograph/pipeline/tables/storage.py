"""The place of the tables: a directory or a URL, always fully qualified.

The driver lists, reads and removes files through Arrow's file systems; Spark writes to the same
URL. If a worker sees another disk there, its files are not found here, and the commit is refused.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from heliograph.runtime.errors import StartError
from heliograph.runtime.files import sync_directory

BY_DAY = ("events", "marks", "outcomes")
"""Tables with the partition `day`; it is null for the marks of open notifications."""
_ALIASES = {"s3a": "s3", "s3n": "s3"}
"""URL schemes of Hadoop that have another name in Arrow and Delta."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A Parquet file. `path` is relative to the listed folder."""

    path: str
    size: int
    rows: int


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """A file of a journal. `modified` is in seconds since the epoch."""

    path: str
    size: int
    modified: float


class Storage:
    """File access below one place. Raises `StartError` for an unknown URL scheme."""

    def __init__(self, place: str | Path) -> None:
        text = str(place)
        self.local = None if "://" in text else Path(text).absolute()
        if text.startswith(("file:///", "file://localhost/")):
            self.local = Path("/", unquote(text.split("/", 3)[3]))
        self.url = text.rstrip("/") if self.local is None else self.local.as_uri()
        scheme, _, rest = self.url.partition("://")
        self.delta_url = f"{_ALIASES.get(scheme, scheme)}://{rest}"
        try:
            found = pyarrow.fs.FileSystem.from_uri(self.delta_url)
        except (pa.ArrowException, OSError, ValueError) as exc:
            reason = str(exc).partition("\n")[0]
            raise StartError(
                f"{text}: {reason}: name a directory, or a URL as s3://bucket/folder"
            ) from exc
        self._filesystem: pyarrow.fs.FileSystem = found[0]
        self._root: str = found[1]

    def below(self, *parts: str) -> str:
        """Return the qualified URL of a path, for Spark: it takes `%20` literally."""
        root = self.url if self.local is None else f"file://{self.local}"
        return "/".join((root, *parts))

    def has_folder(self, folder: str) -> bool:
        found = self._filesystem.get_file_info(f"{self._root}/{folder}")
        return bool(found.type == pyarrow.fs.FileType.Directory)

    def files(self, folder: str) -> Iterator[tuple[str, int]]:
        """Yield paths below `folder`, and sizes, of files that are not hidden."""
        base = f"{self._root}/{folder}"
        selector = pyarrow.fs.FileSelector(base, allow_not_found=True, recursive=True)
        for info in self._filesystem.get_file_info(selector):
            path = info.path[len(base) + 1 :]
            hidden = any(part[0] in "._" for part in path.split("/"))
            if info.type == pyarrow.fs.FileType.File and not hidden:
                yield path, info.size

    def listed(self) -> Iterator[StoredSegment]:
        """Yield all Parquet files that are not hidden, with the time of their last change."""
        selector = pyarrow.fs.FileSelector(self._root, recursive=True)
        for info in self._filesystem.get_file_info(selector):
            path = info.path[len(self._root) + 1 :]
            if path.endswith(".parquet") and not any(p[0] in "._" for p in path.split("/")):
                yield StoredSegment(path, info.size, info.mtime_ns / 1e9)

    def find(self, path: str) -> StoredSegment | None:
        """Return one file, None if it does not exist."""
        info = self._filesystem.get_file_info(f"{self._root}/{path}")
        if info.type != pyarrow.fs.FileType.File:
            return None
        return StoredSegment(path, info.size, info.mtime_ns / 1e9)

    def exists(self) -> bool:
        return bool(
            self._filesystem.get_file_info(self._root).type == pyarrow.fs.FileType.Directory
        )

    def written(self, folder: str) -> tuple[StoredFile, ...]:
        """Return the Parquet files below `folder` with the rows of their footers; sync them."""
        files = []
        for path, size in sorted(self.files(folder)):
            name = f"{self._root}/{folder}/{path}"
            rows = pq.read_metadata(name, filesystem=self._filesystem).num_rows
            files.append(StoredFile(f"{path}", size, rows))
        if self.local is not None:
            self._sync(folder, [file.path for file in files])
        return tuple(files)

    def remove(self, folder: str, paths: list[str]) -> None:
        for path in paths:
            self._filesystem.delete_file(f"{self._root}/{folder}/{path}")

    def read_text(self, path: str) -> str | None:
        """Return the text of a file, None if it does not exist."""
        try:
            with self._filesystem.open_input_stream(f"{self._root}/{path}") as file:
                return bytes(file.read()).decode()
        except FileNotFoundError:
            return None

    def write_text(self, path: str, text: str) -> None:
        """Replace a small file atomically."""
        # Object storage shows only complete files; elsewhere a rename ensures that.
        has_rename = (pyarrow.fs.LocalFileSystem, pyarrow.fs.HadoopFileSystem)
        final = f"{self._root}/{path}"
        written = f"{final}.tmp" if isinstance(self._filesystem, has_rename) else final
        with self._filesystem.open_output_stream(written) as file:
            file.write(text.encode())
        if written != final:
            self._filesystem.move(written, final)

    def sync_log(self, table: str, version: int) -> None:
        """Make a commit of a local table durable."""
        if self.local is not None:
            self._sync(f"{table}/_delta_log", [f"{version:020}.json"])

    def _sync(self, folder: str, paths: list[str]) -> None:
        assert self.local is not None  # noqa: S101
        parents = {self.local / folder}
        for path in paths:
            file = self.local / folder / path
            descriptor = os.open(file, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            parents.update(item for item in file.parents if item.is_relative_to(self.local))
        for parent in parents:
            if parent.is_dir():
                sync_directory(parent)
