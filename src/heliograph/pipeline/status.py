"""The progress of the pipeline, from the offsets and the journals alone, without Spark or Delta."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from heliograph.documents import JsonObject
from heliograph.pipeline import source
from heliograph.pipeline.jobs import coverage
from heliograph.pipeline.jobs.routers import router_facts
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


def status(directory: Path | str, journals: Sequence[str], now: float) -> Status:
    offsets, account = read_offsets(directory), read_account(directory)
    if any("://" in journal for journal in journals):
        return Status(offsets, account, None, 0, None)
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
    return Status(offsets, account, len(waiting), size, lag, by_router)


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
        for router, lag in sorted(found.lag_by_router.items()):
            yield f"                {router or 'no router'} {lag:.1f} s"
    for name in ("batches", "segments", "events", "duplicates", "quarantined"):
        yield f"{name:<15} {offsets.counts.get(name, 0)}"
    for item in router_facts(offsets.routers):
        state = ", retired" if item.retired else ""
        ago = now - item.last_at / 1e6
        yield f"router          {item.router} ({item.part}{state}), {ago:.0f} s ago"
    if account:
        yield f"ledger          {now - account['at']:.0f} s ago"
        for outcome, count in account["outcomes"].items():
            yield f"                {outcome} {count}"
        if UNACCOUNTED not in account["outcomes"]:
            yield "                nothing is unaccounted for"
        yield f"verdict         {account.get('verdict', 'none yet')}"
    for gap in coverage.gaps(offsets.seen, offsets.edges, offsets.routers):
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(gap.from_at / 1e6))
        yield f"gap             {gap.events} events of {gap.router} ({gap.part}) since {at} UTC"
