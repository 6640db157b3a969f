"""Close notifications: move final rows of the ledger to their day, and keep the sums of each day.

The tables `marks` and `outcomes` have the partition `day`. Closing is one commit to `marks`; sums
that change are removed before, and new ones follow in a commit of their own, which records the last
closing that they contain.
"""

from collections.abc import Iterable

from pyspark.sql import DataFrame

from heliograph.pipeline.jobs import closing, health
from heliograph.pipeline.jobs.outcomes import closed_rows, decide_marks
from heliograph.pipeline.jobs.routers import watermark
from heliograph.pipeline.runner import Pipeline
from heliograph.pipeline.tables import store
from heliograph.pipeline.tables.snapshot import DataFile
from heliograph.pipeline.tables.store import Write
from heliograph.pipeline.views import names

LARGE_BYTES = 64 << 20


def close(pipeline: Pipeline, all_before: int = 0) -> int:
    """Close what is final and older than the watermark; return the number of files replaced.

    Rows whose last event is older than `all_before` are closed whatever their outcome. Nothing is
    done until a whole day can be closed.
    """
    update_sums(pipeline)  # of a closing that was interrupted
    pipeline.update_ledger()
    pinned = pipeline.pinned()
    before = max(closing.cutoff(watermark(pinned.routers())), all_before)
    files = pinned.snapshot.open_marks
    if not files or before <= pinned.closed_until:
        return 0
    reopened = pinned.reopened()
    decided = pinned.decided(pinned.marks(reopened), decide_marks)
    changed: list[DataFile] = []
    writes = []
    if reopened is not None:
        rows = reopened.select("notification", closing.last_day().cast("string")).collect()
        days = {row[1] for row in rows}
        changed = [file for file in pinned.snapshot.closed_marks if file.day in days]
        rest = closing.without_ids(pinned.read("marks", changed), [row[0] for row in rows])
        stored = closing.as_stored(rest)
        writes.append(_by_day(stored, changed, max(file.batch for file in changed)))
    number = pinned.snapshot.progress.get("outcomes", 0) + 1
    writes.insert(0, _by_day(closing.split(decided, before, all_before), files, number))
    written = store.write(pipeline.tables, writes)["marks"]
    days = {file.day for file in (*written, *changed)}
    days &= {file.day for file in pipeline.snapshot.closed_marks}
    old = [file for file in pipeline.snapshot.of("outcomes") if file.day in days]
    if old:
        # First: without sums, a day is counted by its rows, also after a kill.
        pipeline.tables.commit("outcomes", removed=old)
    pipeline.tables.commit("marks", written, [*files, *changed])
    update_sums(pipeline)
    return len(files) + len(changed)


def _by_day(rows: DataFrame, files: Iterable[DataFile], batch: int) -> Write:
    """Sort by ID, so that a few rows of a day can be found without reading all of it."""
    parts = max(1, sum(file.size for file in files) // LARGE_BYTES)
    frame = rows.coalesce(parts).sortWithinPartitions("day", "notification")
    return Write("marks", frame, True, batch=batch)


def update_sums(pipeline: Pipeline) -> None:
    """Compute the sums of the days that lack them.

    To a day whose rows have expired already, only those of the new rows are added.
    """
    days = pipeline.snapshot.unsummed_days
    if not days:
        return
    upto = pipeline.snapshot.progress.get("outcomes", 0)
    expired = {file.day for file in pipeline.snapshot.of("outcomes")}
    files = [
        file
        for file in pipeline.snapshot.closed_marks
        if file.day in days and (file.day not in expired or file.batch > upto)
    ]
    pipeline.partition(sum(file.size for file in files))
    rows = closed_rows(pipeline.read("marks", files), closing.last_day().alias("day"))
    sums = health.summarize_outcomes(rows, names(pipeline), "day").coalesce(1)
    added = store.write(pipeline.tables, [Write("outcomes", sums, True)])
    newest = max(upto, *(file.batch for file in files))
    pipeline.tables.commit("outcomes", added["outcomes"], progress=newest)


def expire_days(pipeline: Pipeline, before: int) -> int:
    """Drop the closed rows of whole days; their sums stay. Return the number of files."""
    old = [
        file for file in pipeline.snapshot.closed_marks if closing.end_of(file.day or "") <= before
    ]
    if old:
        pipeline.tables.commit("marks", removed=old)
    return len(old)
