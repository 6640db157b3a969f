"""What must not grow with the past: an account, a poll, a ledger with many kills.

Part of `python -m bench.pipeline`; alone: `python -m bench.history`.
"""

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from heliograph.pipeline import closing
from heliograph.pipeline.ingesting import copying
from heliograph.pipeline.jobs import ledger
from heliograph.pipeline.jobs.outcomes import SECOND, decide
from heliograph.pipeline.jobs.routers import RouterFacts, router_facts
from heliograph.pipeline.runner import Pipeline, RunSettings
from heliograph.pipeline.source import SegmentFinder
from heliograph.pipeline.spark.columns import EVENTS
from heliograph.pipeline.tables.offsets import Offsets
from heliograph.pipeline.tables.tables import open_tables
from heliograph.sim.fleet import Fleet, FleetSettings

if TYPE_CHECKING:
    from bench.pipeline import Spark

DAY = 86_400 * SECOND
PER_DAY = 10_000
DAYS = (3, 30)
RUNS = 9
COPY_RUNS = 4
TAKEN = 1_000_000
"""Segments of a run that were ingested."""
KILLS = (10, 10_000)


def _fleet(day: int, notifications: int = PER_DAY) -> Fleet:
    start = 1_767_225_600 * SECOND + day * DAY
    return Fleet(FleetSettings(notifications, start=start, duration=20 * DAY // 24, seed=day + 1))


def bench_accounts(spark: "Spark", work: Path) -> None:
    """Make the account of one new day after few and after ten times as many closed ones."""
    medians = []
    for days in DAYS:
        place = work / f"days{days}"
        with open_tables(place / "tables") as tables:
            made = Pipeline(spark.session, tables, RunSettings((str(place / "journal"),)))
            for day in range(DAYS[-1] - days, DAYS[-1] + 1):
                _fleet(day).write(place / "journal")
            while made.ingester.ingest_batch() is not None:
                pass
            made.update_stats()
            closing.close(made)
            new = _fleet(DAYS[-1] + 1)
            new.write(place / "journal")
            while made.ingester.ingest_batch() is not None:
                pass
            made.update_ledger()
            account = made.account()
            costs = [spark.measure(made.account)[1].cpu for _ in range(RUNS)]
            rows = sum(file.rows for file in tables.snapshot.closed_marks)
            opened = sum(file.rows for file in tables.snapshot.open_marks)
        medians.append(statistics.median(costs))
        print(
            f"  account with {rows:,} closed and {opened:,} open rows: {medians[-1]:.2f} s of CPU"
            f" ({min(costs):.2f} to {max(costs):.2f}), {sum(account.outcomes.values()):,}"
            " notifications",
            flush=True,
        )
        shutil.rmtree(place)
    print(f"  ten times the history costs {medians[1] / medians[0] - 1:+.0%}", flush=True)


def bench_kills(spark: "Spark", work: Path) -> None:
    """Decide the same rows with ten and with ten thousand kills."""
    files = [str(path) for path in _fleet(0, 50_000).write(work / "kills")]
    for kills in KILLS:
        boots = {
            str(number): {
                "recovered_at": 2 * number * SECOND,
                "last_at": (2 * number + 1) * SECOND,
                "recovered_through": 0,
            }
            for number in range(kills)
        }
        once = partial(
            _decide, spark, files, router_facts({"ntf00": {"part": "ntf", "boots": boots}})
        )
        once()
        costs = [spark.measure(once)[1].cpu for _ in range(RUNS)]
        print(
            f"  ledger of 305,000 events with {kills:,} kills: {statistics.median(costs):.2f} s of"
            f" CPU ({min(costs):.2f} to {max(costs):.2f})",
            flush=True,
        )


def _decide(spark: "Spark", files: list[str], routers: list[RouterFacts]) -> None:
    events = spark.session.read.schema(EVENTS).parquet(*files)
    rows = decide(ledger.marks(events), ledger.settlements(events), routers)
    rows.write.format("noop").mode("overwrite").save()


def bench_polls(work: Path) -> None:
    """Poll a journal of a million ingested segments, all of which are still there."""
    folder = work / "polls" / "r"
    folder.mkdir(parents=True)
    for number in range(1, TAKEN + 2):
        (folder / f"1000-{number:08}.parquet").touch()
    offsets = Offsets(segments={"r/1000": [(1, TAKEN)]})
    for place in (str(folder.parent), f"file://{folder.parent}"):
        finder = SegmentFinder(place, None)
        listing = _seconds(partial(finder.new, offsets, 0.0))
        took = [_seconds(partial(finder.new, offsets, now)) for now in range(1, 1 + RUNS)]
        name = "URL" if "://" in place else "path"
        print(
            f"  poll over {TAKEN:,} taken segments by {name}: {statistics.median(took) * 1e3:.2f}"
            f" ms ({min(took) * 1e3:.2f} to {max(took) * 1e3:.2f}); the first lists them all,"
            f" {listing:.1f} s",
            flush=True,
        )
    shutil.rmtree(folder.parent)


def bench_copies(spark: "Spark", work: Path) -> None:
    """Ingest the same segments as copies and rewritten, by turns; the first pair warms Java."""
    fleet = _fleet(0, 40_000)
    fleet.write(work / "copies" / "journal", rows_per_segment=200_000)
    usual = copying.FEW_FILES, copying.LARGE_BYTES
    costs: dict[str, list[float]] = {"rewritten": [], "copied": []}
    for number in range(COPY_RUNS):
        for name, found in costs.items():
            if name == "rewritten":
                copying.FEW_FILES, copying.LARGE_BYTES = 0, 1 << 60
            place = work / "copies" / f"{name}{number}"
            with open_tables(place) as tables:
                journal = str(work / "copies" / "journal")
                made = Pipeline(spark.session, tables, RunSettings((journal,)))
                found.append(spark.measure(made.ingester.ingest_batch)[1].cpu / fleet.events * 1e6)
            copying.FEW_FILES, copying.LARGE_BYTES = usual
    for name, found in costs.items():
        warm = found[1:]
        print(
            f"  ingest of {fleet.events:,} events, {name}: {statistics.median(warm):.1f} us of CPU"
            f" an event ({min(warm):.1f} to {max(warm):.1f})",
            flush=True,
        )


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def run(spark: "Spark", work: Path) -> None:
    print("\ncost and the past", flush=True)
    bench_copies(spark, work)
    bench_accounts(spark, work)
    bench_kills(spark, work)
    bench_polls(work)


if __name__ == "__main__":
    from bench.pipeline import Spark

    with tempfile.TemporaryDirectory(prefix="heliograph-bench-") as directory:
        run(Spark(), Path(directory))
