"""Finds the sealed segments of journals: in a directory, or at any URL that Spark can read."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heliograph.pipeline import intervals
from heliograph.pipeline.intervals import Pair
from heliograph.pipeline.tables import Manifest, Taken
from heliograph.runtime.errors import StartError

_NAME = re.compile(r"(\d+)-(\d+)\.parquet")


@dataclass(frozen=True, slots=True)
class Segment:
    """`name` is its path below the journal; `run` and `number` are of a regular one."""

    name: str
    url: str
    size: int
    modified: float
    run: str | None = None
    number: int = 0


def segment(name: str, url: str, size: int, modified: float) -> Segment:
    folder, _, file = name.rpartition("/")
    match = _NAME.fullmatch(file)
    if match is None or not folder:
        return Segment(name, url, size, modified)
    return Segment(name, url, size, modified, f"{folder}/{match[1]}", int(match[2]))


def list_segments(journal: str, spark: Any) -> list[Segment]:
    """All of a journal, oldest first. Raises `StartError`."""
    found = _remote(journal, spark) if "://" in journal else _local(Path(journal))
    return sorted(found, key=lambda item: (item.modified, item.name))


def is_taken(item: Segment, manifest: Manifest) -> bool:
    if item.run is None:
        return item.name in manifest.other_segments
    return intervals.contains(manifest.segments.get(item.run, ()), item.number)


def with_taken(manifest: Manifest, taken: Iterable[Segment]) -> dict[str, Any]:
    """The fields of the manifest that say what was taken."""
    numbers: dict[str, list[Pair]] = {}
    others = set(manifest.other_segments)
    for item in taken:
        if item.run is None:
            others.add(item.name)
        else:
            numbers.setdefault(item.run, []).append((item.number, item.number))
    return {
        "segments": merged(manifest.segments, numbers),
        "other_segments": tuple(sorted(others)),
    }


def merged(known: Taken, new: Mapping[str, Sequence[Pair]]) -> dict[str, list[Pair]]:
    result = {key: list(pairs) for key, pairs in known.items()}
    for key, pairs in new.items():
        result[key] = intervals.merge([*result.get(key, ()), *pairs])
    return result


def _local(directory: Path) -> Iterator[Segment]:
    if not directory.is_dir():
        raise StartError(
            f"there is no journal at {directory}: name the directory in which routers journal"
        )
    for folder in os.scandir(directory):
        if folder.name[0] in "._":
            continue
        if folder.is_dir():
            for file in os.scandir(folder.path):
                yield from _entry(file, f"{folder.name}/{file.name}")
        else:
            yield from _entry(folder, folder.name)


def _entry(file: "os.DirEntry[str]", name: str) -> Iterator[Segment]:
    if file.name[0] not in "._" and file.name.endswith(".parquet") and file.is_file():
        try:
            facts = file.stat()
        except FileNotFoundError:
            return  # its router has removed it
        yield segment(name, os.path.abspath(file.path), facts.st_size, facts.st_mtime)


def _remote(url: str, spark: Any) -> Iterator[Segment]:
    """By Hadoop's file systems, which executors read through as well."""
    root = spark._jvm.org.apache.hadoop.fs.Path(url)
    system = root.getFileSystem(spark._jsc.hadoopConfiguration())
    if not system.exists(root):
        raise StartError(f"there is no journal at {url}")
    prefix = system.makeQualified(root).toString().rstrip("/") + "/"
    files = system.listFiles(root, True)
    while files.hasNext():
        status = files.next()
        path = status.getPath().toString()
        name = path.removeprefix(prefix)
        hidden = any(part[0] in "._" for part in name.split("/"))
        if not hidden and name.endswith(".parquet"):
            modified = status.getModificationTime() / 1000
            yield segment(name, path, status.getLen(), modified)
