"""`heliograph ntf actions`: see, apply and undo what the pipeline decided on."""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from heliograph.actions.contract import Action, ActionKind, Refusal
from heliograph.actions.table import read_actions
from heliograph.cli.actions import add_action
from heliograph.cli.arguments import Subparsers
from heliograph.cli.transfer import opened
from heliograph.db.dialects import Transaction
from heliograph.journal.identity import journal_identity
from heliograph.ntf.actions import requests
from heliograph.ntf.actions.judging import Refused, judge
from heliograph.ntf.actions.opening import action_settings
from heliograph.ntf.actions.previewing import preview
from heliograph.ntf.config import NtfConfig
from heliograph.ntf.store.actions.records import KnownAction, known, latest
from heliograph.runtime.errors import StartError
from heliograph.runtime.process import running_address

PART = "ntf"
WAIT_SECONDS = 60.0
SHOWN = 10_000
"""Actions that were applied last, and are listed if the table does not have them any more."""
PER_REQUEST = 10_000

Load = Callable[[argparse.Namespace], NtfConfig]

_DESCRIPTION = """\
The data pipeline decides on actions, such as subscribing again to a queue whose subscription was
lost, and writes them to a table. A router applies those that you name here, and by itself those
whose kind [actions] automatic names. It refuses what is not for it, not signed, not valid any more,
or contradicts what it knows. See `list`, then `apply --dry-run`, then `apply`.
"""


@dataclass(frozen=True, slots=True)
class _Found:
    """The actions of one router, valid or refused, and those that were applied before."""

    actions: dict[str, Action]
    refused: dict[str, Refused]
    known: dict[str, KnownAction]

    def state(self, action_id: str) -> str:
        if action_id in self.known:
            return self.known[action_id].state.value
        if action_id in self.refused:
            return f"refused: {self.refused[action_id].reason.value}"
        return "waiting"


