"""Closed notifications are in their day, are read no more, and change only by late events."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from heliograph.pipeline import closing
from heliograph.pipeline.jobs.closing import DAY as DAY_US, cutoff, end_of
from heliograph.pipeline.jobs.routers import RouterFacts, watermark
from heliograph.pipeline.runner import Pipeline
from heliograph.pipeline.tables.offsets import read_offsets
from heliograph.pipeline.tables.tables import Tables, open_tables
from heliograph.pipeline.upkeep import compact, expire
from heliograph.pipeline.views import outcomes as summed
from tests.pipeline.support import (
    START,
    Scribe,
    end_run,
    outcomes,
    pipeline,
    snapshot,
    write_journal,
    write_segment,
)

DAY = 86_400.0


def facts(router: str, part: str, last_at: int, **more: Any) -> RouterFacts:
    stopped, retired = more.get("stopped", False), more.get("retired", False)
    return RouterFacts(router, part, last_at, None, None, (), stopped, retired)


def test_the_watermark_is_what_all_running_routers_have_passed() -> None:
    routers = [facts("a", "smp", 50), facts("b", "ntf", 40), facts("phone", "device", 10)]
    assert watermark(routers) == 40
    assert watermark([*routers, facts("c", "ntf", 5, stopped=True)]) == 40
    assert watermark([*routers, facts("c", "ntf", 5, retired=True)]) == 40
    # The clock of a phone may be ahead.
    assert watermark([facts("c", "ntf", 5, stopped=True), facts("phone", "device", 10)]) == 5
    assert watermark([facts("phone", "device", 10)]) == watermark([]) == 0
    assert cutoff(3 * DAY_US + 5) == 2 * DAY_US
    assert end_of("1970-01-02") == 2 * DAY_US


def two_days() -> list[Scribe]:
    """On the first day n1 and n2 are settled and n3 is pending; the journal goes on for days."""
    ntf = Scribe()
    ntf.nmsg(1, 0.0)
    ntf.nmsg(2, 0.1)
    ntf.accepted([2], 2, 1.0)
    ntf.nmsg(3, 1.0, "t2", "s2")
    ntf("client_connected", 3 * DAY, count=1)
    return [ntf]


def days(tables: Tables, table: str) -> dict[str | None, int]:
    found: dict[str | None, int] = {}
    for file in tables.snapshot.of(table):
        found[file.day] = found.get(file.day, 0) + file.rows
    return found


def ingested(spark: Any, tables: Tables, journal: Path) -> Pipeline:
    made = pipeline(spark, tables, journal)
    while made.ingester.ingest_batch() is not None:
        pass
    made.update_stats()
    return made


def test_what_is_final_is_moved_to_its_day(spark: Any, tmp_path: Path) -> None:
    journal = write_journal(tmp_path / "journal", *two_days())
    with open_tables(tmp_path / "tables") as tables:
        made = ingested(spark, tables, journal)
        before, account = snapshot(made), made.account()
        assert closing.close(made) == 1
        assert days(tables, "marks") == {"2026-01-05": 2, None: 1}
        assert days(tables, "outcomes") == {"2026-01-05": 2}
        assert snapshot(made) == before
        assert (
            made.account().outcomes
            == account.outcomes
            == {
                "accepted": 1,
                "coalesced": 1,
                "pending": 1,
            }
        )
        assert made.account().hours == account.hours
        # Only what is open is read: the files of closed days may be away.
        assert [row["notification"] for row in made.marks().collect()] == ["n3"]
        compact(made, everything=True)
        assert snapshot(made) == before


def test_the_clock_of_a_phone_closes_nothing(spark: Any, tmp_path: Path) -> None:
    """Nor does it keep later days from being closed."""
    [ntf] = two_days()
    phone = Scribe("phone", "device")
    phone("device_shown", 300 * DAY, notification="n2")
    phone("device_woken", 400 * DAY)
    ntf("router_stopped", 3 * DAY)
    journal = write_journal(tmp_path / "journal", ntf, phone)
    with open_tables(tmp_path / "tables") as tables:
        made = ingested(spark, tables, journal)
        assert made.account().until == int((START.timestamp() + 3 * DAY) * 1e6)
        closing.close(made)
        assert days(tables, "marks") == {"2026-01-05": 1, None: 2}
        again = Scribe(boot=2000)
        again("router_started", 9 * DAY, through=3)
        write_journal(journal, again)
        ingested(spark, tables, journal)
        assert closing.close(made) > 0


def close_until_killed(made: Pipeline, monkeypatch: pytest.MonkeyPatch, commits: int) -> None:
    made.update_ledger()
    commit, left = made.tables.commit, iter(range(commits))

    def killed(*arguments: Any, **more: Any) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        commit(*arguments, **more)

    monkeypatch.setattr(made.tables, "commit", killed)
    with pytest.raises(KeyboardInterrupt):
        closing.close(made)
    monkeypatch.undo()


def test_an_event_that_comes_late_changes_only_its_day(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [ntf] = two_days()
    journal = write_journal(tmp_path / "journal", ntf)
    with open_tables(tmp_path / "tables") as tables:
        made = ingested(spark, tables, journal)
        closing.close(made)
        phone = Scribe("phone", "device")
        phone("device_shown", 2 * DAY, notification="n2")
        write_journal(journal, phone)
        made.ingester.ingest_batch()
        expected = {"shown": 1, "coalesced": 1, "pending": 1}
        assert made.account().outcomes == expected
        assert outcomes(made.ledger()) == {"n1": "coalesced", "n2": "shown", "n3": "pending"}
        rows = summed(made).groupBy("outcome").sum("notifications").collect()
        assert {name: count for name, count in rows if count} == expected
        ntf("client_connected", 4 * DAY, count=1)
        write_segment(journal, "ntf/1000-00000002", ntf.events[-1:])
        made.ingester.ingest_batch()
        close_until_killed(made, monkeypatch, commits=2)
        closing.close(made)
        assert days(tables, "marks") == {"2026-01-05": 1, "2026-01-07": 1, None: 1}
        assert days(tables, "outcomes") == {"2026-01-05": 1, "2026-01-07": 1}
        # Its push was pending for longer than it may.
        expected = {"shown": 1, "coalesced": 1, "unaccounted": 1}
        assert made.account().outcomes == expected
        made.update_stats()
        closed = snapshot(made)
    with open_tables(tmp_path / "other") as tables:  # never closed
        assert snapshot(ingested(spark, tables, journal)) == closed


def test_a_closing_that_was_interrupted_is_completed(
    monkeypatch: pytest.MonkeyPatch, spark: Any, tmp_path: Path
) -> None:
    """Killed between the commit of the rows and that of their sums."""
    journal = write_journal(tmp_path / "journal", *two_days())
    with open_tables(tmp_path / "tables") as tables:
        made = ingested(spark, tables, journal)
        account = made.account()
        close_until_killed(made, monkeypatch, commits=1)
        assert days(tables, "marks") == {"2026-01-05": 2, None: 1}
        assert not tables.snapshot.of("outcomes")
        assert made.account().outcomes == account.outcomes
        assert {row["outcome"] for row in summed(made).collect()} == {*account.outcomes}
    with open_tables(tmp_path / "tables") as tables:
        made = pipeline(spark, tables, journal)
        closing.close(made)
        assert days(tables, "outcomes") == {"2026-01-05": 2}
        assert made.account().outcomes == account.outcomes


def compact_here(directory: Path, spark: Any) -> None:
    with open_tables(directory) as tables:
        assert compact(pipeline(spark, tables, directory), everything=True) > 0


def optimize_elsewhere(directory: Path, _: Any) -> None:
    assert DeltaTable(directory / "marks").optimize.compact()["numFilesAdded"] > 0


@pytest.mark.parametrize(
    ("commits", "meanwhile"),
    [(1, None), (2, compact_here), (2, optimize_elsewhere)],
)
def test_days_that_change_again_are_summed_once_after_a_kill(
    spark: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    commits: int,
    meanwhile: Callable[[Path, Any], None] | None,
) -> None:
    """A closed row leaves its day because of a late event, and other rows of the day are closed."""
    [ntf], phone, directory = two_days(), Scribe("phone", "device"), tmp_path / "tables"
    phone("device_shown", 2 * DAY, notification="n2")
    expected = {"shown": 1, "coalesced": 1, "undeliverable": 1}
    with open_tables(directory) as tables:
        journal = write_journal(tmp_path / "journal", ntf)
        closing.close(ingested(spark, tables, journal))
        ntf("token_deleted", 3 * DAY, token="t2", through=3)
        ntf("client_connected", 9 * DAY, count=1)
        write_segment(journal, "ntf/1000-00000002", ntf.events[-2:])
        write_journal(journal, phone)
        made = ingested(spark, tables, journal)
        assert made.account().outcomes == expected
        close_until_killed(made, monkeypatch, commits)
        assert made.account().outcomes == expected
    if meanwhile is not None:
        meanwhile(directory, spark)
    with open_tables(directory) as tables:
        made = pipeline(spark, tables, journal)
        for _ in range(2):
            assert made.account().outcomes == expected
            rows = summed(made).groupBy("outcome").sum("notifications").collect()
            assert {name: count for name, count in rows if count} == expected
            closing.close(made)
        assert days(tables, "marks") == {"2026-01-05": 2, "2026-01-07": 1}
        assert days(tables, "outcomes") == {"2026-01-05": 2, "2026-01-07": 1}


def test_events_that_arrive_while_others_expire_are_kept(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old journal is ingested beside upkeep: its events are not in the ledger yet."""
    journal, late = tmp_path / "journal", Scribe(boot=2000)
    write_journal(journal, *two_days())
    late.nmsg(7, 10.0, "t7", "s7")
    late.accepted([7], 7, 11.0, "t7")
    expected = {"accepted": 2, "coalesced": 1, "pending": 1}
    with open_tables(tmp_path / "tables") as tables:
        made = ingested(spark, tables, journal)
        fold = made.update_ledger

        def fold_beside_ingestion() -> int:
            count = fold()
            if not (journal / "ntf" / "2000-00000001.parquet").exists():
                write_journal(journal, late)
                assert made.ingester.ingest_batch() is not None
            return count

        monkeypatch.setattr(made, "update_ledger", fold_beside_ingestion)
        now = START.timestamp() + 50 * DAY
        expire(made, now, events_days=14, ledger_days=90)
        assert made.account().outcomes == expected
        expire(made, now, events_days=14, ledger_days=90)
        assert tables.snapshot.of("events") == ()
        assert made.account().outcomes == expected
        made.update_stats()
        counted = sum(row["events"] for row in made.read("counts").collect())
        assert counted == len(two_days()[0].events) + len(late.events)


