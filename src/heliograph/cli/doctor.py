"""`heliograph doctor`: find what is wrong with an installation, and what to do about it."""

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from heliograph.cli.arguments import Subparsers
from heliograph.runtime import logs
from heliograph.transport import loop

if TYPE_CHECKING:
    from heliograph.doctor.findings import Finding

_DESCRIPTION = """\
Check routers, running or not, and report what is wrong and what to do: configuration, keys and
certificates, permissions, clock, disk, database, pending pushes, credentials of push providers, the
router itself, the messaging routers it subscribes to, and the data pipeline. It changes nothing.
"""

_EPILOG = """\
examples:
  heliograph doctor                                   # all routers in ~/.heliograph
  heliograph doctor --dir /var/lib/heliograph/ntf --env-file /etc/heliograph/ntf.env
  heliograph doctor --online                          # also asks APNs and FCM about our credentials

The exit code is 0 if nothing is wrong, warnings allowed, and 1 if there is a problem.
"""


def add(commands: Subparsers) -> None:
    parser = commands.add_parser(
        "doctor",
        help="find what is wrong with an installation",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--dir",
        type=Path,
        nargs="+",
        action="extend",
        metavar="DIR",
        help="a router's directory, or one with several in it"
        " (default: $HELIOGRAPH_HOME, or ~/.heliograph)",
    )
    parser.add_argument(
        "--env-file",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="settings that the service gets from its environment, as NAME=VALUE lines",
    )
    parser.add_argument("--offline", action="store_true", help="make no connections")
    parser.add_argument(
        "--online",
        action="store_true",
        help="also send a push to a device that does not exist: the provider's answer shows"
        " whether it accepts our credentials",
    )
    parser.add_argument(
        "--show-hosts",
        action="store_true",
        help="name messaging routers that are not your own; by default they are numbered",
    )
    parser.add_argument(
        "--min-free",
        type=int,
        default=1024,
        metavar="MB",
        help="how much disk space should be free (default: 1024)",
    )
    parser.add_argument(
        "--pipeline",
        type=Path,
        metavar="DIR",
        help="the data pipeline's directory (default: tables or pipeline beside the router's)",
    )
    parser.add_argument("--strict", action="store_true", help="count warnings as problems")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from heliograph.doctor.examine import Examination, examine
    from heliograph.doctor.findings import Finding, Level
    from heliograph.doctor.subject import Thresholds, find_directories
    from heliograph.doctor.system import check_system

    logs.set_up(level="error")
    if options.online and options.offline:
        print("heliograph doctor: --online and --offline exclude each other", file=sys.stderr)
        return 2
    try:
        environ = _environment(options.env_file)
    except OSError as exc:
        print(f"heliograph doctor: {exc.filename}: {exc.strerror}", file=sys.stderr)
        return 2
    how = Examination(
        network=not options.offline,
        online=options.online,
        show_hosts=options.show_hosts,
        thresholds=Thresholds(free=options.min_free << 20),
        tables=options.pipeline,
        environ=environ,
    )
    counts: Counter[Level] = Counter()
    found: dict[str, list[Finding]] = {}

    def report(directory: Path, finding: Finding) -> None:
        if str(directory) not in found and not options.json:
            print(directory, flush=True)
        found.setdefault(str(directory), []).append(finding)
        counts[finding.level] += 1
        if not options.json:
            _print(finding)

    async def examine_all() -> None:
        for given in _directories(options):
            for finding in check_system(given, environ):
                report(given, finding)
            for directory in find_directories(given):
                async for finding in examine(directory, how):
                    report(directory, finding)

    loop.run(examine_all())
    bad = counts[Level.PROBLEM] + (counts[Level.WARNING] if options.strict else 0)
    if options.json:
        as_dicts = {where: [asdict(item) for item in items] for where, items in found.items()}
        print(json.dumps(as_dicts, indent=2))
    else:
        print(f"{_number(counts[Level.PROBLEM], 'problem')},", end=" ")
        print(_number(counts[Level.WARNING], "warning"))
    return 1 if bad else 0


def _print(finding: "Finding") -> None:
    print(f"  {finding.level:<8} {finding.check}: {finding.text}")
    if finding.advice:
        print(f"           -> {finding.advice}")
    sys.stdout.flush()


def _number(count: int, word: str) -> str:
    return f"{count or 'no'} {word}{'' if count == 1 else 's'}"


def _directories(options: argparse.Namespace) -> list[Path]:
    if options.dir:
        return list(options.dir)
    home = os.environ.get("HELIOGRAPH_HOME")
    return [Path(home) if home else Path.home() / ".heliograph"]


def _environment(files: list[Path]) -> Mapping[str, str]:
    """Return this process's environment with the variables of the files, read as systemd does."""
    environ = dict(os.environ)
    for file in files:
        for line in file.read_text().splitlines():
            name, separator, value = line.strip().partition("=")
            if separator and not name.startswith(("#", ";")):
                environ[name.strip()] = value.strip().strip("\"'")
    return environ
