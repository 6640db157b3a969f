"""Run the jobs over the tables: those that update them, and those that read them merged."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

from heliograph.pipeline import views
from heliograph.pipeline.account import Account, Hour, count_outcomes, hours_of
from heliograph.pipeline.ingesting.heads import decode_heads, read_heads
from heliograph.pipeline.ingesting.ingester import Ingester, IngestSettings
from heliograph.pipeline.jobs import (
    closing,
    coverage,
    ledger,
    outcomes,
    rates,
    reach,
    stats,
    tokens as token_job,
)
from heliograph.pipeline.jobs.outcomes import OutcomeSettings
from heliograph.pipeline.jobs.reach import Heads, Lag
from heliograph.pipeline.jobs.routers import (
    RouterFacts,
    router_facts,
    watermark,
)
from heliograph.pipeline.jobs.windows import Gap
from heliograph.pipeline.objectives.objective import DEFAULTS, Objective
from heliograph.pipeline.spark import partitions
from heliograph.pipeline.spark.partitions import SINGLE_TASK_BYTES
from heliograph.pipeline.sums import closed_hours
from heliograph.pipeline.tables import store
from heliograph.pipeline.tables.offsets import Offsets, read_account
from heliograph.pipeline.tables.snapshot import DataFile, Snapshot
from heliograph.pipeline.tables.store import Write
from heliograph.pipeline.tables.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BROADCAST = 64 << 20


@dataclass(frozen=True, slots=True)
class RunSettings(IngestSettings):
    """Settings of a run."""

    outcomes: OutcomeSettings = field(default_factory=OutcomeSettings)
    objectives: tuple[Objective, ...] = DEFAULTS


@dataclass(slots=True)
class _Known:
    """Facts that all readers of the same tables share."""

    hours: dict[str, list[Hour]] = field(default_factory=dict)
    """Sums of closed notifications, by file."""
    heads: Heads | None = None


class Pipeline:
    """All jobs, over tables that only this process writes: one method for each."""

    def __init__(self, spark: "SparkSession", tables: Tables, settings: RunSettings) -> None:
        self.spark = spark
        self.tables = tables
        self.settings = settings
        self.ingester = Ingester(spark, tables, settings)
        self._known = _Known()

    @property
    def snapshot(self) -> Snapshot:
        return self.tables.snapshot

    @property
    def offsets(self) -> Offsets:
        return self.tables.snapshot.offsets

    def pinned(self) -> "Pipeline":
        """Return a reader of the current snapshot, unaffected by later commits."""
        return self._with(self.tables.pinned())

    def for_another_thread(self) -> "Pipeline":
        """Return a pipeline over the same tables, for another thread."""
        return self._with(self.tables)

    def _with(self, tables: Tables) -> "Pipeline":
        made = Pipeline(self.spark.newSession(), tables, self.settings)
        made._known = self._known
        return made

    def partition(self, size: int) -> None:
        """Set the number of partitions so that each fits into memory."""
        partitions.set_number(self.spark, size)

    # The ledger.

    @property
    def closed_until(self) -> int:
        """Return the end of the last day that has closed notifications, in microseconds."""
        return max(
            (closing.end_of(file.day or "") for file in self.snapshot.closed_marks), default=0
        )

    def reopened(self) -> DataFrame | None:
        """Return the closed marks that later events belong to; None if there are none."""
        if not self.snapshot.closed_marks:
            return None
        late = closing.late(self._open_parts(), self.closed_until).collect()
        if not late:
            return None
        closed = self.read("marks", self.snapshot.closed_marks)
        found = closing.with_ids(closed, [row["notification"] for row in late])
        ids = [row["notification"] for row in found.select("notification").collect()]
        return closing.with_ids(closed, ids) if ids else None

    def marks(self, reopened: DataFrame | None = None) -> DataFrame:
        """Return one row per open or reopened notification, also from events not folded yet."""
        parts = self._open_parts()
        if reopened is None:
            return ledger.merge_marks(parts)
        return ledger.merge_stored(parts.unionByName(reopened))

    def _open_parts(self) -> DataFrame:
        folded, tail = self.read("marks", self.snapshot.open_marks), self._since("marks")
        if not tail:
            return folded
        new = ledger.milestones(self._events(tail))
        return folded.unionByName(new, allowMissingColumns=True)

    def settlements(self) -> DataFrame:
        folded, tail = self.read("settlements"), self._since("settlements")
        if not tail:
            return ledger.merge_settlements(folded)
        return ledger.merge_settlements(folded.unionByName(ledger.settling(self._events(tail))))

    def update_ledger(self) -> int:
        """Merge new events into the ledger's tables; return the number of files.

        The ledger has the same content before and after, but is cheaper to read.
        """
        return self._update({"marks": ledger.marks, "settlements": ledger.settlements})

    def ledger(self) -> DataFrame:
        """Return one row per notification, open or closed, as of the last commit."""
        closed = (
            self.read("marks", self.snapshot.closed_marks) if self.snapshot.closed_marks else None
        )
        return self.decided(self.marks(closed))

    def open_ledger(self) -> DataFrame:
        """Return the rows of open and reopened notifications."""
        return self.decided(self.marks(self.reopened()))

    def decided(
        self, marks: DataFrame, decide: Callable[..., DataFrame] = outcomes.decide
    ) -> DataFrame:
        """Return the ledger's rows for some of the marks."""
        files = (*self.snapshot.of("marks"), *self._since("marks"))
        self.partition(sum(file.size for file in files))
        tokens = sum(file.size for file in self.snapshot.of("settlements"))
        settings, routers = self.settings.outcomes, self.routers()
        return decide(marks, self.settlements(), routers, settings, tokens < BROADCAST, self.gaps())

    @property
    def heads(self) -> Heads:
        """Return the heads of runs, as of the last account, also of another process."""
        if self._known.heads is None:
            account = read_account(self.tables.storage.url)
            self._known.heads = decode_heads(account.get("heads", {}))
        return self._known.heads

    def read_heads(self, offsets: Offsets, now: float) -> Heads:
        """Return the heads of runs as they are at the Unix time `now`; none without journals."""
        if not self.settings.journals:
            return Heads()
        return read_heads(self.settings.journals, self.spark, offsets, now, self.heads)

    def routers(self) -> list[RouterFacts]:
        """Return the facts of all routers, as far as they are known."""
        offsets = self.offsets
        until = reach.known_until(offsets.seen, offsets.routers, self.heads)
        return router_facts(offsets.routers, self.settings.outcomes.retire_after, until)

    def gaps(self) -> list[Gap]:
        """Return the sequence numbers known to be missing."""
        offsets = self.offsets
        return coverage.gaps(offsets.seen, offsets.edges, offsets.routers, self.heads)

    def lags(self, counted: Mapping[str, int], now: float) -> tuple[Lag, ...]:
        """Return what lagged when the heads were read, and at the Unix time `now` the heads.

        `counted` are notifications by outcome.
        """
        offsets, heads, grace = self.offsets, self.heads, self.settings.outcomes.grace
        return (
            *reach.lags(offsets.seen, offsets.routers, heads, heads.at, grace),
            *reach.stale(heads, now),
            *reach.without_receivers(counted, offsets.routers),
        )

    def account(self, now: float | None = None) -> Account:
        """Count outcomes. Log the first unaccounted rows as errors.

        Reads what is open and what is new; of closed notifications there are sums.
        """
        now = time.time() if now is None else now
        if self.settings.journals:
            self._known.heads = self.read_heads(self.offsets, now)
        reopened = self.reopened()
        changed = () if reopened is None else hours_of(outcomes.closed_rows(reopened))
        rows = self.decided(self.marks(reopened))
        closed = closed_hours(self.snapshot, self.read, self._known.hours)
        account = count_outcomes(rows, self.gaps(), closed, changed)
        quarantined = self.offsets.counts.get("quarantined", 0)
        until = watermark(self.routers())
        return replace(
            account,
            quarantined=quarantined,
            objectives=views.objectives(self, rows, reopened),
            lags=self.lags(account.outcomes, now),
            until=until,
        )

    # Statistics.

    def update_stats(self) -> int:
        """Count the events added since the last time; return the number of files."""
        return self._update(
            {
                "counts": lambda events: stats.counts(events).coalesce(1),
                "actives": lambda events: stats.actives(events).coalesce(1),
                "tokens": lambda events: token_job.tokens(events).coalesce(1),
            }
        )

    def tokens(self) -> DataFrame:
        """Return one row per token, as of the last commit."""
        folded, tail = self.read("tokens"), self._since("tokens")
        if not tail:
            return token_job.merge_tokens(folded)
        return token_job.merge_tokens(folded.unionByName(token_job.tokens(self._events(tail))))

    def receipts(self) -> DataFrame:
        """Return when a device last reported a notification, by the ledger's key of its token."""
        closed = self.read("marks", self.snapshot.closed_marks)
        return ledger.receipts(closed.unionByName(self._open_parts(), allowMissingColumns=True))

    def update_rates(self) -> int:
        """Count by ten seconds what is new; return the number of files."""
        return self._update({"rates": self._rates})

    def rates(self) -> DataFrame:
        """Return the rates of the last hours, also from events not counted yet."""
        stored, tail = self.read("rates"), self._since("rates")
        return stored.unionByName(self._rates(self._events(tail))) if tail else stored

    def _rates(self, events: DataFrame) -> DataFrame:
        since = rates.since_by_router(router_facts(self.offsets.routers))
        return rates.rates(events, since).coalesce(1)

    def _update(self, jobs: Mapping[str, Callable[[DataFrame], DataFrame]]) -> int:
        """Run jobs over new events; commit each result with the last batch that it covers.

        Threads may update the same tables: each batch is added once.
        """
        with ExitStack() as locks:
            for table in jobs:
                locks.enter_context(self.tables.updating[table])
            return self._update_locked(jobs)

    def _update_locked(self, jobs: Mapping[str, Callable[[DataFrame], DataFrame]]) -> int:
        new = {table: files for table in jobs if (files := self._since(table))}
        if not new:
            return 0
        self.partition(max(sum(file.size for file in files) for files in new.values()))
        added = store.write(
            self.tables,
            [Write(table, jobs[table](self._events(files))) for table, files in new.items()],
        )
        for table, files in new.items():
            newest = max(file.batch for file in files)
            self.tables.commit(table, added[table], progress=newest)
        return max(map(len, new.values()))

    def _since(self, table: str) -> list[DataFile]:
        """Return the files of events that a derived table does not have yet."""
        upto = self.snapshot.progress.get(table, 0)
        return [file for file in self.snapshot.of("events") if file.batch > upto]

    def _events(self, files: Sequence[DataFile]) -> DataFrame:
        events = self.read("events", files)
        small = sum(file.size for file in files) < SINGLE_TASK_BYTES
        return events.coalesce(1) if small else events

    def read(self, table: str, files: Iterable[DataFile] | None = None) -> DataFrame:
        return store.read(self.spark, self.tables, table, files)
