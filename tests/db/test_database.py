"""One database for each part: grouped commits, failures that harm nobody else, loss and return."""

import asyncio
import os
import sqlite3
import stat
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from heliograph.db import worker
from heliograph.db.database import Database, Migration, migrate
from heliograph.db.dialects import Dialect, Transaction, open_dialect
from heliograph.db.errors import (
    DatabaseBusy,
    DatabaseError,
    DatabaseLost,
    DatabaseNewer,
)
from heliograph.db.sqlite import SqliteDialect
from heliograph.tasks import TaskScope
from tests.db.postgres import shared_postgres

MIGRATIONS = (
    Migration("0001_items", "CREATE TABLE items (id BIGINT PRIMARY KEY, data {blob}, note TEXT)"),
)


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[Database]:
    async with Database.open(url, MIGRATIONS, **options) as database:
        yield database


def insert(number: int, data: bytes | None = None) -> Callable[[Transaction], int]:
    def run(tx: Transaction) -> int:
        tx.execute("INSERT INTO items (id, data) VALUES (?, ?)", (number, data))
        return number

    return run


def ids(tx: Transaction) -> list[int]:
    return [number for (number,) in tx.query("SELECT id FROM items ORDER BY id")]


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch, url: str) -> Iterator[list[float]]:
    """How many commits there were."""
    dialect = open_dialect(url)
    kind = type(dialect)
    dialect.close()
    commits: list[float] = []
    commit = kind.commit

    def counting(self: Any) -> None:
        commits.append(time.monotonic())
        commit(self)

    monkeypatch.setattr(kind, "commit", counting)
    yield commits


