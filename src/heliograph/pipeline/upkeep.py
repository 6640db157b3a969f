"""Upkeep of the tables: merge small files, expire raw events, archive the ledger as sums.

Merging never changes the content of a table, so it may run between any two batches.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

from pyspark.sql import DataFrame, functions as f

from heliograph.pipeline import closing, source
from heliograph.pipeline.jobs import (
    closing as closing_job,
    ingest,
    ledger,
    rates,
    routers,
    stats,
    tokens,
)
from heliograph.pipeline.jobs.windows import Gap
from heliograph.pipeline.runner import Pipeline
from heliograph.pipeline.spark.local import local
from heliograph.pipeline.tables import store
from heliograph.pipeline.tables.offsets import Offsets, without_runs
from heliograph.pipeline.tables.schemas import SCHEMAS
from heliograph.pipeline.tables.snapshot import DERIVED, DataFile
from heliograph.pipeline.tables.store import Write
from heliograph.runtime.errors import StartError

DAY = 86_400.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAX_FILES = 40
"""Number of small files of similar size that are not worth merging."""
SIMILAR_BITS = 5
"""Files are of similar size if one is at most 32 times as large as another."""
LARGE_BYTES = 64 << 20
"""Size in bytes from which a file is not small."""


def compact(pipeline: Pipeline, everything: bool = False) -> int:
    """Merge small files of one day, with one commit each; return the number of files replaced.

    Only files of similar size are merged, so that a row is rewritten a few times at most.
    """
    upto = _folded(pipeline)
    groups: dict[tuple[str, str | None, int], list[DataFile]] = defaultdict(list)
    for table in ("events", *DERIVED, "quarantine"):
        for file in pipeline.snapshot.of(table):
            is_new = table == "events" and file.batch > upto  # jobs select by file
            if not is_new and (everything or file.size < LARGE_BYTES):
                scale = 0 if everything else file.size.bit_length() // SIMILAR_BITS
                groups[table, file.day, scale].append(file)
    replaced = 0
    for (table, _, _), files in groups.items():
        if len(files) > (1 if everything else MAX_FILES):
            replaced += _merge(pipeline, table, files)
    return replaced


def _folded(pipeline: Pipeline) -> int:
    """Return the last batch that all derived tables contain."""
    return min(pipeline.snapshot.progress.get(table, 0) for table in DERIVED)


def _merge(pipeline: Pipeline, table: str, files: Sequence[DataFile]) -> int:
    size = sum(file.size for file in files)
    pipeline.partition(size)
    frame = _merged(table, pipeline.read(table, files))
    number = max(1, size // LARGE_BYTES)
    by_day = files[0].day is not None
    if table == "events":
        frame = frame.withColumn("day", f.to_date("at"))
    elif by_day:
        frame = frame.withColumn("day", closing_job.last_day())
    # Merged files are as old as their newest part, or jobs would take them for new.
    batch = max(file.batch for file in files)
    frame = frame.coalesce(number)
    if table == "marks":
        frame = frame.sortWithinPartitions(*(["day"] if by_day else []), "notification")
    merged = Write(table, frame, by_day, batch=batch)
    written = store.write(pipeline.tables, [merged])
    pipeline.tables.commit(table, written[table], files)
    return len(files)


def _merged(table: str, frame: DataFrame) -> DataFrame:
    match table:
        case "marks":
            return ledger.merge_stored(frame)
        case "settlements":
            return ledger.merge_settlements(frame)
        case "counts":
            return stats.merge_counts(frame)
        case "actives":
            return stats.merge_actives(frame)
        case "tokens":
            return tokens.merge_tokens(frame)
        case "rates":
            return rates.merge_rates(frame)
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
            _datetime(gap.from_at),
            _datetime(gap.until_at),
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


def _datetime(microseconds: int) -> datetime:
    """Return a time; the last that Python knows for those after it, which a head may claim."""
    return _EPOCH + timedelta(microseconds=min(microseconds, ingest.END_OF_DAYS - 1))


def retire(pipeline: Pipeline, name: str) -> None:
    """Mark a router, or one run `ROUTER/BOOT`, as retired until it writes again.

    Raises `StartError`.
    """
    notes, heads = pipeline.offsets.routers, pipeline.heads.runs
    parts = {head.router: head.part for head in heads.values()}
    parts |= {router: known["part"] for router, known in notes.items()}
    runs = {*heads, *(f"{router}/{boot}" for router in notes for boot in notes[router]["boots"])}
    router = name.partition("/")[0]
    if name not in parts and name not in runs:
        known = ", ".join(sorted(runs if router in parts else parts)) or "none"
        raise StartError(f"no router {name} is known; there are: {known}")

    def retired(offsets: Offsets) -> Offsets:
        return replace(offsets, routers=routers.retire(offsets.routers, name, parts[router]))

    pipeline.tables.commit("events", offsets=retired)


def expire(pipeline: Pipeline, now: float, events_days: float, ledger_days: float) -> int:
    """Expire raw events, and rows of the ledger, by whole days; return the files removed."""
    before = int((now - ledger_days * DAY) // DAY * DAY * 1e6)
    count = _expire_events(pipeline, now, events_days)
    closing.close(pipeline, before)
    count += closing.expire_days(pipeline, before)
    _expire_settlements(pipeline, before)
    _expire_tokens(pipeline, before)
    _expire_rates(pipeline)
    if _without_old_runs(pipeline.offsets, before, {}) != pipeline.offsets:
        waiting = _oldest_waiting(pipeline)

        def without(offsets: Offsets) -> Offsets:
            return _without_old_runs(offsets, before, waiting)

        if without(pipeline.offsets) != pipeline.offsets:
            pipeline.tables.commit("events", offsets=without)
    return count


def _oldest_waiting(pipeline: Pipeline) -> dict[str, int]:
    """Return the oldest run of each router that has segments which were not ingested yet."""
    runs = {*pipeline.heads.waiting} | {
        item.run
        for journal in pipeline.settings.journals
        for item in source.list_segments(journal, pipeline.spark, pipeline.offsets)
        if item.run is not None
    }
    found: dict[str, int] = {}
    for run in runs:
        router, _, boot = run.rpartition("/")
        found[router] = min(found.get(router, int(boot)), int(boot))
    return found


def _without_old_runs(offsets: Offsets, before: int, waiting: Mapping[str, int]) -> Offsets:
    """Drop old runs, unless segments of one wait: nothing of an expired run is ingested."""
    kept = routers.without_old_boots(offsets.routers, before)
    expired = routers.expired_runs(offsets.routers, kept)
    still_read = {name for name, boot in expired.items() if waiting.get(name, boot + 1) <= boot}
    kept |= {name: offsets.routers[name] for name in still_read}
    expired = {name: boot for name, boot in expired.items() if name not in still_read}
    return replace(without_runs(offsets, expired) if expired else offsets, routers=kept)


def _expire_settlements(pipeline: Pipeline, before: int) -> None:
    """Remove the settlements of tokens that had no event since."""
    files = pipeline.snapshot.of("settlements")
    stored = pipeline.read("settlements")
    if not files or stored.where(f.col("last_at") < before).isEmpty():
        return
    kept = ledger.merge_settlements(stored).where(f.col("last_at") >= before)
    added = store.write(pipeline.tables, [Write("settlements", kept.coalesce(1))])
    pipeline.tables.commit("settlements", added["settlements"], files)


def _expire_rates(pipeline: Pipeline) -> None:
    """Remove rates that no baseline needs any more."""
    since = rates.since_by_router(routers.router_facts(pipeline.offsets.routers))
    is_kept = rates.is_needed(f.col("bucket") + rates.BUCKET - 1, since)
    files = pipeline.snapshot.of("rates")
    stored = pipeline.read("rates", files)
    if files and not stored.where(~is_kept).isEmpty():
        kept = rates.merge_rates(stored.where(is_kept))
        batch = max(file.batch for file in files)
        added = store.write(pipeline.tables, [Write("rates", kept.coalesce(1), batch=batch)])
        pipeline.tables.commit("rates", added["rates"], files)


def _expire_tokens(pipeline: Pipeline, before: int) -> None:
    """Remove the rows of tokens that had no event since."""
    files, stored = pipeline.snapshot.of("tokens"), pipeline.read("tokens")
    is_kept = f.unix_micros("last_at") >= before
    if not files or stored.where(~is_kept).isEmpty():
        return
    kept = tokens.merge_tokens(stored).where(is_kept)
    added = store.write(pipeline.tables, [Write("tokens", kept.coalesce(1))])
    pipeline.tables.commit("tokens", added["tokens"], files)


def _expire_events(pipeline: Pipeline, now: float, days: float) -> int:
    """Remove raw events that all other tables have: others may be ingested meanwhile."""
    pipeline.update_stats()
    pipeline.update_ledger()
    pipeline.update_rates()
    upto = _folded(pipeline)
    oldest = datetime.fromtimestamp(now - days * DAY, UTC).date().isoformat()
    old = [
        file
        for file in pipeline.snapshot.of("events")
        if file.day is not None and file.day < oldest and file.batch <= upto
    ]
    if old:
        pipeline.tables.commit("events", removed=old)
    return len(old)
