"""What commands share: `--dir`, errors as one line of text, backups and certificate rotation."""

import argparse
import errno
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from heliograph.cli.arguments import Subparsers
from heliograph.db.dialects import open_dialect
from heliograph.db.errors import DatabaseError
from heliograph.runtime import logs
from heliograph.runtime.config.file import FILE_NAME
from heliograph.runtime.config.sections import SQLITE
from heliograph.runtime.errors import OperatorError, StartError, file_error
from heliograph.runtime.identity import CA_KEY, SERVER_KEY, load_identity, rotate_leaf
from heliograph.runtime.process import running_address
from heliograph.wire.primitives import b64encode

Run = Callable[[argparse.Namespace], int]

NO_STORE = "there is no store yet: the router was never started, or its volume is not mounted"

_ROTATION = """\
Create a new online key and a certificate for it, signed by the router's authority. Clients know a
router by its authority, so the address stays. This is the only command that needs the authority's
key: keep it elsewhere, and name it with --ca-key when you rotate. The old files stay until the new
ones are complete, so a router still starts after an interruption.
"""


def add_parser(
    commands: Subparsers,
    name: str,
    help: str,
    description: str | None,
    directory: Path,
    place: str,
) -> argparse.ArgumentParser:
    """Add a command with `--dir`, whose default is `directory`; `place` is the option's help."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help,
        description=description or f"{help[0].upper()}{help[1:]}.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--dir", type=Path, default=directory, metavar="DIR", help=place)
    return parser


def add_action(
    actions: Subparsers, part: str, name: str, help: str, run: Run, description: str | None = None
) -> argparse.ArgumentParser:
    """Add a command with `--dir`. Errors that the operator can fix end it with code 1."""
    place = f"the router's directory (default: $HELIOGRAPH_HOME/{part}, or ~/.heliograph/{part})"
    parser = add_parser(actions, name, help, description, default_home() / part, place)

    def run_in_directory(options: argparse.Namespace) -> int:
        options.dir = router_directory(options.dir, part)
        return run(options)

    parser.set_defaults(run=reporting(parser.prog, run_in_directory))
    return parser


def router_directory(given: Path | str, part: str) -> Path | str:
    """Return the directory of a part: the one given, or the part's in a system's directory."""
    if not isinstance(given, Path):
        return given  # the pipeline's may be a URL
    inside = given / part
    try:
        check_directory(given)
        is_system = (inside / FILE_NAME).exists() and not (given / SERVER_KEY).exists()
    except OSError as exc:
        place = inside if os.access(given, os.X_OK) else given
        raise OSError(exc.errno, exc.strerror, str(place)) from None
    return inside if is_system else given


def check_directory(given: Path) -> None:
    """Raise `StartError` if this is a file."""
    if given.exists() and not given.is_dir():
        raise StartError(f"{given} is not a directory: choose another --dir")


def default_home() -> Path:
    home = os.environ.get("HELIOGRAPH_HOME")
    return Path(home) if home else Path.home() / ".heliograph"


def reporting(command: str, run: Run) -> Run:
    """Turn errors that the operator can fix into text on standard error and exit code 1."""

    def run_and_report(options: argparse.Namespace) -> int:
        logs.set_up()
        try:
            return run(options)
        except OperatorError as exc:
            text = str(exc)
        except BrokenPipeError:
            raise
        except OSError as exc:
            if exc.errno == errno.ENOSPC or exc.filename is None:
                raise
            text = file_error(exc)
        for line in text.splitlines():
            print(f"{command}: {line}", file=sys.stderr)
        return 1

    return run_and_report


def add_rotation(actions: Subparsers, part: str, host: Callable[[argparse.Namespace], str]) -> None:
    """Add `rotate-certificate`; ``host`` returns the one of the configuration."""

    def rotate(options: argparse.Namespace) -> int:
        rotate_leaf(options.dir, host(options), time.time(), options.ca_key)
        fingerprint = b64encode(load_identity(options.dir, time.time()).fingerprint)
        print("Replaced server.key and server.crt. The address and its fingerprint")
        print(f"{fingerprint} stay the same.")
        if running_address(options.dir) is not None:
            print("Restart the router: until then it uses the old certificate.")
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


def add_backup(actions: Subparsers, part: str, url: Callable[[argparse.Namespace], str]) -> None:
    """Add `backup`; ``url`` returns the URL of the store."""

    def copy(options: argparse.Namespace) -> int:
        if options.file.exists():
            raise StartError(f"{options.file} exists already: choose another name")
        if not options.file.parent.is_dir():
            raise StartError(f"there is no directory {options.file.parent}: create it first")
        store = url(options)
        if store.startswith(SQLITE) and not Path(store.removeprefix(SQLITE)).exists():
            raise StartError(NO_STORE)
        try:
            dialect = open_dialect(store, read_only=True)
            try:
                dialect.backup(options.file)
            finally:
                dialect.close()
        except (DatabaseError, OSError) as exc:
            raise StartError(f"the store cannot be copied to {options.file}: {exc}") from exc
        print(f"Copied the store to {options.file}. Keep the keys in {options.dir} with it.")
        return 0

    backup = add_action(
        actions, part, "backup", "copy the SQLite store, also while the router runs", copy
    )
    backup.add_argument("file", type=Path, metavar="FILE")
