"""A database that several processes write to: one at a time, and each write once."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from heliograph.db.database import Database, Migration
from heliograph.db.dialects import Transaction, open_dialect
from heliograph.db.errors import DatabaseBusy, DatabaseLost
from heliograph.db.postgres import PostgresDialect

MIGRATIONS = (
    Migration(
        "0001_items",
        "CREATE TABLE items (id {identity}, writer TEXT); CREATE TABLE counters (value BIGINT)",
    ),
)


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Database]:
    database = await Database.open(url, MIGRATIONS, shared=True)
    try:
        yield database
    finally:
        await database.close()


def add(tx: Transaction) -> int:
    [[number]] = tx.query("INSERT INTO items (writer) VALUES ('a') RETURNING id")
    return int(number)


def count(tx: Transaction) -> int:
    return int(tx.query("SELECT COUNT(*) FROM items")[0][0])


def increment(tx: Transaction) -> None:
    [[value]] = tx.query("SELECT value FROM counters")
    tx.execute("UPDATE counters SET value = ?", (value + 1,))


async def persistently(database: Database, function: Callable[[Transaction], object]) -> None:
    while True:
        try:
            await database.write(function)
            return
        except DatabaseBusy:  # SQLite waits for five seconds
            continue


async def test_a_value_that_was_read_is_still_current_when_it_is_written(url: str) -> None:
    async with opened(url) as one, opened(url) as two:
        await one.write(lambda tx: tx.execute("INSERT INTO counters VALUES (0)"))

        async def work(database: Database) -> None:
            for _ in range(50):
                await persistently(database, increment)

        await asyncio.gather(work(one), work(two), work(one), work(two))
        assert await one.read(lambda tx: tx.query("SELECT value FROM counters")) == [(200,)]


async def test_numbers_ascend_in_the_order_of_commits(url: str) -> None:
    """So that a reader who asks for numbers above the last one it saw misses none."""
    async with opened(url) as one, opened(url) as two:
        seen: list[int] = []

        async def follow() -> None:
            last = 0
            while len(seen) < 100:
                rows = await one.read(
                    lambda tx: tx.query("SELECT id FROM items WHERE id > ? ORDER BY id", (last,))  # noqa: B023
                )
                seen.extend(number for (number,) in rows)
                last = seen[-1] if seen else 0

        async def work(database: Database) -> None:
            for _ in range(25):
                await persistently(database, add)

        async with asyncio.timeout(30):
            await asyncio.gather(follow(), *[work(item) for item in (one, two, one, two)])
        assert len(set(seen)) == 100


async def test_the_version_changes_with_each_write_of_any_process(url: str) -> None:
    async with opened(url) as one, opened(url) as two:
        await one.write(add)
        versions = [await two.read(lambda tx: tx.data_version())]
        assert [await two.read(lambda tx: tx.data_version())] == versions
        for writer in (one, two, one):
            await writer.write(add)
            versions.append(await two.read(lambda tx: tx.data_version()))
        assert len(set(versions)) == len(versions)


@pytest.mark.parametrize("is_committed", [True, False])
async def test_a_commit_without_an_answer(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, is_committed: bool
) -> None:
    """The connection is lost just before or just after the server has committed."""
    commit = PostgresDialect.commit
    losses = iter([True, False])

    def lose(self: PostgresDialect) -> None:
        is_lost = next(losses, False)
        if not is_lost or is_committed:
            commit(self)
        if is_lost:
            self.close()
            raise DatabaseLost("the connection is lost")

    async with opened(postgres_url) as database:
        monkeypatch.setattr(PostgresDialect, "commit", lose)
        number = await database.write(add)
        assert await database.read(lambda tx: tx.query("SELECT id FROM items")) == [(number,)]
        await database.write(add)
        assert await database.read(count) == 2


async def test_a_writer_that_stopped_in_its_transaction_does_not_block_the_others(
    postgres_url: str,
) -> None:
    timeout = "idle_in_transaction_session_timeout"
    async with opened(postgres_url) as database:
        await database.write(add)
        stopped = open_dialect(postgres_url)
        stopped.begin_shared(-1, b"marker", None)
        stopped.query("INSERT INTO items (writer) VALUES ('stopped') RETURNING id", ())
        assert stopped.query(f"SELECT current_setting('{timeout}')", ()) == [("10s",)]
        stopped.query(f"SELECT set_config('{timeout}', '100', true)", ())
        async with asyncio.timeout(20):
            await database.write(add)
        with pytest.raises(DatabaseLost):
            stopped.commit()
        stopped.close()
        assert await database.read(count) == 2
