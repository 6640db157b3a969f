"""A report for a day or a range: the same facts as HTML with plots, as JSON and as CSV.

`collect` queries Spark once per table; the rest is text and needs neither Spark nor network.
"""

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, date, datetime

from pyspark.sql import DataFrame, functions as f

from heliograph.documents import JsonObject
from heliograph.pipeline import views
from heliograph.pipeline.account import Verdict, verdict
from heliograph.pipeline.jobs import health, stats
from heliograph.pipeline.jobs.reach import describe_lag
from heliograph.pipeline.jobs.routers import watermark
from heliograph.pipeline.jobs.stats import DailyLine
from heliograph.pipeline.objectives.describing import COLUMNS, table_rows
from heliograph.pipeline.runner import Pipeline
from heliograph.pipeline.vocabulary import OUTCOMES, UNACCOUNTED


@dataclass(frozen=True, slots=True)
class ReportTable:
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]

    def records(self) -> list[JsonObject]:
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


@dataclass(frozen=True, slots=True)
class Report:
    """The content of a report. `first` and `last` are days, both included."""

    first: str
    last: str
    made_at: str
    outcomes: dict[str, int]
    coalescing: float | None
    counts: dict[str, int]
    tables: dict[str, ReportTable]
    missing_events: int = 0
    """Number of events known to be missing, on all days: see the table `coverage`."""
    explained: int = 0
    """Number of unaccounted notifications that a known gap may explain."""
    recovered: dict[str, int] = field(default_factory=dict)
    """How many of the outcomes were inferred after a kill."""
    lags: tuple[str, ...] = ()
    """Routers and journals whose missing events are not known, in words."""
    until: str = ""
    """The time until which all routers that run are known."""

    @property
    def notifications(self) -> int:
        return sum(self.outcomes.values())

    @property
    def unaccounted(self) -> int:
        return self.outcomes.get(UNACCOUNTED, 0)

    @property
    def verdict(self) -> Verdict:
        missing = self.missing_events + self.counts.get("quarantined", 0)
        return verdict(self.unaccounted, self.explained, missing, len(self.lags))


def days_with_events(pipeline: Pipeline, first: date, last: date) -> tuple[date, date]:
    """Return the part of a range that has events."""
    found = pipeline.read("counts").agg(
        f.min(f.to_date("hour")).alias("first"), f.max(f.to_date("hour")).alias("last")
    )
    row = found.collect()[0]
    days = [day for day in row if day is not None]
    # Those of events that are not counted yet.
    days += [date.fromisoformat(file.day) for file in pipeline.snapshot.of("events") if file.day]
    if not days:
        return first, first
    return max(first, min(days)), min(last, max(days))


