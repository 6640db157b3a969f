"""The options that the commands of `heliograph pipeline` share."""

import argparse
import os
import re
from datetime import date
from pathlib import Path

from heliograph.cli import actions as actions_for_all
from heliograph.cli.actions import Run
from heliograph.cli.arguments import MOST_DAYS, Subparsers, seconds
from heliograph.pipeline.objectives.objective import DEFAULTS, Objective, parse_objective
from heliograph.runtime.errors import StartError

PART = "pipeline"
MEMORY = "2g"


def add_action(
    actions: Subparsers,
    name: str,
    help: str,
    run: Run,
    description: str | None = None,
) -> argparse.ArgumentParser:
    parser = actions_for_all.add_action(actions, PART, name, help, run, description)
    for known in parser._actions:
        if known.dest == "dir" and known.help is not None:
            known.help = known.help.replace(
                "the router's directory", "where the tables are: a directory, or a URL"
            )
            known.type = _place
    parser.add_argument(
        "--master",
        default=os.environ.get("HELIOGRAPH_PIPELINE_MASTER", "local[*]"),
        metavar="URL",
        help="where Spark runs (default: $HELIOGRAPH_PIPELINE_MASTER, or this machine)",
    )
    parser.add_argument("--memory", default=MEMORY, help="memory of the Spark driver (%(default)s)")
    parser.add_argument(
        "--conf",
        action="append",
        default=[],
        type=_setting,
        metavar="KEY=VALUE",
        help="a setting of Spark; may be repeated",
    )
    parser.add_argument(
        "--verbose",
        action="store_true",
        help="print the log of Spark here, instead of in DIR/spark.log",
    )
    return parser


def add_journal(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--journal",
        action="append",
        required=True,
        metavar="PLACE",
        help="where routers journal: a directory, or a URL that Spark can read; may be repeated",
    )
    parser.add_argument(
        "--no-acknowledge",
        action="store_true",
        help="do not acknowledge segments to the routers: for a second pipeline, or a trial",
    )
    add_outcomes(parser)


def add_outcomes(parser: argparse.ArgumentParser) -> None:
    """Add the settings of outcomes. Their defaults are those of the last account."""
    parser.add_argument(
        "--push-ttl",
        type=days_of,
        metavar="DAYS",
        help="when routers expire pushes: their [pushes] ttl_days (last value used, at first 3)",
    )
    parser.add_argument(
        "--grace",
        type=seconds,
        metavar="SECONDS",
        help="allowed delay between the journals of two routers (last value used, at first 300)",
    )
    parser.add_argument(
        "--retire-after",
        type=days_of,
        metavar="DAYS",
        help="retire routers that are silent for this long (last value used, at first 7)",
    )
    parser.add_argument(
        "--objective",
        type=_objective,
        action="append",
        metavar="TEXT",
        help="a service-level objective; may be repeated (last ones used, at first "
        + " and ".join(f"'{item.text}'" for item in DEFAULTS).replace("%", "%%")
        + ")",
    )


def add_days(parser: argparse.ArgumentParser, required: bool = False) -> None:
    default = "" if required else " (default: all days)"
    for option, text in (("--from", "the first day"), ("--to", "the last day")):
        parser.add_argument(
            option,
            dest=option.strip("-") + "_day",
            type=_day,
            required=required,
            metavar="YYYY-MM-DD",
            help=f"{text}{default}",
        )


def check_days(options: argparse.Namespace) -> None:
    """Raise `StartError` if the days of `add_days` are no range."""
    first, last = options.from_day, options.to_day
    if first is not None and last is not None and first > last:
        raise StartError(f"--from {first} is after --to {last}")


def _place(text: str) -> Path | str:
    if re.match(r"[a-z][a-z0-9+.-]+:/(?!/)", text):
        raise argparse.ArgumentTypeError(
            f"{text} is neither a URL, as s3://bucket/folder or file:///folder, nor a directory:"
            " write ./ before it if it is one"
        )
    return text if "://" in text else Path(text)


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise argparse.ArgumentTypeError(f"{text} is not KEY=VALUE")
    return key, value


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(f"{text} is not a day such as 2026-01-31") from exc


def add_kept(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--keep-events",
        type=days_of,
        default=14.0,
        metavar="DAYS",
        help="how long to keep raw events (%(default)g)",
    )
    parser.add_argument(
        "--keep-ledger",
        type=days_of,
        default=90.0,
        metavar="DAYS",
        help="how long to keep rows of the ledger; their sums stay (%(default)g)",
    )


def _objective(text: str) -> Objective:
    try:
        return parse_objective(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from exc


def days_of(text: str) -> float:
    try:
        days = float(text)
    except ValueError:
        days = -1.0
    if not 0 <= days <= MOST_DAYS:
        raise argparse.ArgumentTypeError(f"{text} is not a number of days, at most {MOST_DAYS}")
    return days
