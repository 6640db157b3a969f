"""Heads of runs, read from files: also damaged ones, and those that are gone."""

from dataclasses import replace
from pathlib import Path

import pytest

from heliograph.journal.heads import HEADS, Head, write_head
from heliograph.pipeline import source
from heliograph.pipeline.ingesting.heads import decode_heads, encode_heads, read_heads
from heliograph.pipeline.jobs.reach import NO_HEADS, Heads, tails
from heliograph.pipeline.jobs.routers import retire
from heliograph.pipeline.tables.offsets import Offsets

TAKEN = 10**12
"""More segments than anybody can look at one by one."""


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_only_segments_that_were_not_ingested_are_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    probe, probed = source.probe, []

    def noting(journal: str, name: str, spark: None) -> source.Segment | None:
        probed.append(name)
        return probe(journal, name, spark)

    monkeypatch.setattr(source, "probe", noting)
    write_head(tmp_path, Head("r", 1000, "smp", TAKEN + 2, 90))
    (tmp_path / "r").mkdir()
    offsets = Offsets(seen={"r/1000": [(1, 80)]}, segments={"r/1000": [(1, 6), (8, TAKEN)]})
    names = [f"r/1000-{number:08}.parquet" for number in (TAKEN + 2, TAKEN + 1, 7)]
    assert read_heads([f"{scheme}{tmp_path}"], None, offsets, 0.0).waiting == set()
    assert probed == names
    for name in names:
        (tmp_path / name).touch()
        probed.clear()
        assert read_heads([f"{scheme}{tmp_path}"], None, offsets, 0.0).waiting == {"r/1000"}
        assert probed == names[: names.index(name) + 1]
        (tmp_path / name).unlink()
    offsets = Offsets(seen={"r/1000": [(1, 90)]}, segments={"r/1000": [(1, TAKEN + 2)]})
    assert read_heads([f"{scheme}{tmp_path}"], None, offsets, 0.0).waiting == set()


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_journal_is_listed_if_very_many_are_missing(tmp_path: Path, scheme: str) -> None:
    """Also if a phone counts as many as there are numbers."""
    write_head(tmp_path, Head("r", 1000, "smp", 2**63 - 1, 90))
    (tmp_path / "r").mkdir()
    places, offsets = [f"{scheme}{tmp_path}"], Offsets(segments={"r/1000": [(1, 5)]})
    (tmp_path / "r" / "1000-00000005.parquet").touch()
    assert read_heads(places, None, offsets, 0.0).waiting == set()
    (tmp_path / "r" / "1000-00000007.parquet").touch()
    assert read_heads(places, None, offsets, 0.0).waiting == {"r/1000"}


NOW = 1_000_000.0
OLD, NEW = Head("r", 5, "ntf", 3, 30, 6, ended=True), Head("r", 9, "ntf", 1, 4, 10)


def read(journal: Path, offsets: Offsets, earlier: Heads = NO_HEADS) -> Heads:
    return read_heads([str(journal)], None, offsets, NOW, earlier)


def test_a_damaged_head_is_reported(tmp_path: Path) -> None:
    for head in (OLD, NEW):
        write_head(tmp_path, head)
    path = tmp_path / HEADS / "r-5.json"
    path.write_bytes(path.read_bytes()[:20])
    found = read(tmp_path, Offsets())
    assert (found.damaged, [*found.runs]) == (("r/5",), ["r/9"])
    assert decode_heads(encode_heads(found)).damaged == found.damaged
    (tmp_path / HEADS / "r-9.json").write_bytes(b"")
    found = read(tmp_path, Offsets())
    assert (found.damaged, found.empty) == (("r/5", "r/9"), ())


def test_what_a_head_has_counted_stays_missing_without_it(tmp_path: Path) -> None:
    for head in (OLD, NEW):
        write_head(tmp_path, head)
    offsets = Offsets(seen={"r/5": [(1, 20)], "r/9": [(1, 4)]})
    known = read(tmp_path, offsets)
    (tmp_path / HEADS / "r-5.json").unlink()
    found = read(tmp_path, offsets, known)
    [gap] = tails(offsets.seen, {}, found)
    assert (gap.boot, gap.first_seq, gap.last_seq) == (5, 21, 30)
    again = read(tmp_path, Offsets(seen={"r/5": [(1, 30)]}), found)
    assert [*again.runs] == ["r/9"]
    expired = read(tmp_path, Offsets(seen=offsets.seen, expired={"r": 5}), found)
    assert [*expired.runs] == ["r/9"]


def test_a_lost_run_of_which_nothing_was_read_stays_missing(tmp_path: Path) -> None:
    """Until its router is retired: it may have been none of this pipeline."""
    for head in (OLD, replace(NEW, router="other")):
        write_head(tmp_path, head)
    offsets = Offsets(seen={"other/9": [(1, 4)]})
    known = read(tmp_path, offsets)
    (tmp_path / HEADS / "r-5.json").unlink()
    found = read(tmp_path, offsets, known)
    [gap] = tails(offsets.seen, {}, found)
    assert (gap.router, gap.first_seq, gap.last_seq) == ("r", 1, 30)
    retired = replace(offsets, routers=retire({}, "r", "ntf"))
    assert [*read(tmp_path, retired, found).runs] == ["other/9"]
