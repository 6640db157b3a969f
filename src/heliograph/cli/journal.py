"""`heliograph journal`: look into the events that routers write."""

import argparse
import asyncio
import json
import signal
import ssl
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from heliograph.cli.actions import reporting
from heliograph.cli.arguments import Subparsers, seconds
from heliograph.documents import JsonObject
from heliograph.journal.schema import KINDS, violations
from heliograph.runtime.errors import StartError, file_error

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

to a pipeline on another machine, and go on:
  heliograph journal ship ./ntf/journal --to s3://bucket/journal --follow 5

A journal is Parquet files, so anything that reads Parquet reads it too.
"""

_COUNT = """\
Count events by kind, and say what is wrong: events that break a rule of the schema, events that are
missing, and files that cannot be read. Ends with code 1 if events are wrong or files unreadable.
"""

_SHIP = """\
Copy the sealed segments of a journal to a directory or a URL that Arrow can write, as
s3://bucket/journal, where a pipeline on another machine reads them. Segments that are there already
are left alone, so it may be run again at any time, and by several routers to the same place. What
the pipeline there acknowledges is copied back: the router removes such segments first, and they are
not shipped again. A pipeline that reads this journal here too needs --no-acknowledge.

exit codes: 0 all is there; 1 it failed, or segments were refused; it says why (with --follow it
retries instead)
"""

_COLLECT = """\
Receive segments that `heliograph journal ship --to https://HOST:PORT` sends, from routers on other
machines and from phones, and store them in DIR, where a pipeline reads them. When it has begun, it
prints one line: ready URL. Segments are checked, stored once, and bounded by --max-megabytes; those
that the pipeline has acknowledged make room for new ones.

exit codes: 0 it was stopped by SIGTERM or SIGINT; 1 it failed, and says why
"""
LONGEST_DELAY = 60.0
MIN_TOKEN = 16


def add(commands: Subparsers) -> None:
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
    ship = actions.add_parser(
        "ship",
        help="copy sealed segments to other storage",
        description=_SHIP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    ship.set_defaults(run=reporting("heliograph journal ship", run_ship))
    ship.add_argument("--to", required=True, metavar="PLACE", help="a directory, or a URL")
    ship.add_argument(
        "--follow",
        type=seconds,
        metavar="SECONDS",
        help="keep running, and look for new segments at this interval",
    )
    ship.add_argument("--token-file", type=Path, metavar="FILE", help="the collector's token")
    ship.add_argument(
        "--authority",
        type=Path,
        metavar="FILE",
        help="CA certificates to verify the collector with",
    )
    collect = actions.add_parser(
        "collect",
        help="receive segments over HTTPS",
        description=_COLLECT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    collect.set_defaults(run=reporting("heliograph journal collect", run_collect))
    collect.add_argument("--listen", default="127.0.0.1:8444", metavar="HOST:PORT")
    collect.add_argument(
        "--token-file", type=Path, required=True, metavar="FILE", help="the token of routers"
    )
    collect.add_argument(
        "--phone-token-file",
        type=Path,
        metavar="FILE",
        help="a token for phones, which may send only what phones write",
    )
    collect.add_argument("--certificate", type=Path, metavar="FILE", help="PEM, with its chain")
    collect.add_argument("--key", type=Path, metavar="FILE", help="PEM, of the certificate")
    collect.add_argument("--max-megabytes", type=int, default=10_240, metavar="N")
    for parser in (show, count, ship, collect):
        parser.add_argument("directory", type=Path, metavar="DIR", help="[journal] path")
    show.add_argument("--kind", action="append", metavar="KIND", help="only this kind, or these")
    show.add_argument(
        "--notification", metavar="HASH", help="only what happened to this notification"
    )
    show.add_argument("--last", type=int, metavar="N", help="only the last N events")
    show.add_argument("--json", action="store_true", help="a JSON object a line, for machines")


def run_ship(options: argparse.Namespace) -> int:
    # Only here: Arrow takes a while to be imported.
    from heliograph.journal.shipping import Shipper, open_target

    token = None if options.token_file is None else _token(options.token_file)
    shipper = Shipper(options.directory, open_target(options.to, token, options.authority))
    if options.follow is None:
        print(f"{shipper.ship()} segments shipped to {options.to}", flush=True)
        if shipper.refused:
            raise StartError(
                f"{shipper.refused} segments were refused, and are not at {options.to}"
            )
        return 0
    delay = options.follow
    while True:
        try:
            if count := shipper.ship():
                print(f"{count} segments shipped to {options.to}", flush=True)
            delay = options.follow
        except StartError as exc:
            delay = min(delay * 2, max(LONGEST_DELAY, options.follow))
            print(f"{exc}; retrying in {delay:g} s", file=sys.stderr, flush=True)
        time.sleep(delay)


def run_collect(options: argparse.Namespace) -> int:
    host, _, port = options.listen.rpartition(":")
    if not host or not port.isdigit():
        raise StartError(f"--listen {options.listen}: name HOST:PORT")
    if options.certificate is None and host not in ("127.0.0.1", "::1", "localhost"):
        raise StartError("--certificate and --key are needed unless it listens on loopback only")
    asyncio.run(_collect(options, host, int(port)))
    return 0


async def _collect(options: argparse.Namespace, host: str, port: int) -> None:
    # Only here: Arrow takes a while to be imported.
    from heliograph.journal.collector import Collector, Tokens

    phones = options.phone_token_file
    tokens = Tokens(_token(options.token_file), None if phones is None else _token(phones))
    tls = None
    try:
        options.directory.mkdir(parents=True, exist_ok=True)
        if options.certificate is not None:
            tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            tls.load_cert_chain(options.certificate, options.key)
    except OSError as exc:
        raise StartError(f"{exc.filename or options.certificate}: {exc.strerror}") from exc
    limit = options.max_megabytes << 20
    collector = Collector(options.directory, tokens, limit)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    bound = await collector.start(host, port, tls)
    print(f"ready {'http' if tls is None else 'https'}://{host}:{bound}", flush=True)
    try:
        await stop.wait()
    finally:
        await collector.close()


def _token(file: Path) -> str:
    try:
        token = file.read_text().strip()
    except OSError as exc:
        raise StartError(f"{file}: {exc.strerror}: it must have the token") from exc
    if len(token) < MIN_TOKEN:
        raise StartError(
            f"{file}: a token has {MIN_TOKEN} characters or more: openssl rand -hex 32"
        )
    return token


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
    from heliograph.journal.storage.segments import UNREADABLE

    return sorted(directory.rglob(f"*{UNREADABLE}"))


def _events(
    directory: Path, unreadable: Callable[[Path, str], None] | None = None
) -> Iterator[JsonObject]:
    # Only here: Arrow takes a while to be imported.
    from heliograph.journal.storage.reader import read_events

    try:
        yield from read_events(directory, unreadable=unreadable)
    except OSError as exc:
        raise StartError(file_error(exc, directory, advice="see [journal] path")) from exc


def _line(event: JsonObject) -> str:
    hidden = ("schema", "event_id", "router", "part", "boot", "seq", "kind", "at", "mono")
    more = " ".join(
        f"{name}={','.join(value) if isinstance(value, list) else value}"
        for name, value in event.items()
        if name not in hidden
    )
    at = event["at"].strftime("%Y-%m-%d %H:%M:%S.%f")
    return f"{at}  {event['part']} {event['router'][:4]}  {event['kind']}  {more}".rstrip()


def _json(event: JsonObject) -> str:
    return json.dumps({**event, "at": event["at"].isoformat()})
