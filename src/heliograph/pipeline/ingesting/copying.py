"""Take segments into the table as they are: a segment is a Parquet file with the table's columns.

Only segments of one day on this machine's file system are copied, and only if that makes no very
small files.
"""

import shutil
from collections.abc import Sequence
from datetime import date

import pyarrow as pa
import pyarrow.parquet as pq

from heliograph.journal.storage.arrow import SCHEMA
from heliograph.pipeline.ingesting.reading import alike
from heliograph.pipeline.source import Segment
from heliograph.pipeline.tables.storage import Storage

FEW_FILES = 4
"""Number of segments up to which small ones are copied, too."""
LARGE_BYTES = 256 << 10


def copy(
    storage: Storage, staging: str, segments: Sequence[Segment]
) -> tuple[list[str], list[Segment]]:
    """Copy segments to `staging`; return the URLs of copies, and the segments to be rewritten."""
    local = storage.local
    is_few = len(segments) <= FEW_FILES
    urls, rest = [], []
    for number, item in enumerate(segments):
        is_worth = item.url.startswith("/") and (is_few or item.size >= LARGE_BYTES)
        day = _day(item) if is_worth and local is not None else None
        if local is None or day is None:
            rest.append(item)
            continue
        folder = local / staging / f"day={day}"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"part-{number:05}.parquet"
        try:
            shutil.copyfile(item.url, path)
        except FileNotFoundError:
            rest.append(item)  # its router has removed it: found by who reads it
            continue
        urls.append(storage.below(staging, f"day={day}", path.name))
    return urls, rest


def _day(item: Segment) -> date | None:
    """Return the day of all events of a segment, None if there are several or it is not known."""
    try:
        found = pq.read_metadata(item.url)
        schema = found.schema.to_arrow_schema()
        if sorted(schema.names) != sorted(SCHEMA.names) or not found.num_rows:
            return None
        if not all(
            alike(schema.field(name).type, SCHEMA.field(name).type) for name in SCHEMA.names
        ):
            return None
        index = [found.schema.column(i).path for i in range(found.num_columns)].index("at")
        groups = [found.row_group(i).column(index) for i in range(found.num_row_groups)]
        if not all(group.is_stats_set and group.statistics.has_min_max for group in groups):
            return None
        days = {
            value.date()
            for group in groups
            for value in (group.statistics.min, group.statistics.max)
        }
    except (OSError, ValueError, OverflowError, pa.ArrowException):
        return None
    return days.pop() if len(days) == 1 else None


def remove(storage: Storage, staging: str) -> None:
    """Remove what was copied."""
    if storage.local is not None:
        shutil.rmtree(storage.local / staging, ignore_errors=True)
