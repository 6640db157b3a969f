"""Valid events are ingested once; invalid ones are quarantined with the reason."""

import errno
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from heliograph.journal.heads import Head, write_head
from heliograph.journal.schema import KINDS, violations
from heliograph.pipeline import source
from heliograph.pipeline.jobs import ingest
from heliograph.pipeline.requeue import Requeued, requeue
from heliograph.pipeline.runner import Pipeline, RunSettings
from heliograph.pipeline.schedule import store_account
from heliograph.pipeline.tables.tables import SecondWriter, Tables, open_tables
from heliograph.runtime.errors import StartError
from tests.pipeline.support import START, Scribe, frame, pipeline, write_journal, write_segment

_VALUES: dict[str, Any] = {
    "own_server": True,
    "notifications": ["n1"],
    **dict.fromkeys(("ntf_seq", "through", "count", "expected_count"), 1),
    **dict.fromkeys(("code", "attempt", "interval", "delay"), 1),
}


def one_of_each_kind() -> Scribe:
    scribe = Scribe()
    for kind in KINDS.values():
        columns = (*kind.has, *kind.may_have)
        scribe(kind.name, 0.0, **{name: _VALUES.get(name, "x") for name in columns})
    return scribe


def test_every_kind_passes_and_wrong_ones_are_reported_as_by_the_schema(spark: Any) -> None:
    right = one_of_each_kind().events
    wrong = []
    for event in right:
        kind = KINDS[event["kind"]]
        wrong += [{**event, name: None} for name in kind.has]
        wrong.append({**event, "hash": "x", "interval": 1, "command": "x"})
    wrong += [
        {**right[0], "kind": "nonsense"},
        {**right[0], "router": None},
        {**right[0], "at": None, "boot": None},
    ]
    events = right + wrong
    known = ingest.checked(frame(spark, events))
    found = known.select("wrong", ingest.problem().alias("problem")).collect()
    assert [row["wrong"] for row in found] == [row["problem"] is not None for row in found]
    for event, row in zip(events, found, strict=True):
        expected = sorted(violations({k: v for k, v in event.items() if v is not None}))
        said = sorted((row["problem"] or "").split("; ")) if row["problem"] else []
        if event["kind"] == "nonsense":
            assert said == ["kind: unknown"]
        elif any(event.get(name) is None for name in ("router", "at", "boot")):
            assert said == [text for text in expected if "missing in" not in text]
        else:
            assert said == expected, event


def test_what_only_the_pipeline_asks(spark: Any) -> None:
    event = Scribe()("router_stopped")
    events = [
        {**event, "schema": 2},
        {**event, "seq": 0},
        {**event, "event_id": "ntf-1000-7"},
    ]
    known = ingest.checked(frame(spark, events))
    found = known.select("wrong", ingest.problem().alias("problem")).collect()
    assert [row["wrong"] for row in found] == [row["problem"] is not None for row in found]
    assert [row["problem"] for row in found] == [
        "schema: version 2 is not known here",
        "seq: less than 1",
        "event_id: is not ROUTER-BOOT-SEQ",
    ]


def test_each_once_late_and_in_any_order(spark: Any, tmp_path: Path) -> None:
    scribe = Scribe()
    for number in range(1, 7):
        scribe("client_connected", number, count=number)
    one, two, three, four, five, six = scribe.events
    journal = tmp_path / "journal"
    with open_tables(tmp_path / "tables") as tables:
        made = pipeline(spark, tables, journal)
        write_segment(journal, "ntf/1000-00000002", [three, four, four])
        first = made.ingester.ingest_batch()
        assert first is not None
        assert (first.events, first.duplicates) == (2, 1)
        write_segment(journal, "ntf/1000-00000001", [one, two, three])
        write_segment(journal, "copy", [six, five, one])
        second = made.ingester.ingest_batch()
        assert second is not None
        assert (second.events, second.duplicates) == (4, 2)
        assert made.ingester.ingest_batch() is None
        assert tables.snapshot.offsets.seen == {"ntf/1000": [(1, 6)]}
        seqs = sorted(row["seq"] for row in made.read("events").collect())
        assert seqs == [1, 2, 3, 4, 5, 6]
        assert dict(tables.snapshot.offsets.counts) == {
            "batches": 2,
            "segments": 3,
            "events": 6,
            "duplicates": 3,
            "quarantined": 0,
        }


