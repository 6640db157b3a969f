"""`heliograph pipeline`: account for every notification, from the journals of all parts."""

import argparse
import signal
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from heliograph.cli.arguments import Subparsers, seconds
from heliograph.cli.pipeline import decide, plan
from heliograph.cli.pipeline.ingesting import ingest_all
from heliograph.cli.pipeline.light import run_light
from heliograph.cli.pipeline.opening import acknowledging, check_exists, open_pipeline
from heliograph.cli.pipeline.options import (
    PART,
    add_action,
    add_days,
    add_journal,
    add_kept,
    add_outcomes,
)
from heliograph.cli.pipeline.report import run_report
from heliograph.cli.pipeline.submit import run_submit
from heliograph.cli.pipeline.upkeep import (
    run_backfill,
    run_compact,
    run_expire,
    run_requeue,
    run_retire,
)

if TYPE_CHECKING:
    from heliograph.pipeline.ingesting.ingester import BatchResult

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

DIR has the tables, in the format of Delta Lake: Spark, DuckDB, Trino and pandas read them. They can
be made again from the journals.

exit codes:
  0    done; for once, requeue and report: every notification is accounted for
  1    it failed, and says why; nothing half-done counts
  2    the arguments are wrong
  3    once, requeue, report: notifications are unaccounted for
  4    once, requeue, report: all are accounted for, but for events known to be missing
  5    decide: it stopped, and says why
  6    once, requeue, report: the same as 0, but a router that should write does not
  130  interrupted by Ctrl-C
"""
_RUN = """\
Ingest segments as routers seal them, and run all jobs on their schedule, until SIGTERM or SIGINT.
When it has begun it prints one line on standard output:

  ready DIR

