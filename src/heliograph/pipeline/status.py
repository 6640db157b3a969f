"""How far the pipeline is: from the manifest and the journals alone, without Spark."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from heliograph.pipeline import source
from heliograph.pipeline.routers import router_facts
from heliograph.pipeline.tables import Manifest, read_manifest
from heliograph.pipeline.vocabulary import UNACCOUNTED


@dataclass(frozen=True, slots=True)
class Status:
    """Of a journal at a URL the segments that wait are not known without Spark: None."""

    manifest: Manifest
    waiting: int | None
    waiting_bytes: int
    lag: float | None
    """Seconds since the oldest segment that waits was sealed."""


def status(directory: Path, journals: Sequence[str], now: float) -> Status:
    manifest = read_manifest(directory)
    if any("://" in journal for journal in journals):
        return Status(manifest, None, 0, None)
    waiting = [
        item
        for journal in journals
        for item in source.list_segments(journal, None)
        if not source.is_taken(item, manifest)
    ]
    oldest = min((item.modified for item in waiting), default=None)
    size = sum(item.size for item in waiting)
    return Status(manifest, len(waiting), size, None if oldest is None else now - oldest)


def describe(found: Status, now: float) -> Iterator[str]:
    """Lines for people."""
    manifest = found.manifest
    if not manifest.version:
        yield "nothing was taken yet"
    else:
        yield f"last commit     {now - manifest.committed_at:.0f} s ago, number {manifest.version}"
    if found.waiting is not None:
        size = f"{found.waiting_bytes / 1e6:.1f} MB"
        yield f"waiting         {found.waiting} segments, {size}"
        yield f"lag             {'none' if found.lag is None else f'{found.lag:.1f} s'}"
    for name in ("batches", "segments", "events", "duplicates", "quarantined"):
        yield f"{name:<15} {manifest.counts.get(name, 0)}"
    for table, files in manifest.files.items():
        total = sum(file.size for file in files)
        yield f"{'table ' + table:<15} {len(files)} files, {total / 1e6:.1f} MB"
    for item in router_facts(manifest.notes.get("routers", {})):
        yield f"router          {item.router} ({item.part}), {now - item.last_at / 1e6:.0f} s ago"
    account = manifest.notes.get("account")
    if account:
        yield f"ledger          {now - account['at']:.0f} s ago"
        for fate, count in account["fates"].items():
            yield f"                {fate} {count}"
        if UNACCOUNTED not in account["fates"]:
            yield "                nothing is unaccounted for"
