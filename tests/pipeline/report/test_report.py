"""The report: one page that needs nothing else, and the same facts as JSON and CSV."""

import csv
import json
import re
import time
from dataclasses import replace
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from heliograph.pipeline.account import Verdict
from heliograph.pipeline.jobs.stats import parse_line
from heliograph.pipeline.report import page, plots, report
from heliograph.pipeline.tables.tables import open_tables
from tests.pipeline.jobs.test_stats import EXPECTED, WEEK, a_week
from tests.pipeline.report.example import example
from tests.pipeline.support import START, Scribe, pipeline, write_journal
from tests.web.browser import CHROMIUM, no_axe_findings, tab


def test_times_that_no_date_has_are_reported() -> None:
    """The head of a run may claim any number, also that of a phone."""
    assert report._utc(int(START.timestamp() * 1e6)) == "2026-01-05T00:00:00Z"
    assert report._utc(2**63 - 1) == "294247-01-10T04:00:54Z"


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
        made.ingester.ingest_batch()
        made.update_stats()
        first, last = report.days_with_events(made, START.date(), START.date().replace(day=31))
        assert (first.day, last.day) == (5, 11)
        assert made.lags({}, 0.0) != ()
        made.account()  # it reads how far the journals reach
        late = report.collect(made, first, last, time.time() + 3 * 86_400)
        assert late.verdict is Verdict.LAGGING
        assert [lag.split(":")[0] for lag in late.lags] == ["all journals"]
        found = report.collect(made, first, last, time.time(), [wrong])
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


def test_a_report_covers_what_is_not_counted_yet(spark: Any, tmp_path: Path) -> None:
    """A pipeline that is killed after it ingests, or streams at midnight, has no statistics yet."""
    ntf = Scribe()
    ntf("nmsg_received", 0.0, notification="n1", own_server=False)
    ntf("client_connected", 86_400.0, count=1)
    journal = write_journal(tmp_path / "journal", ntf)
    with open_tables(tmp_path / "tables") as tables:
        made = pipeline(spark, tables, journal)
        made.ingester.ingest_batch()
        made.account()
        first, last = report.days_with_events(made, date(1970, 1, 1), date(9999, 1, 1))
        assert (first.day, last.day) == (5, 6)
        found = report.collect(made, first, last, time.time())
        assert (found.verdict, found.unaccounted) == (Verdict.MISSING, 1)


def _check_files(path: Path) -> None:
    text = path.read_text()
    assert "Complete: all 5 notifications are accounted for, until 11 Jan 2026, 00:" in text
    assert "; 1 of them have no final outcome yet" in text
    assert not re.search(r"https?://|src=|@import|url\(", text)
    for plot in re.findall(r"<svg.*?</svg>", text):
        ElementTree.fromstring(plot)
    data = json.loads((path.parent / "report.json").read_text())
    assert data["outcomes"]["accepted"] == 2
    with (path.parent / "daily.csv").open() as file:
        rows = list(csv.reader(file))
    assert ",".join(rows[1]) == EXPECTED[0]


@pytest.mark.parametrize(
    ("explained", "missing_events", "verdict", "message"),
    [
        (0, 0, "missing", "3 of 113 notifications are unaccounted for"),
        (2, 20, "missing", "3 of 113 notifications are unaccounted for"),
        (3, 20, "gaps", "20 events are missing, 1 in quarantine, and 3 of 113"),
    ],
)
def test_verdict_and_gaps_come_first(
    explained: int, missing_events: int, verdict: str, message: str
) -> None:
    found = replace(example(), explained=explained, missing_events=missing_events)
    text = page.render(found)
    assert f'class="verdict {verdict}"' in text
    order = [message, "Events known to be missing", "What became of them", "<svg"]
    assert sorted(order, key=text.index) == order
    assert json.loads(report.to_json(found))["verdict"] == verdict


def test_a_complete_report_says_so() -> None:
    found = replace(example(), outcomes={"shown": 2}, missing_events=0, recovered={})
    assert 'class="verdict gaps"' in page.render(found)  # some events are in quarantine
    text = page.render(replace(found, counts={}))
    assert "Complete: all 2 notifications are accounted for." in text
    assert "Recovered:" not in text


