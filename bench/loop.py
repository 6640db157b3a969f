"""The aggregations of the loop's jobs, on Spark and on DuckDB, over the same files.

    python -m bench.loop [EVENTS...]

Reconcile joins snapshots of as many subscriptions as there are events; the others aggregate the
events of a fleet: the table of tokens (dead tokens), the rates of ten seconds (anomalies), the
windows of objectives from rows of the ledger, and the sums of each hour (capacity). Results of both
must be equal. The median of three by turns, one run from `LARGE` events on; CPU in microseconds an
event, and at last how it grows with the number of events. Events are generated and written in parts
of a million, so that memory does not grow with them.
"""

import math
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, functions as f

from bench.pipeline import CORES, PER_NOTIFICATION, Spark, _core, _own_cpu
from heliograph.pipeline.decisions import reconcile
from heliograph.pipeline.jobs import growth, objectives, rates, stats, tokens
from heliograph.pipeline.objectives.budget import WINDOWS
from heliograph.pipeline.objectives.objective import DEFAULTS
from heliograph.pipeline.spark.columns import EVENTS
from heliograph.sim.fleet import Fleet, FleetSettings

SIZES = (1_000_000, 5_000_000)
TURNS = 3
LARGE = 3_000_000
WARM, WARM_RUNS = 100_000, 3
"""Events, and runs of each job over them, before anything is measured: Java compiles meanwhile."""
PART = 1_000_000
DUCKDB_MEMORY = "4GB"
_TEXT = pa.string()
NTF_SNAPSHOT = pa.schema(
    [(name, _TEXT) for name in ("place", "notifier", "subscription", "server", "state", "service")]
)
SMP_SNAPSHOT = pa.schema(
    [("place", _TEXT), ("notifier", _TEXT), ("is_subscribed", pa.bool_()), ("service", _TEXT)]
)
SEEN = ", ".join(f"'{kind}'" for kind in tokens.SEEN_KINDS)

TOKENS = f"""
SELECT router, token, max_by(provider, "at") FILTER (provider IS NOT NULL) AS provider,
  min("at") AS first_at, max("at") AS last_at,
  max("at") FILTER (kind IN ({SEEN})) AS seen_at,
  max("at") FILTER (kind = 'nmsg_stored') AS notified_at,
  max("at") FILTER (kind = 'push_accepted') AS accepted_at,
  max("at") FILTER (kind = 'push_accepted' AND mode = 'periodic') AS woken_at,
  max("at") FILTER (kind IN ('token_deleted', 'token_invalid')) AS gone_at,
  list_sort(list(DISTINCT smp_host) FILTER (smp_host IS NOT NULL)) AS smp_hosts
FROM read_parquet($files)
WHERE token IS NOT NULL AND kind IN ({SEEN}, 'nmsg_stored', 'push_accepted', 'token_deleted',
  'token_invalid')
GROUP BY router, token
"""
RATES = """
WITH chosen AS (
  SELECT epoch_us("at") // 10000000 * 10000000 AS bucket, router, kind, mode, token, subscription,
    provider, reason
  FROM read_parquet($files) WHERE part = 'ntf'),
rows AS (
  SELECT bucket, router, unnest([
    CASE WHEN kind IN ('nmsg_stored', 'nmsg_repeated', 'nmsg_dropped') THEN
      {metric: 'token', subject: token, parent: NULL, count: 1, total: 0} END,
    CASE WHEN kind IN ('nmsg_stored', 'nmsg_repeated', 'nmsg_dropped') THEN
      {metric: 'subscription', subject: subscription, parent: token, count: 1, total: 0} END,
    CASE WHEN kind IN ('push_accepted', 'push_rejected', 'push_retried') AND mode = 'message' THEN
      {metric: 'provider', subject: provider, parent: NULL, count: 1,
       total: (kind = 'push_retried')::INT} END,
    CASE WHEN kind IN ('push_accepted', 'push_rejected') AND mode = 'verification' THEN
      {metric: 'verification', subject: provider, parent: NULL, count: 1,
       total: (kind = 'push_rejected')::INT} END,
    CASE WHEN kind = 'token_registered' THEN
      {metric: 'registered', subject: '', parent: NULL, count: 1, total: 0} END,
    CASE WHEN kind = 'token_active' AND reason IS NULL THEN
      {metric: 'verified', subject: '', parent: NULL, count: 1, total: 0} END]) AS r
  FROM chosen
  WHERE kind IN ('nmsg_stored', 'nmsg_repeated', 'nmsg_dropped', 'push_accepted', 'push_rejected',
    'push_retried', 'token_registered', 'token_active'))
SELECT bucket, router, r.metric, r.subject, r.parent, sum(r.count) AS count, sum(r.total) AS total
FROM rows WHERE r IS NOT NULL GROUP BY ALL
"""
HOURS = """
WITH counts AS (
  SELECT date_trunc('hour', "at") AS hour, part, router, kind, mode, provider, smp_host, status,
    reason, command, code, own_server, count(*) AS events, sum("count") AS total
  FROM read_parquet($files) GROUP BY ALL)
SELECT hour, coalesce(sum(events) FILTER (kind = 'nmsg_stored'), 0) AS notifications,
  coalesce(sum(events) FILTER (kind = 'push_accepted' AND mode = 'message'), 0) AS pushes,
  coalesce(sum(events) FILTER (kind = 'push_accepted' AND mode = 'periodic'), 0) AS wake_ups,
  sum(events) AS events
FROM counts GROUP BY hour
"""


