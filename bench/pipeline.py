"""The pipeline at 1, 5 and 20 million events, beside DuckDB, and the latency of its stream.

    python -m bench.pipeline [EVENTS...]

Events are of a fleet that `heliograph.sim.fleet` makes. "core" is the ledger's aggregation, from
events to a row with an outcome for each notification; DuckDB makes the same rows from the same
files in the same run: counts of outcomes and sums of all times and latencies must be equal. Figures
are medians, with the lowest and the highest, of CPU, which other work on the machine disturbs
least. The JVM's start is not counted, and Java has compiled what it runs; the first run is printed
too.
"""

import asyncio
import itertools
import resource
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import duckdb
from pyspark.sql import functions as f

from bench import history
from bench.harness import tree_cpu
from heliograph.journal.storage.settings import JournalSettings
from heliograph.pipeline.account import Account
from heliograph.pipeline.ingesting.ingester import BatchResult
from heliograph.pipeline.jobs import ledger, outcomes
from heliograph.pipeline.jobs.routers import router_facts
from heliograph.pipeline.runner import Pipeline, RunSettings
from heliograph.pipeline.schedule import Schedule, Stream
from heliograph.pipeline.spark.columns import EVENTS
from heliograph.pipeline.spark.session import open_session
from heliograph.pipeline.tables.tables import open_tables
from heliograph.sim.fleet import Fleet, FleetSettings

SIZES = (1_000_000, 5_000_000, 20_000_000)
PER_NOTIFICATION = 6.1
MEMORY = "3g"
CORES = 2
CORE_RUNS, JOB_RUNS, STREAM_RUNS = 9, 3, 3
WARM_RUNS = 10
PLAN_RUNS = 40
"""Of a few events: most of what Java has to compile is Spark's planner."""
SUMMED = (*outcomes.MILESTONES, *outcomes.LATENCIES, "first_at")
STREAM_SECONDS = 40.0
SEAL = JournalSettings().stream_seal_after

