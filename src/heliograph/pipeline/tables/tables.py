"""Delta Lake tables: Spark writes Parquet files, and a commit to Delta's log adds them.

A commit is refused unless the rows in the footers of the files are those that were expected. Each
batch of events has a number, which is the version of an application transaction: a second writer of
the same batch is refused by Delta itself. Tables derived from events record the last batch that
they contain in the same way, so each has every batch exactly once, even after a kill.
"""

import fcntl
import json
import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from heliograph.documents import JsonObject
from heliograph.pipeline.tables import log
from heliograph.pipeline.tables.foreign import check_changes, check_rewrites
from heliograph.pipeline.tables.offsets import METADATA, Offsets, encode, read_offsets
from heliograph.pipeline.tables.snapshot import DERIVED, DataFile, Snapshot
from heliograph.pipeline.tables.storage import BY_DAY, Storage, StoredFile
from heliograph.runtime.errors import StartError, file_error

if TYPE_CHECKING:
    from deltalake import DeltaTable

LOCK = "lock"
NO_DAY = "__HIVE_DEFAULT_PARTITION__"
"""The name that Spark gives to the folder of a null partition."""
APPLICATION = "heliograph"
"""The application ID of the transactions."""
_UNKNOWN_TO_DELTA = re.compile(r"%[0-9A-Fa-f]{2}|[][\\^|\x00-\x1f]")
MAKE_AGAIN = "The tables can be made again from the journals: move the directory away"
SAME_STORAGE = (
    "all workers of Spark must see the same storage as this process. Nothing was committed; the"
    " next run takes it all"
)


class RowsMissing(StartError):
    """The files of a batch do not have the expected number of rows. Nothing was committed."""


class SecondWriter(StartError):
    """Another process committed the same batch. Nothing of ours was committed."""


