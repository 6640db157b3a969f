"""The commands of `heliograph ntf` that look into the store: export, import, backup, trace."""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from heliograph.cli.actions import add_action, add_backup
from heliograph.db.database import migrate
from heliograph.db.dialects import Dialect, Transaction, open_dialect
from heliograph.db.errors import DatabaseError
from heliograph.ntf.config import NtfConfig
from heliograph.ntf.schema import MIGRATIONS
from heliograph.runtime import process
from heliograph.runtime.errors import ConfigError, OperatorError, StartError
from heliograph.runtime.sections import SQLITE
from heliograph.wire.errors import WireError
from heliograph.wire.primitives import b64decode

PART = "ntf"
TELL_INTERVAL = 1.0

Load = Callable[[argparse.Namespace], NtfConfig]

_IMPORT = """\
Bring tokens and subscriptions from the reference's store log into the store. The router must not
run. A log with bad lines is refused as a whole; what is imported twice is there once, so an import
that was interrupted is finished by doing it again.
"""

_TRACE = """\
What happened, and what is owed, to one token. TOKEN_ID is what its owner's app shows, in base64url.
Works while the router runs. It shows no device token, key or messaging router.
"""


def add(actions: Any, load: Load) -> None:
    exporting = add_action(
        actions,
        PART,
        "export",
        "write the store as the reference's store log",
        lambda options: run_export(options, load(options)),
    )
    importing = add_action(
        actions,
        PART,
        "import",
        "read the reference's store log into the store",
        lambda options: run_import(options, load(options)),
        _IMPORT,
    )
    for parser in (exporting, importing):
        parser.add_argument("file", type=Path, metavar="FILE")
        parser.add_argument(
            "--last-notifications",
            type=Path,
            metavar="FILE",
            help="likewise for the last notifications, which the reference has in another file",
        )
    importing.add_argument(
        "--skip-bad", action="store_true", help="leave out lines that cannot be read"
    )
    add_backup(actions, PART, lambda options: load(options).store_url(options.dir))
    tracing = add_action(
        actions,
        PART,
        "trace",
        "tell what happened, and what is owed, to one token",
        lambda options: run_trace(options, load(options)),
        _TRACE,
    )
    tracing.add_argument("token_id", metavar="TOKEN_ID")
    tracing.add_argument("--json", action="store_true", help="for machines")
    tracing.add_argument(
        "--journal", action="store_true", help="also what the journal says; reads all of it"
    )


def run_export(options: argparse.Namespace, config: NtfConfig) -> int:
    from heliograph.ntf.transfer import Export

    tell = _Teller()
    with _opened(config, options.dir) as dialect:
        export = Export(dialect, tell)
        with _files():
            export.write(options.file, options.last_notifications)
    tell.end()
    print(
        f"Exported {export.tokens} tokens, {export.subscriptions} subscriptions"
        f" and {export.notifications} last notifications."
    )
    return 0


def run_import(options: argparse.Namespace, config: NtfConfig) -> int:
    from heliograph.ntf.service import UNFINISHED
    from heliograph.ntf.transfer import Import, StoreLogError

    directory: Path = options.dir
    files = [file for file in (options.file, options.last_notifications) if file is not None]
    tell = _Teller()
    os.umask(0o077)
    url = config.store_url(directory)
    with process.lock(directory), _store_errors():
        migrate(url, MIGRATIONS)
        with _opened(config, directory, read_only=False) as dialect, _files():
            work = Import(dialect, time.time(), tell)
            try:
                for file in files:
                    work.check(file, skip_bad=options.skip_bad)
            except StoreLogError as exc:
                tell.end()
                raise ConfigError((*exc.problems, "nothing was imported")) from exc
            (directory / UNFINISHED).touch(0o600)
            for file in files:
                work.apply(file)
            (directory / UNFINISHED).unlink()
    tell.end()
    print(f"Imported {work.applied} lines.")
    for why, count in work.skipped.items():
        print(f"Left out {count} lines that {why}.")
    return 0


def run_trace(options: argparse.Namespace, config: NtfConfig) -> int:
    from heliograph.ntf.trace import describe, hashed_token, read_journal, trace

    try:
        token_id = b64decode(options.token_id)
    except WireError as exc:
        raise StartError("TOKEN_ID: must be base64url, as the app shows it") from exc
    with _opened(config, options.dir) as dialect:
        found = trace(Transaction(dialect), token_id)
    if found is None:
        raise StartError("there is no such token: it was deleted, or is another router's")
    if options.journal:
        journal = config.journal.path_in(options.dir)
        if journal is None:
            raise StartError("--journal: there is none: see [journal] path")
        with _files():
            found = read_journal(found, journal, hashed_token(options.dir, token_id))
    if options.json:
        print(json.dumps(asdict(found), indent=2))
    else:
        for line in describe(found, time.time()):
            print(line)
    return 0


class _Teller:
    """Progress on standard error: over and over the same line on a terminal."""

    def __init__(self) -> None:
        self._told_at = time.monotonic()
        self._rewrites = sys.stderr.isatty()
        self._open = False

    def __call__(self, what: str, count: int) -> None:
        now = time.monotonic()
        if now - self._told_at >= TELL_INTERVAL:
            self._told_at = now
            end = "\r" if self._rewrites else "\n"
            print(f"{what}: {count}", file=sys.stderr, end=end, flush=True)
            self._open = self._rewrites

    def end(self) -> None:
        if self._open:
            print(file=sys.stderr)


@contextmanager
def _opened(config: NtfConfig, directory: Path, *, read_only: bool = True) -> Iterator[Dialect]:
    url = config.store_url(directory)
    if url.startswith(SQLITE) and not Path(url.removeprefix(SQLITE)).exists():
        raise StartError("there is no store yet: the router was never started")
    with _store_errors():
        dialect = open_dialect(url, read_only=read_only)
        try:
            yield dialect
        finally:
            dialect.close()


@contextmanager
def _store_errors() -> Iterator[None]:
    from heliograph.runtime.serving import store_error

    try:
        yield
    except DatabaseError as exc:
        raise store_error(exc) from exc


@contextmanager
def _files() -> Iterator[None]:
    try:
        yield
    except OperatorError:
        raise
    except OSError as exc:
        raise StartError(f"{exc.filename}: {exc.strerror}") from exc
