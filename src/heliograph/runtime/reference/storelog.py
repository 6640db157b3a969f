"""Import and export of the reference's store logs: files of one record a line.

An import checks all lines before it stores any, and a line refused is named by its number. Records
are applied in order, in transactions of many lines. Applying a log again leaves the same store: an
import that was interrupted is finished by repeating it.
"""

import hashlib
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from heliograph.db.dialects import Dialect, Row, Transaction
from heliograph.runtime.errors import StartError
from heliograph.runtime.files import write_file
from heliograph.wire.errors import WireError

__all__ = [
    "LINES_PER_PAGE",
    "BadLine",
    "LogExport",
    "LogImport",
    "Progress",
    "StoreLogError",
    "UnfinishedImport",
    "decode_line",
]

LINES_PER_PAGE = 2000
"""Lines in one transaction or page."""

MAX_LINE = 100_000
SHOWN_PROBLEMS = 20

Progress = Callable[[str, int], None]
"""Called with what is being done, and the count so far."""

R = TypeVar("R")
T = TypeVar("T")


class BadLine(ValueError):
    """A line that cannot be decoded; the text gives the reason without the content."""


def decode_line(
    line: str, kinds: Mapping[str, tuple[re.Pattern[str], Callable[..., T]]], what: str
) -> T:
    """Decode a line by the pattern of its kind; `what` names the files that have these kinds.

    Raises `BadLine`.
    """
    kind, _, rest = line.partition(" ")
    known = kinds.get(kind)
    if known is None:
        raise BadLine(f"not a record of a {what}")
    pattern, decode = known
    match = pattern.fullmatch(rest)
    if match is None:
        raise BadLine(f"{kind}: its parts are not what they should be")
    try:
        return decode(*match.groups())
    except (WireError, BadLine) as exc:
        raise BadLine(f"{kind}: {exc}") from None