CORE = """
WITH events AS (SELECT *, epoch_us("at") AS us FROM read_parquet($files)),
slim AS (
  SELECT unnest(CASE WHEN kind IN ('push_accepted', 'push_pending') THEN notifications
                     ELSE [notification] END) AS n, *
  FROM events WHERE kind IN ('notification_stored', 'notification_delivered',
    'notification_removed', 'notification_expired', 'nmsg_received', 'nmsg_stored', 'nmsg_unknown',
    'nmsg_dropped', 'nmsg_repeated', 'agent_decrypted', 'device_shown')
    OR (kind IN ('push_accepted', 'push_pending') AND mode = 'message'
      AND notifications IS NOT NULL)),
marks AS (
  SELECT n,
    min(us) FILTER (kind = 'notification_stored') AS smp_stored_at,
    min(us) FILTER (kind = 'notification_delivered') AS smp_delivered_at,
    min(us) FILTER (kind IN ('notification_removed', 'notification_expired')) AS smp_gone_at,
    min(us) FILTER (kind = 'nmsg_received') AS received_at,
    min(us) FILTER (kind = 'nmsg_stored') AS stored_at,
    min(us) FILTER (kind = 'nmsg_repeated') AS repeated_at,
    min(us) FILTER (kind IN ('nmsg_unknown', 'nmsg_dropped')) AS undeliverable_at,
    min(us) FILTER (kind = 'push_pending') AS pending_at,
    min(us) FILTER (kind = 'push_accepted') AS accepted_at,
    min(us) FILTER (kind = 'agent_decrypted') AS decrypted_at,
    min(us) FILTER (kind = 'device_shown') AS shown_at,
    max(boot) FILTER (kind = 'notification_stored') AS smp_boot,
    max(router) FILTER (kind = 'notification_stored') AS smp_router,
    max(router) FILTER (kind = 'nmsg_received') AS received_router,
    max(smp_host) FILTER (kind = 'nmsg_stored') AS server,
    max(ntf_seq) AS ntf_seq,
    max_by(token, ntf_seq) FILTER (kind = 'nmsg_stored') AS token,
    max_by(subscription, ntf_seq) FILTER (kind = 'nmsg_stored') AS subscription,
    max(through) FILTER (kind = 'push_pending') AS pending_through,
    max(token) FILTER (kind = 'push_pending') AS pending_token
  FROM slim GROUP BY n),
settled AS (
  SELECT CASE WHEN kind = 'subscription_deleted' THEN subscription ELSE token END AS owner,
    max(provider) AS provider,
    max(through) FILTER (kind = 'push_accepted') AS accepted_through,
    max(through) FILTER (kind = 'push_expired') AS expired_through,
    max(through) FILTER (kind = 'token_invalid') AS invalid_through,
    max(through) FILTER (kind IN ('token_deleted', 'subscription_deleted')) AS deleted_through
  FROM events WHERE (kind IN ('push_accepted', 'push_expired', 'push_pending') AND mode = 'message')
    OR kind IN ('token_invalid', 'token_deleted', 'subscription_deleted') GROUP BY ALL)
SELECT n,
  CASE WHEN shown_at IS NOT NULL THEN 'shown'
    WHEN coalesce(accepted_at, decrypted_at) IS NOT NULL THEN 'accepted'
    WHEN covered <= of_token.accepted_through THEN 'coalesced'
    WHEN covered <= of_token.invalid_through THEN 'rejected'
    WHEN covered <= of_token.deleted_through THEN 'undeliverable'
    WHEN covered <= of_subscription.deleted_through THEN 'undeliverable'
    WHEN covered <= of_token.expired_through THEN 'expired'
    WHEN covered IS NOT NULL THEN 'pending'
    WHEN undeliverable_at IS NOT NULL THEN 'undeliverable'
    WHEN repeated_at IS NOT NULL THEN 'accepted'
    WHEN received_at IS NOT NULL THEN 'pending'
    WHEN smp_gone_at IS NOT NULL THEN 'removed'
    WHEN smp_delivered_at IS NOT NULL THEN 'delivered'
    ELSE 'waiting' END AS outcome,
  shown_at IS NULL AND accepted_at IS NULL AND decrypted_at IS NOT NULL AS recovered,
  smp_stored_at, smp_delivered_at, received_at, stored_at, accepted_at, decrypted_at, shown_at,
  smp_delivered_at - smp_stored_at AS smp_us, received_at - smp_delivered_at AS wire_us,
  stored_at - received_at AS store_us, accepted_at - stored_at AS push_us,
  shown_at - accepted_at AS device_us, accepted_at - smp_stored_at AS total_us,
  least(smp_stored_at, smp_delivered_at, received_at, stored_at, accepted_at, decrypted_at,
    shown_at, smp_gone_at, undeliverable_at, pending_at, repeated_at) AS first_at,
  of_token.provider, server
FROM (SELECT *, coalesce(token, pending_token) AS whose,
    coalesce(ntf_seq, pending_through) AS covered
      FROM marks)
LEFT JOIN settled AS of_token ON whose = of_token.owner
LEFT JOIN settled AS of_subscription ON subscription = of_subscription.owner
"""


@dataclass(frozen=True, slots=True)
class Cost:
    cpu: float
    wall: float