A second process over the same DIR is refused. If it is killed, the next one goes on where it was.
"""
_ONCE = """\
Ingest all waiting segments, bring every table up to date, and count outcomes. The exit code is 0 if
every notification is accounted for; 6 if that is so as far as the journals reach, but a router
that did not stop is silent or its journal is gone; 4 if events are known to be missing; 3 if
notifications are unaccounted for, which are shown.
"""
_OBJECTIVES = """\
Show each service-level objective as of the last account, by provider: the share of notifications
that met it in 30 days, what is left of the error budget, and how fast it is used up. A burn rate of
1 uses it up in exactly 30 days. It needs no Spark. `run`, `once` and `report` take --objective.
"""
_EXPIRE = """\
Remove raw events and rows of the ledger that are older than they are kept. Statistics, and what
became of the notifications of each hour, stay. `run` does it by itself, every hour.
"""
_REQUEUE = """\
Read the segments of all quarantined records again: after a file was repaired, or after an upgrade
that knows a newer schema. What is still wrong returns to quarantine; nothing is counted twice.
"""
_RETIRE = """\
Expect nothing more of a router that will not come back, so that notifications are not waited for.
`status` lists routers by ID. A router that is silent for --retire-after days is retired by itself,
and one that writes again is expected again. Of a router of several processes, ROUTER/BOOT retires
one: the name by which it lags.
"""
_SUBMIT = """\
Print the spark-submit for one of these commands, and run it. What it needs is packed into DIR;
--print only prints, and writes nothing.
"""


def add(commands: Subparsers) -> None:
    group = commands.add_parser(
        PART,
        help="account for every notification, on Spark",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = group.add_subparsers(title="commands", metavar="COMMAND", required=True)
    run = add_action(actions, "run", "stream: ingest segments as they are sealed", run_stream, _RUN)
    add_journal(run)
    add_kept(run)
    run.add_argument(
        "--every",
        type=seconds,
        metavar="SECONDS",
        help="start Spark only when there is something to read, at most this often, and stop it"
        " afterwards (default: it keeps running, and segments are read as they are sealed)",
    )
    run.add_argument("--poll", type=seconds, default=0.1, metavar="SECONDS", help=argparse.SUPPRESS)
    run.add_argument(
        "--metrics", metavar="HOST:PORT", help="serve metrics for Prometheus at /metrics"
    )
    run.add_argument(
        "--account",
        type=seconds,
        default=60.0,
        metavar="SECONDS",
        help="how often all outcomes are counted (%(default)g)",
    )
    decide.add_timer(run)
    once = add_action(actions, "once", "ingest all waiting segments, then exit", run_once, _ONCE)
    add_journal(once)
    add_kept(once)
    decide.add_timer(once, has_timer=False)
    once.add_argument(
        "--upkeep", action="store_true", help="then expire what is older, as `run` does"
    )
    report = add_action(actions, "report", "write a report for a day or a range", run_report)
    add_days(report)
    add_outcomes(report)
    report.add_argument(
        "--out", type=Path, metavar="FOLDER", help="where to write it (default: DIR/report)"
    )
    report.add_argument("--open", action="store_true", help="show it in a browser")
    report.add_argument(
        "--stats-log",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="the daily statistics of a notification router, to compare with",
    )
    status = add_action(
        actions, "status", "show lag, last commit, gaps and verdict; needs no Spark", run_status
    )
    status.add_argument("--journal", action="append", default=[], metavar="PLACE")
    add_action(
        actions, "objectives", "show objectives and error budgets", run_objectives, _OBJECTIVES
    )
    backfill = add_action(
        actions,
        "backfill",
        "recompute the statistics of some days from the raw events",
        run_backfill,
    )
    add_days(backfill, required=True)
    add_action(actions, "compact", "merge the files of all tables, and remove the old", run_compact)
    expire = add_action(
        actions, "expire", "remove old events, and sum up old rows", run_expire, _EXPIRE
    )
    add_kept(expire)
    requeue = add_action(
        actions, "requeue", "read quarantined segments again", run_requeue, _REQUEUE
    )
    add_journal(requeue)
    retire = add_action(actions, "retire", "expect nothing more of a router", run_retire, _RETIRE)
    retire.add_argument("router", metavar="ROUTER", help="its ID, or ROUTER/BOOT: see `status`")
    decide.add(actions)
    plan.add(actions)
    submit = add_action(
        actions, "submit", "run one of these commands on a Spark cluster", run_submit, _SUBMIT
    )
    submit.add_argument("--deploy-mode", choices=("client", "cluster"), default="client")
    submit.add_argument("--print", action="store_true", help="only print the command")
    submit.add_argument("arguments", nargs="+", metavar="ARGUMENT", help="after --")


def run_stream(options: argparse.Namespace) -> int:
    decide.check(options)
    if options.every is not None:
        return run_light(options)
    with open_pipeline(options) as pipeline:
        from heliograph.pipeline.metrics import PipelineCollector, served
        from heliograph.pipeline.schedule import Schedule, Stream

        stop = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
        schedule = Schedule(
            poll=options.poll,
            account=options.account,
            decide=options.decide_every,
            keep_events_days=options.keep_events,
            keep_ledger_days=options.keep_ledger,
        )
        pipeline.ingester.waiting()  # report a wrong place now
        collector = PipelineCollector(options.dir, options.journal)

        def on_batch(batch: "BatchResult") -> None:
            collector.batch_seconds = batch.seconds

        with (
            served(collector, options.metrics) if options.metrics else nullcontext(),
            acknowledging(options, pipeline, streams=True),
        ):
            print(f"ready {options.dir}", flush=True)
            quick, slow = decide.quick_decider(options), decide.slow_decider(options)
            Stream(
                pipeline,
                schedule,
                stop,
                on_batch,
                None if quick is None else quick.run,
                None if slow is None else slow.run,
            ).run()
    return 0


def run_once(options: argparse.Namespace) -> int:
    decide.check(options)
    with open_pipeline(options) as pipeline, acknowledging(options, pipeline):
        code = ingest_all(pipeline)
        decide.decide_once(options, pipeline)
        if options.upkeep:
            from heliograph.pipeline.upkeep import expire

            expire(pipeline, time.time(), options.keep_events, options.keep_ledger)
            pipeline.tables.vacuum()
        return code


def run_status(options: argparse.Namespace) -> int:
    from heliograph.pipeline.status import describe, status

    if not options.journal:
        check_exists(options)
    now = time.time()
    for line in describe(status(options.dir, options.journal, now), now):
        print(line)
    return 0


def run_objectives(options: argparse.Namespace) -> int:
    from heliograph.pipeline.objectives.describing import describe
    from heliograph.pipeline.tables.offsets import read_account

    check_exists(options)
    for line in describe(read_account(options.dir).get("objectives", {})):
        print(line)
    return 0
