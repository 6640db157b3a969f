from pathlib import Path

import pytest

from heliograph.journal.heads import Head, write_head
from heliograph.pipeline import source
from heliograph.pipeline.ingesting.heads import read_heads
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
