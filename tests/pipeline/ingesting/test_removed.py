"""Segments that vanish while they are read, and records that are in quarantine twice."""

import threading
from pathlib import Path
from typing import Any

from heliograph.pipeline.account import Verdict
from heliograph.pipeline.requeue import requeue
from heliograph.pipeline.runner import Pipeline, RunSettings
from heliograph.pipeline.schedule import once
from heliograph.pipeline.source import Segment
from heliograph.pipeline.tables.tables import Tables, open_tables
from tests.pipeline.support import Scribe, end_run, pipeline, write_segment
from tests.waiting import block_until


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


def test_a_wrong_event_that_came_twice_is_requeued_once(spark: Any, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    segments(journal)
    wrong = Scribe("other")("push_pending", 5.0)
    paths = [write_segment(journal, f"other/1000-{number:08}", [wrong]) for number in (1, 2)]
    with open_tables(tmp_path / "tables") as tables:
        made = pipeline(spark, tables, journal)
        once(made)
        assert made.account().quarantined == 2
        right = Scribe("other")
        right("router_stopped", 5.0)
        for path in paths:
            write_segment(journal, f"other/{path.stem}", right.events)
        end_run(journal, right, 2)
        assert requeue(made).records == 1
        once(made)
        account = made.account()
    assert (account.quarantined, account.verdict) == (0, Verdict.COMPLETE)
