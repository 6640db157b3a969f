"""The progress of the pipeline, from the offsets and the journals alone, without Spark or Delta."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from heliograph.documents import JsonObject
from heliograph.pipeline import source
from heliograph.pipeline.ingesting.heads import decode_heads, read_heads
from heliograph.pipeline.jobs import coverage, reach
from heliograph.pipeline.jobs.reach import Heads, Lag, describe_lag, utc
from heliograph.pipeline.jobs.routers import GRACE, router_facts
from heliograph.pipeline.jobs.windows import Gap
from heliograph.pipeline.objectives.describing import EVERYWHERE, table_rows
from heliograph.pipeline.tables.offsets import Offsets, read_account, read_offsets
from heliograph.pipeline.vocabulary import UNACCOUNTED


@dataclass(frozen=True, slots=True)
class Status:
    """Progress of the pipeline. `waiting` is None if a journal is at a URL: only Spark lists it."""

    offsets: Offsets
    account: JsonObject
    waiting: int | None
    waiting_bytes: int
    lag: float | None
    """Seconds since the oldest waiting segment was sealed."""
    lag_by_router: Mapping[str, float] = field(default_factory=dict)
    """The same for each router that has segments waiting."""
    heads: Heads = field(default_factory=Heads)
    lags: Sequence[Lag] = ()
    """What lags now; without journals, what lagged at the last account, and whether it is old."""

    @property
    def gaps(self) -> list[Gap]:
        offsets = self.offsets
        return coverage.gaps(offsets.seen, offsets.edges, offsets.routers, self.heads)

    @property
    def verdict(self) -> str | None:
        """Return the verdict of the last account, unless something is missing since."""
        known: str | None = self.account.get("verdict")
        if known in ("complete", "lagging"):
            if self.gaps or self.offsets.counts.get("quarantined"):
                return "gaps"
            return "lagging" if self.lags else "complete"
        return known


def status(directory: Path | str, journals: Sequence[str], now: float) -> Status:
    offsets, account = read_offsets(directory), read_account(directory)
    heads, lags = _reach(offsets, account, journals, now)
    if any("://" in journal for journal in journals):
        return Status(offsets, account, None, 0, None, heads=heads, lags=lags)
    waiting = [
        item
        for journal in journals
        for item in source.list_segments(journal, None)
        if not source.is_ingested(item, offsets)
    ]
    oldest = min((item.modified for item in waiting), default=None)
    size = sum(item.size for item in waiting)
    lag = None if oldest is None else now - oldest
    by_router: dict[str, float] = {}
    for item in waiting:
        router = item.name.rpartition("/")[0]
        by_router[router] = max(by_router.get(router, 0.0), now - item.modified)
    return Status(offsets, account, len(waiting), size, lag, by_router, heads, lags)


def _reach(
    offsets: Offsets, account: JsonObject, journals: Sequence[str], now: float
) -> tuple[Heads, list[Lag]]:
    """Return the heads and what lags: now if the journals can be read here, else as it was."""
    heads = decode_heads(account.get("heads", {}))
    if not journals or any(source.needs_spark(journal) for journal in journals):
        known = [Lag(**lag) for lag in account.get("lags", ())]
        return heads, [*dict.fromkeys((*known, *reach.stale(heads, now)))]
    heads = read_heads(journals, None, offsets, now, heads)
    grace = account.get("settings", {}).get("grace", GRACE)
    found = reach.lags(offsets.seen, offsets.routers, heads, now, grace)
    return heads, [*found, *reach.without_receivers(account.get("outcomes", {}), offsets.routers)]


def describe(found: Status, now: float) -> Iterator[str]:
    """Yield lines of text."""
    offsets, account = found.offsets, found.account
    if not offsets.batch:
        yield "nothing was ingested yet"
    else:
        yield f"last commit     {now - offsets.committed_at:.0f} s ago, batch {offsets.batch}"
    if found.waiting is not None:
        size = f"{found.waiting_bytes / 1e6:.1f} MB"
        yield f"waiting         {found.waiting} segments, {size}"
        yield f"lag             {'none' if found.lag is None else f'{found.lag:.1f} s'}"
        for name, lag in sorted(found.lag_by_router.items()):
            yield f"                {name or 'no router'} {lag:.1f} s"
    for count in ("batches", "segments", "events", "duplicates", "quarantined"):
        yield f"{count:<15} {offsets.counts.get(count, 0)}"
    for router in router_facts(offsets.routers):
        state = ", retired" if router.retired else ""
        ago = now - router.last_at / 1e6
        yield f"router          {router.router} ({router.part}{state}), {ago:.0f} s ago"
    if account:
        yield f"ledger          {now - account['at']:.0f} s ago"
        for outcome, number in account["outcomes"].items():
            yield f"                {outcome} {number}"
        if UNACCOUNTED not in account["outcomes"]:
            yield "                nothing is unaccounted for"
        yield f"verdict         {found.verdict or 'none yet'}"
        for row in table_rows(account.get("objectives", {})):
            objective, provider, state, percent, left, *_ = row
            if provider == EVERYWHERE:
                parts = [state, percent, f"{left} of the error budget left" if left else ""]
                yield f"objective       {objective}: {', '.join(filter(None, parts))}"
    for item in found.lags:
        yield f"lagging         {describe_lag(item)}"
    for gap in found.gaps:
        at = utc(gap.from_at)
        yield f"gap             {gap.events} events of {gap.router} ({gap.part}) since {at}"