def _objectives_sql(until: int) -> str:
    began = "accepted_at - coalesce(smp_stored_at, received_at, stored_at)"
    lost = "(outcome = 'expired' OR (outcome = 'unaccounted' AND NOT explained))"
    late = (
        "(outcome IN ('pending', 'waiting', 'delivered')"
        f" AND {until} - coalesce(smp_stored_at, received_at, stored_at) > 10000000)"
    )
    sides = {
        "good0": f"{began} <= 10000000",
        "bad0": f"({lost} OR {late} OR {began} > 10000000)",
        "good1": "outcome IN ('shown', 'accepted', 'coalesced')",
        "bad1": lost,
    }
    columns = ", ".join(
        f"count(*) FILTER ({condition} AND first_at >= {until - seconds * 1_000_000})"
        f" AS {name}_{window}"
        for name, condition in sides.items()
        for window, seconds in WINDOWS.items()
    )
    return f"SELECT provider, {columns} FROM read_parquet($files) GROUP BY provider"


RECONCILE = """
SELECT CASE WHEN t.notifier IS NULL AND n.state IN ('AUTH', 'DELETED') THEN 'orphan'
    WHEN t.notifier IS NULL AND n.state = 'ACTIVE' THEN 'absent'
    WHEN t.notifier IS NULL THEN NULL
    WHEN n.state IN ('AUTH', 'DELETED') THEN 'refused'
    WHEN n.state = 'END' AND NOT t.is_subscribed THEN 'ended'
    WHEN n.state = 'ACTIVE' AND NOT t.is_subscribed THEN 'unsubscribed' END AS finding,
  count(*) AS number
FROM read_parquet($ntf) n LEFT JOIN read_parquet($smp) t USING (place, notifier)
GROUP BY 1
"""


@dataclass(frozen=True, slots=True)
class LoopJob:
    """An aggregation twice, which computes all columns; `checks` return what must be equal."""

    name: str
    ours: Callable[[], Any]
    theirs: Callable[[duckdb.DuckDBPyConnection], Any]
    checks: tuple[Callable[[], Any], Callable[[duckdb.DuckDBPyConnection], Any]] | None = None


