"""`import`, `export` and `copy-store` of both routers."""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from heliograph.cli.actions import NO_STORE, add_action
from heliograph.cli.arguments import Subparsers
from heliograph.db.database import Migration, alone, migrate
from heliograph.db.dialects import Dialect, open_dialect
from heliograph.runtime import process
from heliograph.runtime.config.sections import SQLITE, Store
from heliograph.runtime.errors import (
    ConfigError,
    OperatorError,
    StartError,
    file_error,
    store_errors,
)
from heliograph.runtime.reference.storelog import LogImport, StoreLogError, UnfinishedImport

PROGRESS_INTERVAL = 1.0

_COPY = """\
Copy every table into an empty database of either kind: from SQLite to PostgreSQL, or back.
The router must not run. The copy is one transaction: if it is interrupted, or the counts of rows
differ, the target stays empty. Set PGPASSWORD rather than a password in the URL, which others see.
"""

_IMPORT = """\
Copy {what} from the reference's store log into the store. The router must not run. A log with bad
lines is refused as a whole, and so is a store that is in use. If an import is interrupted, repeat
it with the same files: nothing is there twice, and until then the router does not start.
"""


R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class TransferFormat(Generic[R]):
    """The formats of one router; `others` are the options of further files, with their help."""

    part: str
    what: str
    table: str
    """The table that an import fills first: with rows in it, the store is in use."""
    others: tuple[tuple[str, str], ...]
    migrations: Sequence[Migration]
    store_url: Callable[[argparse.Namespace], str]
    importer: Callable[[Dialect, "Progress"], LogImport[R]]
    export: Callable[[Dialect, "Progress", list[Path | None]], str]
    """Writes the files, and returns what was written as text."""


def add_transfer(actions: Subparsers, form: TransferFormat[R]) -> None:
    exporting = add_action(
        actions,
        form.part,
        "export",
        "write the store as the reference's store log",
        lambda options: run_export(options, form),
    )
    importing = add_action(
        actions,
        form.part,
        "import",
        "read the reference's store log into the store",
        lambda options: run_import(options, form),
        _IMPORT.format(what=form.what),
    )
    for parser in (exporting, importing):
        parser.add_argument("file", type=Path, metavar="FILE")
        for option, text in form.others:
            parser.add_argument(option, type=Path, metavar="FILE", dest=option, help=text)
    importing.add_argument("--skip-bad", action="store_true", help="skip lines that cannot be read")
    importing.add_argument(
        "--dry-run", action="store_true", help="count what would be imported, and change nothing"
    )

    copying = add_action(
        actions,
        form.part,
        "copy-store",
        "copy the store into an empty database, SQLite or PostgreSQL",
        lambda options: run_copy(options, form),
        _COPY,
    )
    copying.add_argument(
        "--to",
        required=True,
        metavar="URL",
        help="sqlite:///PATH or postgresql://USER@HOST/DATABASE",
    )


def run_copy(options: argparse.Namespace, form: TransferFormat[R]) -> int:
    from heliograph.db.copying import copy_database

    given = Store(url=options.to)
    problems = [f"--to: {problem}" for _, problem in given.check()]
    if problems or not options.to:
        raise ConfigError(problems or ["--to: must not be empty"])
    url = form.store_url(options)
    if not _exists(url):
        raise StartError(NO_STORE)
    progress = Progress()
    UnfinishedImport(options.dir).refuse(form.part)
    target = given.url_in(options.dir, "")
    with ExitStack() as stack:
        stack.enter_context(process.lock(options.dir))
        stack.enter_context(store_errors())
        for each in {url, target}:
            stack.enter_context(alone(each))
        copied = copy_database(url, target, form.migrations, progress)
    progress.end()
    for table, count in copied.items():
        print(f"{table:<22} {count:>10}")
    print("Copied, and counted again. Now set [store] url in config.toml, and start the router.")
    return 0


def run_export(options: argparse.Namespace, form: TransferFormat[R]) -> int:
    progress = Progress()
    UnfinishedImport(options.dir).refuse(form.part)
    with opened(form.store_url(options)) as dialect, file_errors():
        done = form.export(dialect, progress, _files(options, form))
    progress.end()
    print(f"Exported {done}.")
    return 0


def run_import(options: argparse.Namespace, form: TransferFormat[R]) -> int:
    directory: Path = options.dir
    files = [file for file in _files(options, form) if file is not None]
    progress = Progress()
    url = form.store_url(options)
    unfinished = UnfinishedImport(directory)
    with ExitStack() as stack:
        stack.enter_context(process.lock(directory))
        stack.enter_context(store_errors())
        is_new = not _exists(url)
        if options.dry_run and is_new:
            url = f"{SQLITE}{stack.enter_context(tempfile.TemporaryDirectory())}/empty.db"
        stack.enter_context(alone(url))
        if is_new or not options.dry_run:
            migrate(url, form.migrations)
        dialect = stack.enter_context(opened(url, read_only=False))
        stack.enter_context(file_errors())
        work = form.importer(dialect, progress)
        try:
            for file in files:
                work.check(file, skip_bad=options.skip_bad)
        except StoreLogError as exc:
            progress.end()
            raise ConfigError((*exc.problems, "nothing was imported")) from exc
        if not options.dry_run:
            if not unfinished.exists and dialect.query(f"SELECT 1 FROM {form.table} LIMIT 1", ()):  # noqa: S608
                raise StartError(
                    f"the store has {form.table} already, and an import would undo what happened to"
                    " them since: import into a new directory"
                )
            unfinished.mark(files)
        work.apply(files, dry_run=options.dry_run)
        if not options.dry_run:
            unfinished.clear()
    progress.end()
    print(f"{'Would import' if options.dry_run else 'Imported'} {work.applied} lines.")
    counts = ", ".join(f"{table} {count}" for table, count in work.stored.items())
    print(f"The store {'would have' if options.dry_run else 'has'}: {counts}.")
    for why, count in work.skipped.items():
        print(f"{'Would skip' if options.dry_run else 'Skipped'} {count} lines that {why}.")
    return 0


def _files(options: argparse.Namespace, form: TransferFormat[R]) -> list[Path | None]:
    return [options.file, *(getattr(options, option) for option, _ in form.others)]


def _exists(url: str) -> bool:
    return not url.startswith(SQLITE) or Path(url.removeprefix(SQLITE)).exists()


class Progress:
    """Progress on standard error; on a terminal it rewrites one line."""

    def __init__(self) -> None:
        self._reported_at = time.monotonic()
        self._rewrites = sys.stderr.isatty()
        self._open = False

    def __call__(self, what: str, count: int) -> None:
        now = time.monotonic()
        if now - self._reported_at >= PROGRESS_INTERVAL:
            self._reported_at = now
            end = "\r" if self._rewrites else "\n"
            print(f"{what}: {count}", file=sys.stderr, end=end, flush=True)
            self._open = self._rewrites

    def end(self) -> None:
        if self._open:
            print(file=sys.stderr)


@contextmanager
def opened(url: str, *, read_only: bool = True) -> Iterator[Dialect]:
    if url.startswith(SQLITE) and not Path(url.removeprefix(SQLITE)).exists():
        raise StartError(NO_STORE)
    with store_errors():
        dialect = open_dialect(url, read_only=read_only)
        try:
            yield dialect
        finally:
            dialect.close()


@contextmanager
def file_errors() -> Iterator[None]:
    try:
        yield
    except OperatorError:
        raise
    except OSError as exc:
        raise StartError(file_error(exc)) from exc