class Spark:
    """A session, and what its JVM costs."""

    def __init__(self) -> None:
        self.session = open_session(f"local[{CORES}]", settings={"spark.driver.memory": MEMORY})
        jvm: Any = self.session.sparkContext._jvm
        self.pid = int(jvm.java.lang.ProcessHandle.current().pid())

    def measure(self, work: Callable[[], Any]) -> tuple[Any, Cost]:
        before, started = tree_cpu(self.pid), time.perf_counter()
        result = work()
        return result, Cost(tree_cpu(self.pid) - before, time.perf_counter() - started)

    @property
    def jobs(self) -> int:
        """How many there were so far."""
        return int(self.session.sparkContext._jsc.sc().dagScheduler().nextJobId())

    @property
    def peak(self) -> int:
        """Bytes that were resident at most."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        return 0


def _own_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


Sums = dict[str, tuple[int | None, ...]]
"""Of rows by outcome: how many, and the sums of `SUMMED`."""


def _duckdb(files: list[str]) -> tuple[Sums, Cost]:
    before, started = _own_cpu(), time.perf_counter()
    with duckdb.connect() as connection:
        connection.execute(f"SET threads = {CORES}")
        connection.execute(f"CREATE TABLE ledger AS {CORE}", {"files": files})
        cost = Cost(_own_cpu() - before, time.perf_counter() - started)
        sums = ", ".join(f"sum({name})" for name in SUMMED)
        query = f"SELECT outcome, count(*), {sums} FROM ledger GROUP BY outcome"
        rows = connection.execute(query).fetchall()
    return {outcome: tuple(found) for outcome, *found in rows}, cost


def _sums(ledger_rows: Any) -> Sums:
    """With decimals: microseconds since the epoch are too many for a long."""
    sums = [f.sum(f.col(name).cast("decimal(20,0)")) for name in SUMMED]
    rows = ledger_rows.groupBy("outcome").agg(f.count("*"), *sums).collect()
    return {row[0]: tuple(None if item is None else int(item) for item in row[1:]) for row in rows}


def _core(spark: Spark, files: list[str], size: int) -> Any:
    """From events to rows with outcomes, all of them computed, none kept."""
    session = spark.session
    session.conf.set("spark.sql.shuffle.partitions", str(max(CORES, size // (8 << 20))))
    events = session.read.schema(EVENTS).parquet(*files)
    boots = {"1": {"last_at": 0}}
    routers = router_facts({"ntf00": {"part": "ntf", "boots": boots}})
    return outcomes.decide(ledger.marks(events), ledger.settlements(events), routers)


def _core_noop(spark: Spark, files: list[str]) -> None:
    _core(spark, files, 64 << 20).write.format("noop").mode("overwrite").save()


def _bench_size(spark: Spark, events: int, work: Path) -> None:
    made_at = time.perf_counter()
    fleet = Fleet(FleetSettings(round(events / PER_NOTIFICATION), tokens=max(events // 250, 50)))
    paths = fleet.write(work / "journal", rows_per_segment=200_000)
    number, expected = fleet.events, fleet.outcomes
    del fleet
    files = [str(path) for path in paths]
    size = sum(path.stat().st_size for path in paths)
    print(
        f"\n{number:,} events in {len(paths)} segments, {size / 1e6:.0f} MB,"
        f" made in {time.perf_counter() - made_at:.0f} s",
        flush=True,
    )

    def noop() -> None:
        _core(spark, files, size).write.format("noop").mode("overwrite").save()

    theirs, ours = [], []
    for _ in range(CORE_RUNS):
        found, cost = _duckdb(files)
        assert {outcome: count for outcome, (count, *_) in found.items()} == expected, (
            found,
            expected,
        )
        theirs.append(cost)
        ours.append(spark.measure(noop)[1])
    assert _sums(_core(spark, files, size)) == found
    _line("DuckDB, core", number, theirs)
    _line("Spark, core", number, ours, theirs)
    costs: dict[str, list[Cost]] = {}
    for _ in range(JOB_RUNS):
        measured, account = _jobs(spark, work)
        assert account.outcomes == expected, (account.outcomes, expected)
        for name, cost in measured.items():
            costs.setdefault(name, []).append(cost)
    for name, each in costs.items():
        _line(name, number, each)
    print(f"  peak memory of the JVM so far {spark.peak / 1e6:.0f} MB")


def _jobs(spark: Spark, work: Path) -> tuple[dict[str, Cost], Account]:
    """All jobs once, over the segments in `work`, each with its commit to new tables."""
    shutil.rmtree(work / "tables", ignore_errors=True)
    with open_tables(work / "tables") as tables:
        made = Pipeline(spark.session, tables, RunSettings((str(work / "journal"),)))

        def ingest() -> None:
            while made.ingester.ingest_batch() is not None:
                pass

        ingested = spark.measure(ingest)[1]
        folded = spark.measure(made.update_ledger)[1]
        account, counted = spark.measure(made.account)
        updated = spark.measure(made.update_stats)[1]
    costs = {
        "ingest, committed": ingested,
        "ledger, folded": folded,
        "ledger, outcomes counted": counted,
        "stats": updated,
    }
    return costs, account


def _line(name: str, events: int, costs: list[Cost], than: list[Cost] | None = None) -> None:
    each = sorted(cost.cpu / events * 1e6 for cost in costs)
    wall = median(cost.wall for cost in costs)
    line = f"  {name:<28} {events / wall:>11,.0f} events/s, {median(each):6.2f} us"
    line += f" ({each[0]:.2f} to {each[-1]:.2f}) of CPU an event"
    if than is not None:
        ratios = sorted(a.cpu / b.cpu for a, b in zip(costs, than, strict=True))
        line += f", {median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) times DuckDB's CPU"
    print(line, flush=True)


def _bench_stream(spark: Spark, work: Path) -> None:
    """Measure from event to readable row, with segments as often as routers seal them."""
    from tests.pipeline.support import Scribe, write_segment

    journal = work / "journal"
    (journal / "ntf").mkdir(parents=True)
    stop = threading.Event()
    written: list[float] = []
    batches: list[BatchResult] = []
    seen_at: list[tuple[int, float]] = [(0, 0.0)]
    with open_tables(work / "tables") as tables:
        made = Pipeline(spark.session, tables, RunSettings((str(journal),)))
        stream = Stream(made, Schedule(poll=0.02, stats=10.0, account=15.0), stop, batches.append)
        cpu, jobs = tree_cpu(spark.pid) + _own_cpu(), spark.jobs
        threads = [
            threading.Thread(target=stream.run),
            threading.Thread(target=_watch, args=(tables, seen_at, stop)),
        ]
        for thread in threads:
            thread.start()
        scribe, number = Scribe(), 0
        until = time.time() + STREAM_SECONDS
        while time.time() < until:
            begun = time.time()
            for index in range(100):
                at = datetime.fromtimestamp(begun + SEAL * index / 100, UTC)
                count = len(scribe.events)
                scribe.nmsg(count, 0.0, f"t{count % 50}", f"s{count % 200}")
                for event in scribe.events[-2:]:
                    event["at"] = at
            time.sleep(max(0.0, begun + SEAL - time.time()))
            number += 1
            new = scribe.events[len(written) :]
            write_segment(journal, f"ntf/1000-{number:08d}", new)
            written += [event["at"].timestamp() for event in new]
        while seen_at[-1][0] < len(written):
            time.sleep(0.05)
        stop.set()
        for thread in threads:
            thread.join()
        cpu, jobs = tree_cpu(spark.pid) + _own_cpu() - cpu, spark.jobs - jobs
    latencies = [
        at - sent
        for (before, _), (seen, at) in itertools.pairwise(seen_at)
        for sent in written[before:seen]
    ]
    steady = sorted(latencies[len(latencies) // 4 :])
    p50, p99 = (steady[int(len(steady) * rank)] for rank in (0.5, 0.99))
    print(
        f"\nstream, a segment each {SEAL} s: event to ledger row p50 {p50:.2f} s, p99 {p99:.2f} s"
    )
    seconds = sorted(item.seconds for item in batches)
    print(
        f"  {len(batches)} batches, {seconds[len(seconds) // 2]:.2f} s each at the median; with all"
        f" other jobs {jobs / len(batches):.1f} of Spark's jobs and"
        f" {cpu / len(batches) * 1000:.0f} ms of CPU a batch"
    )


def _watch(tables: Any, seen_at: list[tuple[int, float]], stop: threading.Event) -> None:
    """When which event could first be read."""
    while not stop.wait(0.005):
        pairs = tables.snapshot.offsets.seen.get("ntf/1000", ())
        if pairs and pairs[0][1] > seen_at[-1][0]:
            seen_at.append((pairs[0][1], time.time()))


async def run(sizes: tuple[int, ...] = SIZES) -> None:
    await asyncio.to_thread(_run, sizes)


def _run(sizes: tuple[int, ...]) -> None:
    spark = Spark()
    work = Path(tempfile.mkdtemp(prefix="heliograph-bench-"))
    try:
        warm = Fleet(FleetSettings(50_000, tokens=1000)).write(work / "warm" / "journal")
        files = [str(path) for path in warm]
        few = Fleet(FleetSettings(500, tokens=20)).write(work / "few" / "journal")
        cold = spark.measure(lambda: _core_noop(spark, files))[1]
        print(f"the first run, of 305,000 events, took {cold.cpu:.0f} s of CPU", flush=True)
        for _ in range(WARM_RUNS):
            _core_noop(spark, files)
        for _ in range(PLAN_RUNS):
            _core_noop(spark, [str(path) for path in few])
        _jobs(spark, work / "warm")
        for size in sizes:
            _bench_size(spark, size, work / str(size))
            shutil.rmtree(work / str(size))
        for turn in range(STREAM_RUNS):
            _bench_stream(spark, work / f"stream{turn}")
        history.run(spark, work / "history")
    finally:
        spark.session.stop()
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    _run(tuple(map(int, sys.argv[1:])) or SIZES)
