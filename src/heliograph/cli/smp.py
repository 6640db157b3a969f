"""`heliograph smp`: create, run and inspect a messaging router."""

import argparse
import time
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from heliograph.cli.actions import add_backup
from heliograph.cli.arguments import Subparsers
from heliograph.cli.routers import RouterCommands
from heliograph.cli.transfer import Progress, TransferFormat, add_transfer
from heliograph.db.dialects import Dialect
from heliograph.smp.config import INTRODUCTION, PREFIX, SmpConfig, SmpListen
from heliograph.smp.store.schema import MIGRATIONS
from heliograph.wire.addresses import Scheme, ServerAddress

if TYPE_CHECKING:
    from heliograph.smp.reference.transfer import SmpImport

_DESCRIPTION = """\
A messaging router keeps the queues through which SimpleX clients send and receive messages, and
notifies notification routers of new messages. It learns neither who its clients are nor what they
say.
"""

_EXAMPLES = """\
a router in two commands:
  heliograph smp init --host smp.example.com
  heliograph smp start

in place of the reference's router, with its host name:
  heliograph smp init --dir DIR --host smp.example.com
  cp /etc/opt/simplex/{ca,server}.* /etc/opt/simplex/fingerprint DIR
  heliograph smp import --dir DIR /var/opt/simplex/smp-server-store.log \\
    --messages /var/opt/simplex/smp-server-messages.log \\
    --notifications /var/opt/simplex/smp-server-ntfs.log

on this machine only, on a free port, in its own directory:
  heliograph smp init --dir ./router --port 0
  heliograph smp start --dir ./router
"""

ROUTER = RouterCommands(
    part="smp",
    title="messaging router",
    scheme=Scheme.SMP,
    authority_name="SMP server CA",
    config=SmpConfig,
    listen=SmpListen,
    prefix=PREFIX,
    introduction=INTRODUCTION,
    uncommented=("listen.host", "listen.port"),
    new_config=lambda listen: SmpConfig(listen=listen),
)


def add(commands: Subparsers) -> None:
    actions = ROUTER.add_group(commands, _DESCRIPTION, _EXAMPLES)
    ROUTER.add_init(actions, _next_step)
    ROUTER.add_start(actions, _serve)
    address = ROUTER.add_address(actions, _with_password)
    address.add_argument(
        "--with-password",
        action="store_true",
        help="include the password for creating queues, if there is one: share it with care",
    )
    ROUTER.add_check(
        actions,
        lambda config, directory: [
            lambda: config.settings(directory),
            lambda: config.control.passwords_in(directory),
        ],
    )
    add_backup(actions, ROUTER.part, lambda options: ROUTER.load(options).store_url(options.dir))
    add_transfer(
        actions,
        TransferFormat(
            ROUTER.part,
            "queues, links, notifier credentials and services",
            "queues",
            (
                ("--messages", "the file of messages, which the reference keeps separately"),
                ("--notifications", "the file of pending notifications, likewise"),
            ),
            MIGRATIONS,
            lambda options: ROUTER.load(options).store_url(options.dir),
            _import,
            _export,
        ),
    )
    ROUTER.add_rotation(actions)


def _next_step(config: SmpConfig, file: Path) -> Iterable[str]:
    yield f"2. Read {file} and change what you need."


def _serve(config: SmpConfig, directory: Path) -> AbstractAsyncContextManager[str]:
    # Imported here because its HTTP server would slow down every other command.
    from heliograph.smp.service import serve

    return serve(config, directory)


def _import(dialect: Dialect, progress: Progress) -> "SmpImport":
    from heliograph.smp.reference.transfer import SmpImport

    return SmpImport(dialect, progress)


def _export(dialect: Dialect, progress: Progress, files: list[Path | None]) -> str:
    from heliograph.smp.reference.transfer import SmpExport

    export = SmpExport(dialect, time.time(), progress)
    export.write(*files)
    return (
        f"{export.queues} queues, {export.services} services, {export.messages} messages"
        f" and {export.notifications} notifications"
    )


def _with_password(
    options: argparse.Namespace, config: SmpConfig, address: ServerAddress
) -> ServerAddress:
    if not options.with_password:
        return address
    password = config.settings(options.dir).rules.password
    return replace(address, password=None if password is None else password.decode())