def collect(
    pipeline: Pipeline,
    first: date,
    last: date,
    made_at: float,
    stats_lines: Iterable[DailyLine] = (),
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Report:
    """Collect the report of these days. `stats_lines` are a router's own, for comparison.

    `progress` gets the number of tables done, and of all.
    """
    within = f.to_date("hour").between(first, last)
    outcomes = views.outcomes(pipeline).where(within).cache()
    counts = views.counts(pipeline).where(within).cache()
    try:
        counted = f.when(stats.is_real_token(), f.col("notifications")).otherwise(0)
        rows = outcomes.groupBy("outcome").agg(
            f.sum("notifications").alias("n"),
            f.sum(counted).alias("counted"),
            f.sum(f.when(f.col("recovered"), f.col("notifications"))).alias("recovered"),
        )
        of_outcome = {row["outcome"]: row for row in rows.collect()}
        all_counts = views.counts(pipeline)
        daily = stats.daily_lines(all_counts, pipeline.read("actives"), first, last)
        differences = stats.reconcile(daily, stats_lines)
        tables = _tables(pipeline, outcomes, counts, first, last, progress)
        pushes = counts.where("kind = 'push_accepted' and mode = 'message'").where(
            stats.is_real_token()
        )
        accepted = pushes.agg(f.sum("events")).collect()[0][0]
    finally:
        outcomes.unpersist()
        counts.unpersist()
    tables["daily"] = _lines_table(daily)
    tables["reconciliation"] = ReportTable(
        "Where a router's own statistics differ",
        ("day", "column", "pipeline", "router"),
        tuple((d.day, d.column, d.pipeline, d.router) for d in differences),
    )
    gaps = pipeline.gaps()
    tables["coverage"] = ReportTable(
        "Events known to be missing",
        ("router", "part", "boot", "first_seq", "last_seq", "events", "from_at", "until_at"),
        tuple(
            (
                gap.router,
                gap.part,
                str(gap.boot),
                gap.first_seq,
                gap.last_seq,
                gap.events,
                _utc(gap.from_at),
                _utc(gap.until_at),
            )
            for gap in gaps
        ),
    )
    reopened = pipeline.reopened()
    rows_of_now = pipeline.decided(pipeline.marks(reopened))
    objectives = asdict(views.objectives(pipeline, rows_of_now, reopened))
    tables["objectives"] = ReportTable(
        "Objectives, of the last 30 days", COLUMNS, tuple(table_rows(objectives))
    )
    settled = ("shown", "accepted", "coalesced")
    carried = sum(of_outcome[outcome]["counted"] for outcome in settled if outcome in of_outcome)
    counted_as = {outcome: row["n"] for outcome, row in of_outcome.items()}
    return Report(
        first.isoformat(),
        last.isoformat(),
        datetime.fromtimestamp(made_at, UTC).isoformat(timespec="seconds"),
        {outcome: counted_as[outcome] for outcome in OUTCOMES if outcome in counted_as},
        carried / accepted if accepted else None,
        dict(pipeline.offsets.counts),
        tables,
        sum(gap.events for gap in gaps),
        _explained(pipeline, first, last) if UNACCOUNTED in of_outcome else 0,
        {o: row["recovered"] for o, row in of_outcome.items() if row["recovered"]},
        tuple(map(describe_lag, pipeline.lags(counted_as, made_at))),
        _utc(until) if (until := watermark(pipeline.routers())) else "",
    )


def _explained(pipeline: Pipeline, first: date, last: date) -> int:
    day = f.to_date(f.timestamp_micros("first_at"))
    rows = pipeline.open_ledger().where(
        (f.col("outcome") == UNACCOUNTED) & day.between(first, last)
    )
    return int(rows.agg(f.count_if("explained")).collect()[0][0])


def _tables(
    pipeline: Pipeline,
    outcomes: DataFrame,
    counts: DataFrame,
    first: date,
    last: date,
    progress: Callable[[int, int], None],
) -> dict[str, ReportTable]:
    by_hour = outcomes.groupBy("hour").pivot("outcome", list(OUTCOMES)).agg(f.sum("notifications"))
    by_host = (
        counts.where("part = 'ntf' and smp_host is not null")
        .groupBy("smp_host", "kind")
        .agg(f.sum("events").alias("events"))
        .orderBy("smp_host", "kind")
    )
    events = pipeline.read("events").where(f.to_date("at").between(first, last))
    sources: dict[str, tuple[str, DataFrame]] = {
        "hours": ("Notifications by hour and outcome", by_hour.orderBy("hour")),
        "latency": (
            "Latency by hour",
            health.latencies(outcomes, "hour").orderBy("hour"),
        ),
        "providers": (
            "Pushes by hour and provider",
            health.providers(counts).orderBy("hour", "provider"),
        ),
        "provider_latency": (
            "Latency by provider and own messaging router",
            health.latencies(outcomes, "provider", "smp_host").orderBy("provider", "smp_host"),
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
    tables = {}
    for number, (name, (title, frame)) in enumerate(sources.items()):
        progress(number, len(sources))
        tables[name] = _table(title, frame)
    progress(len(sources), len(sources))
    return tables


def _table(title: str, frame: DataFrame) -> ReportTable:
    rows = tuple(tuple(_plain(value) for value in row) for row in frame.collect())
    return ReportTable(title, tuple(frame.columns), rows)


def _lines_table(lines: list[DailyLine]) -> ReportTable:
    rows = tuple(tuple(getattr(line, name) for name in stats.HEADER) for line in lines)
    return ReportTable("Daily statistics", stats.HEADER, rows)


def _utc(microseconds: int) -> str:
    # A head may claim a year for which `datetime` has no room.
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(microseconds / 1e6))


def _plain(value: object) -> object:
    """Return a value that JSON can represent. Spark returns UTC times without a time zone."""
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%SZ")
    return value.isoformat() if isinstance(value, date) else value


def to_json(report: Report) -> str:
    value = asdict(report)
    value["verdict"] = report.verdict.value
    value["tables"] = {name: table.records() for name, table in report.tables.items()}
    return json.dumps(value, indent=1)
