"""Seed 001, behaviour 21: the line comes at a time of day, not some time after the start."""

import asyncio
import json
from pathlib import Path

import pytest

from heliograph.ntf.observing.stats import Stats
from heliograph.ntf.reference.statslog import NtfStatsLog
from heliograph.runtime.reference.periods import DAY
from heliograph.runtime.reference.statslog import first_delay
from tests.runtime.reference.test_periods import at, ids


@pytest.mark.parametrize(
    ("now", "start", "delay"),
    [
        ("2026-06-01 23:00", 0, 3600),
        ("2026-06-01 00:00", 0, 0),
        ("2026-06-01 02:00", 10_800, 3600),
        ("2026-06-01 04:00", 10_800, 23 * 3600),
    ],
)
def test_aligned_to_the_time_of_day(now: str, start: int, delay: int) -> None:
    assert first_delay(at(now), start) == delay


def test_columns_and_order_of_the_reference(tmp_path: Path) -> None:
    stats = Stats()
    log = NtfStatsLog(stats, tmp_path / "stats.json")
    log.begin(at("2026-05-31 00:00"))
    names = (
        *("tkn_created", "tkn_verified", "tkn_deleted", "sub_created", "sub_deleted"),
        *("ntf_received", "ntf_delivered", "tkn_replaced", "ntf_failed"),
        *("ntf_cron_delivered", "ntf_cron_failed", "ntf_vrf_queued", "ntf_vrf_delivered"),
        *("ntf_vrf_failed", "ntf_vrf_invalid_tkn"),
    )
    for number, name in enumerate(names, 1):
        setattr(stats.counters, name, number)
    stats.active_tokens.add(ids(1, 2), at("2026-05-31 12:00"))
    stats.active_subs.add(ids(1, 2, 3), at("2026-05-31 12:00"))
    assert log.line(at("2026-06-01 00:00")) == (
        "2026-05-31,1,2,3,4,5,6,7,2,2,2,3,3,3,8,9,10,11,12,13,14,15"
    )


def test_weeks_and_months_stand_where_they_ended(tmp_path: Path) -> None:
    stats = Stats()
    log = NtfStatsLog(stats, tmp_path / "stats.json")
    stats.active_tokens.add(ids(1), at("2026-06-02 12:00"))
    columns = log.line(at("2026-06-03 00:00")).split(",")
    assert columns[8:11] == ["1", "", ""]


def test_a_line_has_what_was_added_since_the_last(tmp_path: Path) -> None:
    stats = Stats()
    log = NtfStatsLog(stats, tmp_path / "stats.json")
    stats.counters.ntf_received = 5
    assert log.period()["ntf_received"] == 5
    log.begin(at("2026-06-01 00:00"))
    stats.counters.ntf_received += 2
    assert log.period()["ntf_received"] == 2
    assert stats.counters.ntf_received == 7  # Prometheus sees no counter go back
    assert log.line(at("2026-06-02 00:00")).startswith("2026-06-01,")


def test_saved_and_restored(tmp_path: Path) -> None:
    stats = Stats()
    log = NtfStatsLog(stats, tmp_path / "stats.json")
    stats.counters.ntf_received = 5
    log.begin(1000.0)
    stats.counters.ntf_received = 7
    log.save()
    assert (tmp_path / "stats.json").stat().st_mode & 0o777 == 0o600
    again = Stats()
    restored = NtfStatsLog(again, tmp_path / "stats.json")
    restored.restore()
    assert again.counters.ntf_received == 7
    assert restored.period()["ntf_received"] == 2
    assert restored.since == 1000.0


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"stats": 1}', "\0"])
def test_a_damaged_copy_costs_no_start(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "stats.json").write_text(text)
    NtfStatsLog(Stats(), tmp_path / "stats.json").restore()
    assert "counting from zero" in caplog.text


def test_no_copy_yet(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    NtfStatsLog(Stats(), tmp_path / "stats.json").restore()
    assert not caplog.text


async def test_lines_at_exact_intervals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = at("2026-06-01 23:00")

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds + 0.5  # a busy machine wakes late
        if len(lines()) == 3:
            raise asyncio.CancelledError

    def lines() -> list[str]:
        return log_file.read_text().splitlines() if log_file.exists() else []

    log_file = tmp_path / "stats.csv"
    monkeypatch.setattr(asyncio, "sleep", sleep)
    stats = Stats()
    stats.started_at = now
    stats.counters.ntf_received = 5
    log = NtfStatsLog(stats, tmp_path / "stats.json", log_file, clock=lambda: now)
    with pytest.raises(asyncio.CancelledError):
        await log.run()
    days = [line.split(",")[0] for line in lines()]
    assert days == ["2026-06-01", "2026-06-02", "2026-06-03"]
    assert [line.split(",")[6] for line in lines()] == ["5", "0", "0"]
    assert now % DAY < 120  # it did not drift
    assert log_file.stat().st_mode & 0o777 == 0o600
    saved = json.loads((tmp_path / "stats.json").read_text())
    assert saved["before"]["ntf_received"] == 5


async def test_a_full_disk_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sleeps = 0

    async def sleep(seconds: float) -> None:
        nonlocal sleeps
        sleeps += 1
        if sleeps == 3:
            raise asyncio.CancelledError

    monkeypatch.setattr(asyncio, "sleep", sleep)
    absent = tmp_path / "absent"
    log = NtfStatsLog(
        Stats(), absent / "stats.json", absent / "stats.csv", clock=lambda: at("2026-06-01 00:00")
    )
    with pytest.raises(asyncio.CancelledError):
        await log.run()
    assert "cannot be written" in caplog.text
    assert "cannot be saved" in caplog.text
