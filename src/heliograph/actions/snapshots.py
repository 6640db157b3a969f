"""Snapshots of subscriptions: what each router believes, in files that the pipeline joins.

    PATH/ROUTER/TIME.parquet     whole, never changed; its metadata says how many rows it has
    PATH/ROUTER/_TIME.parquet    being written

No row has an ID, key or address: see `heliograph.actions.pairing`.
"""

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from heliograph.actions.pairing import DAY
from heliograph.documents import JsonObject
from heliograph.runtime.config.options import option
from heliograph.runtime.errors import StartError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "SnapshotHeader",
    "SnapshotOptions",
    "SnapshotRow",
    "export_snapshots",
    "list_snapshots",
    "write_snapshot",
]

logger = logging.getLogger(__name__)

METADATA = b"heliograph"
MAX_SNAPSHOTS = 4
"""Snapshots of a router that are kept at least."""
KEPT_SECONDS = 900
"""Seconds that a snapshot is kept for a job that may be reading it."""


@dataclass(frozen=True, slots=True)
class SnapshotOptions:
    """Snapshots of subscriptions, by which the pipeline finds those that were lost."""

    path: str = option(
        "",
        "The directory to write snapshots to. If empty: none. A relative path begins in this"
        " directory. Both routers of a pair, and the pipeline, must see it, or copies of it.",
        example="../snapshots",
    )
    key_file: str = option(
        "pair.key",
        "The file with the secret that both routers of a pair have: 64 hexadecimal digits. A"
        " relative path begins in this directory.",
    )
    interval_seconds: float = option(
        3600.0,
        "How often a snapshot is written: at multiples of it, so that routers do so together.",
        unit="seconds",
        minimum=1,
        maximum=86_400,
    )

    def path_in(self, directory: Path) -> Path | None:
        return directory / self.path if self.path else None


class SnapshotRow(NamedTuple):
    """One subscription as a notification router, or one notifier as a messaging router has it.

    `place` and `notifier` are hashes of the pair; `subscription` and `server` of the journal of
    the notification router, which alone has a `state`. `is_subscribed` is the messaging router's.
    """

    place: str
    notifier: str
    service: str | None = None
    subscription: str | None = None
    server: str | None = None
    state: str | None = None
    is_subscribed: bool | None = None


@dataclass(frozen=True, slots=True)
class SnapshotHeader:
    """Times are in microseconds since the epoch. `places` are those that the rows may have."""

    router: str
    part: str
    began_at: int
    ended_at: int
    rows: int
    places: tuple[str, ...]


Pages = AsyncGenerator[Sequence[SnapshotRow], None]
"""Pages of rows."""
TakeSnapshot = Callable[[int], tuple[Callable[[], tuple[str, ...]], Pages]]
"""Begins a snapshot of a day; returns the places seen so far, and its pages."""


async def write_snapshot(
    folder: Path, router: str, part: str, take: TakeSnapshot, now: float
) -> Path:
    """Write one snapshot, page by page."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    places, pages = take(int(now) // DAY)
    began = int(now * 1e6)
    target = folder / router / f"{began}.parquet"
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f"_{target.name}")
    schema, rows, clock = _schema(), 0, time.monotonic()
    try:
        with pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
            async for page in pages:
                rows += len(page)
                table = pa.Table.from_pylist([item._asdict() for item in page], schema=schema)
                await asyncio.to_thread(writer.write_table, table)
            ended = began + int((time.monotonic() - clock) * 1e6)
            header = SnapshotHeader(router, part, began, ended, rows, places())
            writer.add_key_value_metadata({METADATA: json.dumps(asdict(header)).encode()})
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    taken = sorted(
        int(file.stem) for file in target.parent.glob("*.parquet") if file.stem.isdecimal()
    )
    for at in taken[:-MAX_SNAPSHOTS]:
        if began - at > KEPT_SECONDS * 1_000_000:
            target.with_name(f"{at}.parquet").unlink(missing_ok=True)
    return target


async def export_snapshots(
    folder: Path,
    router: str,
    part: str,
    take: TakeSnapshot,
    interval: float,
    is_leader: Callable[[], bool] = lambda: True,
) -> None:
    """Write snapshots at multiples of the interval, until cancelled. A failure is logged."""
    while True:
        await asyncio.sleep(interval - time.time() % interval)
        if not is_leader():
            continue
        try:
            await write_snapshot(folder, router, part, take, time.time())
        except Exception as exc:
            logger.error("a snapshot of subscriptions cannot be written: %s", exc)


def list_snapshots(folder: Path) -> Iterator[tuple[SnapshotHeader, Path]]:
    """Yield whole snapshots of all routers. Raises `StartError` for a file that is none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for file in sorted(folder.glob("*/[0-9]*.parquet")):
        try:
            found = pq.read_metadata(file)
            header: JsonObject = json.loads((found.metadata or {})[METADATA])
            header["places"] = tuple(header["places"])
            result = SnapshotHeader(**header)
        except FileNotFoundError:
            continue  # a newer one took its place
        except (OSError, pa.ArrowException, ValueError, KeyError, TypeError) as exc:
            raise StartError(f"{file} is not a snapshot: {exc!r}. Move it away") from exc
        if result.rows != found.num_rows:
            raise StartError(
                f"{file} has {found.num_rows} rows instead of {result.rows}. Move it away"
            )
        yield result, file


def _schema() -> "pa.Schema":
    import pyarrow as pa

    boolean = ("is_subscribed",)
    return pa.schema(
        [
            pa.field(name, pa.bool_() if name in boolean else pa.string())
            for name in SnapshotRow._fields
        ]
    )
