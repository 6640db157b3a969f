"""`heliograph fleet`: wake many phones, so that their apps check for messages."""

import argparse
import json
import re
import time
from collections.abc import Sequence

from heliograph.actions.contract import (
    SECOND,
    Action,
    ActionKind,
    MalformedAction,
    decode_action,
    new_action,
)
from heliograph.actions.signing import signing_key
from heliograph.actions.table import append_actions, expire_actions, read_actions
from heliograph.actions.wakes import (
    CONTROLS,
    expire_members,
    new_wake_id,
    write_members,
)
from heliograph.cli.arguments import Subparsers, percent
from heliograph.cli.pipeline.decide import STOPPED
from heliograph.cli.pipeline.opening import (
    check_exists,
    check_tables,
    local_directory,
    open_reader,
)
from heliograph.cli.pipeline.options import add_action, add_outcomes
from heliograph.runtime.errors import StartError

_DESCRIPTION = """\
Wake many phones at once, for example after a messaging router moved or an outage: each gets one
push, so that its app checks for messages. Tokens are selected in the pipeline's tables; routers
send the pushes at a rate, after you have applied the action with `heliograph ntf actions apply
--kind wake_fleet`, or by themselves if [actions] automatic names the kinds wake_fleet and
control_wake.
"""
_WAKE = """\
Select tokens, and plan to wake them. It prints the plan and writes nothing unless you say --write.

  heliograph fleet wake --rate 2000/s \\
    --where "smp_host = 'smp1.example.org' and last_accepted < now() - interval 1 day"

The condition may use these columns; times are in UTC. The journal knows hosts of messaging routers
only if they are your own ([subscriptions] own_domains), and has no name of others:

{columns}

The exit code is 5 if there are more tokens than --max-percent allows, or if the journals are not
complete.
"""
_COLUMNS = """\
  router         the notification router's ID in the journal
  provider       as apns_prod
  smp_host       host of an own messaging router with subscriptions of the token
  first_event    time of the token's first known event
  last_seen      when its owner last sent a command, to the day
  last_notified  when a notification for it was last stored
  last_accepted  when the provider last accepted a push
  last_woken     when the provider last accepted a wake-up"""
"""Those of `heliograph.pipeline.fleet.selecting`, which needs Spark."""
_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?)/(s|min|h)")
_SECONDS = {"s": 1, "min": 60, "h": 3600}


