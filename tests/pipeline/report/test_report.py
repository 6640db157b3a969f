"""The report: one page that needs nothing else, and the same facts as JSON and CSV."""

import csv
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from heliograph.pipeline.jobs.stats import parse_line
from heliograph.pipeline.report import page, plots, report
from heliograph.pipeline.tables.tables import open_tables
from tests.pipeline.jobs.test_stats import EXPECTED, WEEK, a_week
from tests.pipeline.support import START, Scribe, pipeline, write_journal


def test_a_report_of_a_week(spark: Any, tmp_path: Path) -> None:
    ntf = a_week()
    server = {"server": "srv", "own_server": False}
    ntf("smp_up", 10.0, **server)
    ntf("smp_subscribed", 10.5, count=3, expected_count=3, **server)
    ntf("smp_down", 20.0, **server)
    ntf("smp_up", 23.0, **server)
    ntf("smp_subscribed", 24.0, count=2, expected_count=3, **server)
    ntf("smp_drift", 24.5, count=2, expected_count=3, **server)
    smp = Scribe("smp", "smp")
    smp("notification_stored", 2.5, notification="n1")
    journal = write_journal(tmp_path / "journal", ntf, smp)
    wrong = parse_line(EXPECTED[0].replace(",2,1,1,,", ",3,1,1,,"))
    with open_tables(tmp_path / "tables") as tables:
        made = pipeline(spark, tables, journal)
        made.ingest_batch()
        made.update_stats()
        first, last = report.days_with_events(made, START.date(), START.date().replace(day=31))
        assert (first.day, last.day) == (5, 11)
        found = report.collect(made, first, last, 0.0, [wrong])
    assert found.outcomes == WEEK
    assert found.coalescing == 1.5
    tables_found = {name: table.records() for name, table in found.tables.items()}
    assert [record["tkn_week"] for record in tables_found["daily"]] == [None, 2]
    assert tables_found["reconciliation"] == [
        {"day": "2026-01-05", "column": "ntf_received", "pipeline": 2, "router": 3}
    ]
    hours = {record["hour"]: record for record in tables_found["hours"]}
    assert hours["2026-01-05T00:00:00Z"]["coalesced"] == 1
    [monday, sunday] = tables_found["latency"]
    assert (monday["push_us_n"], monday["push_us_p50"]) == (1, 999_000)
    assert sunday["push_us_p99"] == 1_999_000
    assert tables_found["funnel"][-1]["provider"] == "apns_prod"
    assert tables_found["funnel"][-1]["active"] == 2
    codes = {(r["kind"], r["reason"]): r["events"] for r in tables_found["failures"]}
    assert codes["push_retried", "ServiceUnavailable"] == 1
    times = [
        (r["subscribe_us"], r["gap_us"], r["difference"], r["drift"])
        for r in tables_found["connections"]
    ]
    assert times == [
        (500_000, None, 0, 0),
        (1_000_000, 4_000_000, -1, 0),
        (None, None, -1, 1),
    ]
    path = page.write(found, tmp_path / "report")
    _check_files(path)


def _check_files(path: Path) -> None:
    text = path.read_text()
    assert "All 5 notifications are accounted for." in text
    assert not re.search(r"https?://|src=|@import|url\(", text)
    for plot in re.findall(r"<svg.*?</svg>", text):
        ElementTree.fromstring(plot)
    data = json.loads((path.parent / "report.json").read_text())
    assert data["outcomes"]["accepted"] == 2
    with (path.parent / "daily.csv").open() as file:
        rows = list(csv.reader(file))
    assert ",".join(rows[1]) == EXPECTED[0]


def test_what_is_missing_is_said_first() -> None:
    empty = report.ReportTable("t", ("hour",), ())
    names: tuple[str, ...] = (
        "hours",
        "latency",
        "providers",
        "daily",
        "reconciliation",
        "provider_latency",
    )
    names += ("failures", "funnel", "own_servers", "connections", "quarantine", "coverage")
    found = report.Report(
        "2026-01-05", "2026-01-05", "now", {"unaccounted": 2}, None, {}, dict.fromkeys(names, empty)
    )
    text = page.render(found)
    assert "2 of 2 notifications are unaccounted for." in text
    assert text.index("unaccounted") < text.index("<table")
    text = page.render(replace(found, outcomes={"shown": 2}, missing_events=7))
    assert "but 7 events are missing" in text


@pytest.mark.parametrize(
    ("value", "expected"), [(0, 1), (1, 1), (3, 5), (0.03, 0.05), (101, 200), (2100, 2500)]
)
def test_axes_are_round(value: float, expected: float) -> None:
    assert plots.nice(value) == pytest.approx(expected)


def test_plots_are_whole_and_escaped() -> None:
    labels = ["<a>", "b", "c"]
    series: dict[str, plots.Values] = {"x&y": [1, None, 3], "none": [None, None, None]}
    for plot in (plots.stacked(labels, series, "u"), plots.lines(labels, series, "u")):
        ElementTree.fromstring(f"<div>{plot}</div>")
        assert "x&amp;y" in plot
        assert "none" not in plot.replace('fill="none"', "")
