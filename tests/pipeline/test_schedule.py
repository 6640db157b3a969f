"""The stream: goes on after a failure, runs every job when it is due, and stops on request."""

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from heliograph.pipeline import upkeep
from heliograph.pipeline.account import Account
from heliograph.pipeline.runner import Pipeline
from heliograph.pipeline.schedule import LONG_ACCOUNT, Schedule, Stream, rest_after
from heliograph.pipeline.status import describe, status
from heliograph.pipeline.tables.tables import SecondWriter, Tables, open_tables
from tests.pipeline.support import Scribe, pipeline, write_journal, write_segment
from tests.waiting import block_until

until = partial(block_until, within=300.0)  # a stream's first batch starts Spark's engine


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
            until(lambda: "a batch failed, retrying" in caplog.text)  # there is no journal
            write_journal(journal, ntf)
            until(lambda: tables.snapshot.offsets.counts.get("events") == 3)
            until(lambda: stream.last_account and stream.last_account.outcomes == {"accepted": 1})
            ntf.nmsg(2, 2.0)
            write_segment(journal, "ntf/1000-00000002", ntf.events[3:])
            expected = {"accepted": 1, "pending": 1}
            until(lambda: stream.last_account and stream.last_account.outcomes == expected)
        finally:
            stop.set()
            thread.join()
        reported = "\n".join(describe(status(tmp_path / "tables", [str(journal)], 0.0), 0.0))
    assert "waiting         0 segments" in reported
    assert "events          5" in reported
    assert "accepted 1" in reported
    assert "nothing is unaccounted for" in reported


def test_a_stream_beside_another_pipeline_ends(spark: Any, tmp_path: Path) -> None:
    """What it knows of the tables is old for good; where there is no lock, as at a URL."""
    ntf = Scribe()
    ntf.nmsg(1, 0.0)
    journal = write_journal(tmp_path / "journal", ntf)
    made = pipeline(spark, Tables(tmp_path / "tables"), journal)
    pipeline(spark, Tables(tmp_path / "tables"), journal).ingester.ingest_batch()
    with pytest.raises(SecondWriter, match="stop one of the two"):
        Stream(made, Schedule(), threading.Event()).run()


