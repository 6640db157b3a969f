"""What a router removed before it was read is counted: nothing is missing without a trace."""

from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq

from heliograph.journal.readers import ACKNOWLEDGED, Acknowledged, encode_acknowledged
from heliograph.pipeline.intervals import IntervalsByRun, of_numbers
from heliograph.pipeline.jobs.coverage import gaps
from heliograph.pipeline.jobs.reach import Heads
from heliograph.runtime.files import write_file
from tests.journal.support import FAST, IDENTITY, files, note, numbers, writer
from tests.waiting import block_until

RUNS, EVENTS = 3, 7
LIMIT = 40_000


def runs_in_a_row(directory: Path, *, acknowledge: bool) -> int:
    """Write several runs into a journal with little room; return the events removed unread."""
    removed = number = 0
    for _ in range(RUNS):
        journal = writer(directory, replace(FAST, max_bytes=LIMIT))
        for written in range(1, EVENTS + 1):
            number += 1
            note(journal, number)
            block_until(lambda: journal.written >= written)  # noqa: B023 - it is awaited here
            if acknowledge:
                _acknowledge_all(directory)
        journal.close()
        removed += journal.counts().removed
    return removed


def _acknowledge_all(directory: Path) -> None:
    boots = {int(path.stem.partition("-")[0]) for path in files(directory, ".parquet")}
    known = Acknowledged({boot: [(1, 10**8)] for boot in boots})
    path = directory / IDENTITY.router / ACKNOWLEDGED
    write_file(path, encode_acknowledged(known))


def seen(directory: Path) -> IntervalsByRun:
    """The sequence numbers that a pipeline finds, by run."""
    found: dict[str, list[int]] = {}
    for path in files(directory, ".parquet"):
        table = pq.read_table(path, columns=["seq", "boot"])
        run = f"{IDENTITY.router}/{table['boot'][0].as_py()}"
        found.setdefault(run, []).extend(table["seq"].to_pylist())
    return {run: of_numbers(seqs) for run, seqs in found.items()}


def test_what_was_removed_unread_is_a_gap_of_its_run(tmp_path: Path) -> None:
    removed = runs_in_a_row(tmp_path, acknowledge=False)
    assert 0 < removed < RUNS * EVENTS
    left = len(numbers(tmp_path))
    assert removed == RUNS * EVENTS - left
    assert sum(gap.events for gap in gaps(seen(tmp_path), {}, {}, Heads())) == removed


def test_what_was_read_is_not_missed(tmp_path: Path) -> None:
    assert runs_in_a_row(tmp_path, acknowledge=True) == 0
    assert len(numbers(tmp_path)) < RUNS * EVENTS