def test_nothing_wrong_is_dropped(spark: Any, tmp_path: Path) -> None:
    scribe = Scribe()
    scribe("router_stopped")
    scribe("push_pending")
    journal = write_journal(tmp_path / "journal", scribe)
    (journal / "ntf" / "1000-00000002.parquet").write_bytes(b"PAR1 this is none PAR1")
    pq.write_table(pa.table({"seq": ["one"]}), journal / "ntf" / "1000-00000003.parquet")
    whole = write_segment(journal, "ntf/1000-00000004", scribe.events * 500)
    data = bytearray(whole.read_bytes())
    data[4:400] = bytes(396)  # the footer is right, a page is not
    whole.write_bytes(data)
    with open_tables(tmp_path / "tables") as tables:
        made = pipeline(spark, tables, journal)
        result = made.ingester.ingest_batch()
        assert result is not None
        # What cannot be read is tried again first.
        assert (result.events, result.quarantined) == (1, 1)
        assert made.ingester.is_retrying
        assert made.ingester.ingest_batch() is None
        result = made.ingester.ingest_batch()
        assert result is not None
        assert (result.events, result.quarantined) == (0, 3)
        assert not made.ingester.is_retrying
        assert made.ingester.ingest_batch() is None
        rows = {row["event_id"]: row for row in made.read("quarantine").collect()}
        assert requeue(pipeline(spark, tables, journal)) == Requeued(4, 0)
        write_segment(journal, "ntf/1000-00000002", [])
        write_segment(journal, "ntf/1000-00000003", [])
        scribe("client_connected", 3.0, count=1)
        write_segment(journal, "ntf/1000-00000004", scribe.events)
        again = made.ingester.ingest_batch()
        assert again is not None
        assert (again.events, again.duplicates, again.quarantined) == (1, 2, 2)
        assert made.offsets.counts["quarantined"] == 2
    assert "missing in push_pending" in rows["ntf-1000-2"]["reason"]
    assert '"kind":"push_pending"' in rows["ntf-1000-2"]["raw"]
    assert "not Parquet" in rows["ntf/1000-00000002.parquet"]["reason"]
    assert "seq: string instead of int64" in rows["ntf/1000-00000003.parquet"]["reason"]
    assert "cannot be read" in rows["ntf/1000-00000004.parquet"]["reason"]


@pytest.mark.parametrize("at", [ingest.END_OF_DAYS, 1 << 60, -1])
def test_times_without_a_day_stop_nothing(spark: Any, tmp_path: Path, at: int) -> None:
    """Nor does the head of such a run, whose number is the time at which it began."""
    ntf, phone = Scribe(), Scribe("phone", "device")
    ntf("router_stopped")
    phone("device_shown", notification="n1")
    journal = write_journal(tmp_path / "journal", ntf, phone)
    path = journal / "phone" / "1000-00000001.parquet"
    rows = pq.read_table(path)
    index = rows.schema.get_field_index("at")
    times = pa.array([at], pa.int64()).cast(rows.schema.field(index).type)
    pq.write_table(rows.set_column(index, rows.schema.field(index), times), path)
    write_head(journal, Head("phone", 1 << 62, "device", 1, 5, 1 << 62))
    with open_tables(tmp_path / "tables") as tables:
        made = pipeline(spark, tables, journal)
        result = made.ingester.ingest_batch()
        assert result is not None
        assert (result.events, result.quarantined) == (1, 1)
        [row] = made.read("quarantine").collect()
        assert row["reason"] == "at: not in the years 1970 to 9999"
        store_account(made, made.account())
        gaps = made.read("coverage").select("boot", "events", f.unix_micros("until_at")).collect()
        began, last = int(START.timestamp() * 1e6), ingest.END_OF_DAYS - 1
        assert {tuple(row) for row in gaps} == {(1000, 1, began), (1 << 62, 5, last)}
    with open_tables(tmp_path / "tables") as tables:
        assert sum(file.rows for file in tables.snapshot.of("events")) == 1


