"""`heliograph pipeline report`: write a report for a day or a range."""

import argparse
import os
import time
import webbrowser
from contextlib import suppress
from datetime import date
from pathlib import Path

from heliograph.cli.pipeline.ingesting import EXIT_CODES
from heliograph.cli.pipeline.opening import check_tables, local_directory, open_reader
from heliograph.cli.pipeline.options import check_days
from heliograph.cli.progress import Bar
from heliograph.runtime.errors import StartError


def run_report(options: argparse.Namespace) -> int:
    from heliograph.pipeline.jobs.stats import parse_line

    check_days(options)
    check_tables(options)
    folder = _folder(options)
    try:
        lines = [
            parse_line(text)
            for path in options.stats_log
            for text in path.read_text().splitlines()
            if text.strip()
        ]
    except (OSError, ValueError) as exc:
        raise StartError(f"the statistics cannot be read: {exc}") from exc
    with open_reader(options) as pipeline:
        from heliograph.pipeline.report import page, report

        first = options.from_day or date(1970, 1, 1)
        last = options.to_day or options.from_day or date(9999, 1, 1)
        bar = Bar("collecting tables", "tables")
        first, last = report.days_with_events(pipeline, first, last)
        found = report.collect(pipeline, first, last, time.time(), lines, bar.show)
        bar.end()
        path = page.write(found, folder)
    print(f"{found.notifications} notifications, {found.unaccounted} unaccounted for")
    if found.missing_events:
        print(f"{found.missing_events} events are known to be missing")
    for lag in found.lags:
        print(f"lagging: {lag}")
    for item in found.tables["reconciliation"].records():
        print(f"{item['day']} {item['column']}: {item['pipeline']}, the router {item['router']}")
    print(path)
    if options.open:
        webbrowser.open(path.absolute().as_uri())
    return EXIT_CODES[found.verdict.value]


def _folder(options: argparse.Namespace) -> Path:
    """Return where the report goes. Raises `StartError` now, and not after minutes."""
    folder: Path = options.out or local_directory(options) / "report"
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StartError(f"{folder} cannot be written: name another folder with --out")
    return folder
