"""`heliograph pipeline decide` and `signer`: decide on actions for routers."""

import argparse
import time
from pathlib import Path

from heliograph.actions.signing import signing_key
from heliograph.cli.arguments import Subparsers
from heliograph.cli.pipeline.opening import local_directory, open_reader
from heliograph.cli.pipeline.options import add_action, add_outcomes
from heliograph.runtime.errors import StartError
from heliograph.wire.primitives import b64encode

STOPPED = 5
"""The exit code when a job decided on nothing because of its cap or of missing data."""

_DECIDE = """\
Compare what messaging and notification routers believe, and decide what the routers should repair.
It prints what it found, and writes nothing unless you say --write. Routers apply what you tell them
to, see `heliograph ntf actions`. The exit code is 5 if a job stopped: because it would have decided
on too much, or because what it needs is not complete.
"""
_SIGNER = """\
Print the public key with which this pipeline signs actions: [actions] signer of the routers.
"""


def add(actions: Subparsers) -> None:
    decide = add_action(
        actions, "decide", "decide on actions for routers, see `ntf actions`", run_decide, _DECIDE
    )
    decide.add_argument(
        "--snapshots",
        type=Path,
        metavar="PATH",
        help="where routers write snapshots: compare subscriptions of pairs of routers",
    )
    decide.add_argument(
        "--foreign",
        action="store_true",
        help="look for losses at messaging routers that write no snapshots, in the events",
    )
    decide.add_argument("--write", action="store_true", help="write the actions to DIR/actions")
    decide.add_argument(
        "--max-percent",
        type=float,
        default=5.0,
        metavar="PERCENT",
        help="stop if more of a router's subscriptions were concerned (%(default)g)",
    )
    decide.add_argument(
        "--valid",
        type=float,
        default=24.0,
        metavar="HOURS",
        help="how long actions are valid, at most 168 (%(default)g)",
    )
    add_outcomes(decide)
    text = "print the key that routers know this pipeline by"
    add_action(actions, "signer", text, run_signer, _SIGNER)


def run_decide(options: argparse.Namespace) -> int:
    if options.snapshots is None and not options.foreign:
        raise StartError("name --snapshots PATH, or --foreign, or both")
    if options.snapshots is not None and not options.snapshots.is_dir():
        raise StartError(f"there are no snapshots at {options.snapshots}: see [snapshots] path")
    if not 0 < options.valid <= 168:
        raise StartError("--valid: must be more than 0 and at most 168 hours")
    with open_reader(options) as pipeline:
        from heliograph.actions.table import append_actions, expire_actions
        from heliograph.pipeline.decisions.deciding import (
            Decisions,
            DecisionSettings,
            decide_foreign,
            reconcile_snapshots,
            sign_all,
        )

        settings = DecisionSettings(options.max_percent, options.valid * 3600)
        now = time.time()
        results: list[Decisions] = []
        if options.snapshots is not None:
            results.append(reconcile_snapshots(pipeline.spark, options.snapshots, settings, now))
        if options.foreign:
            results.append(decide_foreign(pipeline, settings))
    stopped = [line for result in results for line in result.stopped]
    for line in [line for result in results for line in result.found]:
        print(line)
    for line in stopped:
        print(f"stopped: {line}")
    decisions = [item for result in results for item in result.decisions]
    if not options.write:
        print(f"{len(decisions)} actions, which were not written: --write writes them")
        return STOPPED if stopped else 0
    signed = sign_all(decisions, signing_key(local_directory(options)), settings, now)
    written = append_actions(options.dir, signed)
    expire_actions(options.dir, int((now - 7 * 86_400) * 1e6))
    print(f"{written} actions written, {len(decisions) - written} were there already")
    return STOPPED if stopped else 0


def run_signer(options: argparse.Namespace) -> int:
    print(b64encode(signing_key(local_directory(options)).public))
    return 0
