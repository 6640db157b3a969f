"""Sums of closed notifications by hour, for the account."""

from collections.abc import Callable, Iterable

from pyspark.sql import DataFrame, functions as f

from heliograph.pipeline.account import Hour, hours_of
from heliograph.pipeline.jobs.outcomes import closed_rows
from heliograph.pipeline.tables.snapshot import DataFile, Snapshot
from heliograph.pipeline.vocabulary import OUTCOMES

Reader = Callable[[str, Iterable[DataFile]], DataFrame]


def closed_hours(snapshot: Snapshot, read: Reader, known: dict[str, list[Hour]]) -> list[Hour]:
    """Return the sums by hour of closed notifications that have not expired.

    Those of a file are computed once, and kept in `known`.
    """
    days = snapshot.unsummed_days
    if days:
        files = [file for file in snapshot.closed_marks if file.day in days]
        found = hours_of(closed_rows(read("marks", files)))
    else:
        found = []
    kept = {file.day for file in snapshot.closed_marks} - days
    files = [file for file in snapshot.of("outcomes") if file.day in kept]
    unknown = [file for file in files if file.path not in known]
    for file in unknown:
        known[file.path] = []
    if unknown:
        sums = read("outcomes", unknown).groupBy(
            f.input_file_name().alias("file"), f.unix_seconds("hour").alias("hour")
        )
        merged = sums.agg(
            *(
                f.sum(f.when(f.col("outcome") == name, f.col("notifications"))).alias(name)
                for name in OUTCOMES
            ),
            f.kll_merge_agg_bigint("total_us_sketch").alias("sketch"),
        )
        has = f.kll_sketch_get_n_bigint("sketch") > 0
        quantiles = (
            f.when(has, f.kll_sketch_get_quantile_bigint("sketch", f.lit(rank))).alias(name)
            for name, rank in (("p50", 0.5), ("p99", 0.99))
        )
        for row in merged.select("file", "hour", *OUTCOMES, *quantiles).collect():
            outcomes = {name: row[name] for name in OUTCOMES if row[name]}
            hour = Hour(row["hour"], outcomes, row["p50"], row["p99"])
            path = next(file.path for file in unknown if row["file"].endswith(file.path))
            known[path].append(hour)
    return [*found, *(hour for file in files for hour in known[file.path])]
