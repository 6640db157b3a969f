"""`heliograph journal`: look into the events that routers write."""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from heliograph.cli.actions import reporting
from heliograph.journal.schema import KINDS, violations
from heliograph.runtime.errors import StartError

_DESCRIPTION = """\
Routers write what happens to segments in a directory, see [journal] path in their config.toml.
There is no token, queue, key or address in them: only times, counts and hashes.
"""

_EXAMPLES = """\
what happened, as it was written:
  heliograph journal show ./ntf/journal
the pushes that a provider did not take:
  heliograph journal show ./ntf/journal --kind push_retried --kind push_rejected
how much of what, and whether anything is missing:
  heliograph journal count ./ntf/journal

A journal is Parquet files, so anything that reads Parquet reads it too.
"""

_COUNT = """\
Count events by kind, and say what is wrong: events that break a rule of the schema, events that are
missing, and files that cannot be read. Ends with code 1 if events are wrong or files unreadable.
"""


def add(commands: Any) -> None:
    group = commands.add_parser(
        "journal",
        help="look into the routers' events",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = group.add_subparsers(title="commands", metavar="COMMAND", required=True)
    show = actions.add_parser("show", help="print events, a line each")
    show.set_defaults(run=reporting("heliograph journal show", run_show))
    count = actions.add_parser(
        "count", help="count events by kind, and say what is wrong or lost", description=_COUNT
    )
    count.set_defaults(run=reporting("heliograph journal count", run_count))
    for parser in (show, count):
        parser.add_argument("directory", type=Path, metavar="DIR", help="[journal] path")
    show.add_argument("--kind", action="append", metavar="KIND", help="only this kind, or these")
    show.add_argument(
        "--notification", metavar="HASH", help="only what happened to this notification"
    )
    show.add_argument("--last", type=int, metavar="N", help="only the last N events")
    show.add_argument("--json", action="store_true", help="a JSON object a line, for machines")


def run_show(options: argparse.Namespace) -> int:
    for kind in options.kind or ():
        if kind not in KINDS:
            raise StartError(f"--kind {kind}: there is no such kind; see docs/journal.md")
    found = _events(options.directory)
    if options.kind:
        found = (event for event in found if event["kind"] in options.kind)
    if wanted := options.notification:
        found = (
            event
            for event in found
            if wanted == event.get("notification") or wanted in event.get("notifications", ())
        )
    if options.last is not None:
        found = iter(sorted(found, key=lambda event: event["at"])[-options.last or sys.maxsize :])
    for event in found:
        print(_json(event) if options.json else _line(event))
    return 0


def run_count(options: argparse.Namespace) -> int:
    kinds: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    runs: dict[tuple[str, int], tuple[int, int]] = {}
    unreadable: list[str] = []
    for event in _events(options.directory, lambda path, why: unreadable.append(f"{path}: {why}")):
        kinds[event["kind"]] += 1
        wrong.update(violations(event))
        run = event["router"], event["boot"]
        count, last = runs.get(run, (0, 0))
        runs[run] = count + 1, max(last, event["seq"])
    for kind in sorted(kinds):
        print(f"{kinds[kind]:>12}  {kind}")
    print(
        f"{kinds.total():>12}  in all, of {len(runs)} runs of {len({r for r, _ in runs})} routers"
    )
    missing = sum(last - count for count, last in runs.values())
    if missing:
        print(f"{missing:>12}  missing: lost, or in segments that were removed")
    for problem, count in wrong.items():
        print(f"{count:>12}  wrong: {problem}")
    unreadable += [f"{path}: set aside by its router" for path in _set_aside(options.directory)]
    for text in unreadable:
        print(f"{'unreadable':>12}  {text}")
    return 1 if wrong or unreadable else 0


def _set_aside(directory: Path) -> list[Path]:
    from heliograph.journal.segments import UNREADABLE

    return sorted(directory.rglob(f"*{UNREADABLE}"))


def _events(
    directory: Path, unreadable: Callable[[Path, str], None] | None = None
) -> Iterator[dict[str, Any]]:
    # Only here: Arrow takes a while to be imported.
    from heliograph.journal.reader import read_events

    try:
        yield from read_events(directory, unreadable=unreadable)
    except OSError as exc:
        raise StartError(f"{directory}: {exc.strerror}: see [journal] path") from exc


def _line(event: dict[str, Any]) -> str:
    hidden = ("schema", "event_id", "router", "part", "boot", "seq", "kind", "at", "mono")
    more = " ".join(
        f"{name}={','.join(value) if isinstance(value, list) else value}"
        for name, value in event.items()
        if name not in hidden
    )
    at = event["at"].strftime("%Y-%m-%d %H:%M:%S.%f")
    return f"{at}  {event['part']} {event['router'][:4]}  {event['kind']}  {more}".rstrip()


def _json(event: dict[str, Any]) -> str:
    return json.dumps({**event, "at": event["at"].isoformat()})
