"""`heliograph backup` and `heliograph restore`: a whole system, with its stores and keys."""

import argparse
import time
from pathlib import Path

from heliograph.cli.arguments import Subparsers
from heliograph.cli.system import add_command
from heliograph.system.backup import Manifest, back_up, check_backup, restore

_BACKUP = """\
Copy a system to a new directory, while it runs: configurations, keys, stores, journal and the
tables of the pipeline, with a manifest of checksums. Each store is copied as of one moment,
PostgreSQL into an SQLite file. The copy holds the private keys of the routers: keep it as safe as
the system.
"""

_RESTORE = """\
Check a backup, and create a system from it in a directory that is not there or is empty. A store
that was in PostgreSQL is copied to the database that smp/config.toml or ntf/config.toml names,
which must be empty. Do not run the restored system beside the one it was made of: they have the
same addresses. What arrived after the backup is not in it.
"""


def add(commands: Subparsers) -> None:
    making = add_command(commands, "backup", "copy the whole system, while it runs", run, _BACKUP)
    making.add_argument("target", type=Path, metavar="BACKUP", help="a directory to create")
    making.add_argument(
        "--routers-only",
        action="store_true",
        help="leave out the journal and the pipeline's tables",
    )
    restoring = add_command(
        commands, "restore", "create a system from a backup", run_restore, _RESTORE
    )
    restoring.add_argument("backup", type=Path, metavar="BACKUP")
    restoring.add_argument("--check", action="store_true", help="only check that it is whole")


def run(options: argparse.Namespace) -> int:
    made = back_up(options.dir, options.target, time.time(), routers_only=options.routers_only)
    print(f"Backed up {options.dir} to {options.target}: {_describe(made)}.")
    print("It holds private keys: only you can read it, and nobody else should.")
    return 0


def run_restore(options: argparse.Namespace) -> int:
    if options.check:
        print(f"{options.backup} is whole: {_describe(check_backup(options.backup))}.")
        return 0
    made = restore(options.backup, options.dir)
    print(f"Restored {options.dir} from {options.backup}: {_describe(made)}.")
    print(f"Start it: heliograph up --dir {options.dir}")
    return 0


def _describe(manifest: Manifest) -> str:
    rows = sum(sum(tables.values()) for tables in manifest.rows.values())
    at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(manifest.made_at))
    megabytes = manifest.size / 1e6
    return f"{len(manifest.files)} files, {megabytes:.1f} MB, {rows} rows in stores, of {at}"
