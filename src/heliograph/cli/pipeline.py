"""`heliograph pipeline`: account for every notification, from the journals of all parts."""

import argparse
import signal
import subprocess
import threading
import time
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from heliograph.cli.pipeline_options import PART, add_action, add_days, add_journal, add_kept
from heliograph.cli.progress import Bar
from heliograph.runtime.errors import StartError

SUBMITTED = ("run", "once", "report", "backfill", "compact", "expire")
UNACCOUNTED = 3
"""The exit code when notifications are unaccounted for."""

_DESCRIPTION = """\
The pipeline reads the journals that routers, agents and devices write, and accounts for every
notification: a ledger, daily statistics, health and reports. It runs on Spark, on this machine or
on a cluster, in a process of its own; routers do not notice it.
"""
_EXAMPLES = """\
everything that is there now, then a page to look at:
  heliograph pipeline once --journal /var/lib/heliograph/journal
  heliograph pipeline report --open

as a service, beside the routers:
  heliograph pipeline run --journal /var/lib/heliograph/journal

on a cluster, with DIR and the journal where all of its machines see them:
  heliograph pipeline submit --master spark://head:7077 -- once --dir DIR --journal JOURNAL

DIR has the tables: Parquet, readable by anything, and manifest.json, which says which files count.
The journals are the truth: without DIR the tables are made again.
"""
_RUN = """\
Take segments as routers seal them, and run all jobs on their schedule, until SIGTERM or SIGINT.
When it has begun it prints one line on standard output:

  ready DIR

A second process over the same DIR is refused. If it is killed, the next one goes on where it was.
"""
_ONCE = """\
Take all that waits, bring every table up to date, and count fates. Ends with code 3 if
notifications are unaccounted for, and shows them.
"""
_EXPIRE = """\
Remove raw events and rows of the ledger that are older than they are kept. Statistics, and what
became of the notifications of each hour, stay. `run` does it by itself, every hour.
"""
_SUBMIT = """\
Print the spark-submit for one of these commands, and run it. What it needs is packed into DIR;
--print only prints, and writes nothing.
"""


