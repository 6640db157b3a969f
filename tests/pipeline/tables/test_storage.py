"""Places with names that Spark, Arrow and Delta write differently."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from heliograph.pipeline.acknowledging import damaged_segments
from heliograph.pipeline.schedule import once
from heliograph.pipeline.tables.storage import Storage
from heliograph.pipeline.tables.tables import Tables, open_tables
from heliograph.runtime.errors import StartError
from tests.pipeline.support import Scribe, pipeline, write_journal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMES = ("with space", "josé", "a+b, #1?", "{a,b}*")


@pytest.mark.parametrize("name", NAMES)
def test_any_name_of_a_directory(spark: "SparkSession", tmp_path: Path, name: str) -> None:
    """Spark reads no URL as a pattern, and takes `%20` literally, which Arrow and Delta do not."""
    scribe = Scribe()
    scribe.nmsg(1, 0)
    scribe.accepted([1], 1, 1)
    scribe("router_stopped", 2)
    journal = write_journal(tmp_path / name / "[journal]", scribe)
    for number, place in enumerate((journal, journal.as_uri())):
        with open_tables(tmp_path / name / f"tables {number}") as tables:
            made = pipeline(spark, tables, place)  # type: ignore[arg-type]
            once(made)
            assert made.read("events").count() == 4
            assert made.account().is_complete
            assert damaged_segments(tmp_path / name / f"tables {number}") == []
        assert Tables(tmp_path / name / f"tables {number}").snapshot.offsets.counts["events"] == 4
    assert [item.name for item in tmp_path.iterdir()] == [name]


def test_a_file_url_names_the_same_directory(tmp_path: Path) -> None:
    place = tmp_path / "50% of é"
    for url in (place.as_uri(), place.as_uri().replace("file://", "file://localhost")):
        assert Storage(url).local == place
        assert Storage(url).below("a") == f"file://{place}/a"
    assert Storage(Storage(place).url).local == place


@pytest.mark.parametrize("name", ["a%41", "a\\b", "[2026]"])
def test_names_that_delta_cannot_open(tmp_path: Path, name: str) -> None:
    with pytest.raises(StartError, match="choose another --dir"):
        Tables(tmp_path / name)
    assert not [*tmp_path.iterdir()]