def test_a_segment_that_is_whole_a_moment_later_is_ingested(spark: Any, tmp_path: Path) -> None:
    """A read error is not final: the file may be on its way still."""
    scribe = Scribe()
    scribe("client_connected", 1.0, count=1)
    journal = write_journal(tmp_path / "journal", scribe)
    path = journal / "ntf" / "1000-00000001.parquet"
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with open_tables(tmp_path / "tables") as tables:
        made = pipeline(spark, tables, journal)
        assert made.ingester.ingest_batch() is None
        assert made.ingester.is_retrying
        path.write_bytes(data)
        result = made.ingester.ingest_batch()
        assert result is not None
        assert (result.events, result.quarantined) == (1, 0)
        assert not made.ingester.is_retrying


def test_a_failure_of_spark_is_no_damage(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise PySparkException("No space left on device")

    scribe = Scribe()
    scribe("client_connected", 1.0, count=1)
    journal = write_journal(tmp_path / "journal", scribe)
    with open_tables(tmp_path / "tables") as tables:
        made = pipeline(spark, tables, journal)
        monkeypatch.setattr(made.ingester, "_commit_batch", fails)
        with pytest.raises(PySparkException, match="No space left"):
            made.ingester.ingest_batch()
        monkeypatch.undo()
        result = made.ingester.ingest_batch()
        assert result is not None
        assert (result.events, result.quarantined) == (1, 0)


def test_a_full_disk_keeps_no_copies(
    monkeypatch: pytest.MonkeyPatch, spark: Any, tmp_path: Path
) -> None:
    """They would keep it full until the next day."""
    scribe = Scribe()
    scribe("router_stopped")
    journal = write_journal(tmp_path / "journal", scribe)

    def full(source: str, target: Path) -> None:
        target.write_bytes(b"PAR1")
        raise OSError(errno.ENOSPC, "No space left on device", str(target))

    with open_tables(tmp_path / "tables") as tables:
        made = pipeline(spark, tables, journal)
        with monkeypatch.context() as patched:
            patched.setattr("shutil.copyfile", full)
            with pytest.raises(OSError, match="No space left"):
                made.ingester.ingest_batch()
        assert not [*(tmp_path / "tables" / "events").rglob("*.parquet")]
        result = made.ingester.ingest_batch()
        assert result is not None
        assert result.events == 1


def test_two_drivers_without_a_lock(spark: Any, tmp_path: Path) -> None:
    """As on object storage: both take the same segments, and one of them commits."""
    scribe = Scribe()
    scribe("client_connected", 1.0, count=1)
    journal = write_journal(tmp_path / "journal", scribe)
    one, other = (pipeline(spark, Tables(tmp_path / "tables"), journal) for _ in range(2))
    assert one.ingester.ingest_batch() is not None
    with pytest.raises(SecondWriter, match="another pipeline writes to"):
        other.ingester.ingest_batch()
    with open_tables(tmp_path / "tables") as tables:
        made = pipeline(spark, tables, journal)
        assert made.ingester.ingest_batch() is None
        assert (made.offsets.counts["events"], made.read("events").count()) == (1, 1)


@pytest.mark.parametrize("by_spark", [False, True])
def test_a_journal_at_a_url(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_spark: bool
) -> None:
    """Listed by Arrow, or by Hadoop's file systems if Arrow does not know the URL."""
    if by_spark:
        monkeypatch.setattr(source, "storage_of", lambda _: None)
    scribe = Scribe()
    scribe("client_connected", 1.0, count=1)
    journal = write_journal(tmp_path / "journal", scribe)
    write_segment(journal, "ntf/_1000-00000002", scribe.events)  # a router is writing it
    with open_tables(tmp_path / "tables") as tables:
        made = Pipeline(spark, tables, RunSettings((f"file://{journal}",)))
        result = made.ingester.ingest_batch(made.ingester.poll())
        assert result is not None
        assert (result.segments, result.events) == (1, 1)
        assert made.ingester.ingest_batch() is None
        assert pipeline(spark, tables, journal).ingester.waiting() == []
        scribe("client_connected", 2.0, count=1)
        write_segment(journal, "ntf/1000-00000002", scribe.events[1:])
        assert [item.number for item in made.ingester.poll()] == [2]
        missing = Pipeline(spark, tables, RunSettings((f"file://{tmp_path}/none",)))
        with pytest.raises(StartError, match="no journal at"):
            missing.ingester.waiting()