def add(commands: Any) -> None:
    group = commands.add_parser(
        PART,
        help="account for every notification, on Spark",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = group.add_subparsers(title="commands", metavar="COMMAND", required=True)
    run = add_action(actions, "run", "stream: take segments as they are sealed", run_stream, _RUN)
    add_journal(run)
    add_kept(run)
    run.add_argument("--poll", type=float, default=0.1, metavar="SECONDS", help=argparse.SUPPRESS)
    run.add_argument(
        "--account",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="how often all fates are counted (%(default)g)",
    )
    once = add_action(actions, "once", "take all that waits, and end", run_once, _ONCE)
    add_journal(once)
    report = add_action(actions, "report", "write a report for a day or a range", run_report)
    add_days(report)
    report.add_argument("--out", type=Path, metavar="FOLDER", help="(default: DIR/report)")
    report.add_argument("--open", action="store_true", help="show it in a browser")
    report.add_argument(
        "--stats-log",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="the daily statistics of a notification router, to compare with",
    )
    status = add_action(actions, "status", "tell how far it is; needs no Spark", run_status)
    status.add_argument("--journal", action="append", default=[], metavar="PLACE")
    backfill = add_action(
        actions,
        "backfill",
        "make statistics of some days again, from the raw events",
        run_backfill,
    )
    add_days(backfill, required=True)
    add_action(actions, "compact", "merge the files of all tables, and remove the old", run_compact)
    expire = add_action(
        actions, "expire", "remove old events, and sum up old rows", run_expire, _EXPIRE
    )
    add_kept(expire)
    submit = add_action(
        actions, "submit", "run one of these commands on a Spark cluster", run_submit, _SUBMIT
    )
    submit.add_argument("--deploy-mode", choices=("client", "cluster"), default="client")
    submit.add_argument("--print", action="store_true", help="only print the command")
    submit.add_argument("arguments", nargs="+", metavar="ARGUMENT", help="after --")


def run_stream(options: argparse.Namespace) -> int:
    with _pipeline(options) as pipeline:
        from heliograph.pipeline.schedule import Schedule, Stream

        stop = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
        schedule = Schedule(
            poll=options.poll,
            account=options.account,
            keep_events_days=options.keep_events,
            keep_ledger_days=options.keep_ledger,
        )
        pipeline.waiting()  # a wrong place is said now
        print(f"ready {options.dir}", flush=True)
        Stream(pipeline, schedule, stop).run()
    return 0


def run_once(options: argparse.Namespace) -> int:
    with _pipeline(options) as pipeline:
        from heliograph.pipeline.schedule import note_account, once

        bar = Bar("taking segments")
        taken = once(pipeline, bar.show)
        bar.end()
        events = sum(item.events for item in taken)
        twice = sum(item.duplicates for item in taken)
        wrong = sum(item.quarantined for item in taken)
        print(f"{events} events in {sum(item.segments for item in taken)} segments")
        if twice:
            print(f"{twice} were there twice and count once")
        if wrong:
            print(f"{wrong} are in quarantine")
        account = pipeline.account()
        note_account(pipeline, account)
        for fate, count in account.fates.items():
            print(f"{fate:<14} {count}")
        if not account.is_complete:
            return UNACCOUNTED
        print("every notification is accounted for")
    return 0


def run_report(options: argparse.Namespace) -> int:
    from heliograph.pipeline.stats import parse_line
    from heliograph.pipeline.tables import read_manifest

    if not read_manifest(options.dir).version:
        raise StartError(
            f"there are no tables in {options.dir} yet: run `heliograph pipeline once`"
        )
    try:
        lines = [
            parse_line(text)
            for path in options.stats_log
            for text in path.read_text().splitlines()
            if text.strip()
        ]
    except (OSError, ValueError) as exc:
        raise StartError(f"the statistics cannot be read: {exc}") from exc
    with _reader(options) as pipeline:
        from heliograph.pipeline import page, report

        first = options.from_day or date(1970, 1, 1)
        last = options.to_day or options.from_day or date(9999, 1, 1)
        first, last = report.days_with_events(pipeline, first, last)
        found = report.collect(pipeline, first, last, time.time(), lines)
        path = page.write(found, options.out or options.dir / "report")
    print(f"{found.notifications} notifications, {found.unaccounted} unaccounted for")
    for item in found.tables["reconciliation"].records():
        print(f"{item['day']} {item['column']}: {item['pipeline']}, the router {item['router']}")
    print(path)
    if options.open:
        webbrowser.open(path.absolute().as_uri())
    return UNACCOUNTED if found.unaccounted else 0


def run_status(options: argparse.Namespace) -> int:
    from heliograph.pipeline.status import describe, status

    now = time.time()
    for line in describe(status(options.dir, options.journal, now), now):
        print(line)
    return 0


def run_backfill(options: argparse.Namespace) -> int:
    with _pipeline(options) as pipeline:
        from heliograph.pipeline.upkeep import backfill

        days = (options.to_day - options.from_day).days + 1
        if days < 1:
            raise StartError("--from is after --to")
        bar = Bar("making statistics")
        for number in range(days):
            backfill(pipeline, options.from_day + timedelta(days=number))
            bar.show(number + 1, days)
        bar.end()
    return 0


def run_compact(options: argparse.Namespace) -> int:
    with _pipeline(options) as pipeline:
        from heliograph.pipeline.upkeep import compact

        pipeline.update_ledger()
        pipeline.update_stats()
        replaced = compact(pipeline, everything=True)
        removed = pipeline.tables.vacuum(time.time())
        print(f"{replaced} files merged, {removed} removed")
    return 0


def run_expire(options: argparse.Namespace) -> int:
    with _pipeline(options) as pipeline:
        from heliograph.pipeline.upkeep import expire

        replaced = expire(pipeline, time.time(), options.keep_events, options.keep_ledger)
        removed = pipeline.tables.vacuum(time.time())
        print(f"{replaced} files count no more, {removed} removed")
    return 0


def run_submit(options: argparse.Namespace) -> int:
    from heliograph.pipeline import submit

    arguments = [*options.arguments, "--master", options.master]
    _check_submitted(arguments)
    words = submit.command(options.master, arguments, options.dir, options.deploy_mode)
    if not options.print:
        submit.pack(options.dir, options.deploy_mode)
    print(submit.shown(words), flush=True)
    if options.print:
        return 0
    return subprocess.run(words, env=submit.environment()).returncode  # noqa: S603


def _check_submitted(arguments: list[str]) -> None:
    """Here, rather than minutes later on the cluster. Ends the process, as argparse does."""
    if arguments[0] not in SUBMITTED:
        raise StartError(
            f"{arguments[0]}: after -- comes one of {', '.join(SUBMITTED)}, and its options"
        )
    from heliograph.cli.main import parser

    parser(PART).parse_args([PART, *arguments])


@contextmanager
def _pipeline(options: argparse.Namespace) -> Iterator[Any]:
    """To write: the lock first, since Spark takes seconds to start."""
    from heliograph.pipeline.tables import open_tables

    with open_tables(options.dir) as tables, _session(options) as spark:
        yield _make(spark, tables, options)


@contextmanager
def _reader(options: argparse.Namespace) -> Iterator[Any]:
    """To read, also while another process writes."""
    from heliograph.pipeline.tables import Tables, read_manifest

    with _session(options) as spark:
        yield _make(spark, Tables(options.dir, read_manifest(options.dir)), options)


@contextmanager
def _session(options: argparse.Namespace) -> Iterator[Any]:
    from heliograph.pipeline.session import open_session

    for journal in getattr(options, "journal", ()):
        if "://" not in journal and not Path(journal).is_dir():
            raise StartError(
                f"there is no journal at {journal}: name the directory in which routers journal"
            )
    settings = {"spark.driver.memory": options.memory, **dict(options.conf)}
    log = None if options.verbose else options.dir / "spark.log"
    spark = open_session(options.master, settings=settings, log=log)
    from heliograph.pipeline.runner import FAILURES

    try:
        yield spark
    except FAILURES as exc:
        first = next((line.strip() for line in str(exc).splitlines() if line.strip()), "")
        more = "" if log is None else f"{log} has what Spark said\n"
        raise StartError(
            f"Spark failed: {first}\n{more}If a table in {options.dir} is damaged: the journals are"
            " the truth, so move that directory away and the tables are made again"
        ) from exc
    finally:
        spark.stop()


def _make(spark: Any, tables: Any, options: argparse.Namespace) -> Any:
    from heliograph.pipeline.fates import FateSettings
    from heliograph.pipeline.runner import Pipeline, RunSettings

    settings = RunSettings(tuple(getattr(options, "journal", ())))
    if hasattr(options, "debt_ttl"):
        fates = FateSettings(options.debt_ttl * 86_400, options.grace)
        settings = replace(settings, fates=fates)
    return Pipeline(spark, tables, settings)
