"""A report as one self-contained HTML page, with links to its CSV and JSON files."""

import csv
from datetime import datetime
from html import escape
from pathlib import Path

from heliograph.pipeline.account import Verdict
from heliograph.pipeline.report import plots
from heliograph.pipeline.report.report import Report, ReportTable, to_json
from heliograph.pipeline.report.style import style
from heliograph.pipeline.vocabulary import OUTCOMES, describe_unfinished

MOST_ROWS = 200
_QUANTILES = {"p50": "p50", "p90": "p90", "p99": "p99", "p999": "p99.9"}
_WORDS = {
    "smp_host": "messaging router",
    "part": "kind of router",
    "boot": "run",
    "first_seq": "first number",
    "last_seq": "last number",
    "from_at": "after",
    "until_at": "before",
    "total_us": "in all",
    "push_us": "stored to accepted",
    "subscribe_us": "time to subscribe",
    "gap_us": "time without",
    "tkn_day": "active tokens, day",
    "sub_day": "active subscriptions, day",
    "1h": "burn rate, 1 h",
    "6h": "burn rate, 6 h",
    "3d": "burn rate, 3 days",
}
"""Names of columns in people's words; others have their underscores replaced."""
_MEANINGS = {
    "shown": "a phone showed it",
    "accepted": "a push provider accepted its push",
    "coalesced": "a newer one of its queue was pushed instead",
    "pending": "its push is still pending",
    "waiting": "nobody has fetched it from its messaging router yet",
    "delivered": "sent to a notification router; no later event is known",
    "removed": "removed or expired at its messaging router",
    "undeliverable": "its token or subscription was gone or not active",
    "rejected": "its device token was invalid",
    "expired": "its push expired",
    "unaccounted": "no event explains what became of it",
}


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
    tables = report.tables
    parts = [
        f'<h1>Notifications, <span class="together">{escape(span)}</span></h1>',
        _verdict(report),
        _gaps(tables["coverage"]),
        _outcomes(report),
        _files(report),
        _heading(tables["objectives"].title, "objectives"),
        _table(tables["objectives"]),
        _heading("Notifications by hour", "hours"),
        _by_hour(tables["hours"]),
        _heading("From the messaging router to the provider's acceptance", "latency"),
        _latency("From the messaging router to the acceptance", tables["latency"], "total_us"),
        _heading("From stored to the provider's acceptance", "latency"),
        _latency("From stored to the acceptance", tables["latency"], "push_us"),
        _heading("Pushes by hour", "providers"),
        _pushes(tables["providers"]),
        _heading("Active tokens and subscriptions", "daily"),
        _active(tables["daily"]),
    ]
    for name in (
        "provider_latency",
        "failures",
        "funnel",
        "own_servers",
        "connections",
        "quarantine",
        "daily",
        "reconciliation",
    ):
        parts += [_heading(tables[name].title, name), _table(tables[name])]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>Notifications {escape(span)}</title><style>{style()}</style></head>"
        f"<body><main>{''.join(parts)}</main></body></html>"
    )


def _files(report: Report) -> str:
    return (
        f'<p class="files">Made {escape(_time(report.made_at))}. All data:'
        ' <a href="report.json">JSON</a>. Tables link to their CSV files.</p>'
    )


def _heading(title: str, name: str) -> str:
    link = f'<a href="{name}.csv" aria-label="{name}, CSV">CSV</a>'
    return f"<h2>{escape(title)}{link}</h2>"


def _verdict(report: Report) -> str:
    count = f"{report.notifications:,}"
    if report.verdict is Verdict.MISSING:
        text = (
            f"Missing: {report.unaccounted:,} of {count} notifications are unaccounted for, and no"
            " known gap explains them."
        )
    elif report.verdict is Verdict.GAPS:
        gaps = f"{report.missing_events:,} events are missing"
        if report.counts.get("quarantined"):
            gaps += f", {report.counts['quarantined']:,} in quarantine"
        text = (
            f"Complete but for known gaps: {gaps}, and {report.unaccounted:,} of {count}"
            " notifications may be among them."
        )
    else:
        unfinished = describe_unfinished(report.outcomes)
        until = f", until {_time(report.until)}" if report.until else ""
        text = f"all {count} notifications are accounted for{until}{unfinished}."
        if report.verdict is Verdict.LAGGING:
            text = f"Lagging: as far as the journals reach, {text}"
        else:
            text = f"Complete: {text}"
    more = [f"Not known: {escape(lag)}." for lag in report.lags]
    if report.coalescing is not None:
        more.append(f"One accepted push stands for {report.coalescing:.2f} notifications.")
    said = f"<p>{' '.join(more)}</p>" if more else ""
    return f'<p class="verdict {report.verdict.value}">{text}</p>{said}'


