"""The commands that both routers have: init, start, address, check-config."""

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from heliograph.cli.actions import add_action, add_rotation
from heliograph.cli.arguments import Subparsers
from heliograph.journal.identity import journal_identity
from heliograph.runtime import logs, process
from heliograph.runtime.config.file import FILE_NAME, load
from heliograph.runtime.config.sections import Listen, LogOptions
from heliograph.runtime.config.text import changed, render
from heliograph.runtime.errors import ConfigError, OperatorError, StartError
from heliograph.runtime.files import write_file
from heliograph.runtime.identity import CA_KEY, FILES, create_identity, load_identity
from heliograph.wire.addresses import Scheme, ServerAddress, decode_address

__all__ = ["RouterCommands", "new_config_file", "run_checks"]


class RouterConfig(Protocol):
    """What the configurations of both routers have."""

    @property
    def listen(self) -> Listen: ...
    @property
    def log(self) -> LogOptions: ...
    def store_url(self, directory: Path) -> str: ...


C = TypeVar("C", bound=RouterConfig)
L = TypeVar("L", bound=Listen)

_DIRECTORY = """\
Everything a router has is in its directory: keys, config.toml and, by default, the database.
Back it up: without its keys the router's address is lost. Keep ca.key elsewhere.
"""

_START = """\
Run the router in the foreground until SIGTERM or SIGINT. When it accepts connections it prints one
line on standard output:

  ready {part}://FINGERPRINT@HOST:PORT

Logs go to standard error. It stops cleanly and loses nothing; a second signal ends it at once.
"""


