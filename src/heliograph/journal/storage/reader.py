"""Read journals: sealed segments in order, as events or as Arrow tables."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from heliograph.documents import JsonObject
from heliograph.journal.storage.segments import SEALED

__all__ = ["read_events", "read_tables", "segments"]

logger = logging.getLogger(__name__)

Unreadable = Callable[[Path, str], None]
"""Called with a file that cannot be read, and the reason."""


def segments(directory: Path) -> list[Path]:
    """Return the sealed segments of all routers in a directory, oldest first for each.

    The directory may also be that of one router. Raises OSError if it does not exist.
    """
    found = [path for path in directory.iterdir() if path.is_dir()]
    return sorted(
        path
        for folder in (directory, *found)
        for path in folder.glob(f"*{SEALED}")
        if not path.name.startswith(("_", "."))
    )


def read_tables(
    directory: Path, where: pc.Expression | None = None, unreadable: Unreadable | None = None
) -> Iterator[pa.Table]:
    """Yield a table for each segment, of the events that match `where`; skip removed segments.

    `unreadable` is called for files that are damaged or not segments; by default they are logged.
    """
    report = unreadable or _log
    for path in segments(directory):
        try:
            table = (
                pq.ParquetFile(path).read() if where is None else pq.read_table(path, filters=where)
            ).sort_by("seq")
        except FileNotFoundError:
            continue
        except (pa.ArrowException, OSError) as exc:
            report(path, str(exc).partition("\n")[0])
            continue
        yield table


def read_events(
    directory: Path, where: pc.Expression | None = None, unreadable: Unreadable | None = None
) -> Iterator[JsonObject]:
    """Yield events as dictionaries, without null columns."""
    for table in read_tables(directory, where, unreadable):
        for row in table.to_pylist():
            yield {name: value for name, value in row.items() if value is not None}


def _log(path: Path, why: str) -> None:
    logger.warning("%s is damaged or not a segment, skipped: %s", path.name, why)