def test_files_that_another_tool_removed_are_read_no_more(
    spark: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It keeps nothing for readers, and nothing new comes that would commit to the table."""
    ntf, journal, stop = Scribe(), tmp_path / "journal", threading.Event()
    with open_tables(tmp_path / "tables") as tables:
        made = pipeline(spark, tables, journal)
        for number in (1, 2):
            ntf.nmsg(number, float(number))
            write_segment(journal, f"ntf/1000-{number:08}", ntf.events[-2:])
            made.ingester.ingest_batch()
            made.update_ledger()
        marks = DeltaTable(tmp_path / "tables" / "marks")
        marks.optimize.compact()
        marks.vacuum(0, dry_run=False, enforce_retention_duration=False)
        stream = Stream(made, Schedule(0.01, account=0.0, upkeep=1e9), stop)
        thread = threading.Thread(target=stream.run)
        thread.start()
        try:
            until(lambda: stream.last_account and stream.last_account.outcomes == {"pending": 2})
        finally:
            stop.set()
            thread.join()
    assert "a batch failed, retrying" in caplog.text


def test_a_long_account_takes_a_tenth_of_the_time() -> None:
    long = LONG_ACCOUNT + 1
    assert rest_after(long, is_first=False) == 9 * long
    assert rest_after(LONG_ACCOUNT, is_first=False) == 0.0
    assert rest_after(long, is_first=True) == 0.0  # Java had to compile everything for it


def test_batches_do_not_wait_for_jobs(
    monkeypatch: pytest.MonkeyPatch, spark: Any, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    ntf = Scribe()
    ntf.nmsg(1, 0.0)
    write_journal(journal, ntf)
    stop, began, went_on = threading.Event(), threading.Event(), threading.Event()
    real = Pipeline.update_stats

    def slow(made: Pipeline) -> int:
        began.set()
        assert went_on.wait(300)
        return real(made)

    monkeypatch.setattr(Pipeline, "update_stats", slow)
    with open_tables(tmp_path / "tables") as tables:
        made = pipeline(spark, tables, journal)
        kept = 30_000.0  # days, since these events are old
        schedule = Schedule(0.01, keep_events_days=kept, keep_ledger_days=kept)
        thread = threading.Thread(target=Stream(made, schedule, stop).run)
        thread.start()
        try:
            until(began.is_set)
            ntf.nmsg(2, 2.0)
            write_segment(journal, "ntf/1000-00000002", ntf.events[2:])
            until(lambda: tables.snapshot.offsets.counts.get("segments") == 2)
            assert not tables.snapshot.of("counts")
            went_on.set()
            until(lambda: bool(tables.snapshot.of("counts")))
        finally:
            went_on.set()
            stop.set()
            thread.join()


def test_a_job_that_fails_does_not_starve_others(
    monkeypatch: pytest.MonkeyPatch, spark: Any, tmp_path: Path
) -> None:
    def failing(_: Pipeline) -> int:
        raise OSError("no space")

    ntf = Scribe()
    ntf.nmsg(1, 0.0)
    write_journal(tmp_path / "journal", ntf)
    stop = threading.Event()
    done: list[str] = []
    with open_tables(tmp_path / "tables") as tables:
        made = pipeline(spark, tables, tmp_path / "journal")
        monkeypatch.setattr(Pipeline, "update_ledger", failing)
        recorded = _recording(done, "stats", Pipeline.update_stats)
        monkeypatch.setattr(Pipeline, "update_stats", recorded)
        monkeypatch.setattr(upkeep, "compact", _recording(done, "compact", upkeep.compact))
        thread = threading.Thread(target=Stream(made, Schedule(0.01), stop).run)
        thread.start()
        try:
            until(lambda: {"stats", "compact"} <= {*done})
        finally:
            stop.set()
            thread.join()


def test_an_account_that_fails_is_made_again(
    monkeypatch: pytest.MonkeyPatch, spark: Any, tmp_path: Path
) -> None:
    real = Pipeline.account
    failed = threading.Event()

    def failing_once(made: Pipeline, now: float) -> Account:
        if not failed.is_set():
            failed.set()
            raise OSError("no space")
        return real(made, now)

    monkeypatch.setattr(Pipeline, "account", failing_once)
    ntf = Scribe()
    ntf.nmsg(1, 0.0)
    write_journal(tmp_path / "journal", ntf)
    stop = threading.Event()
    with open_tables(tmp_path / "tables") as tables:
        made = pipeline(spark, tables, tmp_path / "journal")
        stream = Stream(made, Schedule(0.01, account=0.01), stop)
        thread = threading.Thread(target=stream.run)
        thread.start()
        try:
            until(lambda: stream.last_account is not None)
        finally:
            stop.set()
            thread.join()


def test_an_account_is_of_what_was_committed_when_it_began(
    monkeypatch: pytest.MonkeyPatch, spark: Any, tmp_path: Path
) -> None:
    """Old rows with newer facts of the routers would look overdue."""
    smp, ntf = Scribe("smp", "smp"), Scribe()
    smp("notification_stored", 0.0, notification="n1")
    smp("notification_delivered", 0.1, notification="n1")
    ntf("router_started", 0.0, through=0)
    later = Scribe(boot=2000)
    later.nmsg(1, 0.2)
    later("client_connected", 1000.0, count=1)
    journal = write_journal(tmp_path / "journal", smp, ntf)
    stop, began, went_on = threading.Event(), threading.Event(), threading.Event()
    real = Pipeline.marks

    def slow(made: Pipeline, reopened: Any = None) -> Any:
        found = real(made, reopened)
        if threading.current_thread() is not thread and not began.is_set():
            began.set()
            assert went_on.wait(120)
        return found

    monkeypatch.setattr(Pipeline, "marks", slow)
    with open_tables(tmp_path / "tables") as tables:
        made = pipeline(spark, tables, journal)
        kept = 30_000.0  # days, since these events are old
        schedule = Schedule(0.01, keep_events_days=kept, keep_ledger_days=kept)
        stream = Stream(made, schedule, stop)
        thread = threading.Thread(target=stream.run)
        thread.start()
        try:
            until(began.is_set)
            write_journal(journal, later)
            until(lambda: tables.snapshot.offsets.counts.get("segments") == 3)
            went_on.set()
            until(lambda: stream.last_account is not None)
        finally:
            went_on.set()
            stop.set()
            thread.join()
    assert stream.last_account is not None
    assert stream.last_account.outcomes == {"delivered": 1}


def _recording(done: list[str], name: str, work: Callable[..., Any]) -> Callable[..., Any]:
    def noted(*arguments: Any) -> Any:
        done.append(name)
        return work(*arguments)

    return noted