def add(commands: Subparsers) -> None:
    group = commands.add_parser(
        "fleet",
        help="wake many phones after a move or an outage",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = group.add_subparsers(title="commands", metavar="COMMAND", required=True)
    wake = add_action(
        actions,
        "wake",
        "select tokens, and wake them at a rate",
        run_wake,
        _WAKE.format(columns=_COLUMNS),
    )
    wake.add_argument("--where", required=True, metavar="CONDITION", help="which tokens, in SQL")
    wake.add_argument(
        "--rate",
        required=True,
        type=_rate,
        metavar="NUMBER/s",
        help="pushes of all routers together: NUMBER/s, NUMBER/min or NUMBER/h",
    )
    how = wake.add_mutually_exclusive_group()
    how.add_argument("--dry-run", action="store_true", help="only print the plan: the default")
    how.add_argument("--write", action="store_true", help="write the wake, for routers to apply")
    wake.add_argument(
        "--max-percent",
        type=percent,
        default=5.0,
        metavar="PERCENT",
        help="stop if more of a router's tokens were selected (%(default)g)",
    )
    wake.add_argument(
        "--despite-gaps",
        action="store_true",
        help="also if events are missing: some tokens may then be selected wrongly, or not",
    )
    wake.add_argument(
        "--valid",
        type=float,
        default=24.0,
        metavar="HOURS",
        help="how long routers may begin with it, at most 168 (%(default)g)",
    )
    add_outcomes(wake)
    status = add_action(actions, "status", "list wakes, or show how far one is", run_status)
    status.add_argument("wake", nargs="?", metavar="ID")
    for word in CONTROLS:
        control = add_action(actions, word, f"{word} a wake", run_control)
        control.add_argument("wake", metavar="ID")
        control.set_defaults(word=word)


def run_wake(options: argparse.Namespace) -> int:
    if not 0 < options.valid <= 168:
        raise StartError("--valid: must be more than 0 and at most 168 hours")
    check_tables(options)
    with open_reader(options) as pipeline:
        from heliograph.pipeline.decisions.deciding import (
            DecisionSettings,
            incomplete,
            sign_all,
        )
        from heliograph.pipeline.fleet.planning import plan_wake
        from heliograph.pipeline.fleet.selecting import known_hosts, select_tokens

        settings = DecisionSettings(options.max_percent, options.valid * 3600)
        tokens = pipeline.tokens()
        selected, everyone = select_tokens(tokens, options.where)
        wake = new_wake_id()
        plan = plan_wake(selected, everyone, wake, options.where, options.rate, settings)
        if not options.despite_gaps:
            plan.stopped += incomplete(pipeline)
        hosts = [] if plan.shares else known_hosts(tokens)
    for share in plan.shares:
        print(
            f"{share.router}: {share.tokens} of {share.population} tokens, {share.rate:g} a second,"
            f" {_duration(share.seconds)}"
        )
    for line in plan.stopped:
        print(f"stopped: {line}")
    if not plan.shares:
        own = ", ".join(hosts) or "none"
        print(f"No token meets the condition. Own messaging routers that are known: {own}")
    if plan.stopped or not plan.shares:
        return STOPPED if plan.stopped else 0
    if not options.write:
        print("Nothing was written: --write writes the wake.")
        return 0
    now = time.time()
    signed = sign_all(plan.decisions(), signing_key(local_directory(options)), settings, now)
    expire_actions(options.dir, int((now - 7 * 86_400) * 1e6))
    expire_members(options.dir, {item.subject for item in _wakes(options)})
    assert plan.members is not None  # noqa: S101  nothing stopped
    write_members(options.dir, plan.members)
    append_actions(options.dir, signed)
    print(
        f"wake {wake}: routers begin when you run `heliograph ntf actions apply --kind wake_fleet`"
    )
    return 0


def run_status(options: argparse.Namespace) -> int:
    check_exists(options)
    found = _wakes(options)
    if options.wake is None:
        for item in sorted(found, key=lambda item: item.decided_at):
            tokens = json.loads(item.evidence).get("tokens")
            tokens = tokens if isinstance(tokens, int) else "?"  # not text of anybody
            at = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(item.decided_at / 1e6))
            print(f"{item.subject}  {at}  {item.router}  {tokens} tokens")
        if not found:
            print("There are no wakes.")
        return 0
    _require(found, options.wake)
    with open_reader(options) as pipeline:
        from heliograph.pipeline.fleet.progress import read_progress

        progress = read_progress(pipeline, options.dir, options.wake)
    for line in progress:
        print(
            f"{line.router}: {line.status}, {line.woken} of {line.tokens} tokens woken,"
            f" {line.accepted} accepted by the provider, {line.returned} owners seen since"
        )
    return 0


def run_control(options: argparse.Namespace) -> int:
    wakes = _require(_wakes(options), options.wake)
    signer = signing_key(local_directory(options))
    now = int(time.time() * SECOND)
    evidence = {"do": options.word, "at": now}
    append_actions(
        options.dir,
        [
            new_action(
                router,
                ActionKind.CONTROL_WAKE,
                options.wake,
                evidence,
                "wake/1",
                now,
                now + 86_400 * SECOND,
                signer,
            )
            for router in sorted({item.router for item in wakes})
        ],
    )
    print(
        f"{options.word} {options.wake}: routers do so by themselves if [actions] automatic names"
        " control_wake, else with `heliograph ntf actions apply --kind control_wake`"
    )
    return 0


def _wakes(options: argparse.Namespace) -> list[Action]:
    """Return the actions that begin wakes."""
    found = []
    for row in read_actions(options.dir):
        try:
            action = decode_action(row)
        except MalformedAction:
            continue
        if action.kind is ActionKind.WAKE_FLEET:
            found.append(action)
    return found


def _require(found: Sequence[Action], wake: str) -> list[Action]:
    own = [item for item in found if item.subject == wake]
    if not own:
        raise StartError(f"there is no wake {wake}: see `heliograph fleet status`")
    return own


def _rate(text: str) -> float:
    match = _RATE.fullmatch(text)
    rate = float(match[1]) / _SECONDS[match[2]] if match else 0.0
    if not rate:
        raise argparse.ArgumentTypeError(f"{text}: must be as 2000/s, 500/min or 1000/h")
    return rate


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
