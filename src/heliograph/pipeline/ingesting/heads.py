"""Read how far routers have sealed their journals: see `heliograph.journal.heads`.

Needs Spark only for URLs that nothing else can read.
"""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from heliograph.documents import JsonMapping, JsonObject
from heliograph.journal.heads import HEADS, Head, decode_head
from heliograph.pipeline import intervals, source
from heliograph.pipeline.intervals import Pair
from heliograph.pipeline.jobs.reach import NO_HEADS, Heads, covers
from heliograph.pipeline.tables.offsets import Offsets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

MAX_PROBES = 1000
"""Segments of a run that are looked for one by one; beyond, the journal is listed."""


def read_heads(
    journals: Sequence[str],
    spark: "SparkSession | None",
    offsets: Offsets,
    now: float,
    earlier: Heads = NO_HEADS,
) -> Heads:
    """Return the heads of all journals, without those of old runs that nothing depends on.

    A head of `earlier` that is gone stays while events that it counts are missing, unless nothing
    of its run was ever ingested and its router was retired.

    Raises OSError if they cannot be read.
    """
    runs: dict[str, Head] = {}
    waiting: set[str] = set()
    empty = []
    damaged: set[str] = set()
    counting = [
        head
        for head in earlier.runs.values()
        if head.run in offsets.seen or not offsets.routers.get(head.router, {}).get("retired")
    ]

    @cache
    def waiting_runs(journal: str) -> set[str | None]:
        return {item.run for item in source.list_segments(journal, spark, offsets)}

    for journal in journals:
        before = len(damaged)
        found = [*_heads(journal, spark, damaged)]
        if not found and len(damaged) == before:
            empty.append(journal)
        for head in (*found, *(head for head in counting if not covers(offsets.seen, head))):
            if head.boot <= offsets.expired.get(head.router, -1):
                continue
            known = runs.get(head.run)
            if known is None or (head.seq, head.at) > (known.seq, known.at):
                runs[head.run] = head
            if covers(offsets.seen, head):
                continue
            missing = intervals.missing(offsets.segments.get(head.run, ()), 1, head.segment)
            if (
                head.run in waiting_runs(journal)
                if intervals.count(missing) > MAX_PROBES
                else _is_there(journal, spark, head.run, missing)
            ):
                waiting.add(head.run)
    relevant, names = _relevant(runs, offsets), tuple(sorted(damaged))
    return Heads(relevant, frozenset(waiting), tuple(empty), now, damaged=names)


def _relevant(runs: Mapping[str, Head], offsets: Offsets) -> dict[str, Head]:
    newest: dict[str, int] = {}
    for head in runs.values():
        newest[head.router] = max(newest.get(head.router, 0), head.boot)
    return {
        run: head
        for run, head in runs.items()
        if head.boot == newest[head.router] or not head.ended or not covers(offsets.seen, head)
    }


def _is_there(
    journal: str, spark: "SparkSession | None", run: str, missing: Sequence[Pair]
) -> bool:
    """Return True if a journal has one of these segments; newest first: a backlog is at the end."""
    names = (
        f"{run}-{number:08}.parquet"
        for low, high in reversed(missing)
        for number in range(high, low - 1, -1)
    )
    return any(source.probe(journal, name, spark) is not None for name in names)


def _heads(journal: str, spark: "SparkSession | None", damaged: set[str]) -> Iterator[Head]:
    for name, text in _texts(journal, spark):
        try:
            yield decode_head(text.encode())
        except ValueError as exc:
            logger.warning("%s/%s/%s is damaged: %s", journal, HEADS, name, exc)
            damaged.add("/".join(name.removesuffix(".json").rsplit("-", 1)))


def _texts(journal: str, spark: "SparkSession | None") -> Iterator[tuple[str, str]]:
    if "://" not in journal:
        yield from _local(Path(journal) / HEADS)
        return
    storage = source.storage_of(journal)
    if storage is not None:
        for name, _ in storage.files(HEADS):
            text = storage.read_text(f"{HEADS}/{name}")
            if text is not None:
                yield name, text
    elif spark is not None:
        yield from source.texts_in(f"{journal.rstrip('/')}/{HEADS}", spark)


def _local(folder: Path) -> Iterator[tuple[str, str]]:
    try:
        names = sorted(name for name in os.listdir(folder) if name[0] not in "._")
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        try:
            yield name, (folder / name).read_text(errors="replace")
        except FileNotFoundError:
            continue  # its router has removed it


def encode_heads(heads: Heads) -> JsonObject:
    return {
        "at": heads.at,
        "runs": [asdict(head) for head in heads.runs.values()],
        "waiting": sorted(heads.waiting),
        "empty": list(heads.empty),
        "damaged": list(heads.damaged),
    }


def decode_heads(document: JsonMapping) -> Heads:
    """Return the heads of an account; none if it has none."""
    runs = {head.run: head for head in (Head(**item) for item in document.get("runs", ()))}
    return Heads(
        runs,
        frozenset(document.get("waiting", ())),
        tuple(document.get("empty", ())),
        document.get("at", 0.0),
        is_stored="at" in document,
        damaged=tuple(document.get("damaged", ())),
    )