def test_what_lags_is_named() -> None:
    complete = replace(
        example(), outcomes={"shown": 2}, missing_events=0, recovered={}, counts={}, explained=0
    )
    lagging = replace(complete, lags=("r (ntf): <gone>",), until="2026-01-05T10:00:00Z")
    text = page.render(lagging)
    assert 'class="verdict lagging"' in text
    assert "Lagging: as far as the journals reach, all 2 notifications are accounted for" in text
    assert "until 5 Jan 2026, 10:00 UTC" in text
    assert "Not known: r (ntf): &lt;gone&gt;." in text
    assert json.loads(report.to_json(lagging))["lags"] == ["r (ntf): <gone>"]


def test_recovered_is_shown_and_files_are_linked(tmp_path: Path) -> None:
    path = page.write(example(), tmp_path)
    text = path.read_text()
    assert re.search(r"<td[^>]*>accepted</td><td>43</td><td>4</td>", text)
    links = re.findall(r'href="([^"]+)"', text)
    assert {"report.json", "coverage.csv", "latency.csv", "hours.csv"} <= {*links}
    assert all((tmp_path / link).exists() for link in links)


def test_units_are_those_of_people() -> None:
    text = page.render(example())
    visible = re.sub(r"<style>.*?</style>", "", text)
    assert not re.search(r"_us\b|microseconds|\d{4}-\d\d-\d\dT", visible)
    assert "1.25 min" in visible
    assert [plots.duration(s) for s in (0.000004, 0.0042, 1.5, 90, 7200, 172_800)] == [
        "4 µs",
        "4.2 ms",
        "1.5 s",
        "1.5 min",
        "2 h",
        "2 days",
    ]


def test_an_empty_plot_is_a_word() -> None:
    assert plots.durations("t", ["a"], {"p50": [None]}) == plots.EMPTY_PLOT
    assert plots.stacked("t", ["a"], {"shown": [0]}, "u") == plots.EMPTY_PLOT


def test_latencies_are_on_a_logarithmic_scale() -> None:
    axis = plots.logarithmic("time", [0.004, 75.0])
    assert [axis.text(tick) for tick in axis.ticks] == [
        "1 ms",
        "10 ms",
        "100 ms",
        "1 s",
        "10 s",
        "1 min",
        "10 min",
    ]
    steps = [axis.y(a) - axis.y(b) for a, b in pairwise((0.001, 0.01, 0.1, 1.0, 10.0))]
    assert steps == pytest.approx([steps[0]] * 4)
    assert axis.y(0.0) == axis.y(axis.low)
    for values in ([], [0.0], [1e-9], [1e9], [1.0]):
        few = plots.logarithmic("time", values)
        assert len(few.ticks) >= 2


def test_a_meaning_has_one_colour() -> None:
    text = page.render(example())
    sheet = re.search(r"<style>(.*?)</style>", text, re.DOTALL)
    assert sheet is not None
    light, _, dark = sheet[1].partition("@media(prefers-color-scheme:dark)")
    used = {*re.findall(r'class="(s-[^"]+)"', text)}
    assert {"s-accepted", "s-unaccounted", "s-retried", "s-p99.9", "s-tokens"} <= used
    for part in (light, dark):
        colours = dict(re.findall(r"\.(s-[^{]+){fill:(#\w+)", part.replace("\\.", ".")))
        assert used <= colours.keys()
        assert len({*colours.values()}) == len(colours)


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
@pytest.mark.parametrize(("scheme", "width"), [("light", 1000), ("dark", 360)])
async def test_everybody_can_read_it(tmp_path: Path, scheme: str, width: int) -> None:
    """axe-core finds nothing, and nothing is wider than a phone."""
    path = page.write(example(), tmp_path)
    async with tab() as browser:
        await browser.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )
        metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
        await browser.call("Emulation.setDeviceMetricsOverride", **metrics)
        await browser.call("Page.navigate", url=path.as_uri())
        await browser.until("document.querySelector('.verdict') !== null")
        await no_axe_findings(browser)
        assert await browser.evaluate("document.documentElement.scrollWidth") <= width
        assert not browser.complaints


@pytest.mark.parametrize(
    ("value", "expected"), [(0, 1), (1, 1), (3, 5), (0.03, 0.05), (101, 200), (2100, 2500)]
)
def test_axes_are_round(value: float, expected: float) -> None:
    assert plots.nice(value) == pytest.approx(expected)


def test_plots_are_whole_and_escaped() -> None:
    labels = ["<a>", "b", "c"]
    series: dict[str, plots.Values] = {"x&y": [1, None, 3], "none": [None, None, None]}
    for plot in (plots.stacked("t", labels, series, "u"), plots.lines("t", labels, series, "u")):
        ElementTree.fromstring(f"<div>{plot}</div>")
        assert "x&amp;y" in plot
        assert "none" not in plot
