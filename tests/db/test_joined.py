"""A database that several processes of one router have joined."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from functools import partial
from urllib.parse import quote

import pytest

from heliograph.db import postgres, worker
from heliograph.db.database import URGENT_TIMEOUT, Database, Migration
from heliograph.db.dialects import Dialect, Transaction, open_dialect
from heliograph.db.errors import DatabaseError, DatabaseFenced, DatabaseLost, DatabaseOwned
from heliograph.db.postgres import PostgresDialect
from tests.db.postgres import Postgres

COUNTS = Migration("0001", "CREATE TABLE counts (id BIGINT PRIMARY KEY, value BIGINT NOT NULL)")
ADD = (
    "INSERT INTO counts (id, value) VALUES (1, 1)"
    " ON CONFLICT (id) DO UPDATE SET value = counts.value + 1"
)


WRITERS = Migration("0002", "CREATE TABLE writers (id BIGINT PRIMARY KEY, marker {blob})")
TABLES = COUNTS, WRITERS


class Guard:
    mark = "UPDATE writers SET marker = ? WHERE id = ?"
    marker = "SELECT marker FROM writers WHERE id = ? FOR UPDATE"

    def __init__(self, number: int) -> None:
        self.parameters: Sequence[object] = (number,)


async def joined(url: str) -> Database:
    return await Database.join(url, TABLES, lambda tx: None)


@pytest.fixture
async def two(postgres_url: str) -> AsyncIterator[tuple[Database, Database]]:
    """Two processes with a row each, which guards it."""
    both = await asyncio.gather(joined(postgres_url), joined(postgres_url))
    for number, database in enumerate(both):
        await database.write(
            partial(_execute, "INSERT INTO writers (id) VALUES (?)", parameters=(number,))
        )
        database.set_guard(Guard(number))
    yield both
    for database in both:
        await database.close()


def _execute(sql: str, tx: Transaction, parameters: Sequence[object] = ()) -> None:
    tx.execute(sql, parameters)


add = partial(_execute, ADD)


async def count(database: Database) -> int:
    [[value]] = await database.read(lambda tx: tx.query("SELECT value FROM counts"))
    return int(value)


async def test_writers_take_turns(two: tuple[Database, Database]) -> None:
    """Each reads what the last one wrote, without locks of its own."""
    await two[0].write(add)

    def add_slowly(tx: Transaction) -> None:
        [[value]] = tx.query("SELECT value FROM counts")
        time.sleep(0.01)
        tx.execute("UPDATE counts SET value = ?", (value + 1,))

    await asyncio.gather(*(database.write(add_slowly) for database in two for _ in range(5)))
    assert await count(two[0]) == 11


@pytest.mark.parametrize("concurrent", [False, True])
async def test_a_writer_without_its_row_is_fenced(
    two: tuple[Database, Database], concurrent: bool
) -> None:
    one, other = two
    await one.write(add)
    await other.write(lambda tx: tx.execute("DELETE FROM writers WHERE id = 0"))
    for _ in range(2):
        with pytest.raises(DatabaseFenced):
            await (one.write_concurrently(add) if concurrent else one.write(add))
    assert await count(other) == 1


async def test_a_row_stays_until_the_transaction_has_ended(two: tuple[Database, Database]) -> None:
    """A process that would remove it notices, and others write concurrently."""
    one, other = two
    began, may_end = threading.Event(), threading.Event()

    def add_when_allowed(tx: Transaction) -> None:
        tx.query("SELECT 1")
        began.set()
        assert may_end.wait(10)
        tx.execute(ADD)

    free = "SELECT id FROM writers ORDER BY id FOR UPDATE SKIP LOCKED"
    writing = one.write_concurrently(add_when_allowed)
    await asyncio.to_thread(began.wait)
    assert await other.write(lambda tx: tx.query(free)) == [(1,)]
    await other.write_concurrently(add)
    may_end.set()
    await writing
    assert await other.write(lambda tx: tx.query(free)) == [(0,), (1,)]
    assert await count(one) == 2


async def test_what_is_urgent_waits_for_no_other_write(two: tuple[Database, Database]) -> None:
    one, _ = two
    await one.write(add)
    began, may_end = threading.Event(), threading.Event()

    def wait(tx: Transaction) -> None:
        tx.query("SELECT 1")
        began.set()
        assert may_end.wait(10)

    writing = one.write(wait)
    await asyncio.to_thread(began.wait)
    later = one.write(add)
    increased = "UPDATE counts SET value = value + 1 RETURNING value"
    assert await one.write_urgent(lambda tx: tx.query(increased)) == [(2,)]
    assert await count(one) == 2  # it is committed
    assert not later.done()
    may_end.set()
    await asyncio.gather(writing, later)


async def test_who_cannot_connect_for_what_is_urgent_does_not_join(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if PostgreSQL had two connections left: a lease could not be renewed."""

    def connect(
        url: str, *, read_only: bool = False, statement_timeout: float | None = None
    ) -> Dialect:
        if statement_timeout == URGENT_TIMEOUT:
            raise DatabaseLost("too many clients already")
        return open_dialect(url, read_only=read_only, statement_timeout=statement_timeout)

    monkeypatch.setattr(worker, "open_dialect", connect)
    with pytest.raises(DatabaseLost, match="too many clients"):
        await Database.join(postgres_url, TABLES, lambda tx: None, retry_for=0.1)


