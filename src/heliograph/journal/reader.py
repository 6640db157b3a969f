"""Reads journals: sealed segments in order, as events or as Arrow tables."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from heliograph.journal.segments import SEALED

__all__ = ["read_events", "read_tables", "segments"]

logger = logging.getLogger(__name__)

Unreadable = Callable[[Path, str], None]
"""Is told a file, and why."""


def segments(directory: Path) -> list[Path]:
    """The sealed segments of all routers that write there, oldest first for each.

    A directory of one router will do as well. Raises OSError if there is no such directory.
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
    """A table for each segment; `where` limits the events. One that goes meanwhile is left out.

    Those that are no segments, or damaged, are told to `unreadable`, or to the log.
    """
    tell = unreadable or _log
    for path in segments(directory):
        try:
            table = (
                pq.ParquetFile(path).read() if where is None else pq.read_table(path, filters=where)
            ).sort_by("seq")
        except FileNotFoundError:
            continue
        except (pa.ArrowException, OSError) as exc:
            tell(path, str(exc).partition("\n")[0])
            continue
        yield table


def read_events(
    directory: Path, where: pc.Expression | None = None, unreadable: Unreadable | None = None
) -> Iterator[dict[str, Any]]:
    """Events as dictionaries, without what is null."""
    for table in read_tables(directory, where, unreadable):
        for row in table.to_pylist():
            yield {name: value for name, value in row.items() if value is not None}


def _log(path: Path, why: str) -> None:
    logger.warning("%s is no segment, or damaged, and left out: %s", path.name, why)
