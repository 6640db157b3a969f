"""Find the sealed segments of journals, in a directory or at any URL that Spark can read."""

import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from heliograph.documents import JsonObject
from heliograph.pipeline import intervals
from heliograph.pipeline.intervals import IntervalsByRun, Pair
from heliograph.pipeline.spark.java import JavaObject
from heliograph.pipeline.tables.offsets import Offsets
from heliograph.pipeline.tables.storage import Storage
from heliograph.runtime.errors import StartError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIST_INTERVAL = 10.0
"""Seconds between listings of a whole journal, at least."""
LIST_AGAIN = 30.0
"""Seconds until a journal that could not be listed is listed again."""
LIST_REST = 20
"""Wait this many times the duration of a listing before the next."""
_NAME = re.compile(r"(\d+)-(\d+)\.parquet")


@dataclass(frozen=True, slots=True)
class Segment:
    """A sealed segment. `name` is its path below the journal, and has `run` and `number`."""

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


def no_journal(place: object) -> StartError:
    """Return the error for a place without a journal."""
    return StartError(
        f"there is no journal at {place}: name the directory in which routers journal"
    )


def list_segments(
    journal: str, spark: "SparkSession | None", offsets: Offsets | None = None
) -> list[Segment]:
    """Return the segments of a journal, oldest first; without those that `offsets` have.

    Some URLs need Spark. Raises `StartError`.
    """
    found = _remote(journal, spark) if "://" in journal else _local(Path(journal), offsets)
    if offsets is not None:
        found = (item for item in found if not is_ingested(item, offsets))
    return sorted(found, key=_by_age)


def is_ingested(item: Segment, offsets: Offsets) -> bool:
    if item.run is None:
        return item.name in offsets.other_segments
    return is_ingested_number(item.run, item.number, offsets)


def is_expired(run: str | None, offsets: Offsets) -> bool:
    """Return True if a run is so old that it is not ingested again."""
    if run is None:
        return False
    router, _, boot = run.rpartition("/")
    return int(boot) <= offsets.expired.get(router, -1)


def is_ingested_number(run: str, number: int, offsets: Offsets) -> bool:
    if is_expired(run, offsets):
        return True
    return intervals.contains(offsets.segments.get(run, ()), number)


def with_ingested(offsets: Offsets, segments: Iterable[Segment]) -> JsonObject:
    """Return the fields of the offsets that record which segments were ingested."""
    numbers: dict[str, list[Pair]] = {}
    others = set(offsets.other_segments)
    for item in segments:
        if item.run is None:
            others.add(item.name)
        else:
            numbers.setdefault(item.run, []).append((item.number, item.number))
    return {
        "segments": merged(offsets.segments, numbers),
        "other_segments": tuple(sorted(others)),
    }


def merged(known: IntervalsByRun, new: IntervalsByRun) -> dict[str, list[Pair]]:
    result = {key: list(pairs) for key, pairs in known.items()}
    for key, pairs in new.items():
        result[key] = intervals.merge([*result.get(key, ()), *pairs])
    return result


class SegmentFinder:
    """Finds new segments by looking for the next number of each run.

    A whole journal is listed only every `LIST_INTERVAL`, and beside the polls, which finds new runs
    and segments that came out of order; polling a journal with a million ingested segments costs a
    few system calls. Only the first poll waits for its listing.
    """

    def __init__(self, journal: str, spark: "SparkSession | None") -> None:
        self._journal = journal
        self._spark = spark
        self._list_at = float("-inf")
        self._listing: Future[list[Segment]] | None = None
        self._began = 0.0

    def new(self, offsets: Offsets, now: float) -> list[Segment]:
        """Return segments that were not ingested, oldest first. Raises `StartError`."""
        is_first = self._list_at == float("-inf")
        if self._listing is None and now >= self._list_at:
            self._began = now
            self._listing = _in_thread(lambda: list_segments(self._journal, self._spark, offsets))
        if self._listing is not None and (is_first or self._listing.done()):
            listing, self._listing = self._listing, None
            self._list_at = now + LIST_AGAIN
            listed = listing.result()
            self._list_at = now + max(LIST_INTERVAL, LIST_REST * (now - self._began))
            return [item for item in listed if not is_ingested(item, offsets)]
        found = [item for run in _newest_runs(offsets) for item in self._next(run, offsets)]
        return sorted(found, key=_by_age)

    def _next(self, run: str, offsets: Offsets) -> Iterator[Segment]:
        number = offsets.segments[run][-1][1]
        while True:
            number += 1
            item = probe(self._journal, f"{run}-{number:08}.parquet", self._spark)
            if item is None:
                return
            yield item