class Tables:
    """All tables below one place, created when they are first opened. Raises `StartError`.

    Threads may commit concurrently if no two of them remove files of the same table.
    """

    def __init__(self, place: str | Path) -> None:
        # Imported here because `status` and the page read offsets without it.
        from deltalake import DeltaTable, Schema

        from heliograph.pipeline.tables.schemas import arrow_schemas

        self.storage = Storage(place)
        if self.storage.local is not None and _UNKNOWN_TO_DELTA.search(str(self.storage.local)):
            raise StartError(
                f"{place}: Delta opens no table below a name with [, ], ^, |, a backslash, or %"
                " before two hexadecimal digits: choose another --dir"
            )
        self._schemas = {
            name: Schema.from_arrow(schema) for name, schema in arrow_schemas().items()
        }
        self._tables: JsonObject = {}
        self._committing = threading.Lock()
        self.updating = {name: threading.Lock() for name in DERIVED}
        """Locks that a thread holds while it brings derived tables up to date."""
        for name, schema in self._schemas.items():
            url = f"{self.storage.delta_url}/{name}"
            try:
                self._tables[name] = (
                    DeltaTable(url)
                    if DeltaTable.is_deltatable(url)
                    else DeltaTable.create(
                        url, schema, partition_by=_partitions(name), configuration=log.CONFIGURATION
                    )
                )
            except Exception as exc:
                text = log.reason(exc)
                denied = "ermission denied" in text
                advice = "run this as the user that writes there" if denied else MAKE_AGAIN
                raise StartError(
                    f"the table {name} in {place} cannot be opened: {text}. {advice}"
                ) from exc
        self.snapshot = self._load(self._tables)

    def pinned(self) -> "Tables":
        """Return a reader of the current snapshot, unaffected by later commits."""
        copy = object.__new__(Tables)
        copy.storage, copy.snapshot = self.storage, self.snapshot
        copy._schemas, copy._tables, copy._committing = self._schemas, {}, self._committing
        copy.updating = self.updating
        return copy

    def staging(self, table: str, batch: int | None = None) -> str:
        """Return a new folder for uncommitted files, by default of the next batch."""
        number = self.snapshot.offsets.batch + 1 if batch is None else batch
        return f"{table}/{number:08d}-{uuid.uuid4().hex[:8]}"

    def written(self, staging: str, expected: int) -> tuple[DataFile, ...]:
        """Return the files written there. Raises `RowsMissing`."""
        files = self.storage.written(staging)
        found = sum(file.rows for file in files)
        if found != expected:
            raise RowsMissing(
                f"{expected} rows were written to {self.storage.below(staging)}, and {found} are"
                f" there: {SAME_STORAGE}"
            )
        folder = staging.partition("/")[2]
        return tuple(_data_file(folder, file) for file in files)

    def discard(self, table: str, files: Iterable[DataFile]) -> None:
        """Remove files that will not be committed."""
        self.storage.remove(table, [file.path for file in files])

    def commit(
        self,
        table: str,
        added: Sequence[DataFile] = (),
        removed: Sequence[DataFile] = (),
        *,
        offsets: Callable[[Offsets], Offsets] | None = None,
        progress: int | None = None,
    ) -> None:
        """Add and remove files in one commit; `progress` is for derived tables.

        `offsets` returns those of a commit of events from those before it.

        Raises `SecondWriter`, and `StartError` if the storage fails.
        """
        with self._committing:
            new = None if offsets is None else offsets(self.snapshot.offsets)
            self._commit(table, added, removed, new, progress)
            log.maintain(table, self._tables[table])

    def _commit(
        self,
        table: str,
        added: Sequence[DataFile],
        removed: Sequence[DataFile],
        offsets: Offsets | None,
        progress: int | None,
    ) -> None:
        from deltalake import CommitProperties, PostCommitHookProperties, Transaction
        from deltalake.exceptions import CommitFailedError, DeltaError
        from deltalake.transaction import AddAction, RemoveAction

        now = time.time()
        if offsets is not None:
            offsets = replace(offsets, batch=self.snapshot.offsets.batch + 1, committed_at=now)
        version = offsets.batch if offsets is not None else progress
        is_events = table == "events"
        state = offsets or self.snapshot.offsets
        milliseconds = int(now * 1000)
        actions: list[AddAction | RemoveAction] = [
            AddAction(
                file.path,
                file.size,
                _partition(table, file),
                milliseconds,
                not removed,
                json.dumps({"numRecords": file.rows}),
            )
            for file in added
        ]
        actions += [
            RemoveAction(
                file.path,
                not added,
                milliseconds,
                file.size,
                _partition(table, file),
            )
            for file in removed
        ]
        properties = CommitProperties(
            custom_metadata={METADATA: encode(state) if is_events else ""},
            max_commit_retries=0,
            app_transactions=None if version is None else [Transaction(APPLICATION, version)],
        )

        def append() -> int:
            delta = self._tables[table]
            version: int = delta.version() + 1
            delta.create_write_transaction(
                actions,
                "append",
                self._schemas[table],
                partition_by=_partitions(table),
                commit_properties=properties,
                # Later, by `log.maintain`: if they fail, the commit is made nevertheless.
                post_commithook_properties=PostCommitHookProperties(False, False),
            )
            delta.update_incremental()
            return version

        try:
            try:
                made = append()
            except CommitFailedError as exc:
                self._follow(table, removed, log.reason(exc))
                made = append()
        except CommitFailedError as exc:
            raise SecondWriter(self._second_writer(log.reason(exc))) from exc
        except (OSError, DeltaError) as exc:
            self._reload(table)  # it may have been committed although the answer was lost
            raise StartError(
                f"{self.storage.url}/{table} cannot be written: {log.reason(exc)}. The next batch"
                " goes on after the last commit"
            ) from exc
        gone = {file.path for file in removed}
        kept = tuple(file for file in self.snapshot.of(table) if file.path not in gone)
        self.snapshot = Snapshot(
            {**self.snapshot.files, table: (*kept, *added)},
            state,
            {**self.snapshot.progress, table: progress}
            if progress is not None
            else self.snapshot.progress,
        )
        self.storage.sync_log(table, made)
        if (newest := self._tables[table].version()) != made:
            self._follow(table, (), f"version {newest} came right after {made}")

    def follow(self) -> None:
        """Read commits of other tools to all tables: they may have removed files that we know.

        Raises `StartError`.
        """
        with self._committing:
            for name in self._schemas:
                self._follow(name, (), "it has committed a batch")

    def _follow(self, table: str, removed: Sequence[DataFile], reason: str) -> None:
        """Read commits of other tools, such as OPTIMIZE, after which ours can still be made.

        Raises `SecondWriter` after the commit of another pipeline, and `StartError` if a file to
        remove has been rewritten.
        """
        from deltalake import DeltaTable

        new = DeltaTable(f"{self.storage.delta_url}/{table}")
        known = self._tables[table].transaction_version(APPLICATION)
        if new.transaction_version(APPLICATION) != known:
            raise SecondWriter(self._second_writer(reason))
        check_changes(self.storage, table, new.version())
        tables = {**self._tables, table: new}
        snapshot = self._load(tables)
        check_rewrites(self.storage.url, snapshot)
        self._tables, self.snapshot = tables, snapshot
        if not {file.path for file in removed} <= {file.path for file in snapshot.of(table)}:
            raise StartError(
                f"another program rewrote files of {self.storage.url}/{table}. Nothing was"
                " committed here; the next try goes on after its commit"
            )

    def _second_writer(self, reason: str) -> str:
        return (
            f"another pipeline writes to {self.storage.url}: {reason}. Nothing was committed here;"
            " stop one of the two"
        )

    def _reload(self, table: str) -> None:
        """Read again what is committed; keep what is known if that fails, too."""
        from deltalake.exceptions import DeltaError

        with suppress(OSError, DeltaError, StartError):
            self._tables[table].update_incremental()
            self.snapshot = self._load(self._tables)

    def vacuum(self, retention_hours: int = log.RETENTION_HOURS) -> int:
        """Remove files that no reader needs any more, and leftovers of killed writers.

        Needs no commit, so that it may run beside others.
        """
        from deltalake import DeltaTable

        count = 0
        for name in self._schemas:
            unused = DeltaTable(f"{self.storage.delta_url}/{name}").vacuum(
                retention_hours=retention_hours, enforce_retention_duration=False, full=True
            )
            self.storage.remove(name, unused)
            count += len(unused)
        return count

    def check(self) -> None:
        """Raise `StartError` if commits of events are lost that other tables contain, or if another
        tool changed a table.

        Batches with the numbers of lost ones would be taken for known ones.
        """
        batch = self.snapshot.offsets.batch
        known = {"events": self._tables["events"].transaction_version(APPLICATION) or 0}
        known |= {name: self.snapshot.progress[name] for name in DERIVED}
        newest = max(known, key=known.__getitem__)
        if known[newest] > batch:
            raise StartError(
                f"{self.storage.url}/events/_delta_log lacks commits: {newest} has batch"
                f" {known[newest]}, and the log ends with {batch}. Restore it, or: {MAKE_AGAIN}"
            )
        self.check_others()

    def check_others(self) -> None:
        """Raise `StartError` if another tool changed a table: rows are missing, or there twice."""
        for name, table in self._tables.items():
            check_changes(self.storage, name, table.version())
        check_rewrites(self.storage.url, self.snapshot)

    def _load(self, tables: JsonObject) -> Snapshot:
        return Snapshot(
            {name: tuple(_files(delta)) for name, delta in tables.items()},
            read_offsets(self.storage.url, tables["events"].version()),
            {
                name: delta.transaction_version(APPLICATION) or 0
                for name, delta in tables.items()
                if name != "events"
            },
        )


