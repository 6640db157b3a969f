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
    "smp": "smp",
    "ntf": "ntf",
    "device": "device",
    "pipeline": "pipeline",
    "sim": "sim",
    "journal": "journal",
    "wire": "wire",
    "doctor": "doctor",
    "page": "page",
    "demo": "demo",
}
"""The module of each command, with `add(subparsers)`, in the order that `--help` lists them.

Only the module of the command that was given is imported: the others would make it wait.
"""


class Parser(argparse.ArgumentParser):
    """Errors end with a hint instead of the whole usage."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Refuse what is left over here, so that the hint names the command that was given."""
        options, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return options, rest

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\nTry '{self.prog} --help'.\n")


def parser(command: str | None = None) -> argparse.ArgumentParser:
    """With all commands, or with those of one command's module."""
    root = Parser(
        prog="heliograph",
        description="The SimpleX push-notification system: routers, client and data pipeline.",
        epilog="Each command has its own --help.",
    )
    root.add_argument("--version", action="version", version=f"heliograph {__version__}")
    commands = root.add_subparsers(title="commands", metavar="COMMAND", dest="command")
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
    except BrokenPipeError:
        sys.stderr.close()  # the reader has gone: nothing more can be said
        return 141
    except OSError as exc:
        if exc.errno != errno.ENOSPC:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the rest of the output fails at the end
        print("heliograph: no space left on the device: free some, and try again", file=sys.stderr)
        return 1
    return code
