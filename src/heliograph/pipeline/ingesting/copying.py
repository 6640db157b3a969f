"""Take segments into the table as they are: a segment is a Parquet file with the table's columns.

Only segments of one day on this machine's file system are copied, and only if that makes few files.
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
LARGE_BYTES = 1 << 20
"""Mean size of segments from which any number of them is copied."""


def copy(storage: Storage, staging: str, segments: Sequence[Segment]) -> list[str] | None:
    """Copy segments to `staging`; return their URLs, None if they have to be rewritten."""
    size = sum(item.size for item in segments)
    many = len(segments) > FEW_FILES and size < LARGE_BYTES * len(segments)
    if many or storage.local is None or not all(item.url.startswith("/") for item in segments):
        return None
    days = [_day(item) for item in segments]
    if None in days:
        return None
    urls = []
    for number, (item, day) in enumerate(zip(segments, days, strict=True)):
        folder = storage.local / staging / f"day={day}"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"part-{number:05}.parquet"
        shutil.copyfile(item.url, path)
        urls.append(storage.below(staging, f"day={day}", path.name))
    return urls


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
    except (OSError, ValueError, pa.ArrowException):
        return None
    return days.pop() if len(days) == 1 else None


def remove(storage: Storage, staging: str) -> None:
    """Remove what was copied."""
    if storage.local is not None:
        shutil.rmtree(storage.local / staging, ignore_errors=True)