def add(commands: Subparsers, load: Load) -> None:
    group = commands.add_parser(
        "actions",
        help="see, apply and undo what the pipeline decided on",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = group.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(
        name: str, help: str, run: Callable[[argparse.Namespace, NtfConfig], int]
    ) -> argparse.ArgumentParser:
        return add_action(actions, PART, name, help, lambda options: run(options, load(options)))

    listing = command("list", "list all actions of this router, and their state", run_list)
    listing.add_argument("--json", action="store_true", help="print JSON, an action a line")
    show = command("show", "show one action: its evidence, and what it would do", run_show)
    show.add_argument("action_id", metavar="ID")
    apply = command("apply", "apply waiting actions", run_apply)
    apply.add_argument("action_ids", nargs="*", metavar="ID")
    kinds = tuple(kind.value for kind in ActionKind)
    apply.add_argument("--kind", choices=kinds, help="all waiting actions of a kind")
    apply.add_argument("--all", action="store_true", help="all waiting actions")
    apply.add_argument(
        "--dry-run", action="store_true", help="only print what would become of each"
    )
    undo = command("undo", "undo applied actions, where that is possible", run_undo)
    undo.add_argument("action_ids", nargs="+", metavar="ID")
    for parser in (apply, undo):
        parser.add_argument(
            "--wait",
            type=float,
            default=WAIT_SECONDS,
            metavar="SECONDS",
            help="how long to wait for the router (%(default)g)",
        )


def _find(options: argparse.Namespace, config: NtfConfig) -> _Found:
    settings = action_settings(config.actions, config.journal, options.dir)
    if settings.place is None:
        raise StartError("there is no table of actions: see [actions] table")
    identity = journal_identity(options.dir, config.journal.key_epoch)
    rows = read_actions(settings.place)
    judged = judge(rows, identity.router, settings.signer, int(time.time() * 1e6))
    actions = {item.action_id: item for item in judged.actions}
    refused = {item.action_id: item for item in judged.refused}
    with opened(config.store_url(options.dir)) as dialect:
        tx = Transaction(dialect)
        applied = (*latest(tx, SHOWN), *known(tx, [*actions, *refused]).values())
    return _Found(actions, refused, {item.action_id: item for item in applied})


def run_list(options: argparse.Namespace, config: NtfConfig) -> int:
    found = _find(options, config)
    foreign = [i for i in found.refused.values() if i.reason is Refusal.FOREIGN]
    ids = dict.fromkeys((*found.actions, *found.refused, *found.known))
    for action_id in ids:
        refused = found.refused.get(action_id)
        if refused in foreign:
            continue
        action, before = found.actions.get(action_id), found.known.get(action_id)
        kind = action.kind.value if action else before.kind.value if before else ""
        kind = kind or (refused.kind if refused else "")
        line = {"action": action_id, "kind": kind, "state": found.state(action_id)}
        if options.json:
            print(json.dumps(line | ({"rule": action.rule} if action else {})))
        else:
            print(f"{action_id}  {kind:<16} {line['state']}")
    if foreign and not options.json:
        print(f"{len(foreign)} actions are for other routers")
    return 0


def run_show(options: argparse.Namespace, config: NtfConfig) -> int:
    found = _find(options, config)
    action = found.actions.get(options.action_id)
    if action is None:
        if options.action_id not in found.refused and options.action_id not in found.known:
            raise StartError(
                f"{options.action_id}: there is no such action: see `heliograph ntf actions list`"
            )
        print(f"state       {found.state(options.action_id)}")
        return 0
    print(f"kind        {action.kind.value}")
    print(f"state       {found.state(action.action_id)}")
    print(f"rule        {action.rule}")
    print(f"subject     {action.kind.subject} {action.subject}")
    print(f"decided     {_utc(action.decided_at)}")
    print(f"valid until {_utc(action.valid_until)}")
    for name, value in json.loads(action.evidence).items():
        print(f"evidence    {_printable(name)}: {_printable(value)}")
    if action.action_id not in found.known:
        [result] = _preview(options, config, [action]).values()
        print(f"if applied  {result}")
    return 0


def _printable(value: object) -> str:
    """Return text without what a terminal would obey: the table may be anybody's."""
    text = str(value)
    return text if text.isascii() and text.isprintable() else json.dumps(text)


def run_apply(options: argparse.Namespace, config: NtfConfig) -> int:
    if bool(options.action_ids) + (options.kind is not None) + options.all != 1:
        raise StartError("name actions, or --kind KIND, or --all: one of them")
    found = _find(options, config)
    waiting = [item for item in found.actions.values() if item.action_id not in found.known]
    if options.action_ids:
        unknown = [i for i in options.action_ids if i not in found.actions]
        if unknown:
            state = found.state(unknown[0]) if unknown[0] in found.refused else "no such action"
            raise StartError(f"{unknown[0]}: {state}")
        waiting = [item for item in waiting if item.action_id in options.action_ids]
    elif options.kind is not None:
        waiting = [item for item in waiting if item.kind.value == options.kind]
    if options.dry_run:
        _print_results(_preview(options, config, waiting))
        print("Nothing was changed.")
        return 0
    return _request(options, tuple(item.action_id for item in waiting), undo=False)


def run_undo(options: argparse.Namespace, config: NtfConfig) -> int:
    return _request(options, tuple(options.action_ids), undo=True)


def _preview(
    options: argparse.Namespace, config: NtfConfig, actions: list[Action]
) -> dict[str, str]:
    caps = {kind: cap.daily for kind, cap in config.actions.caps().items()}
    identity = journal_identity(options.dir, config.journal.key_epoch)
    with opened(config.store_url(options.dir)) as dialect:
        return preview(Transaction(dialect), actions, identity, caps, int(time.time() * 1000))


def _request(options: argparse.Namespace, action_ids: tuple[str, ...], *, undo: bool) -> int:
    """Have the router do it: it alone writes to its store."""
    if not action_ids:
        print("There is nothing to do.")
        return 0
    directory: Path = options.dir
    is_running = running_address(directory) is not None
    parts = [action_ids[at : at + PER_REQUEST] for at in range(0, len(action_ids), PER_REQUEST)]
    names = [requests.submit(directory, part, undo=undo) for part in parts]
    if not is_running:
        print("The router does not run: it will do so when it starts.")
        return 0
    results: dict[str, str] = {}
    for name in names:
        found = requests.wait_for_answer(directory, name, options.wait)
        if found is None:
            raise StartError(
                f"the router did not answer in {options.wait:g} s: it may still do so, see"
                " `heliograph ntf actions list`. Does its [actions] name a table?"
            )
        _print_results(found)
        results |= found
    wanted = ("undone", "undone_before") if undo else ("applied", "applied_before")
    return 0 if all(results.get(item) in wanted for item in action_ids) else 2


def _print_results(results: dict[str, str]) -> None:
    for action_id, result in results.items():
        print(f"{action_id}  {result}")


def _utc(microseconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(microseconds / 1e6))