@dataclass(frozen=True, slots=True)
class RouterCommands(Generic[C, L]):
    """One kind of router, and the commands that differ from the other only in these values."""

    part: str
    title: str
    scheme: Scheme
    authority_name: str
    config: type[C]
    listen: type[L]
    prefix: str
    introduction: str
    uncommented: tuple[str, ...]
    """The keys that a new config.toml sets."""
    new_config: Callable[[L], C]

    def add_group(self, commands: Subparsers, description: str, examples: str) -> Subparsers:
        """Add `heliograph PART`; the result takes its commands."""
        group = commands.add_parser(
            self.part,
            help=f"run a {self.title}",
            description=description,
            epilog=f"{examples}\n{_DIRECTORY}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        return group.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add_init(
        self,
        actions: Subparsers,
        next_step: Callable[[C, Path], Iterable[str]],
        create: Callable[[C, Path], Iterable[str]] = lambda config, directory: (),
    ) -> None:
        """Add `init`; ``create`` makes further files and returns their names."""

        def run(options: argparse.Namespace) -> int:
            directory: Path = options.dir
            file = new_config_file(directory)
            config = self.new_config(self._chosen_address(options))
            identity = create_identity(
                directory, self.authority_name, config.listen.host, time.time()
            )
            journal_identity(directory)
            names = (*FILES, *create(config, directory), FILE_NAME)
            self.write_config(config, file)
            print(f"Made a {self.title} in {directory}: {', '.join(names)}")
            print(f"\n  {self._address(config, identity.fingerprint)}\n")
            print("Next:")
            print(f"  1. Move {directory / CA_KEY} off this machine and keep it: with it you can")
            print("     replace the online key without changing the address. The router does not")
            print("     need it.")
            for line in next_step(config, file):
                print(f"  {line}")
            print(f"  3. heliograph {self.part} start --dir {directory}")
            return 0

        parser = add_action(
            actions, self.part, "init", "create the keys and configuration of a new router", run
        )
        self._add_address_options(parser, "for config.toml")

    def add_start(
        self,
        actions: Subparsers,
        serve: Callable[[C, Path], AbstractAsyncContextManager[str]],
        instead: Callable[[argparse.Namespace, C], int | None] = lambda options, config: None,
    ) -> argparse.ArgumentParser:
        """Add `start`; ``instead`` may do something else and return an exit code."""

        def run(options: argparse.Namespace) -> int:
            directory: Path = options.dir
            config = self.load(options)
            logs.set_up(config.log.format, config.log.level)
            code = instead(options, config)
            if code is not None:
                return code
            return process.run(directory, lambda: serve(config, directory))

        parser = add_action(
            actions,
            self.part,
            "start",
            "run the router in the foreground",
            run,
            _START.format(part=self.part),
        )
        self._add_address_options(parser, "instead of the one in config.toml")
        return parser

    def add_address(
        self,
        actions: Subparsers,
        change: Callable[
            [argparse.Namespace, C, ServerAddress], object
        ] = lambda options, config, address: address,
    ) -> argparse.ArgumentParser:
        """Add `address`; ``change`` may add to it, by the options of the command."""

        def run(options: argparse.Namespace) -> int:
            config = self.load(options)
            text = str(change(options, config, self.address(config, options.dir)))
            print(text)
            if options.qr:
                import segno

                segno.make_qr(text).terminal(compact=True)
            if config.listen.port == 0 and process.running_address(options.dir) is None:
                print("Port 0: the router takes a free port when it starts.", file=sys.stderr)
            return 0

        parser = add_action(
            actions, self.part, "address", "print the address that clients use", run
        )
        parser.add_argument("--qr", action="store_true", help="also as a QR code, for a phone")
        return parser

    def add_check(
        self, actions: Subparsers, checks: Callable[[C, Path], Iterable[Callable[[], object]]]
    ) -> None:
        """Add `check-config`; ``checks`` read the files that the configuration names."""

        def run(options: argparse.Namespace) -> int:
            config = self.load(options)
            run_checks(options.dir, checks(config, options.dir))
            print(f"{options.dir / FILE_NAME} is good. What differs from the defaults:")
            for line in changed(config):
                print(f"  {line}")
            return 0

        add_action(actions, self.part, "check-config", "report all mistakes in config.toml", run)

    def add_rotation(self, actions: Subparsers) -> None:
        add_rotation(actions, self.part, lambda options: self.load(options).listen.host)

    def load(self, options: argparse.Namespace) -> C:
        """Load the configuration in `--dir`; `--host` and `--port` take precedence."""
        file = options.dir / FILE_NAME
        overrides = {
            "listen.host": getattr(options, "host", None),
            "listen.port": getattr(options, "port", None),
        }
        if not file.exists():
            raise StartError(
                f"{file} is missing: run `heliograph {self.part} init --dir {options.dir}`"
            )
        return load(self.config, file, prefix=self.prefix, overrides=overrides)

    def write_config(self, config: C, file: Path) -> None:
        text = render(config, self.introduction, live=self.uncommented)
        write_file(file, text.encode(), 0o600)

    def address(self, config: C, directory: Path) -> ServerAddress:
        """Return the address of the running router, or that of the configuration."""
        running = process.running_address(directory)
        if running is not None:
            return decode_address(running)
        return self._address(config, load_identity(directory, time.time()).fingerprint)

    def _address(self, config: C, fingerprint: bytes) -> ServerAddress:
        hosts, port = config.listen.hosts, str(config.listen.port)
        return ServerAddress(self.scheme, hosts, port, fingerprint)

    def _add_address_options(self, parser: argparse.ArgumentParser, what: str) -> None:
        default = self.listen()
        parser.add_argument(
            "--host", help=f"the name or address clients use, {what} (default: {default.host})"
        )
        parser.add_argument(
            "--port",
            type=int,
            help=f"the TCP port, {what}; 0 is any free one (default: {default.port})",
        )

    def _chosen_address(self, options: argparse.Namespace) -> L:
        given = {"host": options.host, "port": options.port}
        listen = self.listen(**{key: value for key, value in given.items() if value is not None})
        problems = [f"--{key}: {problem}" for key, problem in listen.check()]
        if not 0 <= listen.port <= 65535:
            problems.append("--port: must be between 0 and 65535")
        if problems:
            raise ConfigError(problems)
        return listen


def run_checks(directory: Path, checks: Iterable[Callable[[], object]]) -> None:
    """Check keys and certificates, and what else is given. Raises `ConfigError` for all problems.

    A check raises `OperatorError`.
    """
    problems = []
    last = partial(load_identity, directory, time.time())
    all_checks: list[Callable[[], object]] = [*checks, last]
    for check in all_checks:
        try:
            check()
        except OperatorError as exc:
            problems.append(str(exc))
    if problems:
        raise ConfigError(dict.fromkeys(problems))


def new_config_file(directory: Path) -> Path:
    """Return the path of a new router's configuration, which must not exist."""
    file = directory / FILE_NAME
    if file.exists():
        raise StartError(f"{file} exists already: choose another directory, or move it away")
    return file
