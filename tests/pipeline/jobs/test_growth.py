from pathlib import Path
from typing import Any

import pytest

from heliograph.cli.main import main
from heliograph.pipeline.jobs.growth import collect_hours
from heliograph.pipeline.planning.history import HourSums
from heliograph.pipeline.tables.tables import open_tables
from heliograph.pipeline.views import counts
from tests.pipeline.support import START, Scribe, pipeline, write_journal

EPOCH = int(START.timestamp())


def test_sums_of_an_hour(spark: Any, tmp_path: Path) -> None:
    ntf = Scribe()
    token = {"token": "t1", "provider": "fcm"}
    ntf("token_active", 1.0, **token)
    ntf("token_active", 2.0, reason="repeated", **token)
    ntf("subscription_created", 3.0, token="t1", subscription="s1", own_server=False)
    ntf.nmsg(1, 4.0)
    ntf.accepted([1], 1, 5.0)
    ntf.push("push_accepted", 6.0, mode="periodic")
    ntf("subscription_deleted", 3601.0, token="t1", subscription="s1", through=1)
    ntf("token_deleted", 3602.0, token="t1", through=1)
    journal = write_journal(tmp_path / "journal", ntf)
    with open_tables(tmp_path / "tables") as tables:
        made = pipeline(spark, tables, journal)
        made.ingester.ingest_batch()
        made.update_stats()
        found = collect_hours(counts(made))
    assert found == [
        HourSums(EPOCH, 1, 0, 1, 0, 1, 1, 1, 7),
        HourSums(EPOCH + 3600, 0, 1, 0, 1, 0, 0, 0, 2),
    ]


def test_a_plan_without_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["pipeline", "plan", "--dir", str(tmp_path), "--devices", "100M", "--price", "50"]
    assert main([*words, "--wake-every", "20", "--cost", "log_bytes=1000"]) == 0
    said = capsys.readouterr().out
    assert "unknown: 0 complete days of history, 14 are needed" in said
    assert "100,000,000 devices need" in said
    assert "routers       6, each with a PostgreSQL on a machine of its own" in said
    assert "price" in said
    assert "notifications            50 (assumed)" in said
    assert "wake_ups                 72 (given)" in said
    assert "log_bytes                1000 bytes" in said
    main(words[:4])
    assert "devices" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "words", [["--devices", "many"], ["--cores", "-1"], ["--cost", "x=1"], ["--peak", "nan"]]
)
def test_wrong_numbers_are_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit):
        main(["pipeline", "plan", *words])
