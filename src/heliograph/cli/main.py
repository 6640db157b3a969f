"""The `heliograph` command. Each part adds its own subcommands: see `PARTS`."""

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from heliograph import __version__
from heliograph.cli import demo, ntf, sim, smp, wire

PARTS = (smp, ntf, sim, wire, demo)
"""Modules with `add(subparsers)`, in the order that `--help` lists them."""


class Parser(argparse.ArgumentParser):
    """Errors end with a hint instead of the whole usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\nTry '{self.prog} --help'.\n")


def parser() -> argparse.ArgumentParser:
    root = Parser(
        prog="heliograph",
        description="The SimpleX push-notification system: routers, client and data pipeline.",
        epilog="Each command has its own --help.",
    )
    root.add_argument("--version", action="version", version=f"heliograph {__version__}")
    commands = root.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    for part in PARTS:
        part.add(commands)
    return root


def main(argv: Sequence[str] | None = None) -> int:
    root = parser()
    options = root.parse_args(argv)
    if options.command is None:
        root.print_help()
        return 0
    try:
        code: int = options.run(options)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # the reader has gone: nothing more can be said
        return 141
    return code
