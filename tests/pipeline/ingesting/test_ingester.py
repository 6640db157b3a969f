"""Segments of several journals."""

import logging
from pathlib import Path
from typing import Any

import pytest

from heliograph.pipeline.ingesting.ingester import Ingester, IngestSettings
from heliograph.pipeline.tables.tables import open_tables
from heliograph.runtime.errors import StartError
from tests.pipeline.support import Scribe, write_journal


def test_a_journal_that_is_gone_delays_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scribe = Scribe()
    scribe("router_stopped")
    there, gone = write_journal(tmp_path / "there", scribe), tmp_path / "gone"
    without_spark: Any = None
    with open_tables(tmp_path / "tables") as tables:
        found = Ingester(without_spark, tables, IngestSettings((str(gone), str(there))))
        with caplog.at_level(logging.ERROR):
            assert [item.name for item in found.poll()] == ["ntf/1000-00000001.parquet"]
        [record] = caplog.records
        assert f"there is no journal at {gone}" in record.getMessage()
        alone = Ingester(without_spark, tables, IngestSettings((str(tmp_path / "none"),)))
        with pytest.raises(StartError, match="there is no journal at"):
            alone.poll()
