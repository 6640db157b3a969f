"""Two drivers of the same batches: the pipeline's own loop, and Spark's Structured Streaming.

    python -m bench.streaming [ROUNDS]

Both ingest the same segments with the same commits. Structured Streaming gets them from a source
that asks for the next number of each run, and hands them to `foreachBatch`; its checkpoint is on
the same disk as the tables. Each driver is a process of its own. Printed are, as medians with the
lowest and highest of the rounds: the latency from event to ledger row, CPU for each batch and
while nothing happens, and the time from a start after kill -9 to the next commit.
"""

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from heliograph.pipeline.runner import Pipeline, RunSettings
from heliograph.pipeline.source import segment
from heliograph.pipeline.spark.session import open_session
from heliograph.pipeline.tables.offsets import read_offsets
from heliograph.pipeline.tables.tables import open_tables
from tests.pipeline.support import Scribe, write_segment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROUNDS = 3
SEAL = 0.5
SEGMENTS = 40
SKIPPED = 20
"""Segments until Java has compiled most of what it runs."""
IDLE_SECONDS = 10.0
POLL = 0.02
RUN = "ntf/1000"
PER_SEGMENT = 200


class SegmentSource(DataSource):
    """Yields the names of new segments. It runs in a Python process that Spark starts."""

    @classmethod
    def name(cls) -> str:
        return "heliograph_segments"

    def schema(self) -> str:
        return "name string, size long, modified double"

    def streamReader(self, schema: Any) -> "SegmentReader":
        return SegmentReader(self.options["journal"])


class Span(InputPartition):
    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last