class TestTransactions:
    async def test_what_was_written_is_read(self, url: str) -> None:
        async with opened(url) as database:
            assert await database.write(insert(1, b"\0\xff")) == 1
            rows = await database.read(lambda tx: tx.query("SELECT id, data, note FROM items"))
            assert rows == [(1, b"\0\xff", None)]
            assert isinstance(rows[0][1], bytes)
        async with opened(url) as database:
            assert await database.read(ids) == [1]

    async def test_text_is_text(self, url: str) -> None:
        async with opened(url) as database:
            note = "ünïcode ✓"
            await database.write(
                lambda tx: tx.execute("INSERT INTO items (id, note) VALUES (1, ?)", (note,))
            )
            rows = await database.read(lambda tx: tx.query("SELECT note FROM items"))
            assert rows == [(note,)]

    async def test_many_rows_and_long_lists(self, url: str) -> None:
        async with opened(url) as database:
            numbers = list(range(1501))
            rows = [(number, b"%d" % number) for number in numbers]
            await database.write(
                lambda tx: tx.many("INSERT INTO items (id, data) VALUES (?, ?)", rows)
            )
            await database.write(lambda tx: tx.many("DELETE FROM items WHERE id = ?", []))
            sql = "SELECT id FROM items WHERE id IN {in} AND id <> ?"
            found = await database.read(lambda tx: tx.query_in(sql, numbers, 700))
            assert {number for (number,) in found} == set(numbers) - {700}
            assert await database.read(lambda tx: tx.query_in(sql, [], 700)) == []

    async def test_those_that_wait_share_a_commit(
        self, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with opened(url) as database:
            with counted(monkeypatch, url) as commits:
                gate = threading.Event()
                first = database.write(lambda tx: gate.wait(10))
                others = [database.write(insert(number)) for number in range(100)]
                gate.set()
                await first
                assert await asyncio.gather(*others) == list(range(100))
            assert len(commits) <= 3

    async def test_a_group_is_not_endless(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(worker, "MAX_GROUP", 10)
        async with opened(url) as database:
            with counted(monkeypatch, url) as commits:
                await asyncio.gather(*(database.write(insert(number)) for number in range(50)))
            assert len(commits) >= 5

    async def test_what_is_answered_is_durable(self, url: str) -> None:
        async with opened(url) as database:
            await database.write(insert(1))
            dialect = open_dialect(url)
            assert dialect.query("SELECT id FROM items", ()) == [(1,)]
            dialect.close()

    async def test_reading_sees_what_was_answered(self, url: str) -> None:
        async with opened(url) as database:
            for number in range(50):
                await database.write(insert(number))
                assert len(await database.read(ids)) == number + 1

    async def test_a_reader_may_not_write(self, url: str) -> None:
        async with opened(url) as database:
            with pytest.raises(DatabaseError) as caught:
                await database.read(insert(1))
            assert not isinstance(caught.value, DatabaseLost)
            assert await database.read(ids) == []


class TestFailures:
    @pytest.mark.parametrize("bad", range(5))
    async def test_one_that_fails_harms_no_other(self, url: str, bad: int) -> None:
        def fail(tx: Transaction) -> None:
            insert(100)(tx)
            raise ValueError("a mistake")

        async with opened(url) as database:
            gate = threading.Event()
            first = database.write(lambda tx: gate.wait(10))
            jobs: list[asyncio.Future[Any]] = [
                database.write(fail if number == bad else insert(number)) for number in range(5)
            ]
            gate.set()
            await first
            results = await asyncio.gather(*jobs, return_exceptions=True)
            assert isinstance(results.pop(bad), ValueError)
            good = [number for number in range(5) if number != bad]
            assert results == good
            assert await database.read(ids) == good

    async def test_a_statement_that_fails(self, url: str) -> None:
        async with opened(url) as database:
            await database.write(insert(1))
            results = await asyncio.gather(
                database.write(insert(1)),
                database.write(lambda tx: tx.execute("NONSENSE")),
                database.write(insert(2)),
                database.read(lambda tx: tx.query("SELECT nothing FROM nowhere")),
                return_exceptions=True,
            )
            assert [type(result) for result in results] == [
                DatabaseError,
                DatabaseError,
                int,
                DatabaseError,
            ]
            assert await database.read(ids) == [1, 2]

    async def test_errors_do_not_quote_parameters(self, url: str) -> None:
        async with opened(url) as database:
            await database.write(insert(1, b"secret"))
            with pytest.raises(DatabaseError) as caught:
                await database.write(insert(1, b"secret"))
            assert "secret" not in str(caught.value)

    async def test_a_commit_that_fails(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        async with opened(url) as database:
            dialect = open_dialect(url)
            kind = type(dialect)
            dialect.close()

            def fail(_: Any) -> None:
                raise DatabaseError("disk full")

            with monkeypatch.context() as patch:
                patch.setattr(kind, "commit", fail)
                with pytest.raises(DatabaseError, match="disk full"):
                    await database.write(insert(1))
            assert await database.write(insert(2)) == 2
            assert await database.read(ids) == [2]

    async def test_a_caller_that_gave_up(self, url: str) -> None:
        async with opened(url) as database:
            abandoned = database.write(insert(1))
            abandoned.cancel()
            assert await database.write(insert(2)) == 2
            assert await database.read(ids) == [1, 2]

    async def test_closing_finishes_what_was_begun(self, url: str) -> None:
        database = await Database.open(url, MIGRATIONS)
        jobs = [database.write(insert(number)) for number in range(20)]
        await database.close()
        assert await asyncio.gather(*jobs) == list(range(20))

    @pytest.mark.parametrize("bad", ["", "sqlite:", "sqlite://", "sqlite:///", "mysql://host/db"])
    async def test_a_url_that_is_none(self, bad: str) -> None:
        with pytest.raises(DatabaseError, match="store URL"):
            await Database.open(bad, MIGRATIONS)


class TestMigrations:
    NEXT = Migration("0002_more", "CREATE TABLE more (id BIGINT); CREATE INDEX mx ON more (id)")

    async def test_steps_are_taken_once_and_in_order(self, url: str) -> None:
        async with opened(url) as database:
            await database.write(insert(1))
        for _ in range(2):
            database = await Database.open(url, (*MIGRATIONS, self.NEXT))
            assert await database.read(ids) == [1]
            assert await database.read(lambda tx: tx.query("SELECT id FROM more")) == []
            await database.close()

    async def test_a_newer_schema_is_refused(self, url: str) -> None:
        await asyncio.to_thread(migrate, url, (*MIGRATIONS, self.NEXT))
        with pytest.raises(DatabaseNewer):
            await Database.open(url, MIGRATIONS)
        async with opened_with(url, (*MIGRATIONS, self.NEXT)) as database:
            await database.write(insert(1))

    async def test_an_interrupted_step_leaves_nothing(self, url: str) -> None:
        broken = Migration("0002_more", "CREATE TABLE more (id BIGINT); NONSENSE")
        async with opened(url) as database:
            await database.write(insert(1))
        with pytest.raises(DatabaseError):
            await Database.open(url, (*MIGRATIONS, broken))
        async with opened(url) as database:
            assert await database.read(ids) == [1]
        async with opened_with(url, (*MIGRATIONS, self.NEXT)) as database:
            assert await database.read(lambda tx: tx.query("SELECT id FROM more")) == []

    async def test_the_router_s_schema(self, url: str) -> None:
        from heliograph.smp.store.schema import MIGRATIONS as SMP

        async with opened_with(url, SMP) as database:
            for table in ("queues", "messages", "notifications", "services"):
                sql = f"SELECT COUNT(*) FROM {table}"
                rows = await database.read(lambda tx, sql=sql: tx.query(sql))  # type: ignore[misc]
                assert rows == [(0,)]


@asynccontextmanager
async def opened_with(url: str, migrations: tuple[Migration, ...]) -> AsyncIterator[Database]:
    database = await Database.open(url, migrations)
    try:
        yield database
    finally:
        await database.close()


class TestSqlite:
    @pytest.mark.usefixtures("open_umask")
    async def test_files_are_private(self, sqlite_url: str, tmp_path: Path) -> None:
        async with opened(sqlite_url, exclusive=True) as database:
            await database.write(insert(1))
            dialect = open_dialect(sqlite_url, read_only=True)
            dialect.backup(tmp_path / "copy.db")
            dialect.close()
            modes = modes_in(tmp_path)
        names = ("test.db", "test.db-wal", "test.db-shm", "test.db.lock", "copy.db")
        assert modes == dict.fromkeys(names, 0o600)

    async def test_commits_reach_the_disk(self, sqlite_url: str) -> None:
        dialect = open_dialect(sqlite_url)
        assert dialect.query("PRAGMA journal_mode", ()) == [("wal",)]
        assert dialect.query("PRAGMA synchronous", ()) == [(2,)]
        dialect.close()

    async def test_another_process_writes(
        self, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with opened(sqlite_url) as database:
            assert database is not None
            await database.write(lambda tx: tx.execute("PRAGMA busy_timeout=10"))
            other = open_dialect(sqlite_url)
            other.begin()
            with pytest.raises(DatabaseBusy):
                await database.write(insert(1))
            other.rollback()
            other.close()
            assert await database.write(insert(1)) == 1

    async def test_not_a_database(self, tmp_path: Path) -> None:
        (tmp_path / "test.db").write_bytes(b"something else" * 100)
        with pytest.raises(DatabaseError, match="not a database"):
            await Database.open(f"sqlite:///{tmp_path}/test.db", MIGRATIONS)

    async def test_backup_while_writing(self, sqlite_url: str, tmp_path: Path) -> None:
        target = tmp_path / "copy.db"
        async with opened(sqlite_url) as database:
            await asyncio.gather(
                *(database.write(insert(number, bytes(2000))) for number in range(2000))
            )
            done = asyncio.Event()

            async def keep_writing() -> int:
                number = 10_000
                while not done.is_set():
                    await database.write(insert(number, bytes(2000)))
                    number += 1
                return number

            writing = asyncio.create_task(keep_writing())
            await asyncio.sleep(0.05)
            backup = asyncio.create_task(database.backup(target))
            while not backup.done():
                await database.read(lambda tx: tx.query("SELECT 1"))
            await backup
            done.set()
            await writing
        copied = [row[0] for row in rows_of(target)]
        assert copied[:2000] == list(range(2000))
        assert copied[2000:] == list(range(10_000, 10_000 + len(copied) - 2000))
        assert "copy.db.unfinished" not in os.listdir(tmp_path)
        async with opened(f"sqlite:///{target}") as database:
            await database.write(insert(5000))

    async def test_backup_where_there_is_no_place(self, sqlite_url: str, tmp_path: Path) -> None:
        async with opened(sqlite_url) as database:
            with pytest.raises(DatabaseError):
                await database.backup(tmp_path / "nowhere" / "copy.db")
            assert await database.write(insert(1)) == 1

    async def test_failed_backup_leaves_nothing(self, sqlite_url: str, tmp_path: Path) -> None:
        target = tmp_path / "copies" / "copy.db"
        target.mkdir(parents=True)  # a directory cannot be replaced by a file
        async with opened(sqlite_url) as database:
            with pytest.raises(DatabaseError):
                await database.backup(target)
        assert os.listdir(target.parent) == ["copy.db"]

    async def test_backup_is_for_its_owner_alone(self, sqlite_url: str, tmp_path: Path) -> None:
        async with opened(sqlite_url) as database:
            await database.backup(tmp_path / "copy.db")
        assert stat.S_IMODE((tmp_path / "copy.db").stat().st_mode) == 0o600

    async def test_missing_directory_is_not_created(self, tmp_path: Path) -> None:
        with pytest.raises(DatabaseError, match="does not exist: create or mount it"):
            await Database.open(f"sqlite:///{tmp_path}/volume/test.db", MIGRATIONS)
        assert os.listdir(tmp_path) == []


def modes_in(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mode & 0o777 for path in directory.iterdir()}


def rows_of(path: Path) -> list[Any]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute("SELECT id FROM items ORDER BY id").fetchall()
    finally:
        connection.close()


class TestPostgres:
    @pytest.mark.parametrize("how", ["stop", "kill"])
    async def test_it_comes_back_after_a_restart(self, postgres_url: str, how: str) -> None:
        server = shared_postgres()
        async with opened(postgres_url) as database:
            await database.write(insert(1))
            assert await database.read(ids) == [1]
            await asyncio.to_thread(getattr(server, how))
            try:
                writing = database.write(insert(2))
                reading = database.read(ids)
                await asyncio.sleep(0.1)
                assert not writing.done()
            finally:
                await asyncio.to_thread(server.start)
            assert await writing == 2
            assert await reading in ([1], [1, 2])
            assert await database.read(ids) == [1, 2]

    async def test_restarted_while_idle(self, postgres_url: str) -> None:
        server = shared_postgres()
        async with opened(postgres_url) as database:
            await database.write(insert(1))
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            assert await database.read(ids) == [1]
            assert await database.write(insert(2)) == 2

    async def test_killed_under_load(self, postgres_url: str) -> None:
        server = shared_postgres()
        async with opened(postgres_url) as database:

            async def write(numbers: range) -> None:
                sql = "INSERT INTO items (id) VALUES (?) ON CONFLICT (id) DO NOTHING"
                for number in numbers:
                    await database.write(lambda tx, n=number: tx.execute(sql, (n,)))  # type: ignore[misc]

            load = [asyncio.create_task(write(range(n * 1000, n * 1000 + 150))) for n in range(4)]
            for _ in range(3):
                await asyncio.sleep(0.05)
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
            await asyncio.gather(*load)
            assert len(await database.read(ids)) == 600

    async def test_gone_for_too_long(self, postgres_url: str) -> None:
        """All that waits fails together, not one after the other."""
        server = shared_postgres()
        async with opened(postgres_url, retry_for=0.5) as database:
            await asyncio.to_thread(server.kill)
            try:
                begin = time.monotonic()
                jobs = [database.write(insert(number)) for number in range(20)]
                results = await asyncio.gather(*jobs, return_exceptions=True)
                assert all(isinstance(result, DatabaseLost) for result in results)
                assert time.monotonic() - begin < 9
            finally:
                await asyncio.to_thread(server.start)
            assert await database.write(insert(1)) == 1

    async def test_one_connection_ended_by_the_operator(self, postgres_url: str) -> None:
        async with opened(postgres_url) as database:
            await database.write(insert(1))
            other = open_dialect(shared_postgres().url)
            other.query(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'",
                (),
            )
            other.close()
            assert await database.write(insert(2)) == 2
            assert await database.read(ids) == [1, 2]

    async def test_started_before_its_database(self, postgres_url: str) -> None:
        server = shared_postgres()
        await asyncio.to_thread(server.stop)

        async def start_later() -> None:
            await asyncio.sleep(0.1)
            await asyncio.to_thread(server.start)

        async with TaskScope() as tasks:
            tasks.spawn(start_later(), name="start the server")
            async with Database.open(postgres_url, MIGRATIONS) as database:
                assert await database.write(insert(1)) == 1

    async def test_never_there(self) -> None:
        url = "postgresql://nobody@127.0.0.1:1/nothing?connect_timeout=1"
        with pytest.raises(DatabaseLost):
            await Database.open(url, MIGRATIONS, retry_for=0.2)

    async def test_one_that_became_read_only(self, postgres_url: str) -> None:
        """After a failover that left us with the wrong one."""
        async with opened(postgres_url) as database:
            await database.write(lambda tx: tx.execute("SET default_transaction_read_only = on"))
            assert await database.write(insert(1)) == 1

    async def test_prepared_statements_that_are_gone(self, postgres_url: str) -> None:
        async with opened(postgres_url) as database:
            await database.write(insert(1))
            await database.write(lambda tx: tx.execute("DEALLOCATE ALL"))
            assert await database.write(insert(2)) == 2
            assert await database.read(ids) == [1, 2]

    async def test_one_that_does_not_answer_keeps_nobody_from_stopping(
        self, postgres_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(worker, "STALLED_TIMEOUT", 0.2)
        other = open_dialect(postgres_url)
        database = await Database.open(postgres_url, MIGRATIONS)
        other.begin()
        other.query("SELECT 1", ())
        other.execute("LOCK TABLE items IN ACCESS EXCLUSIVE MODE", ())
        other.query("SELECT 1", ())
        writing = database.write(insert(1))
        await database.close()
        assert not writing.done()
        other.rollback()
        await writing
        other.close()

    @pytest.mark.parametrize("rest", ["u:se%zzcret@h/d", "/d?secret=1"])
    async def test_a_url_that_it_does_not_understand(self, rest: str) -> None:
        with pytest.raises(DatabaseError, match="URL cannot be understood") as caught:
            await Database.open(f"postgresql://{rest}", MIGRATIONS, retry_for=60.0)
        assert not isinstance(caught.value, DatabaseLost)
        assert "secret" not in str(caught.value)
        assert "se%" not in str(caught.value)

    async def test_a_schema_that_is_not_there(self, postgres_url: str) -> None:
        with pytest.raises(DatabaseError, match="search_path names no schema"):
            await Database.open(f"{postgres_url}none", MIGRATIONS, exclusive=True)

    async def test_backup_is_for_its_own_tools(self, postgres_url: str, tmp_path: Path) -> None:
        async with opened(postgres_url) as database:
            with pytest.raises(DatabaseError, match="pg_dump"):
                await database.backup(tmp_path / "copy")

    async def test_without_its_driver(
        self, postgres_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delitem(sys.modules, "heliograph.db.postgres", raising=False)
        monkeypatch.setitem(sys.modules, "psycopg", None)
        with pytest.raises(DatabaseError, match="install"):
            open_dialect(postgres_url)


def test_dialects_are_what_they_claim(sqlite_url: str, postgres_url: str) -> None:
    for url in (sqlite_url, postgres_url):
        dialect: Dialect = open_dialect(url)
        dialect.begin()
        dialect.define("CREATE TABLE t (data {blob}); CREATE TABLE u (n BIGINT)")
        dialect.commit()
        dialect.begin()
        dialect.execute("INSERT INTO u VALUES (?)", (2**40,))
        dialect.rollback()
        assert dialect.query("SELECT n FROM u", ()) == []
        dialect.close()


def test_a_number_that_is_a_key(sqlite_url: str, postgres_url: str) -> None:
    for url in (sqlite_url, postgres_url):
        dialect = open_dialect(url)
        dialect.begin()
        dialect.define("CREATE TABLE t (n {serial} PRIMARY KEY, data {blob})")
        dialect.many("INSERT INTO t VALUES (?, ?)", [(2**62, b"last"), (1, b"first")])
        dialect.commit()
        assert dialect.query("SELECT n FROM t ORDER BY n", ()) == [(1,), (2**62,)]
        if isinstance(dialect, SqliteDialect):
            assert dialect.query("SELECT name FROM sqlite_master WHERE type = 'index'", ()) == []
        dialect.close()


async def test_a_read_of_a_shared_database_sees_one_state(url: str) -> None:
    """Else it finds a row that refers to one that it did not find a moment before."""
    database = await Database.open(url, MIGRATIONS, shared=True)
    await database.write(insert(1))

    def read(tx: Transaction) -> tuple[list[int], list[int]]:
        before = ids(tx)
        asyncio.run_coroutine_threadsafe(_write(database), loop).result(20)
        return before, ids(tx)

    loop = asyncio.get_running_loop()
    assert await database.read(read) == ([1], [1])
    assert await database.read(ids) == [1, 2]
    await database.close()


async def _write(database: Database) -> None:
    await database.write(insert(2))
