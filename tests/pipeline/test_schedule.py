"""The stream: goes on after a failure, runs every job when it is due, and stops when told."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heliograph.pipeline.schedule import LONG_ACCOUNT, Schedule, Stream, rest_after
from heliograph.pipeline.status import describe, status
from heliograph.pipeline.tables import open_tables
from tests.pipeline.support import Scribe, pipeline, write_journal, write_segment


def until(condition: Callable[[], object], within: float = 300.0) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_stream(spark: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    journal = tmp_path / "journal"
    ntf = Scribe()
    ntf.nmsg(1, 0.0)
    ntf.accepted([1], 1, 1.0)
    stop = threading.Event()
    with open_tables(tmp_path / "tables") as tables:
        made = pipeline(spark, tables, journal)
        kept = 30_000.0  # days, since these events are old
        schedule = Schedule(0.01, 0.0, 0.0, 0.0, keep_events_days=kept, keep_ledger_days=kept)
        stream = Stream(made, schedule, stop)
        thread = threading.Thread(target=stream.run)
        thread.start()
        try:
            until(lambda: "a batch failed, trying again" in caplog.text)  # there is no journal
            write_journal(journal, ntf)
            until(lambda: tables.manifest.counts.get("events") == 3)
            until(lambda: stream.last_account and stream.last_account.fates == {"accepted": 1})
            ntf.nmsg(2, 2.0)
            write_segment(journal, "ntf/1000-00000002", ntf.events[3:])
            expected = {"accepted": 1, "owed": 1}
            until(lambda: stream.last_account and stream.last_account.fates == expected)
        finally:
            stop.set()
            thread.join()
        told = "\n".join(describe(status(tmp_path / "tables", [str(journal)], 0.0), 0.0))
    assert "waiting         0 segments" in told
    assert "events          5" in told
    assert "accepted 1" in told
    assert "nothing is unaccounted for" in told


def test_a_long_account_takes_a_tenth_of_the_time() -> None:
    long = LONG_ACCOUNT + 1
    assert rest_after(long, is_first=False) == 9 * long
    assert rest_after(LONG_ACCOUNT, is_first=False) == 0.0
    assert rest_after(long, is_first=True) == 0.0  # Java had to compile everything for it


def test_one_job_at_most_between_two_batches(
    monkeypatch: pytest.MonkeyPatch, spark: Any, tmp_path: Path
) -> None:
    """A batch never waits for the ledger, the statistics and the upkeep in a row."""
    journal = tmp_path / "journal"
    ntf = Scribe()
    ntf.nmsg(1, 0.0)
    write_journal(journal, ntf)
    stop = threading.Event()
    done: list[str] = []
    with open_tables(tmp_path / "tables") as tables:
        made = pipeline(spark, tables, journal)
        for name in ("take", "update_ledger", "update_stats"):
            monkeypatch.setattr(made, name, _noting(done, name, getattr(made, name)))
        kept = 30_000.0  # days, since these events are old
        schedule = Schedule(0.01, keep_events_days=kept, keep_ledger_days=kept)
        thread = threading.Thread(target=Stream(made, schedule, stop).run)
        thread.start()
        try:
            until(lambda: "update_stats" in done and done[-1] == "take")
        finally:
            stop.set()
            thread.join()
    assert done[:4] == ["take", "update_ledger", "take", "update_stats"]


def _noting(done: list[str], name: str, work: Callable[..., Any]) -> Callable[..., Any]:
    def noted(*arguments: Any) -> Any:
        done.append(name)
        return work(*arguments)

    return noted