def test_runs_that_are_still_read_do_not_expire(spark: Any, tmp_path: Path) -> None:
    """A stream that reads the journal of long ago expires what is old at its start."""
    runs = [Scribe(boot=boot) for boot in (1000, 1001, 1002)]  # processes of one router
    for run in runs:
        for number in range(2):
            run("client_connected", number, count=1)
        write_segment(tmp_path / "journal", f"ntf/{run.boot}-00000001", run.events[:1])
        end_run(tmp_path / "journal", run, segments=2)
    now = START.timestamp() + 200 * DAY
    with open_tables(tmp_path / "tables") as tables:
        made = ingested(spark, tables, tmp_path / "journal")
        for run in runs:
            write_segment(tmp_path / "journal", f"ntf/{run.boot}-00000002", run.events[1:])
        expire(made, now, events_days=14, ledger_days=90)
        assert len(made.ingester.waiting()) == 3
        made.ingester.ingest_batch()
        assert made.offsets.counts["events"] == 6
        expire(made, now, events_days=14, ledger_days=90)
        assert made.offsets.expired == {"ntf": 1000}


def test_days_expire_whole_and_rewrite_nothing(spark: Any, tmp_path: Path) -> None:
    ntf, again = two_days()[0], Scribe(boot=2000)
    third = Scribe(boot=3000)
    again("router_started", 4 * DAY, through=3)
    for number in (11, 12):
        third.nmsg(number, 40 * DAY + number, "t3", "s3")
    third.accepted([11, 12], 12, 40 * DAY + 20, "t3")
    third("client_connected", 50 * DAY, count=1)
    journal = write_journal(tmp_path / "journal", ntf, again, third)
    now = START.timestamp() + 50 * DAY
    with open_tables(tmp_path / "tables") as tables:
        made = ingested(spark, tables, journal)
        expire(made, now, events_days=14, ledger_days=90)
        assert days(tables, "marks") == {"2026-01-05": 2, "2026-02-14": 2, None: 1}
        kept = [file for file in tables.snapshot.of("marks") if file.day == "2026-02-14"]
        expire(made, now + 46 * DAY, events_days=14, ledger_days=90)
        # What is open and as old goes with its day; the other day's file is the same.
        assert [file for file in tables.snapshot.of("marks") if file.rows] == kept
        assert days(tables, "outcomes") == {"2026-01-05": 3, "2026-02-14": 1}
        assert made.account().outcomes == {"accepted": 2}
        # Tokens without events, and runs that ended, are known no more; segments are not new.
        assert [row["accepted_through"] for row in made.read("settlements").collect()] == [12]
        offsets = read_offsets(tmp_path / "tables")
        assert set(offsets.seen) == set(offsets.segments) == {"ntf/2000", "ntf/3000"}
        assert offsets.expired == {"ntf": 1000}
        assert made.ingester.waiting() == []
        assert pipeline(spark, tables, journal).ingester.waiting() == []
        # A later row of a day that has expired is added to its sums.
        assert made.read("outcomes").groupBy().sum("notifications").collect()[0][0] == 5
