"""Upkeep of the tables: merge small files, expire raw events, archive the ledger as sums.

Merging never changes the content of a table, so it may run between any two batches.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime

from pyspark.sql import DataFrame, functions as f

from heliograph.pipeline.jobs import health, ledger, routers, stats
from heliograph.pipeline.jobs.windows import Gap
from heliograph.pipeline.runner import Pipeline
from heliograph.pipeline.spark.local import local
from heliograph.pipeline.tables import store
from heliograph.pipeline.tables.schemas import SCHEMAS
from heliograph.pipeline.tables.store import Write
from heliograph.pipeline.tables.tables import DataFile
from heliograph.pipeline.views import names
from heliograph.runtime.errors import StartError

DAY = 86_400.0
DERIVED = ("marks", "settlements", "counts", "actives")
"""Tables that are computed from new events."""
MAX_FILES = 40
"""Number of small files of a table that are not worth merging."""
LARGE_BYTES = 64 << 20
"""Size in bytes from which a file is not small."""


def compact(pipeline: Pipeline, everything: bool = False) -> int:
    """Merge small files, with one commit per table; return the number of files replaced."""
    replaced = 0
    for table in (*DERIVED, "quarantine"):
        files = pipeline.snapshot.of(table)
        small = [file for file in files if everything or file.size < LARGE_BYTES]
        if len(small) > (1 if everything else MAX_FILES):
            replaced += _merge(pipeline, table, small)
    by_day: dict[str | None, list[DataFile]] = defaultdict(list)
    upto = min(pipeline.snapshot.progress.get(table, 0) for table in DERIVED)
    for file in pipeline.snapshot.of("events"):
        if file.size < LARGE_BYTES and file.batch <= upto:  # jobs select by file
            by_day[file.day].append(file)
    for files_of_day in by_day.values():
        if len(files_of_day) > (1 if everything else MAX_FILES):
            replaced += _merge(pipeline, "events", files_of_day)
    return replaced


def _merge(pipeline: Pipeline, table: str, files: Sequence[DataFile]) -> int:
    size = sum(file.size for file in files)
    pipeline.partition(size)
    frame = _merged(table, pipeline.read(table, files))
    number = max(1, size // LARGE_BYTES)
    by_day = table == "events"
    if by_day:
        frame = frame.withColumn("day", f.to_date("at"))
    # Merged files are as old as their newest part, or jobs would take them for new.
    batch = max(file.batch for file in files)
    merged = Write(table, frame.coalesce(number), by_day, batch=batch)
    written = store.write(pipeline.tables, [merged])
    pipeline.tables.commit(table, written[table], files)
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
    """Recompute the statistics of a day from its raw events; return the number of their files.

    Raises `StartError` if some of the events have expired.
    """
    pipeline.update_stats()
    files = [file for file in pipeline.snapshot.of("events") if file.day == day.isoformat()]
    if not files:
        return 0
    known = pipeline.read("counts").where(f.to_date("hour") == day).agg(f.sum("events"))
    expected, found = known.collect()[0][0] or 0, sum(file.rows for file in files)
    if found < expected:
        raise StartError(
            f"the statistics of {day} are of {expected} events, and only {found} of them are still"
            " there: the others have expired, so the statistics stay as they are"
        )
    pipeline.partition(sum(file.size for file in files))
    events = pipeline.read("events", files)
    old_counts, old_actives = pipeline.snapshot.of("counts"), pipeline.snapshot.of("actives")
    counts = pipeline.read("counts").where(f.to_date("hour") != day)
    actives = pipeline.read("actives").where(f.col("day") != day)
    writes = [
        Write("counts", counts.unionByName(stats.counts(events)).coalesce(1)),
        Write("actives", actives.unionByName(stats.actives(events)).coalesce(1)),
    ]
    added = store.write(pipeline.tables, writes)
    pipeline.tables.commit("counts", added["counts"], old_counts)
    pipeline.tables.commit("actives", added["actives"], old_actives)
    return len(files)


def store_coverage(pipeline: Pipeline, gaps: Sequence[Gap]) -> None:
    """Replace the table of events known to be missing, if it has changed."""
    rows = [
        (
            gap.router,
            gap.part,
            gap.boot,
            gap.first_seq,
            gap.last_seq,
            gap.events,
            datetime.fromtimestamp(gap.from_at / 1e6, UTC),
            datetime.fromtimestamp(gap.until_at / 1e6, UTC),
        )
        for gap in gaps
    ]
    old = pipeline.snapshot.of("coverage")
    if not rows and not old:
        return
    frame = local(pipeline.spark, rows, SCHEMAS["coverage"])
    if old and sorted(map(tuple, pipeline.read("coverage").collect())) == sorted(
        map(tuple, frame.collect())
    ):
        return
    added = store.write(pipeline.tables, [Write("coverage", frame.coalesce(1))])
    pipeline.tables.commit("coverage", added["coverage"], old)


def retire(pipeline: Pipeline, router: str) -> None:
    """Mark a router as retired until it writes again. Raises `StartError`."""
    offsets = pipeline.offsets
    if router not in offsets.routers:
        known = ", ".join(sorted(offsets.routers)) or "none"
        raise StartError(f"no router {router} is known; there are: {known}")
    changed = replace(offsets, routers=routers.retire(offsets.routers, router))
    pipeline.tables.commit("events", offsets=changed)


def expire(pipeline: Pipeline, now: float, events_days: float, ledger_days: float) -> int:
    """Expire raw events, and turn old rows of the ledger into sums; return the files removed."""
    count = _expire_events(pipeline, now, events_days) + _archive(pipeline, now, ledger_days)
    offsets = pipeline.offsets
    kept = routers.without_old_boots(offsets.routers, int((now - ledger_days * DAY) * 1e6))
    if kept != offsets.routers:
        pipeline.tables.commit("events", offsets=replace(offsets, routers=kept))
    return count


def _expire_events(pipeline: Pipeline, now: float, days: float) -> int:
    pipeline.update_stats()
    pipeline.update_ledger()
    oldest = datetime.fromtimestamp(now - days * DAY, UTC).date().isoformat()
    old = [
        file
        for file in pipeline.snapshot.of("events")
        if file.day is not None and file.day < oldest
    ]
    if old:
        pipeline.tables.commit("events", removed=old)
    return len(old)


def _archive(pipeline: Pipeline, now: float, days: float) -> int:
    """Move rows whose last event is older to `outcomes`, as sums and sketches."""
    files = pipeline.snapshot.of("marks")
    # Whole days: otherwise some rows expire every hour, and all marks are rewritten each time.
    before = int((now - days * DAY) // DAY * DAY * 1e6)
    marks = pipeline.marks()
    is_old = f.greatest(*ledger.TIMES) < before
    if not files or not marks.where(is_old).limit(1).collect():
        return 0
    rows = pipeline.decided(marks.where(is_old))
    sums = health.summarize_outcomes(rows, names(pipeline)).coalesce(1)
    added = store.write(
        pipeline.tables, [Write("outcomes", sums), Write("marks", marks.where(~is_old))]
    )
    pipeline.tables.commit("outcomes", added["outcomes"])
    pipeline.tables.commit("marks", added["marks"], files)
    return len(files)