def probe(journal: str, name: str, spark: "SparkSession | None") -> Segment | None:
    """Return the segment of this name, None if a journal does not have it."""
    if "://" in journal:
        return _probe_remote(journal, name, spark)
    path = os.path.join(os.path.abspath(journal), name)
    try:
        facts = os.stat(path)
    except OSError:
        return None
    return segment(name, path, facts.st_size, facts.st_mtime)


def exists(url: str, spark: "SparkSession | None") -> bool:
    """Return True if a segment is still there."""
    if "://" not in url:
        return os.path.exists(url)
    folder, _, name = url.rpartition("/")
    return _probe_remote(folder, name, spark) is not None


def _in_thread(work: Callable[[], list[Segment]]) -> "Future[list[Segment]]":
    future: Future[list[Segment]] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as exc:
            future.set_exception(exc)

    threading.Thread(target=run, daemon=True).start()
    return future


def _by_age(item: Segment) -> tuple[float, str]:
    return item.modified, item.name


def _newest_runs(offsets: Offsets) -> list[str]:
    """Return the newest run of each router."""
    newest: dict[str, int] = {}
    for run, pairs in offsets.segments.items():
        router, _, boot = run.rpartition("/")
        if pairs:
            newest[router] = max(newest.get(router, 0), int(boot))
    return [f"{router}/{boot}" for router, boot in newest.items()]


def _local(directory: Path, offsets: Offsets | None) -> Iterator[Segment]:
    if not directory.is_dir():
        raise no_journal(directory)
    for folder in os.scandir(directory):
        if folder.name[0] in "._":
            continue
        if folder.is_dir():
            for file in os.scandir(folder.path):
                yield from _entry(file, f"{folder.name}/{file.name}", offsets)
        else:
            yield from _entry(folder, folder.name, offsets)


def _entry(file: "os.DirEntry[str]", name: str, offsets: Offsets | None) -> Iterator[Segment]:
    if file.name[0] in "._" or not file.name.endswith(".parquet") or not file.is_file():
        return
    if offsets is not None and is_ingested(segment(name, "", 0, 0.0), offsets):
        return  # most of them are, and need not be looked at
    try:
        facts = file.stat()
    except FileNotFoundError:
        return  # its router has removed it
    yield segment(name, os.path.abspath(file.path), facts.st_size, facts.st_mtime)


@cache
def storage_of(url: str) -> Storage | None:
    """Return the storage at a URL, None if only Spark knows such a URL."""
    try:
        return Storage(url)
    except StartError:
        return None


def needs_spark(journal: str) -> bool:
    return "://" in journal and storage_of(journal) is None


def _hadoop(url: str, spark: "SparkSession | None") -> tuple[JavaObject, JavaObject]:
    """Return Hadoop's path of a URL, and the file system that it is in."""
    if spark is None:
        raise StartError(f"{url} cannot be read without Spark")
    java: JavaObject = spark
    path = java._jvm.org.apache.hadoop.fs.Path(url)
    return path, path.getFileSystem(java._jsc.hadoopConfiguration())


def texts_in(folder: str, spark: "SparkSession") -> Iterator[tuple[str, str]]:
    """Yield the names and texts of small files, at a URL that only Spark can read."""
    root, system = _hadoop(folder, spark)
    if system.exists(root):
        rows = spark.read.text(folder, wholetext=True).select("_metadata.file_name", "value")
        yield from (tuple(row) for row in rows.collect())


def _probe_remote(url: str, name: str, spark: "SparkSession | None") -> Segment | None:
    storage = storage_of(url)
    if storage is not None:
        found = storage.find(name)
        if found is None:
            return None
        return segment(name, storage.below(name), found.size, found.modified)
    path, system = _hadoop(f"{url.rstrip('/')}/{name}", spark)
    if not system.exists(path):
        return None
    status = system.getFileStatus(path)
    qualified = status.getPath().toString()
    return segment(name, qualified, status.getLen(), status.getModificationTime() / 1000)


def _remote(url: str, spark: "SparkSession | None") -> Iterator[Segment]:
    """Yield segments at a URL, through Arrow's file systems, else through Hadoop's."""
    storage = storage_of(url)
    if storage is not None:
        if not storage.exists():
            raise no_journal(url)
        for item in storage.listed():
            yield segment(item.path, storage.below(item.path), item.size, item.modified)
        return
    root, system = _hadoop(url, spark)
    if not system.exists(root):
        raise no_journal(url)
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