async def test_what_is_urgent_fails_at_once_and_reconnects(two: tuple[Database, Database]) -> None:
    one, _ = two
    [pid] = await one.write_urgent(lambda tx: tx.query("SELECT pg_backend_pid()"))
    await one.write(lambda tx: tx.query("SELECT pg_terminate_backend(?, 5000)", pid))
    with pytest.raises(DatabaseLost):
        await one.write_urgent(lambda tx: tx.query("SELECT 1"))
    assert await one.write_urgent(lambda tx: tx.query("SELECT 1")) == [(1,)]


async def test_a_deadlock_is_retried(two: tuple[Database, Database]) -> None:
    await two[0].write(
        lambda tx: tx.many("INSERT INTO counts (id, value) VALUES (?, 0)", [(1,), (2,)])
    )
    both = threading.Barrier(2)

    def add_to(ids: Sequence[int], tx: Transaction) -> None:
        for number in ids:
            tx.query("UPDATE counts SET value = value + 1 WHERE id = ? RETURNING 1", (number,))
            with suppress(threading.BrokenBarrierError):
                both.wait(1)

    await asyncio.gather(
        two[0].write_concurrently(partial(add_to, (1, 2))),
        two[1].write_concurrently(partial(add_to, (2, 1))),
    )
    rows = await two[0].read(lambda tx: tx.query("SELECT id, value FROM counts ORDER BY id"))
    assert rows == [(1, 2), (2, 2)]


@pytest.mark.parametrize("is_committed", [True, False])
async def test_a_commit_without_an_answer_is_not_repeated(
    two: tuple[Database, Database], monkeypatch: pytest.MonkeyPatch, is_committed: bool
) -> None:
    commit, losses = PostgresDialect.commit, [True]

    def lose(self: PostgresDialect) -> None:
        is_lost = bool(losses and losses.pop())
        if not is_lost or is_committed:
            commit(self)
        if is_lost:
            self.close()
            raise DatabaseLost("the connection is lost")

    monkeypatch.setattr(PostgresDialect, "commit", lose)
    await two[0].write_concurrently(add)
    assert await count(two[1]) == 1
    await two[0].write_concurrently(add)
    assert await count(two[1]) == 2


async def test_an_owner_and_those_who_joined_exclude_each_other(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "_OWNING_TIMEOUT", 0.2)
    database = await joined(postgres_url)
    with pytest.raises(DatabaseOwned):
        await Database.open(postgres_url, TABLES, exclusive=True, retry_for=0.1)
    await database.close()
    owner = await Database.open(postgres_url, TABLES, exclusive=True)
    with pytest.raises(DatabaseOwned):
        await joined(postgres_url)
    await owner.close()


async def test_a_check_comes_before_the_schema_changes(postgres_url: str) -> None:
    def refuse(tx: Transaction) -> None:
        raise DatabaseError("no")

    with pytest.raises(DatabaseError, match="no"):
        await Database.join(postgres_url, TABLES, refuse)
    database = await Database.open(postgres_url, ())
    assert await database.read(lambda tx: tx.query("SELECT to_regclass('counts') IS NULL"))
    await database.close()


class _Replicated(Postgres):
    def options(self) -> tuple[str, ...]:
        return (*super().options(), "wal_level=replica", "hot_standby=on")

    def become_standby(self) -> None:
        self.stop()
        (self._data / "standby.signal").touch()
        self.start()


async def test_a_standby_is_refused() -> None:
    server = await asyncio.to_thread(_Replicated)
    try:
        url = server.new_url()
        await (await joined(url)).close()
        await asyncio.to_thread(server.become_standby)
        with pytest.raises(DatabaseError, match="is in recovery and takes no writes"):
            await joined(url)
    finally:
        await asyncio.to_thread(server.remove)


async def test_sqlite_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    url = f"sqlite:///{tmp_path_factory.mktemp('joined')}/x.db"
    with pytest.raises(DatabaseError, match="SQLite is for one process"):
        await joined(url)


async def test_settings_of_a_role_change_nothing(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A migration may take longer than other statements; a write waits for another, and goes on."""
    monkeypatch.setattr(worker, "MAX_CONFLICTS", 1)
    settings = (
        "statement_timeout=100",
        "lock_timeout=50",
        "default_transaction_isolation=serializable",
    )
    url = postgres_url + quote("".join(f" -c{setting}" for setting in settings), safe="")
    slow = Migration("0003", "SELECT pg_sleep(0.3)")
    databases = [
        await Database.join(url, (*TABLES, slow), lambda tx: None, retry_for=1.0) for _ in range(2)
    ]
    for number, database in enumerate(databases):
        await database.write(
            partial(_execute, "INSERT INTO writers (id) VALUES (?)", parameters=(number,))
        )
        database.set_guard(Guard(number))

    def slowly(tx: Transaction) -> None:
        add(tx)
        tx.query("SELECT pg_sleep(0.2)")

    try:
        await asyncio.gather(*(database.write(slowly) for database in databases for _ in range(3)))
        found = await databases[0].read(lambda tx: tx.query("SELECT value FROM counts"))
    finally:
        for database in databases:
            await database.close()
    assert found == [(6,)]