def _jobs(spark: Spark, work: Path, files: list[str], size: int) -> list[LoopJob]:
    events = spark.session.read.schema(EVENTS).parquet(*files)
    spark.session.conf.set("spark.sql.shuffle.partitions", str(max(CORES, size // (8 << 20))))
    ledger = work / "ledger"
    _core(spark, files, size).write.parquet(str(ledger))
    rows = spark.session.read.parquet(str(ledger))
    until = rows.agg(f.max("first_at")).collect()[0][0]
    sums = spark.session.createDataFrame(
        [],
        "hour timestamp, provider string, outcome string, notifications long, within array<long>",
    )
    ledger_files = [str(path) for path in ledger.glob("*.parquet")]

    def table(name: str, make: Callable[[], DataFrame], sql: str, sums: dict[str, str]) -> LoopJob:
        """Return a job whose rows are computed, and not kept; `sums` are of Spark and DuckDB."""

        def noop() -> None:
            make().write.format("noop").mode("overwrite").save()

        def create(connection: duckdb.DuckDBPyConnection) -> None:
            connection.execute(f"CREATE TABLE made AS {sql}", {"files": files})

        def check() -> list[int]:
            found = make().agg(f.count("*"), *(f.expr(f"sum({item})") for item in sums)).collect()
            return [int(value) for value in found[0]]

        def check_of(connection: duckdb.DuckDBPyConnection) -> list[int]:
            chosen = ", ".join(["count(*)", *(f"sum({item})" for item in sums.values())])
            found = connection.execute(f"SELECT {chosen} FROM made").fetchall()
            return [int(value) for value in found[0]]

        return LoopJob(name, noop, create, (check, check_of))

    def windows() -> list[int]:
        found = objectives.count_windows(rows, sums, DEFAULTS, until)
        return [
            sum(windows[name][side] for (asked, _), windows in found.items() if asked == objective)
            for objective in DEFAULTS
            for side in (0, 1)
            for name in WINDOWS
        ]

    def windows_of(connection: duckdb.DuckDBPyConnection) -> list[int]:
        found = connection.execute(_objectives_sql(until), {"files": ledger_files}).fetchall()
        return [sum(column) for column in list(zip(*found, strict=True))[1:]]

    ntf, smp = _snapshots(work, size)

    def differences() -> dict[str, int]:
        ours, theirs = (spark.session.read.parquet(str(path)) for path in (ntf, smp))
        found = reconcile.compare(ours, theirs, ["p"]).groupBy("finding").count().collect()
        return {row["finding"]: row["count"] for row in found}

    def differences_of(connection: duckdb.DuckDBPyConnection) -> dict[str, int]:
        found = connection.execute(RECONCILE, {"ntf": str(ntf), "smp": str(smp)}).fetchall()
        return {finding: number for finding, number in found if finding is not None}

    numbers = ("notifications", "pushes", "wake_ups", "events")
    return [
        LoopJob("reconcile (a subscription)", differences, differences_of),
        table(
            "tokens",
            lambda: tokens.tokens(events),
            TOKENS,
            {"unix_seconds(last_at)": "epoch_us(last_at) // 1000000"},
        ),
        table("rates", lambda: rates.rates(events), RATES, {"count": "count", "total": "total"}),
        LoopJob("objectives, from the ledger", windows, windows_of),
        table(
            "hours",
            lambda: growth.hourly(stats.counts(events)),
            HOURS,
            dict(zip(numbers, numbers, strict=True)),
        ),
    ]


def _snapshots(work: Path, size: int) -> tuple[Path, Path]:
    """Write snapshots of two routers that differ in one of a thousand subscriptions."""
    draw = np.random.default_rng(1)
    ntf, smp = work / "ntf.parquet", work / "smp.parquet"
    with pq.ParquetWriter(ntf, NTF_SNAPSHOT) as ours, pq.ParquetWriter(smp, SMP_SNAPSHOT) as theirs:
        for first in range(0, size, PART):
            count = min(PART, size - first)
            names = [f"{number:032x}" for number in range(first, first + count)]
            state = np.where(draw.random(count) < 0.0005, "END", "ACTIVE")
            subscribed = (draw.random(count) >= 0.0005) & (state == "ACTIVE")
            place, none = pa.repeat(pa.scalar("p"), count), pa.nulls(count, pa.string())
            server = pa.repeat(pa.scalar("s"), count)
            ours.write_table(
                pa.table([place, names, names, server, state, none], schema=NTF_SNAPSHOT)
            )
            theirs.write_table(pa.table([place, names, subscribed, none], schema=SMP_SNAPSHOT))
    return ntf, smp


def _journal(work: Path, events: int) -> tuple[list[Path], int]:
    """Write the journals of about so many events, part by part: each is a fleet and two days."""
    paths, number, settings = [], 0, FleetSettings()
    parts = math.ceil(events / PART)
    for part in range(parts):
        fleet = Fleet(
            replace(
                settings,
                notifications=round(events / parts / PER_NOTIFICATION),
                tokens=max(events // parts // 250, 50),
                start=settings.start + part * settings.duration,
                seed=part + 1,
            )
        )
        paths += fleet.write(work / "journal", rows_per_segment=200_000)
        number += fleet.events
    return paths, number


def _measure(spark: Spark, job: LoopJob, work: Path, turns: int) -> tuple[float, float]:
    ours, theirs = [], []
    for turn in range(turns):
        found, cost = spark.measure(job.ours)
        ours.append(cost.cpu)
        before = _own_cpu()
        with duckdb.connect() as connection:
            connection.execute(f"SET threads = {CORES}")
            connection.execute("SET TimeZone = 'UTC'")
            connection.execute(f"SET memory_limit = '{DUCKDB_MEMORY}'")
            connection.execute(f"SET temp_directory = '{work / 'duckdb'}'")
            expected = job.theirs(connection)
            theirs.append(_own_cpu() - before)
            if turn == 0 and job.checks is not None:
                found, expected = job.checks[0](), job.checks[1](connection)
        if turn == 0 or job.checks is None:
            assert found == expected, (job.name, found, expected)
    return median(ours), median(theirs)


def main(sizes: tuple[int, ...]) -> None:
    spark = Spark()
    costs: dict[str, list[tuple[int, float, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="heliograph-bench-") as directory:
        warm = Path(directory) / "warm"
        warm.mkdir()
        paths, number = _journal(warm, WARM)
        for job in _jobs(spark, warm, [str(path) for path in paths], number):
            for _ in range(WARM_RUNS):
                job.ours()
        for events in sizes:
            work = Path(directory) / str(events)
            work.mkdir()
            paths, number = _journal(work, events)
            size = sum(path.stat().st_size for path in paths)
            print(f"\n{number:,} events, {size / 1e6:.0f} MB", flush=True)
            for job in _jobs(spark, work, [str(path) for path in paths], number):
                turns = 1 if number >= LARGE else TURNS
                ours, theirs = (1e6 * cpu / number for cpu in _measure(spark, job, work, turns))
                costs.setdefault(job.name, []).append((number, ours, theirs))
                print(
                    f"  {job.name:<28} Spark {ours:6.2f} us, DuckDB {theirs:6.2f} us of CPU an"
                    f" event: {ours / theirs:.2f} times",
                    flush=True,
                )
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
            print(f"  memory at most: Java {spark.peak / 1e9:.1f} GB, Python and DuckDB {peak:.1f}")
            shutil.rmtree(work)
    if len(sizes) > 1:
        print("\ncost of an event, compared with the fewest events")
        for name, measured in costs.items():
            [least, first, other], *more = measured
            grown = ", ".join(
                f"{number / least:.1f} times the events: Spark {ours / first:.2f},"
                f" DuckDB {theirs / other:.2f}"
                for number, ours, theirs in more
            )
            print(f"  {name:<28} {grown}")
    spark.session.stop()


if __name__ == "__main__":
    main(tuple(map(int, sys.argv[1:])) or SIZES)