def _gaps(table: ReportTable) -> str:
    if not table.rows:
        return ""
    return _heading(f"{table.title}, on all days", "coverage") + _table(table)


def _outcomes(report: Report) -> str:
    rows = tuple(
        (outcome, count, report.recovered.get(outcome, 0), _MEANINGS.get(outcome, ""))
        for outcome, count in report.outcomes.items()
    )
    columns = ("outcome", "notifications", "of these recovered", "meaning")
    title = "What became of them"
    table = f"<h2>{title}</h2>{_table(ReportTable(title, columns, rows))}"
    if not report.recovered:
        return table
    return table + (
        '<p class="files">Recovered: a router was killed and its last events are lost, so the'
        " outcome was inferred from what its next run found.</p>"
    )


def _by_hour(table: ReportTable) -> str:
    records = table.records()
    series: dict[str, plots.Values] = {
        outcome: [record[outcome] for record in records] for outcome in OUTCOMES
    }
    labels = [_hour(record["hour"]) for record in records]
    return plots.stacked("Notifications by hour and outcome", labels, series, "notifications")


def _latency(title: str, table: ReportTable, name: str) -> str:
    records = table.records()
    series: dict[str, plots.Values] = {
        shown: [_seconds(record[f"{name}_{label}"]) for record in records]
        for label, shown in _QUANTILES.items()
    }
    return plots.durations(title, [_hour(record["hour"]) for record in records], series)


def _pushes(table: ReportTable) -> str:
    records = table.records()
    hours = sorted({record["hour"] for record in records})
    series: dict[str, plots.Values] = {}
    for name in ("accepted", "retried", "rejected", "expired"):
        sums = dict.fromkeys(hours, 0)
        for record in records:
            sums[record["hour"]] += record[name]
        series[name] = list(sums.values())
    labels = [_hour(hour) for hour in hours]
    return plots.lines("Pushes by hour", labels, series, "pushes an hour")


def _active(table: ReportTable) -> str:
    records = table.records()
    series: dict[str, plots.Values] = {
        "tokens": [record["tkn_day"] for record in records],
        "subscriptions": [record["sub_day"] for record in records],
    }
    labels = [record["day"] for record in records]
    return plots.lines("Active tokens and subscriptions", labels, series, "active in a day")


def _table(table: ReportTable) -> str:
    if not table.rows:
        return plots.EMPTY_PLOT
    texts = [
        any(isinstance(value, str) for value in column) for column in zip(*table.rows, strict=True)
    ]
    aligned = [' class="text"' if is_text else "" for is_text in texts]
    head = "".join(
        f'<th scope="col"{how}>{escape(_words(column))}</th>'
        for how, column in zip(aligned, table.columns, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{how}>{escape(_cell(column, value))}</td>"
            for how, column, value in zip(aligned, table.columns, row, strict=True)
        )
        + "</tr>"
        for row in table.rows[:MOST_ROWS]
    )
    more = len(table.rows) - MOST_ROWS
    note = f"<p>and {more:,} more, in the CSV file.</p>" if more > 0 else ""
    name = escape(table.title, quote=True)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{name}, table">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{note}"
    )


def _words(column: str) -> str:
    name, _, last = column.rpartition("_")
    if name in _WORDS and (last in _QUANTILES or last == "n"):
        return f"{_WORDS[name]}, {'measured' if last == 'n' else _QUANTILES[last]}"
    if name.endswith("_us") and (last in _QUANTILES or last == "n"):
        word = name.removesuffix("_us").replace("_", " ")
        return f"{word}, {'measured' if last == 'n' else _QUANTILES[last]}"
    return _WORDS.get(column, column.removesuffix("_us").replace("_", " "))


def _cell(column: str, value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, int) and ("_us_p" in column or column.endswith("_us")):
        return plots.duration(value / 1e6)
    if isinstance(value, str) and column in ("hour", "from_at", "until_at"):
        return _time(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def _time(text: str) -> str:
    """Return a time of ISO 8601 as people write it; other text as it is."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return text
    return f"{found.day} {found:%b %Y, %H:%M} UTC"


def _hour(text: str) -> str:
    found = datetime.fromisoformat(text)
    return f"{found.day} {found:%b %H:%M}"


def _seconds(value: int | None) -> float | None:
    return None if value is None else value / 1e6
