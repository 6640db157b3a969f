"""`heliograph smp`: make, run and ask after a messaging router."""

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from heliograph.cli.actions import (
    add_action,
    add_address,
    add_backup,
    add_rotation,
    chosen_address,
    load_config,
    new_config_file,
    report_check,
)
from heliograph.journal.identity import journal_identity
from heliograph.runtime import logs, process
from heliograph.runtime.config import FILE_NAME
from heliograph.runtime.config_text import render
from heliograph.runtime.files import write_file
from heliograph.runtime.identity import CA_KEY, FILES, create_identity, load_identity
from heliograph.smp.config import INTRODUCTION, PREFIX, SmpConfig, SmpListen
from heliograph.transport.handshake import ServerIdentity
from heliograph.wire.addresses import Scheme, ServerAddress, decode_address

PART = "smp"
AUTHORITY_NAME = "SMP server CA"

_DESCRIPTION = """\
A messaging router keeps the queues that SimpleX clients send and receive messages through, and
tells notification routers that something arrived. It learns neither who its clients are nor what
they say.
"""

_EXAMPLES = """\
a router in two commands:
  heliograph smp init --host smp.example.com
  heliograph smp start

on this machine only, on a free port, in a directory of its own:
  heliograph smp init --dir ./router --port 0
  heliograph smp start --dir ./router

All that a router has is in its directory: keys, config.toml, and by default the database.
Back it up, and keep ca.key elsewhere: the fingerprint in the address cannot be made again.
"""

_START = """\
Run the router in the foreground until SIGTERM or SIGINT. When it accepts connections it prints one
line on standard output:

  ready smp://FINGERPRINT@HOST:PORT

Logs go to standard error. It stops cleanly and loses nothing; a second signal ends it at once.
"""


def add(commands: Any) -> None:
    group = commands.add_parser(
        "smp",
        help="run a messaging router",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = group.add_subparsers(title="commands", metavar="COMMAND", required=True)
    init = add_action(
        actions, PART, "init", "make the keys and the configuration of a new router", run_init
    )
    add_address(init, SmpListen(), "goes into config.toml")
    start = add_action(
        actions, PART, "start", "run the router until it is told to stop", run_start, _START
    )
    add_address(start, SmpListen(), "instead of what config.toml says")
    address = add_action(
        actions, PART, "address", "print the address that clients use", run_address
    )
    address.add_argument(
        "--with-password",
        action="store_true",
        help="with the password for creating queues, if there is one: share it with care",
    )
    add_action(
        actions, PART, "check-config", "say what is wrong with config.toml, if anything", run_check
    )
    add_backup(actions, PART, lambda options: _load(options).store_url(options.dir))
    add_rotation(actions, PART, lambda options: _load(options).listen.host)


def _load(options: argparse.Namespace) -> SmpConfig:
    return load_config(SmpConfig, PART, PREFIX, options)


def run_init(options: argparse.Namespace) -> int:
    directory: Path = options.dir
    listen = chosen_address(SmpListen, options)
    file = new_config_file(directory)
    config = SmpConfig(listen=listen)
    identity = create_identity(directory, AUTHORITY_NAME, listen.host, time.time())
    journal_identity(directory)
    text = render(config, INTRODUCTION, live=("listen.host", "listen.port"))
    write_file(file, text.encode(), 0o600)
    address = _address(config, identity.fingerprint)
    print(f"Made a messaging router in {directory}: {', '.join((*FILES, FILE_NAME))}")
    print(f"\n  {address}\n")
    print("Next:")
    print(f"  1. Move {directory / CA_KEY} off this machine, and keep it: with it the online key")
    print("     can be replaced without changing the address. The router does not need it.")
    print(f"  2. Look at {file}.")
    print(f"  3. heliograph smp start --dir {directory}")
    return 0


def run_start(options: argparse.Namespace) -> int:
    # Only here: its HTTP server would make every other command wait to be imported.
    from heliograph.smp.service import serve

    directory: Path = options.dir
    config = _load(options)
    logs.set_up(config.log.format, config.log.level)
    return process.run(directory, lambda: serve(config, directory))


def run_address(options: argparse.Namespace) -> int:
    directory: Path = options.dir
    config = _load(options)
    running = process.running_address(directory)
    address = _address(config, _identity(directory).fingerprint)
    if running is not None:
        address = decode_address(running)
    if options.with_password:
        password = config.settings(directory).rules.password
        address = replace(address, password=None if password is None else password.decode())
    print(address)
    if running is None and config.listen.port == 0:
        print("Port 0: the router takes a free port when it starts.", file=sys.stderr)
    return 0


def run_check(options: argparse.Namespace) -> int:
    config = _load(options)
    looks = (lambda: config.settings(options.dir), lambda: _identity(options.dir))
    report_check(config, options.dir / FILE_NAME, looks)
    return 0


def _identity(directory: Path) -> ServerIdentity:
    return load_identity(directory, time.time())


def _address(config: SmpConfig, fingerprint: bytes) -> ServerAddress:
    hosts, port = config.listen.hosts, str(config.listen.port)
    return ServerAddress(Scheme.SMP, hosts, port, fingerprint)
