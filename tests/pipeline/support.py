"""Helpers of the pipeline's tests: events in a line, journals of them, tables as plain values."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from heliograph.journal.heads import Head, write_head
from heliograph.journal.storage.arrow import SCHEMA
from heliograph.pipeline.runner import Pipeline, RunSettings
from heliograph.pipeline.tables.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SPARK_SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "1",
    # Tests are short: to compile costs more than it saves. `test_cluster` runs what is compiled.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # Spark alone fills the 48 MB that Java then has for code, and methods would be compiled again.
    "spark.driver.extraJavaOptions": (
        "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
    ),
}
START = datetime(2026, 1, 5, tzinfo=UTC)
"""A Monday."""
BOOT = 1000

Event = dict[str, Any]


class Scribe:
    """Writes the events of one router: `scribe("kind", at, column=value)`."""

    def __init__(self, router: str = "ntf", part: str = "ntf", boot: int = BOOT) -> None:
        self.router = router
        self.part = part
        self.boot = boot
        self.events: list[Event] = []

    def __call__(self, kind: str, seconds: float = 0.0, **columns: Any) -> Event:
        seq = len(self.events) + 1
        event: Event = {
            "schema": 1,
            "event_id": f"{self.router}-{self.boot}-{seq}",
            "router": self.router,
            "part": self.part,
            "boot": self.boot,
            "seq": seq,
            "kind": kind,
            "at": START + timedelta(seconds=seconds),
            "mono": int(seconds * 1e9),
            **columns,
        }
        self.events.append(event)
        return event

    def nmsg(self, number: int, seconds: float, token: str = "t1", sub: str = "s1") -> None:
        """Received and stored."""
        own = {"own_server": True, "smp_host": "smp1.example.org"}
        self("nmsg_received", seconds, notification=f"n{number}", **own)
        self(
            "nmsg_stored",
            seconds + 0.001,
            notification=f"n{number}",
            token=token,
            subscription=sub,
            ntf_seq=number,
            provider="apns_prod",
            **own,
        )

    def push(self, kind: str, seconds: float, token: str = "t1", **columns: Any) -> None:
        known = {"token": token, "provider": "apns_prod", "mode": "message", "push": "p"}
        self(kind, seconds, **{**known, "attempt": 1, **columns})

    def accepted(
        self, numbers: Sequence[int], through: int, seconds: float, token: str = "t1"
    ) -> None:
        names = [f"n{number}" for number in numbers]
        self.push("push_accepted", seconds, token, notifications=names, through=through)


def table(events: Iterable[Event]) -> pa.Table:
    return pa.Table.from_pylist(list(events), schema=pa.schema([(f.name, f.type) for f in SCHEMA]))


def write_segment(journal: Path, name: str, events: Iterable[Event]) -> Path:
    path = journal / f"{name}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"_{path.name}")
    pq.write_table(table(events), temporary, write_page_checksum=True)
    temporary.rename(path)
    return path


def write_journal(journal: Path, *scribes: Scribe) -> Path:
    """One segment for each router and run, which have ended."""
    for scribe in scribes:
        write_segment(journal, f"{scribe.router}/{scribe.boot}-00000001", scribe.events)
        end_run(journal, scribe)
    return journal


def end_run(journal: Path, scribe: Scribe, segments: int = 1) -> None:
    """Write the head of a run that has ended with all its events sealed."""
    at = int(max(event["at"] for event in scribe.events).timestamp() * 1e6)
    count = len(scribe.events)
    head = Head(scribe.router, scribe.boot, scribe.part, segments, count, at, ended=True)
    journal.mkdir(parents=True, exist_ok=True)
    write_head(journal, head)


def frame(spark: Any, events: Iterable[Event]) -> "DataFrame":
    result: DataFrame = spark.createDataFrame(table(events)).coalesce(1)
    return result


def decided(spark: Any, events: Sequence[Event], settings: Any = None) -> "DataFrame":
    """The ledger of these events, without files."""
    from heliograph.pipeline import source
    from heliograph.pipeline.jobs import coverage, ingest, ledger, outcomes
    from heliograph.pipeline.jobs.reach import Heads
    from heliograph.pipeline.jobs.routers import router_facts, with_summary

    known = frame(spark, events)
    summary = ingest.summarize(ingest.runs(ingest.checked(known)).collect(), {})
    assert not summary.wrong
    notes = with_summary({}, summary)
    routers = router_facts(notes)
    seen = source.merged({}, summary.numbers)
    gaps = coverage.gaps(seen, coverage.with_times({}, seen, summary.times), notes, Heads())
    return outcomes.decide(
        ledger.marks(known), ledger.settlements(known), routers, settings, gaps=gaps
    )


def pipeline(spark: Any, tables: Tables, journal: Path) -> Pipeline:
    return Pipeline(spark, tables, RunSettings((str(journal),), read_retry_time=0.0))


def snapshot(made: Pipeline) -> dict[str, list[Any]]:
    """All that the tables say, whatever the files they are in."""
    from heliograph.pipeline.jobs import stats

    def rows(frame: "DataFrame") -> list[Any]:
        return sorted(map(tuple, frame.collect()), key=repr)

    counts = stats.merge_counts(made.read("counts"))
    return {
        "events": sorted(row["event_id"] for row in made.read("events").collect()),
        "ledger": rows(made.ledger()),
        "quarantine": rows(made.read("quarantine").drop("segment").distinct()),
        "counts": rows(counts),
        "lines": [
            line.text
            for line in stats.daily_lines(
                counts, made.read("actives"), START.date(), START.date() + timedelta(days=40)
            )
        ],
    }


def outcomes(ledger: "DataFrame") -> dict[str, str]:
    """By notification; with a star if it was inferred, a question mark if a gap explains it."""
    columns = ledger.select("notification", "outcome", "recovered", "explained")
    return {
        name: outcome + "*" * recovered + "?" * explained
        for name, outcome, recovered, explained in columns.collect()
    }
