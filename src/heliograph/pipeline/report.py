"""A report for a day or a range: the same facts as HTML with plots, as JSON and as CSV.

`collect` asks Spark once for every table; the rest is text and needs neither Spark nor network.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from heliograph.pipeline import health, reading, stats
from heliograph.pipeline.runner import Pipeline
from heliograph.pipeline.stats import DailyLine
from heliograph.pipeline.vocabulary import FATES, UNACCOUNTED


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def records(self) -> list[dict[str, Any]]:
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


@dataclass(frozen=True, slots=True)
class Report:
    """`first` and `last` are days, both included."""

    first: str
    last: str
    made_at: str
    fates: dict[str, int]
    coalescing: float | None
    counts: dict[str, int]
    tables: dict[str, Table]

    @property
    def notifications(self) -> int:
        return sum(self.fates.values())

    @property
    def unaccounted(self) -> int:
        return self.fates.get(UNACCOUNTED, 0)


def days_with_events(pipeline: Pipeline, first: date, last: date) -> tuple[date, date]:
    """The part of a range of which anything is known."""
    found = pipeline.read("counts").agg(
        f.min(f.to_date("hour")).alias("first"), f.max(f.to_date("hour")).alias("last")
    )
    row = found.collect()[0]
    if row["first"] is None:
        return first, first
    return max(first, row["first"]), min(last, row["last"])


def collect(
    pipeline: Pipeline,
    first: date,
    last: date,
    made_at: float,
    stats_lines: Iterable[DailyLine] = (),
) -> Report:
    """Everything about these days. `stats_lines` are a router's own, to compare with."""
    within = f.to_date("hour").between(first, last)
    fates = reading.fates(pipeline).where(within).cache()
    counts = reading.counts(pipeline).where(within).cache()
    try:
        counted = f.when(stats.counted(), f.col("notifications")).otherwise(0)
        rows = fates.groupBy("fate").agg(
            f.sum("notifications").alias("n"), f.sum(counted).alias("counted")
        )
        of_fate = {row["fate"]: row for row in rows.collect()}
        all_counts = reading.counts(pipeline)
        daily = stats.daily_lines(all_counts, pipeline.read("actives"), first, last)
        differences = stats.reconcile(daily, stats_lines)
        tables = _tables(pipeline, fates, counts, first, last)
        pushes = counts.where("kind = 'push_accepted' and mode = 'message'").where(stats.counted())
        accepted = pushes.agg(f.sum("events")).collect()[0][0]
    finally:
        fates.unpersist()
        counts.unpersist()
    tables["daily"] = _lines_table(daily)
    tables["reconciliation"] = Table(
        "Where a router's own statistics differ",
        ("day", "column", "pipeline", "router"),
        tuple((d.day, d.column, d.pipeline, d.router) for d in differences),
    )
    settled = ("shown", "accepted", "superseded")
    carried = sum(of_fate[fate]["counted"] for fate in settled if fate in of_fate)
    return Report(
        first.isoformat(),
        last.isoformat(),
        datetime.fromtimestamp(made_at, UTC).isoformat(timespec="seconds"),
        {fate: of_fate[fate]["n"] for fate in FATES if fate in of_fate},
        carried / accepted if accepted else None,
        dict(pipeline.manifest.counts),
        tables,
    )


def _tables(
    pipeline: Pipeline, fates: DataFrame, counts: DataFrame, first: date, last: date
) -> dict[str, Table]:
    by_hour = fates.groupBy("hour").pivot("fate", list(FATES)).agg(f.sum("notifications"))
    by_host = (
        counts.where("part = 'ntf' and smp_host is not null")
        .groupBy("smp_host", "kind")
        .agg(f.sum("events").alias("events"))
        .orderBy("smp_host", "kind")
    )
    events = pipeline.read("events").where(f.to_date("at").between(first, last))
    sources: dict[str, tuple[str, DataFrame]] = {
        "hours": ("Notifications by hour and fate", by_hour.orderBy("hour")),
        "latency": (
            "Latency by hour, in microseconds",
            health.latencies(fates, "hour").orderBy("hour"),
        ),
        "providers": (
            "Pushes by hour and provider",
            health.providers(counts).orderBy("hour", "provider"),
        ),
        "provider_latency": (
            "Latency by provider and own messaging router, in microseconds",
            health.latencies(fates, "provider", "smp_host").orderBy("provider", "smp_host"),
        ),
        "failures": (
            "Why pushes were not accepted",
            health.failures(counts).orderBy(f.desc("events"), "provider", "kind", "reason"),
        ),
        "funnel": ("Tokens", health.funnel(counts).orderBy("provider")),
        "own_servers": ("By own messaging router", by_host),
        "connections": (
            "Connections to messaging routers",
            health.connections(events).orderBy("hour", "router", "server"),
        ),
        "quarantine": (
            "Quarantined",
            pipeline.read("quarantine")
            .distinct()
            .groupBy("reason")
            .count()
            .orderBy(f.desc("count"), "reason"),
        ),
    }
    return {name: _table(title, frame) for name, (title, frame) in sources.items()}


def _table(title: str, frame: DataFrame) -> Table:
    rows = tuple(tuple(_plain(value) for value in row) for row in frame.collect())
    return Table(title, tuple(frame.columns), rows)


def _lines_table(lines: list[DailyLine]) -> Table:
    rows = tuple(tuple(getattr(line, name) for name in stats.HEADER) for line in lines)
    return Table("Daily statistics", stats.HEADER, rows)


def _plain(value: Any) -> Any:
    """As JSON can have it. Spark gives times of UTC without saying so."""
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%SZ")
    return value.isoformat() if isinstance(value, date) else value


def to_json(report: Report) -> str:
    value = asdict(report)
    value["tables"] = {name: table.records() for name, table in report.tables.items()}
    return json.dumps(value, indent=1)
