"""Keeps the tables small: merges files, removes raw events after a while, keeps what they told.

Merging never changes what a table says, so it may happen at any moment between batches.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from heliograph.pipeline import health, ledger, stats, store
from heliograph.pipeline.reading import names
from heliograph.pipeline.runner import Pipeline
from heliograph.pipeline.tables import DataFile

DAY = 86_400.0
MANY = 40
"""Files of a table that are not worth merging yet."""
LARGE = 64 << 20
"""Bytes of a file that is merged only when everything is."""


def compact(pipeline: Pipeline, everything: bool = False) -> int:
    """Merge small files; how many were replaced. One commit a table."""
    replaced = 0
    for table in ("marks", "settlements", "counts", "actives", "quarantine"):
        files = pipeline.manifest.of(table)
        small = [file for file in files if everything or file.size < LARGE]
        if len(small) > (1 if everything else MANY):
            replaced += _merge(pipeline, table, small)
    by_day: dict[str | None, list[DataFile]] = defaultdict(list)
    notes = pipeline.manifest.notes
    upto = min(notes.get("stats", 0), notes.get("ledger", 0))
    for file in pipeline.manifest.of("events"):
        if file.size < LARGE and file.batch <= upto:  # jobs go by file
            by_day[file.day].append(file)
    for files_of_day in by_day.values():
        if len(files_of_day) > (1 if everything else MANY):
            replaced += _merge(pipeline, "events", files_of_day)
    return replaced


def _merge(pipeline: Pipeline, table: str, files: Sequence[DataFile]) -> int:
    size = sum(file.size for file in files)
    pipeline.partition(size)
    frame = _merged(table, pipeline.read(table, files))
    number = max(1, size // LARGE)
    by_day = table == "events"
    if by_day:
        frame = frame.withColumn("day", f.to_date("at"))
    written = store.write(pipeline.tables, [(table, frame.coalesce(number), by_day)])[table]
    # A merged file is as old as its newest part, or it would be counted again.
    batch = max(file.batch for file in files)
    added = [replace(file, batch=batch) for file in written]
    pipeline.tables.commit({table: added}, {table: files})
    return len(files)


def _merged(table: str, frame: DataFrame) -> DataFrame:
    match table:
        case "marks":
            return ledger.merge_marks(frame)
        case "settlements":
            return ledger.merge_settlements(frame)
        case "counts":
            return stats.merge_counts(frame)
        case "actives":
            return stats.merge_actives(frame)
        case "quarantine":
            return frame.distinct()
        case _:
            return frame


def backfill(pipeline: Pipeline, day: date) -> int:
    """Make the statistics of a day again from its raw events; how many files of those."""
    pipeline.update_stats()
    files = [file for file in pipeline.manifest.of("events") if file.day == day.isoformat()]
    if not files:
        return 0
    pipeline.partition(sum(file.size for file in files))
    events = pipeline.read("events", files)
    old_counts, old_actives = pipeline.manifest.of("counts"), pipeline.manifest.of("actives")
    counts = pipeline.read("counts").where(f.to_date("hour") != day)
    actives = pipeline.read("actives").where(f.col("day") != day)
    writes: list[store.Write] = [
        ("counts", counts.unionByName(stats.counts(events)).coalesce(1), False),
        ("actives", actives.unionByName(stats.actives(events)).coalesce(1), False),
    ]
    added = store.write(pipeline.tables, writes)
    pipeline.tables.commit(added, {"counts": old_counts, "actives": old_actives})
    return len(files)


def expire(pipeline: Pipeline, now: float, events_days: float, ledger_days: float) -> int:
    """Remove raw events, and turn old rows of the ledger into sums; how many files went."""
    return _expire_events(pipeline, now, events_days) + _archive(pipeline, now, ledger_days)


def _expire_events(pipeline: Pipeline, now: float, days: float) -> int:
    pipeline.update_stats()
    pipeline.update_ledger()
    oldest = datetime.fromtimestamp(now - days * DAY, UTC).date().isoformat()
    old = [
        file
        for file in pipeline.manifest.of("events")
        if file.day is not None and file.day < oldest
    ]
    if old:
        pipeline.tables.commit(removed={"events": old}, now=now)
    return len(old)


def _archive(pipeline: Pipeline, now: float, days: float) -> int:
    """Rows whose last event is older become part of `fates`, which has sums and sketches."""
    files = pipeline.manifest.of("marks")
    before = int((now - days * DAY) * 1e6)
    marks = pipeline.marks()
    is_old = f.greatest(*ledger.TIMES) < before
    if not files or not marks.where(is_old).limit(1).collect():
        return 0
    rows = pipeline.decided(marks.where(is_old))
    sums = health.summarize_fates(rows, names(pipeline)).coalesce(1)
    added = store.write(
        pipeline.tables, [("fates", sums, False), ("marks", marks.where(~is_old), False)]
    )
    pipeline.tables.commit(added, {"marks": files}, now=now)
    return len(files)
