"""What the commands of every router have in common: a directory, an address, errors as text."""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from heliograph.runtime import logs
from heliograph.runtime.errors import OperatorError
from heliograph.runtime.sections import Listen

Run = Callable[[argparse.Namespace], int]


def add_action(
    actions: Any, part: str, name: str, help: str, run: Run, description: str | None = None
) -> argparse.ArgumentParser:
    """A command with `--dir`; what only the operator can put right ends it with code 1."""
    parser: argparse.ArgumentParser = actions.add_parser(
        name,
        help=help,
        description=description or f"{help[0].upper()}{help[1:]}.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--dir",
        type=Path,
        default=_default_directory(part),
        metavar="DIR",
        help=f"the router's directory (default: $HELIOGRAPH_HOME/{part}, or ~/.heliograph/{part})",
    )
    parser.set_defaults(run=_reporting(f"heliograph {part} {name}", run))
    return parser


def add_address(parser: argparse.ArgumentParser, default: Listen, what: str) -> None:
    parser.add_argument(
        "--host",
        help=f"the name or address clients use, {what} (default: {default.host})",
    )
    parser.add_argument(
        "--port",
        type=int,
        help=f"the TCP port, {what}; 0 is any free one (default: {default.port})",
    )


def _default_directory(part: str) -> Path:
    home = os.environ.get("HELIOGRAPH_HOME")
    return (Path(home) if home else Path.home() / ".heliograph") / part


def _reporting(command: str, run: Run) -> Run:
    def reporting(options: argparse.Namespace) -> int:
        logs.set_up()
        try:
            return run(options)
        except OperatorError as exc:
            for line in str(exc).splitlines():
                print(f"{command}: {line}", file=sys.stderr)
            return 1

    return reporting
