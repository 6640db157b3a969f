"""Requeue quarantined records after a file was repaired or the program upgraded."""

from dataclasses import dataclass, replace

from pyspark.sql import Row

from heliograph.pipeline import intervals, source
from heliograph.pipeline.runner import Pipeline
from heliograph.pipeline.spark.columns import QUARANTINE
from heliograph.pipeline.spark.local import local
from heliograph.pipeline.tables import store
from heliograph.pipeline.tables.store import Write


@dataclass(frozen=True, slots=True)
class Requeued:
    """Records that will be read again, and those whose segments are in no journal or too old."""

    records: int
    kept: int


def requeue(pipeline: Pipeline) -> Requeued:
    """Mark the segments of quarantined records as not ingested; the next batches read them.

    Events that were ingested before are recognized by their sequence numbers.
    """
    offsets = pipeline.offsets
    present = {
        item.name: item
        for journal in pipeline.settings.journals
        for item in source.list_segments(journal, pipeline.spark)
    }
    segments = {run: list(pairs) for run, pairs in offsets.segments.items()}
    others = set(offsets.other_segments)
    kept: list[Row] = []
    count = 0
    for row in pipeline.read("quarantine").distinct().collect():
        name = row["segment"] or ""
        item = present.get(name) or present.get(name.rpartition("/")[2])
        if item is None or source.is_expired(item.run, offsets):
            kept.append(row)
            continue
        if item.run is None:
            others.discard(item.name)
        else:
            segments[item.run] = intervals.without(segments.get(item.run, ()), item.number)
        count += 1
    if count:
        pipeline.tables.commit(
            "events",
            offsets=lambda _: replace(
                offsets,
                segments=segments,
                other_segments=tuple(sorted(others)),
                counts={**offsets.counts, "quarantined": len(kept)},
            ),
        )
        # Second: if this commit fails, the records are stored twice, but count once.
        rows = [tuple(row) for row in kept]
        frame = local(pipeline.spark, rows, QUARANTINE).coalesce(1)
        added = store.write(pipeline.tables, [Write("quarantine", frame)])
        old = pipeline.snapshot.of("quarantine")
        pipeline.tables.commit("quarantine", added["quarantine"], old)
    return Requeued(count, len(kept))
