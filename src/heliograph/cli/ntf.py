"""`heliograph ntf`: make, run and ask after a notification router."""

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

from heliograph.cli import ntf_store
from heliograph.cli.actions import (
    add_action,
    add_address,
    add_rotation,
    chosen_address,
    load_config,
    new_config_file,
    report_check,
)
from heliograph.journal.identity import journal_identity
from heliograph.ntf.config import INTRODUCTION, PREFIX, NetworkOptions, NtfConfig, NtfListen
from heliograph.ntf.ini import IniError, translate
from heliograph.runtime import logs, process
from heliograph.runtime.config import FILE_NAME, load
from heliograph.runtime.config_text import render
from heliograph.runtime.errors import StartError
from heliograph.runtime.files import make_private_directory, write_file
from heliograph.runtime.identity import CA_KEY, FILES, create_identity, load_identity
from heliograph.transport import loop
from heliograph.wire.addresses import Scheme, ServerAddress, decode_address
from heliograph.wire.errors import WireError

PART = "ntf"
AUTHORITY_NAME = "NTF server CA"
LIVE = ("listen.host", "listen.port", "network.allow_private")

_DESCRIPTION = """\
A notification router subscribes to messaging routers on behalf of phones, and wakes a phone through
its push provider when something arrived. It learns neither who talks to whom nor what they say.
"""

_EXAMPLES = """\
a router in three commands, and a look whether it works:
  heliograph ntf init --host ntf.example.com
  $EDITOR ~/.heliograph/ntf/config.toml       # [push.apns], or another provider
  heliograph ntf start
  heliograph ntf probe

in place of the reference's router:
  cp /etc/opt/simplex-notifications/{ca,server}.* /etc/opt/simplex-notifications/fingerprint DIR
  heliograph ntf import-ini --dir DIR /etc/opt/simplex-notifications/ntf-server.ini
  heliograph ntf import --dir DIR /var/opt/simplex-notifications/ntf-server-store.log
  heliograph ntf start --dir DIR

All that a router has is in its directory: keys, config.toml, and by default the database.
Back it up, and keep ca.key elsewhere: the fingerprint in the address cannot be made again.
"""

_START = """\
Run the router in the foreground until SIGTERM or SIGINT. When it accepts connections it prints one
line on standard output:

  ready ntf://FINGERPRINT@HOST:PORT

Logs go to standard error. It stops cleanly and loses nothing; a second signal ends it at once.
"""


