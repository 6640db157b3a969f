"""Report to the journals what was committed: see `heliograph.journal.readers`.

Acknowledgements follow from the offsets, so after a kill the next run writes those that are
missing. A journal that cannot be written keeps its segments longer, and nothing else changes.
"""

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from heliograph.actions.table import query
from heliograph.journal.readers import (
    ACKNOWLEDGED,
    Acknowledged,
    encode_acknowledged,
    mark_streamed,
)
from heliograph.pipeline import intervals, source
from heliograph.pipeline.tables.log import reason
from heliograph.pipeline.tables.offsets import Offsets
from heliograph.pipeline.tables.storage import Storage
from heliograph.runtime.errors import StartError

logger = logging.getLogger(__name__)

INTERVAL = 10.0
"""Seconds between two reports of a stream; less than its mark in the journal lasts."""


def acknowledged(offsets: Offsets, damaged: Iterable[str] = ()) -> dict[str, Acknowledged]:
    """Return what is committed by the folder of its router, without `damaged` segments."""
    runs: dict[str, list[tuple[int, int]]] = {
        run: list(pairs) for run, pairs in offsets.segments.items()
    }
    for name in damaged:
        item = source.segment(name, "", 0, 0.0)
        if item.run in runs:
            runs[item.run] = intervals.without(runs[item.run], item.number)
    found: dict[str, dict[int, list[tuple[int, int]]]] = defaultdict(dict)
    for run, pairs in runs.items():
        folder, _, boot = run.rpartition("/")
        found[folder][int(boot)] = pairs
    return {folder: Acknowledged(by_boot) for folder, by_boot in found.items()}


class Acknowledger:
    """Writes the acknowledgements of all journals that a pipeline reads."""

    def __init__(
        self,
        journals: Sequence[str],
        damaged: Callable[[], Iterable[str]],
        *,
        streams: bool = False,
    ) -> None:
        self._journals = [Storage(journal) for journal in journals]
        self._damaged = damaged
        self._streams = streams
        self._written: dict[tuple[str, str], bytes] = {}
        self._failing = False

    def report(self, offsets: Offsets) -> None:
        """Write what has changed. What cannot be written delays nothing else."""
        problems: list[Exception] = []
        for journal in self._journals:
            if self._streams and journal.local is not None:
                with _noted(problems):
                    mark_streamed(journal.local)
        with _noted(problems):
            damaged = self._damaged() if offsets.counts.get("quarantined") else ()
            for folder, found in acknowledged(offsets, damaged).items():
                for journal in self._journals:
                    with _noted(problems):
                        self._write(journal, folder, found)
        if problems and not self._failing:
            logger.warning("segments cannot be acknowledged, so routers keep them: %s", problems[0])
        self._failing = bool(problems)

    @contextmanager
    def reporting(self, offsets: Callable[[], Offsets]) -> Iterator[None]:
        """Report at once, every few seconds on a thread, and at the end."""
        stop = threading.Event()

        def repeat() -> None:
            while True:
                self.report(offsets())
                if stop.wait(INTERVAL):
                    return

        thread = threading.Thread(target=repeat, name="acknowledgements", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            self.report(offsets())

    def _write(self, journal: Storage, folder: str, found: Acknowledged) -> None:
        data, key = encode_acknowledged(found), (journal.url, folder)
        if self._written.get(key) != data and journal.has_folder(folder):
            journal.write_text(f"{folder}/{ACKNOWLEDGED}", data.decode())
            self._written[key] = data


@contextmanager
def _noted(problems: list[Exception]) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException, StartError) as exc:
        problems.append(exc)


def damaged_segments(place: str | Path) -> list[str]:
    """Return the segments that stay in the journals until they are requeued: those in quarantine,
    and those of events there. Raises `StartError`.
    """
    from deltalake import DeltaTable

    try:
        table = DeltaTable(f"{Storage(place).delta_url}/quarantine")
        found = query(table, "DISTINCT segment", "")
    except Exception as exc:  # Delta's queries raise nothing more specific
        raise StartError(f"{place}/quarantine cannot be read: {reason(exc)}") from exc
    return sorted(str(name) for name in found["segment"].to_pylist() if name)
