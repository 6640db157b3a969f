"""A report as one self-contained HTML page."""

import csv
from html import escape
from pathlib import Path

from heliograph.pipeline.report import plots
from heliograph.pipeline.report.report import Report, ReportTable, to_json
from heliograph.pipeline.vocabulary import OUTCOMES

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#222;max-width:940px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.6rem}h2{font-size:1.15rem;margin-top:2.2rem}
svg{width:100%;height:auto;font-size:11px;fill:#555}
table{border-collapse:collapse;font-size:13px;display:block;overflow-x:auto}
td,th{padding:.15rem .6rem;text-align:right;border-bottom:1px solid #eee;white-space:nowrap}
td:first-child,th:first-child{text-align:left}
.good,.bad{padding:.6rem .9rem;border-radius:6px;font-weight:600}
.good{background:#e4f3ea;color:#14532d}.bad{background:#fde2e2;color:#8b0000}
.legend span{margin-right:1.1rem;font-size:12px}
.legend i{display:inline-block;width:.7rem;height:.7rem;margin-right:.35rem}
@media(prefers-color-scheme:dark){body{background:#161616;color:#ddd}td,th{border-color:#333}
svg{fill:#aaa}}
"""
MOST_ROWS = 200


def write(report: Report, directory: Path) -> Path:
    """Write the report as HTML, JSON and CSV; return the path of the HTML."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, table in report.tables.items():
        with (directory / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(table.columns)
            writer.writerows(table.rows)
    (directory / "report.json").write_text(to_json(report))
    page = directory / "report.html"
    page.write_text(render(report))
    return page


def render(report: Report) -> str:
    span = report.first if report.first == report.last else f"{report.first} to {report.last}"
    parts = [
        f"<h1>Notifications, {escape(span)}</h1>",
        _verdict(report),
        _table(ReportTable("", ("outcome", "notifications"), tuple(report.outcomes.items()))),
        _sentences(report),
        "<h2>By hour</h2>",
        _by_hour(report.tables["hours"]),
        "<h2>Latency, from the messaging router to the provider's acceptance</h2>",
        _latency(report.tables["latency"], "total_us"),
        "<h2>Latency, from stored to accepted by the provider</h2>",
        _latency(report.tables["latency"], "push_us"),
        "<h2>Pushes</h2>",
        _pushes(report.tables["providers"]),
        "<h2>Active tokens and subscriptions</h2>",
        _active(report.tables["daily"]),
    ]
    for name in (
        "coverage",
        "daily",
        "reconciliation",
        "provider_latency",
        "failures",
        "funnel",
        "own_servers",
        "connections",
        "quarantine",
    ):
        table = report.tables[name]
        parts.append(f"<h2>{escape(table.title)}</h2>{_table(table)}")
    parts.append(f"<p>Made {escape(report.made_at)}.</p>")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>Notifications {escape(span)}</title><style>{_STYLE}</style></head>"
        f"<body>{''.join(parts)}</body></html>"
    )


def _verdict(report: Report) -> str:
    if report.unaccounted:
        return (
            f'<p class="bad">{report.unaccounted} of {report.notifications} notifications are'
            " unaccounted for.</p>"
        )
    if report.missing_events:
        return (
            f'<p class="bad">All {report.notifications} notifications that are known are accounted'
            f" for, but {report.missing_events} events are missing: see below.</p>"
        )
    return f'<p class="good">All {report.notifications} notifications are accounted for.</p>'


def _sentences(report: Report) -> str:
    said = []
    if report.coalescing is not None:
        said.append(f"One accepted push stands for {report.coalescing:.2f} notifications.")
    if report.counts.get("quarantined"):
        said.append(f"{report.counts['quarantined']} records are in quarantine.")
    return f"<p>{' '.join(said)}</p>"


def _by_hour(table: ReportTable) -> str:
    records = table.records()
    series: dict[str, plots.Values] = {
        outcome: [record[outcome] for record in records] for outcome in OUTCOMES
    }
    return plots.stacked([_hour(record["hour"]) for record in records], series, "notifications")


def _latency(table: ReportTable, name: str) -> str:
    records = table.records()
    series: dict[str, plots.Values] = {
        label: [_milliseconds(record[f"{name}_{label}"]) for record in records]
        for label in ("p50", "p90", "p99", "p999")
    }
    return plots.lines([_hour(record["hour"]) for record in records], series, "milliseconds")


def _pushes(table: ReportTable) -> str:
    records = table.records()
    hours = sorted({record["hour"] for record in records})
    series: dict[str, plots.Values] = {}
    for name in ("accepted", "retried", "rejected", "expired"):
        sums = dict.fromkeys(hours, 0)
        for record in records:
            sums[record["hour"]] += record[name]
        series[name] = list(sums.values())
    return plots.lines([_hour(hour) for hour in hours], series, "pushes an hour")


def _active(table: ReportTable) -> str:
    records = table.records()
    series: dict[str, plots.Values] = {
        "tokens": [record["tkn_day"] for record in records],
        "subscriptions": [record["sub_day"] for record in records],
    }
    return plots.lines([record["day"] for record in records], series, "in a day")


def _table(table: ReportTable) -> str:
    if not table.rows:
        return "<p>Nothing.</p>"
    head = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(_cell(value))}</td>" for value in row) + "</tr>"
        for row in table.rows[:MOST_ROWS]
    )
    more = len(table.rows) - MOST_ROWS
    note = f"<p>and {more} more, in the CSV file.</p>" if more > 0 else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{note}"


def _cell(value: object) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _hour(text: str) -> str:
    return text[5:13].replace("T", " ") + "h"


def _milliseconds(value: int | None) -> float | None:
    return None if value is None else value / 1000