class SegmentReader(DataSourceStreamReader):
    """The offset is the number of the last segment."""

    def __init__(self, journal: str) -> None:
        self.journal = journal

    def _path(self, number: int) -> str:
        return os.path.join(self.journal, f"{RUN}-{number:08}.parquet")

    def initialOffset(self) -> dict[str, int]:
        return {RUN: 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        number = start[RUN]
        while os.path.exists(self._path(number + 1)):
            number += 1
        return {RUN: number}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[Span]:
        return [Span(start[RUN] + 1, end[RUN])] if end[RUN] > start[RUN] else []

    def read(self, partition: Any) -> Iterator[tuple[str, int, float]]:
        for number in range(partition.first, partition.last + 1):
            facts = os.stat(self._path(number))
            yield f"{RUN}-{number:08}.parquet", facts.st_size, facts.st_mtime


def drive_loop(made: Pipeline, stop: threading.Event) -> None:
    """Take batches as `heliograph.pipeline.schedule.Stream` does, without its other jobs."""
    while not stop.is_set():
        if made.ingester.ingest_batch(made.ingester.poll()) is None:
            stop.wait(POLL)


def drive_structured(made: Pipeline, stop: threading.Event, checkpoint: Path) -> None:
    spark: SparkSession = made.spark
    spark.dataSource.register(SegmentSource)
    journal = made.settings.journals[0]

    def ingest(names: "DataFrame", _: int) -> None:
        found = [
            segment(row["name"], f"{journal}/{row['name']}", row["size"], row["modified"])
            for row in names.collect()
        ]
        waiting = made.ingester.still_waiting(found)  # a batch that was committed before a kill
        while waiting and made.ingester.ingest_batch(waiting) is not None:
            waiting = made.ingester.still_waiting(waiting)

    query = (
        spark.readStream.format("heliograph_segments")
        .option("journal", journal)
        .load()
        .writeStream.foreachBatch(ingest)
        .option("checkpointLocation", str(checkpoint))
        .trigger(processingTime=f"{int(POLL * 1000)} milliseconds")
        .start()
    )
    stop.wait()
    query.stop()


def drive(kind: str, work: Path) -> None:
    """Be a driver until killed."""
    spark = open_session("local[2]", settings={"spark.driver.memory": "1g"})
    with open_tables(work / "tables") as tables:
        made = Pipeline(spark, tables, RunSettings((str(work / "journal"),)))
        print("ready", flush=True)
        if kind == "loop":
            drive_loop(made, threading.Event())
        else:
            drive_structured(made, threading.Event(), work / "checkpoint")


@contextmanager
def driver(kind: str, work: Path) -> Iterator[int]:
    """Start a driver in a session of its own, and kill -9 it and its JVM at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.streaming", "--drive", kind, str(work)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process.pid
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def session_cpu(leader: int) -> float:
    """Return the CPU seconds of all processes of a session, also of those that ended."""
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(") ", 1)[1].split()
        except OSError:
            continue
        if int(fields[3]) == leader:
            total += sum(map(int, fields[11:15]))
    return total / os.sysconf("SC_CLK_TCK")


class Journal:
    """Writes a segment each half second, as routers seal them, and remembers when."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.scribe = Scribe()
        self.sent: list[float] = []
        self.number = 0

    def seal(self) -> None:
        begun = time.time()
        for index in range(PER_SEGMENT // 2):
            at = datetime.fromtimestamp(begun + SEAL * index * 2 / PER_SEGMENT, UTC)
            count = len(self.scribe.events)
            self.scribe.nmsg(count, 0.0, f"t{count % 50}", f"s{count % 200}")
            for event in self.scribe.events[-2:]:
                event["at"] = at
        time.sleep(max(0.0, begun + SEAL - time.time()))
        self.number += 1
        new = self.scribe.events[len(self.sent) :]
        write_segment(self.work / "journal", f"{RUN}-{self.number:08d}", new)
        self.sent += [event["at"].timestamp() for event in new]

    def ingested(self) -> int:
        pairs = read_offsets(self.work / "tables").seen.get(RUN, ())
        return pairs[0][1] if pairs else 0

    def wait(self, number: int, seconds: float = 300.0) -> float:
        """Return when so many events were committed."""
        deadline = time.time() + seconds
        while self.ingested() < number:
            if time.time() > deadline:
                raise TimeoutError(f"{self.ingested()} of {number} events were committed")
            time.sleep(0.01)
        return time.time()


Result = dict[str, float]


def measure(kind: str, work: Path) -> Result:
    (work / "journal" / "ntf").mkdir(parents=True)
    journal = Journal(work)
    with driver(kind, work) as pid:
        for _ in range(SKIPPED):
            journal.seal()
        journal.wait(len(journal.sent))
        first = len(journal.sent)
        batches = read_offsets(work / "tables").batch
        cpu = session_cpu(pid)
        seen: list[float] = []
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(0.005):
                seen.extend([time.time()] * (journal.ingested() - first - len(seen)))

        watcher = threading.Thread(target=watch)
        watcher.start()
        for _ in range(SEGMENTS):
            journal.seal()
        journal.wait(len(journal.sent))
        cpu = session_cpu(pid) - cpu
        batches = read_offsets(work / "tables").batch - batches
        while len(seen) < len(journal.sent) - first:
            time.sleep(0.01)
        ended.set()
        watcher.join()
        idle = session_cpu(pid)
        time.sleep(IDLE_SECONDS)
        idle = session_cpu(pid) - idle
        journal.seal()  # killed amid this one, or just after it
        time.sleep(0.2)
    journal.seal()
    began = time.time()
    with driver(kind, work):
        restart = journal.wait(len(journal.sent)) - began
    events = read_offsets(work / "tables").counts["events"]
    if events != len(journal.sent):
        raise AssertionError(f"{events} events instead of {len(journal.sent)}")
    latencies = sorted(at - sent for sent, at in zip(journal.sent[first:], seen, strict=False))
    return {
        "event to ledger row, p50 s": latencies[len(latencies) // 2],
        "event to ledger row, p99 s": latencies[int(len(latencies) * 0.99)],
        "CPU a segment, ms": cpu / SEGMENTS * 1000,
        "batches": batches,
        "idle, % of a core": idle / IDLE_SECONDS * 100,
        "commit after kill -9 and start, s": restart,
    }


def main(rounds: int) -> None:
    found: dict[str, list[Result]] = {"loop": [], "structured": []}
    for number in range(rounds):
        for kind in sorted(found, reverse=bool(number % 2)):
            with tempfile.TemporaryDirectory(prefix="heliograph-bench-") as work:
                found[kind].append(measure(kind, Path(work)))
                print(kind, {k: round(v, 2) for k, v in found[kind][-1].items()}, flush=True)
    for name in found["loop"][0]:
        print(f"{name:<36}", end="")
        for results in found.values():
            values = sorted(result[name] for result in results)
            middle = statistics.median(values)
            print(f"{middle:8.2f} ({values[0]:.2f} to {values[-1]:.2f})", end="")
        print()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--drive"]:
        drive(sys.argv[2], Path(sys.argv[3]))
    else:
        main(int(sys.argv[1]) if sys.argv[1:] else ROUNDS)
