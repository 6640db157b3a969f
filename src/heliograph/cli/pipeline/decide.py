"""`heliograph pipeline decide` and `signer`: decide on actions for routers."""

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from heliograph.actions.signing import signing_key
from heliograph.cli.arguments import Subparsers, percent, seconds
from heliograph.cli.pipeline.opening import local_directory, open_reader
from heliograph.cli.pipeline.options import add_action, add_outcomes, days_of
from heliograph.runtime.errors import StartError
from heliograph.wire.primitives import b64encode

if TYPE_CHECKING:
    from heliograph.pipeline.decisions.jobs import Decider
    from heliograph.pipeline.runner import Pipeline

STOPPED = 5
"""The exit code when a job decided on nothing because of its cap or of missing data."""

_DECIDE = """\
Compare what messaging and notification routers believe, and what happens now with what is usual,
and decide what the routers should do. It prints what it found, and writes nothing unless you say
--write. Routers apply what you tell them to, see `heliograph ntf actions`. The exit code is 5 if a
job stopped: because it would have decided on too much, or because what it needs is not complete.
`run` does the same from a timer.
"""
ANOMALIES = "anomalies"
_JOBS = {
    ANOMALIES: "look for floods, waves of registrations, and providers and routers that fail, in"
    " the newest 40 seconds",
    "foreign": "look for losses at messaging routers that write no snapshots, in the events",
    "dead-tokens": "look for tokens whose owners are gone: slow, verify and then remove them",
    "best-hours": "move daily wake-ups to the hours at which owners use their phones",
}
"""Jobs that read the tables, with their flags' help: each a module of `pipeline.decisions`."""
_AFTER = (
    ("dead-after", 21.0, "without a sign of a token's owner until it is slowed"),
    ("verify-after", 3.0, "from slowing a token to its verification push"),
    ("remove-after", 7.0, "that an owner has to answer it before the token is removed"),
)
_SIGNER = """\
Print the public key with which this pipeline signs actions: [actions] signer of the routers.
"""


def add(actions: Subparsers) -> None:
    decide = add_action(
        actions, "decide", "decide on actions for routers, see `ntf actions`", run_decide, _DECIDE
    )
    _add_jobs(decide, _JOBS)
    decide.add_argument("--write", action="store_true", help="write the actions to DIR/actions")
    add_outcomes(decide)
    text = "print the key that routers know this pipeline by"
    add_action(actions, "signer", text, run_signer, _SIGNER)


def add_timer(parser: argparse.ArgumentParser, *, has_timer: bool = True) -> None:
    """Add the options of jobs that `run` and `once` do by themselves."""
    _add_jobs(parser, {name: text for name, text in _JOBS.items() if name != ANOMALIES})
    if has_timer:
        parser.add_argument(
            "--decide-every",
            type=seconds,
            default=10.0,
            metavar="SECONDS",
            help="how often to look for anomalies (%(default)g); other jobs run every hour",
        )
    parser.add_argument(
        "--no-anomalies", action="store_true", help="do not look for floods and failures"
    )
    parser.add_argument(
        "--decide-write",
        action="store_true",
        help="write the actions that were decided on to DIR/actions; else they are only logged",
    )


def _add_jobs(parser: argparse.ArgumentParser, jobs: dict[str, str]) -> None:
    parser.add_argument(
        "--snapshots",
        type=Path,
        metavar="PATH",
        help="where routers write snapshots: compare subscriptions of pairs of routers",
    )
    for name, text in jobs.items():
        parser.add_argument(f"--{name}", action="store_true", help=text)
    parser.add_argument(
        "--max-percent",
        type=percent,
        default=5.0,
        metavar="PERCENT",
        help="decide on nothing if more of a router's subjects were concerned (%(default)g)",
    )
    parser.add_argument(
        "--valid",
        type=float,
        default=24.0,
        metavar="HOURS",
        help="how long actions are valid, at most 168 (%(default)g); those of anomalies: one hour",
    )
    for name, days, text in _AFTER:
        parser.add_argument(
            f"--{name}", type=days_of, default=days, metavar="DAYS", help=f"{text} (%(default)g)"
        )