def add(commands: Any) -> None:
    group = commands.add_parser(
        PART,
        help="run a notification router",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = group.add_subparsers(title="commands", metavar="COMMAND", required=True)
    init = add_action(
        actions, PART, "init", "make the keys and the configuration of a new router", run_init
    )
    add_address(init, NtfListen(), "goes into config.toml")
    start = add_action(
        actions, PART, "start", "run the router until it is told to stop", run_start, _START
    )
    add_address(start, NtfListen(), "instead of what config.toml says")
    start.add_argument(
        "--maintenance", action="store_true", help="bring the store up to date, and exit"
    )
    add_action(actions, PART, "address", "print the address that clients use", run_address)
    add_action(
        actions,
        PART,
        "check-config",
        "say what is wrong with config.toml, if anything",
        run_check,
    )
    ini = add_action(
        actions, PART, "import-ini", "make config.toml from the reference's ntf-server.ini", run_ini
    )
    ini.add_argument("file", type=Path, metavar="FILE")
    ntf_store.add(actions, _load)
    probing = add_action(
        actions, PART, "probe", "register a token that nobody has, and check each step", run_probe
    )
    probing.add_argument(
        "--address", help="of another router (default: the one that runs in the directory)"
    )
    probing.add_argument(
        "--timeout", type=float, default=20.0, metavar="SECONDS", help="for each step (default: 20)"
    )
    vapid = add_action(
        actions, PART, "vapid-key", "print the key that browsers subscribe with", run_vapid
    )
    vapid.add_argument("--make", action="store_true", help="make it, if there is none")
    add_rotation(actions, PART, lambda options: _load(options).listen.host)


def _load(options: argparse.Namespace) -> NtfConfig:
    return load_config(NtfConfig, PART, PREFIX, options)


def run_init(options: argparse.Namespace) -> int:
    from heliograph.ntf.providers import create_vapid_key

    directory: Path = options.dir
    listen = chosen_address(NtfListen, options)
    file = new_config_file(directory)
    config = NtfConfig(listen=listen, network=NetworkOptions(allow_private=listen.is_private))
    identity = create_identity(directory, AUTHORITY_NAME, listen.host, time.time())
    journal_identity(directory)
    create_vapid_key(directory)
    write_file(file, render(config, INTRODUCTION, live=LIVE).encode(), 0o600)
    address = _address(config, identity.fingerprint)
    names = ", ".join((*FILES, config.push.webpush.vapid_key_file, FILE_NAME))
    print(f"Made a notification router in {directory}: {names}")
    print(f"\n  {address}\n")
    print("Next:")
    print(f"  1. Move {directory / CA_KEY} off this machine, and keep it: with it the online key")
    print("     can be replaced without changing the address. The router does not need it.")
    print(f"  2. Set a push provider in {file}: [push.apns] or [push.fcm].")
    print("     Web Push works as it is; `heliograph ntf vapid-key` prints its key.")
    print(f"  3. heliograph ntf start --dir {directory}")
    return 0


def run_start(options: argparse.Namespace) -> int:
    # Only here: its HTTP server would make every other command wait to be imported.
    from heliograph.ntf.service import maintain, serve

    directory: Path = options.dir
    config = _load(options)
    logs.set_up(config.log.format, config.log.level)
    if options.maintenance:
        os.umask(0o077)
        with process.lock(directory):
            maintain(config, directory)
        print("The store is up to date.")
        return 0
    return process.run(directory, lambda: serve(config, directory))


def run_address(options: argparse.Namespace) -> int:
    config = _load(options)
    print(_running_or_configured(config, options.dir))
    if config.listen.port == 0 and process.running_address(options.dir) is None:
        print("Port 0: the router takes a free port when it starts.", file=sys.stderr)
    return 0


def run_check(options: argparse.Namespace) -> int:
    from heliograph.ntf.providers import make_providers

    directory: Path = options.dir
    config = _load(options)
    looks = (
        lambda: config.control.passwords_in(directory),
        lambda: make_providers(config, directory),
        lambda: load_identity(directory, time.time()),
    )
    report_check(config, directory / FILE_NAME, looks)
    return 0


def run_ini(options: argparse.Namespace) -> int:
    from heliograph.ntf.providers import create_vapid_key

    directory: Path = options.dir
    target = new_config_file(directory)
    try:
        translated = translate(options.file.read_text())
    except (OSError, UnicodeDecodeError) as exc:
        raise StartError(f"{options.file}: cannot be read: {exc}") from exc
    except IniError as exc:
        raise StartError(f"{options.file}: {exc}") from exc
    make_private_directory(directory)
    text = render(translated.config(), INTRODUCTION, live=LIVE)
    unchecked = directory / f"{FILE_NAME}.unchecked"
    write_file(unchecked, text.encode(), 0o600)
    try:
        load(NtfConfig, unchecked, prefix=PREFIX, environ={})
        unchecked.replace(target)
    finally:
        unchecked.unlink(missing_ok=True)
    create_vapid_key(directory)
    print(f"Made {target}. What has no counterpart:")
    for remark in translated.remarks:
        print(f"  - {remark}")
    missing = [name for name in FILES if not (directory / name).exists() and name != CA_KEY]
    if missing:
        print(f"Copy the reference's {', '.join(missing)} to {directory}: they are its address.")
    return 0


def run_probe(options: argparse.Namespace) -> int:
    from heliograph.ntf.probe import probe

    if options.address is None:
        address = _running_or_configured(_load(options), options.dir)
    else:
        try:
            address = decode_address(options.address)
        except WireError as exc:
            raise StartError(f"--address: {exc}") from exc
    if address.scheme is not Scheme.NTF:
        raise StartError("--address: must begin with ntf://")
    print(f"probing {address}", flush=True)

    def report(step: str, seconds: float, problem: str | None) -> None:
        result = "ok" if problem is None else f"FAILED: {problem}"
        print(f"  {step:<24} {seconds * 1000:8.1f} ms  {result}", flush=True)

    return 0 if loop.run(probe(address, report, options.timeout)) else 1


def run_vapid(options: argparse.Namespace) -> int:
    from heliograph.ntf.providers import create_vapid_key, load_vapid

    config = _load(options)
    if options.make:
        create_vapid_key(options.dir)
    print(load_vapid(config, options.dir).public_key)
    return 0


def _running_or_configured(config: NtfConfig, directory: Path) -> ServerAddress:
    running = process.running_address(directory)
    if running is not None:
        return decode_address(running)
    return _address(config, load_identity(directory, time.time()).fingerprint)


def _address(config: NtfConfig, fingerprint: bytes) -> ServerAddress:
    return ServerAddress(Scheme.NTF, config.listen.hosts, str(config.listen.port), fingerprint)