def _partitions(table: str) -> list[str]:
    return ["day"] if table in BY_DAY else []


def _partition(table: str, file: DataFile) -> dict[str, str | None]:
    return {"day": file.day} if table in BY_DAY else {}


def _data_file(folder: str, file: StoredFile) -> DataFile:
    partition = file.path.rpartition("/")[0]
    day = partition.removeprefix("day=") if partition.startswith("day=") else None
    return DataFile(f"{folder}/{file.path}", file.size, file.rows, None if day == NO_DAY else day)


def _files(delta: "DeltaTable") -> Iterator[DataFile]:
    import pyarrow as pa

    rows = pa.table(delta.get_add_actions(flatten=True)).to_pylist()
    for row in sorted(rows, key=lambda row: str(row["path"])):
        day = row.get("partition.day")
        yield DataFile(
            row["path"],
            row["size_bytes"],
            row["num_records"] or 0,
            None if day is None else day.isoformat(),
        )


def list_files(place: str | Path, table: str) -> list[DataFile]:
    """Return the files of one table, to read it without Spark. Raises `StartError`."""
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError
    except ModuleNotFoundError as exc:
        raise StartError(f"{exc.name} is missing: pip install 'heliograph[pipeline]'") from exc
    try:
        return list(_files(DeltaTable(f"{Storage(place).delta_url}/{table}")))
    except DeltaError as exc:
        raise StartError(f"the table {table} in {place} cannot be read: {log.reason(exc)}") from exc


@contextmanager
def open_tables(place: str | Path) -> Iterator[Tables]:
    """Open the tables to write. Raises `StartError`, also if another process has them open."""
    storage = Storage(place)
    if storage.local is None:
        yield _opened(place)
        return
    directory = storage.local
    lock = _open_lock(directory)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise StartError(
                f"another pipeline is at work in {directory}: stop it, or choose another --dir"
            ) from exc
        yield _opened(place)
    finally:
        os.close(lock)


def _opened(place: str | Path) -> Tables:
    tables = Tables(place)
    tables.check()
    return tables


def check_writable(place: str | Path) -> None:
    """Raise `StartError` if tables cannot be written there. Also while another process does."""
    directory = Storage(place).local
    if directory is not None:
        os.close(_open_lock(directory))


def _open_lock(directory: Path) -> int:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        return os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as exc:
        raise StartError(file_error(exc, directory, "cannot be written")) from exc