def check(options: argparse.Namespace) -> None:
    """Raise `StartError` if the options of jobs are wrong."""
    if options.snapshots is not None and not options.snapshots.is_dir():
        raise StartError(f"there are no snapshots at {options.snapshots}: see [snapshots] path")
    if not 0 < options.valid <= 168:
        raise StartError("--valid: must be more than 0 and at most 168 hours")


def once_arguments(options: argparse.Namespace) -> list[str]:
    """Return the arguments with which `once` runs the same jobs."""
    words = ["--max-percent", str(options.max_percent), "--valid", str(options.valid)]
    for name, *_ in _AFTER:
        words += [f"--{name}", str(getattr(options, name.replace("-", "_")))]
    words += ["--snapshots", str(options.snapshots)] if options.snapshots is not None else []
    flags = [*(name for name in _JOBS if name != ANOMALIES), "no-anomalies", "decide-write"]
    return words + [f"--{name}" for name in flags if getattr(options, name.replace("-", "_"))]


def _chosen(options: argparse.Namespace) -> tuple[str, ...]:
    return tuple(name for name in _JOBS if getattr(options, name.replace("-", "_"), False))


def decider(
    options: argparse.Namespace, jobs: tuple[str, ...], *, snapshots: bool, write: bool
) -> "Decider":
    """Return a `Decider` with the settings of the options."""
    from heliograph.pipeline.decisions.deciding import DAY, DecisionSettings
    from heliograph.pipeline.decisions.jobs import Decider

    settings = DecisionSettings(
        options.max_percent,
        options.valid * 3600,
        dead_after=options.dead_after * DAY,
        verify_after=options.verify_after * DAY,
        remove_after=options.remove_after * DAY,
    )
    return Decider(
        options.dir,
        jobs,
        settings,
        options.snapshots if snapshots else None,
        signing_key(local_directory(options)) if write else None,
    )


def quick_decider(options: argparse.Namespace) -> "Decider | None":
    """Return the decider that `run` calls every few seconds, None if there is none."""
    if options.no_anomalies:
        return None
    return decider(options, (ANOMALIES,), snapshots=False, write=options.decide_write)


def slow_decider(options: argparse.Namespace) -> "Decider | None":
    """Return what `run` does every hour; None if nothing was chosen."""
    chosen = _chosen(options)
    if not chosen and options.snapshots is None:
        return None
    return decider(options, chosen, snapshots=True, write=options.decide_write)


def decide_once(options: argparse.Namespace, pipeline: "Pipeline") -> None:
    """Run all jobs that were chosen, and log what they found."""
    for chosen in (quick_decider(options), slow_decider(options)):
        if chosen is not None:
            chosen.run(pipeline)


def run_decide(options: argparse.Namespace) -> int:
    chosen = _chosen(options)
    if options.snapshots is None and not chosen:
        flags = ", ".join(f"--{name}" for name in _JOBS)
        raise StartError(f"name a job: --snapshots PATH, {flags}, or several")
    check(options)
    with open_reader(options) as pipeline:
        made = decider(options, chosen, snapshots=True, write=options.write)
        run = made.decide(pipeline, time.time())
    for line in run.found:
        print(line)
    for line in run.stopped:
        print(f"stopped: {line}")
    if run.written is None:
        print(f"{len(run.decisions)} actions, which were not written: --write writes them")
    else:
        before = len(run.decisions) - run.written
        print(f"{run.written} actions written, {before} were there already")
    return STOPPED if run.stopped else 0


def run_signer(options: argparse.Namespace) -> int:
    print(b64encode(signing_key(local_directory(options)).public))
    return 0
