"""Segments that vanish while they are read, and records that are in quarantine twice."""

import threading
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from heliograph.pipeline.account import Verdict
from heliograph.pipeline.acknowledging import acknowledged, damaged_segments
from heliograph.pipeline.requeue import Requeued, requeue
from heliograph.pipeline.runner import Pipeline, RunSettings
from heliograph.pipeline.schedule import once
from heliograph.pipeline.source import Segment
from heliograph.pipeline.tables.tables import Tables, open_tables
from heliograph.pipeline.upkeep import expire
from tests.pipeline.support import (
    START,
    Scribe,
    end_run,
    pipeline,
    table,
    write_journal,
    write_segment,
)
from tests.waiting import block_until

DAY = 86_400.0


def segments(journal: Path) -> list[Path]:
    ntf = Scribe()
    for number in (1, 2, 3):
        ntf.nmsg(number, float(number))
    written = [
        write_segment(journal, f"ntf/1000-{number:08}", ntf.events[2 * number - 2 : 2 * number])
        for number in (1, 2, 3)
    ]
    end_run(journal, ntf, 3)
    return written


def test_a_damaged_segment_is_removed_amid_its_retries(spark: Any, tmp_path: Path) -> None:
    damaged = segments(tmp_path / "journal")[1]
    damaged.write_bytes(damaged.read_bytes()[:100])
    with open_tables(tmp_path / "tables") as tables:
        made = Pipeline(
            spark, tables, RunSettings((str(tmp_path / "journal"),), read_retry_time=3600.0)
        )
        work = threading.Thread(target=once, args=(made,), daemon=True)
        work.start()
        block_until(lambda: made.ingester.is_retrying, within=300.0)
        damaged.unlink()
        work.join(300.0)
        assert not work.is_alive()
        assert not made.ingester.is_retrying
        account = made.account()
    assert (account.verdict, account.missing_events) == (Verdict.GAPS, 2)


class Late(Pipeline):
    """A pipeline over a journal whose first segment is removed once it was listed."""

    def __init__(self, spark: Any, tables: Tables, journal: Path, first: Path) -> None:
        super().__init__(spark, tables, RunSettings((str(journal),), batch_files=1))
        real = self.ingester.waiting

        def waiting() -> list[Segment]:
            found = real()
            first.unlink(missing_ok=True)
            return found

        self.ingester.waiting = waiting  # type: ignore[method-assign]


def test_removed_segments_do_not_hide_later_ones(spark: Any, tmp_path: Path) -> None:
    """Also if a whole batch of them was removed after it was listed."""
    first = segments(tmp_path / "journal")[0]
    with open_tables(tmp_path / "tables") as tables:
        made = Late(spark, tables, tmp_path / "journal", first)
        assert sum(batch.events for batch in once(made)) == 4
        assert made.account().missing_events == 2


def test_a_wrong_event_that_came_twice_counts_once_again(spark: Any, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    segments(journal)
    wrong = Scribe("other")("push_pending", 5.0)
    names = ("other/1000-00000001", "other/1 + 1%41")
    paths = [write_segment(journal, name, [wrong]) for name in names]
    with open_tables(tmp_path / "tables") as tables:
        made = pipeline(spark, tables, journal)
        once(made)
        assert made.account().quarantined == 2
        right = Scribe("other")
        right("router_stopped", 5.0)
        for path in paths:
            write_segment(journal, f"other/{path.stem}", right.events)
        end_run(journal, right)
        assert requeue(made) == Requeued(2, 0)
        once(made)
        account = made.account()
    assert (account.quarantined, account.verdict) == (0, Verdict.COMPLETE)


@pytest.mark.parametrize("missing", ["event_id", "router", "boot"])
def test_a_segment_that_lacks_a_column_stays_and_is_requeued(
    spark: Any, tmp_path: Path, missing: str
) -> None:
    journal, ntf = tmp_path / "journal", Scribe()
    ntf.nmsg(1, 0.0)
    ntf("router_stopped", 5.0)
    path = write_segment(journal, "ntf/1000-00000001", ntf.events)
    pq.write_table(table(ntf.events).drop([missing]), path)
    with open_tables(tmp_path / "tables") as tables:
        made = pipeline(spark, tables, journal)
        once(made)
        assert made.account().quarantined == 3
        assert damaged_segments(tmp_path / "tables") == ["ntf/1000-00000001.parquet"]
        assert acknowledged(made.offsets, damaged_segments(tmp_path / "tables"))["ntf"].runs == {
            1000: []
        }
        write_journal(journal, ntf)
        assert requeue(made) == Requeued(3, 0)
        once(made)
        account = made.account()
    assert (account.quarantined, account.outcomes) == (0, {"pending": 1})


def test_what_is_too_old_to_be_ingested_stays_in_quarantine(spark: Any, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    for boot, day in ((1000, 0), (2000, 1), (3000, 200)):
        ntf = Scribe(boot=boot)
        ntf("router_stopped", day * DAY)
        write_journal(journal, ntf)
    damaged = journal / "ntf" / "1000-00000002.parquet"
    damaged.write_bytes(b"PAR1")
    with open_tables(tmp_path / "tables") as tables:
        made = pipeline(spark, tables, journal)
        while made.ingester.ingest_batch() is not None or made.ingester.is_retrying:
            pass
        assert made.offsets.counts["quarantined"] == 1
        expire(made, START.timestamp() + 200 * DAY, events_days=14, ledger_days=90)
        assert made.offsets.expired == {"ntf": 1000}
        assert requeue(made) == Requeued(0, 1)
        assert made.account().quarantined == 1
