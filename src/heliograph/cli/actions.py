"""What the commands of every router have in common: a directory, an address, errors as text."""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from heliograph.db.dialects import open_dialect
from heliograph.db.errors import DatabaseError
from heliograph.runtime import logs
from heliograph.runtime.config import FILE_NAME, load
from heliograph.runtime.config_text import changed
from heliograph.runtime.errors import ConfigError, OperatorError, StartError
from heliograph.runtime.identity import CA_KEY, load_identity, rotate_leaf
from heliograph.runtime.process import running_address
from heliograph.runtime.sections import SQLITE, Listen
from heliograph.wire.primitives import b64encode

Run = Callable[[argparse.Namespace], int]
C = TypeVar("C")
L = TypeVar("L", bound=Listen)

_ROTATION = """\
Make a new online key, and a certificate for it that the authority signs. Clients know a router by
its authority, so the address stays. The authority's key is needed for this alone: keep it
elsewhere, and name it with --ca-key when you rotate. The old files stay until the new are whole,
so an interruption leaves a router that starts.
"""


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
    parser.set_defaults(run=reporting(f"heliograph {part} {name}", run))
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


def load_config(kind: type[C], part: str, prefix: str, options: argparse.Namespace) -> C:
    """That of the router in `--dir`, with the address of the command line where there is one."""
    file = options.dir / FILE_NAME
    overrides = {
        "listen.host": getattr(options, "host", None),
        "listen.port": getattr(options, "port", None),
    }
    if not file.exists():
        raise StartError(f"{file} is missing: run `heliograph {part} init --dir {options.dir}`")
    return load(kind, file, prefix=prefix, overrides=overrides)


def chosen_address(kind: type[L], options: argparse.Namespace) -> L:
    """What a new router shall listen on."""
    given = {"host": options.host, "port": options.port}
    listen = kind(**{key: value for key, value in given.items() if value is not None})
    problems = [f"--{key}: {problem}" for key, problem in listen.check()]
    if not 0 <= listen.port <= 65535:
        problems.append("--port: must be between 0 and 65535")
    if problems:
        raise ConfigError(problems)
    return listen


def new_config_file(directory: Path) -> Path:
    """Where a new router's configuration goes, if there is none."""
    file = directory / FILE_NAME
    if file.exists():
        raise StartError(f"{file} exists already: choose another directory, or move it away")
    return file


def report_check(config: Any, file: Path, looks: Iterable[Callable[[], object]]) -> None:
    """What a start would stumble over, all of it at once; or how the defaults were changed."""
    problems = []
    for look in looks:
        try:
            look()
        except OperatorError as exc:
            problems.append(str(exc))
    if problems:
        raise ConfigError(problems)
    print(f"{file} is good. What differs from the defaults:")
    for line in changed(config):
        print(f"  {line}")


def _default_directory(part: str) -> Path:
    return default_home() / part


def default_home() -> Path:
    home = os.environ.get("HELIOGRAPH_HOME")
    return Path(home) if home else Path.home() / ".heliograph"


def reporting(command: str, run: Run) -> Run:
    """What only the operator can put right becomes text and exit code 1."""

    def run_and_report(options: argparse.Namespace) -> int:
        logs.set_up()
        try:
            return run(options)
        except OperatorError as exc:
            for line in str(exc).splitlines():
                print(f"{command}: {line}", file=sys.stderr)
            return 1

    return run_and_report


def add_rotation(actions: Any, part: str, host: Callable[[argparse.Namespace], str]) -> None:
    """`rotate-certificate`; ``host`` finds the one of the configuration."""

    def rotate(options: argparse.Namespace) -> int:
        rotate_leaf(options.dir, host(options), time.time(), options.ca_key)
        fingerprint = b64encode(load_identity(options.dir, time.time()).fingerprint)
        print("Replaced server.key and server.crt; the address, and in it the fingerprint")
        print(f"{fingerprint}, are the same.")
        if running_address(options.dir) is not None:
            print("Restart the router: the one that runs shows the old certificate until then.")
        if options.ca_key is None:
            print(f"Now move {options.dir / CA_KEY} off this machine: the router does not need it.")
        return 0

    rotating = add_action(
        actions,
        part,
        "rotate-certificate",
        "replace the online key and certificate; the address stays",
        rotate,
        _ROTATION,
    )
    rotating.add_argument(
        "--ca-key", type=Path, metavar="PATH", help="where ca.key is now (default: in DIR)"
    )


def add_backup(actions: Any, part: str, url: Callable[[argparse.Namespace], str]) -> None:
    """`backup`; ``url`` finds the store."""

    def copy(options: argparse.Namespace) -> int:
        if options.file.exists():
            raise StartError(f"{options.file} exists already: choose another name")
        if not options.file.parent.is_dir():
            raise StartError(f"there is no directory {options.file.parent}: make it first")
        store = url(options)
        if store.startswith(SQLITE) and not Path(store.removeprefix(SQLITE)).exists():
            raise StartError("there is no store yet: the router was never started")
        try:
            dialect = open_dialect(store, read_only=True)
            try:
                dialect.backup(options.file)
            finally:
                dialect.close()
            options.file.chmod(0o600)
        except (DatabaseError, OSError) as exc:
            raise StartError(f"the store cannot be copied to {options.file}: {exc}") from exc
        print(f"Copied the store to {options.file}. Keep the keys in {options.dir} with it.")
        return 0

    backup = add_action(
        actions, part, "backup", "copy the SQLite store, also while the router runs", copy
    )
    backup.add_argument("file", type=Path, metavar="FILE")
