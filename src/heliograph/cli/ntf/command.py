"""`heliograph ntf`: create, run and inspect a notification router."""

import argparse
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

from heliograph.cli.actions import add_action
from heliograph.cli.arguments import Subparsers
from heliograph.cli.ntf import actions as ntf_actions, probe, store as ntf_store
from heliograph.cli.routers import RouterCommands, new_config_file, run_checks
from heliograph.ntf.config import (
    INTRODUCTION,
    MAX_WORKERS,
    PREFIX,
    NetworkOptions,
    NtfConfig,
    NtfListen,
    worker_count,
)
from heliograph.ntf.reference.ini import IniError, translate
from heliograph.runtime import process
from heliograph.runtime.config.file import FILE_NAME, load
from heliograph.runtime.errors import StartError
from heliograph.runtime.files import make_private_directory
from heliograph.runtime.identity import CA_KEY, FILES
from heliograph.wire.addresses import Scheme, ServerAddress, with_vapid

_DESCRIPTION = """\
A notification router subscribes to messaging routers on behalf of phones, and wakes a phone through
its push provider when a message arrives. It learns neither who talks to whom nor what they say.
"""

_EXAMPLES = """\
a router in three commands, and a check that it works:
  heliograph ntf init --host ntf.example.com
  $EDITOR ~/.heliograph/ntf/config.toml       # [push.apns], or another provider
  heliograph ntf start
  heliograph ntf probe

in place of the reference's router:
  heliograph ntf import-ini --dir DIR /etc/opt/simplex-notifications/ntf-server.ini
  cp /etc/opt/simplex-notifications/{ca,server}.* /etc/opt/simplex-notifications/fingerprint DIR
  heliograph ntf import --dir DIR /var/opt/simplex-notifications/ntf-server-store.log
  heliograph ntf start --dir DIR
"""

ROUTER = RouterCommands(
    part="ntf",
    title="notification router",
    scheme=Scheme.NTF,
    authority_name="NTF server CA",
    config=NtfConfig,
    listen=NtfListen,
    prefix=PREFIX,
    introduction=INTRODUCTION,
    uncommented=("listen.host", "listen.port", "network.allow_private"),
    new_config=lambda listen: NtfConfig(
        listen=listen, network=NetworkOptions(allow_private=listen.is_private)
    ),
)


def add(commands: Subparsers) -> None:
    actions = ROUTER.add_group(commands, _DESCRIPTION, _EXAMPLES)
    ROUTER.add_init(actions, _next_step, _create_vapid_key)
    start = ROUTER.add_start(actions, _serve, _instead)
    start.add_argument(
        "--workers",
        metavar="N",
        help='run N processes as one router, on PostgreSQL; "auto" is one for each core',
    )
    start.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    start.add_argument("--check", action="store_true", help=argparse.SUPPRESS)
    start.add_argument(
        "--maintenance", action="store_true", help="bring the store up to date, and exit"
    )
    address = ROUTER.add_address(actions, _with_vapid)
    address.add_argument(
        "--vapid",
        action="store_true",
        help="with the key that Web Push and UnifiedPush apps subscribe with, as /?vapid=KEY",
    )
    ROUTER.add_check(actions, _checks)
    ini = add_action(
        actions,
        ROUTER.part,
        "import-ini",
        "create config.toml from the reference's ntf-server.ini",
        run_ini,
    )
    ini.add_argument("file", type=Path, metavar="FILE")
    ntf_store.add(actions, ROUTER.load)
    ntf_actions.add(actions, ROUTER.load)
    probing = add_action(
        actions,
        ROUTER.part,
        "probe",
        "check a router, up to a push that is opened",
        run_probe,
    )
    probe.add_options(probing)
    vapid = add_action(
        actions, ROUTER.part, "vapid-key", "print the key that browsers subscribe with", run_vapid
    )
    vapid.add_argument("--make", action="store_true", help="create it if there is none")
    ROUTER.add_rotation(actions)


def _next_step(config: NtfConfig, file: Path) -> Iterable[str]:
    yield f"2. Set a push provider in {file}: [push.apns] or [push.fcm]."
    yield "   Web Push works already; `heliograph ntf vapid-key` prints its key."


def _with_vapid(options: argparse.Namespace, config: NtfConfig, address: ServerAddress) -> str:
    if not options.vapid:
        return str(address)
    from heliograph.ntf.providers import load_vapid

    return with_vapid(address, load_vapid(config, options.dir).public_key)


def _create_vapid_key(config: NtfConfig, directory: Path) -> Iterable[str]:
    from heliograph.ntf.providers import create_vapid_key

    create_vapid_key(directory)
    return (config.push.webpush.vapid_key_file,)


def _serve(config: NtfConfig, directory: Path) -> AbstractAsyncContextManager[str]:
    # Imported here because its HTTP server would slow down every other command.
    from heliograph.ntf.service import serve

    return serve(config, directory)


def _instead(options: argparse.Namespace, config: NtfConfig) -> int | None:
    directory: Path = options.dir
    if options.maintenance:
        from heliograph.ntf.service import maintain

        with process.lock(directory):
            maintain(config, directory)
        print("The store is up to date.")
        return 0
    if options.check:
        from heliograph.ntf.workers import require_postgres

        checks = _checks(config, directory)
        run_checks(directory, (partial(require_postgres, config, directory), *checks))
        return 0
    if options.worker is not None:
        from heliograph.ntf.cluster.reports import WorkerReports
        from heliograph.ntf.service import serve

        reports = WorkerReports()
        return process.run_worker(
            lambda: serve(config, directory, options.worker, reports), reports.received
        )
    count = _worker_count(options, config)
    if count is None:
        return None
    from heliograph.ntf.workers import supervise

    return process.run(directory, lambda: supervise(config, directory, count))


def _worker_count(options: argparse.Namespace, config: NtfConfig) -> int | None:
    if options.workers is None:
        return config.processes.count()
    try:
        return worker_count(options.workers)
    except ValueError:
        raise StartError(f'--workers: must be "auto" or a number from 1 to {MAX_WORKERS}') from None


def _checks(config: NtfConfig, directory: Path) -> Iterable[Callable[[], object]]:
    from heliograph.actions.pairing import pair_secret
    from heliograph.ntf.actions.opening import action_settings
    from heliograph.ntf.providers import make_providers
    from heliograph.ntf.workers import require_postgres

    if config.processes.count() is not None:
        yield lambda: require_postgres(config, directory)
    yield lambda: config.control.passwords_in(directory)
    yield lambda: make_providers(config, directory)
    yield lambda: action_settings(config.actions, config.journal, directory)
    if config.snapshots.path_in(directory) is not None:
        yield lambda: pair_secret(directory / config.snapshots.key_file)


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
    unchecked = directory / f"{FILE_NAME}.unchecked"
    ROUTER.write_config(translated.config(), unchecked)
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
        print(f"Copy the reference's {', '.join(missing)} to {directory}: they keep its address.")
    return 0


def run_probe(options: argparse.Namespace) -> int:
    return probe.run(options, lambda: ROUTER.address(ROUTER.load(options), options.dir))


def run_vapid(options: argparse.Namespace) -> int:
    from heliograph.ntf.providers import create_vapid_key, load_vapid

    config = ROUTER.load(options)
    if options.make:
        create_vapid_key(options.dir)
    print(load_vapid(config, options.dir).public_key)
    return 0