class StoreLogError(Exception):
    """Lines that cannot be decoded, by number. Nothing was imported."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


class LogImport(ABC, Generic[R]):
    """One import. `applied` counts lines; `skipped` counts omitted lines by reason.

    `stored` is how many rows each of `TABLES` has after it, or would have.
    """

    TABLES: ClassVar[tuple[str, ...]]

    def __init__(self, dialect: Dialect, progress: Progress = lambda what, count: None) -> None:
        self.dialect = dialect
        self.applied = 0
        self.skipped: dict[str, int] = {}
        self.stored: dict[str, int] = {}
        self._progress = progress

    @abstractmethod
    def decode(self, line: str) -> R:
        """Decode a line that is not empty. Raises `BadLine`."""

    @abstractmethod
    def apply_record(self, tx: Transaction, record: R) -> str | None:
        """Apply a record, or return the reason why not."""

    def begin(self, tx: Transaction) -> None:
        """Prepare to apply a file."""

    def end(self, tx: Transaction) -> None:
        """Complete the store after the last file."""

    def check(self, file: Path, *, skip_bad: bool = False) -> None:
        """Check a log without storing it. Raises `StoreLogError` and `OSError`."""
        problems: list[str] = []
        bad = number = 0
        for number, line in _lines(file):
            try:
                self._decode(line)
            except BadLine as exc:
                bad += 1
                if bad <= SHOWN_PROBLEMS:
                    problems.append(f"{file}: line {number}: {exc}")
            if number % LINES_PER_PAGE == 0:
                self._progress(f"checking {file.name}", number)
        self._progress(f"checked {file.name}", number)
        if bad > SHOWN_PROBLEMS:
            problems.append(f"{file}: and {bad - SHOWN_PROBLEMS} more lines")
        if problems and not skip_bad:
            raise StoreLogError(problems)

    def apply(self, files: Iterable[Path], *, dry_run: bool = False) -> None:
        """Store checked logs, or with `dry_run` only count what would be stored."""
        dialect, tx = self.dialect, Transaction(self.dialect)
        dialect.begin()
        try:
            for file in files:
                self.begin(tx)
                for page in _pages(_lines(file)):
                    for _, line in page:
                        self._apply_line(tx, line)
                    self._progress(f"importing {file.name}", self.applied)
                    if not dry_run:
                        dialect.commit()
                        dialect.begin()
            self.end(tx)
            for table in self.TABLES:
                [[self.stored[table]]] = tx.query(f"SELECT COUNT(*) FROM {table}")  # noqa: S608
            if dry_run:
                dialect.rollback()
            else:
                dialect.commit()
        except BaseException:
            dialect.rollback()
            raise

    def _apply_line(self, tx: Transaction, line: str) -> None:
        try:
            record = self._decode(line)
        except BadLine:
            self._skip("cannot be read")
            return
        if record is None:
            return
        why = self.apply_record(tx, record)
        if why is None:
            self.applied += 1
        else:
            self._skip(why)

    def _decode(self, line: str) -> R | None:
        if len(line) > MAX_LINE:
            raise BadLine("the line is too long")
        if line and not line.endswith("\n"):
            raise BadLine("it does not end with a line break: the file may have been cut off")
        line = line.rstrip("\r\n")
        return self.decode(line) if line else None

    def _skip(self, why: str) -> None:
        self.skipped[why] = self.skipped.get(why, 0) + 1


class LogExport:
    """One export of a snapshot of the store. Files appear when they are complete."""

    def __init__(self, dialect: Dialect, progress: Progress = lambda what, count: None) -> None:
        self.dialect = dialect
        self._progress = progress

    def write_files(self, files: Iterable[tuple[Path | None, Callable[[], Iterator[str]]]]) -> None:
        """Write the lines of each file that is given. Raises `FileExistsError`, `OSError`."""
        # Of SQLite it gives a snapshot; what PostgreSQL changes meanwhile may be in or not.
        self.dialect.execute("BEGIN", ())
        try:
            for file, lines in files:
                if file is not None:
                    _write(file, lines())
        finally:
            self.dialect.rollback()

    def rows(self, sql: str, after: bytes | int) -> Iterator[Row]:
        """Query page by page; the first column is the parameter of the next page."""
        while True:
            page = self.dialect.query(sql, (after, LINES_PER_PAGE))
            yield from page
            if len(page) < LINES_PER_PAGE:
                return
            after = page[-1][0]

    def report(self, what: str, count: int) -> None:
        if count % LINES_PER_PAGE == 0:
            self._progress(what, count)


class UnfinishedImport:
    """A file in a router's directory while an import runs; with it, the router does not start."""

    NAME = "import-unfinished"

    def __init__(self, directory: Path) -> None:
        self._file = directory / self.NAME

    @property
    def exists(self) -> bool:
        return self._file.exists()

    def mark(self, files: Iterable[Path] = ()) -> None:
        """Begin an import. Raises `StartError` if one of other files was interrupted."""
        digest = _digest(files)
        if self.exists and self._file.read_bytes() not in (b"", digest):
            raise StartError(
                f"{self._file}: an import of other files was interrupted, and the store has only a"
                " part of them: repeat that one"
            )
        write_file(self._file, digest, 0o600)

    def clear(self) -> None:
        self._file.unlink()

    def refuse(self, part: str) -> None:
        """Raise `StartError` if an import was interrupted."""
        if self.exists:
            raise StartError(
                f"{self._file}: an import was interrupted, and the store has only a part of it:"
                f" run `heliograph {part} import` again; nothing will be there twice"
            )


def _digest(files: Iterable[Path]) -> bytes:
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as source:
            digest.update(hashlib.file_digest(source, "sha256").digest())
    return digest.hexdigest().encode()


def _write(file: Path, lines: Iterator[str]) -> None:
    if file.exists():
        raise FileExistsError(17, "it exists already", str(file))
    unfinished = file.with_name(f"{file.name}.unfinished")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as out:
        for line in lines:
            out.write(f"{line}\n")
        out.flush()
        os.fsync(out.fileno())
    unfinished.replace(file)


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    with file.open(encoding="utf-8", errors="replace", newline="\n") as source:
        number = 0
        while line := source.readline(MAX_LINE + 2):
            number += 1
            yield number, line


def _pages(items: Iterator[T]) -> Iterator[list[T]]:
    while page := list(islice(items, LINES_PER_PAGE)):
        yield page
