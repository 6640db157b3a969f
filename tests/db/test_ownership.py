"""A database with one owner; and one that is lost must not keep its owner from stopping."""

import asyncio
import logging
import subprocess
import sys
import time
from pathlib import Path

import pytest

from heliograph.db import postgres
from heliograph.db.database import Database, Migration
from heliograph.db.dialects import Transaction, open_dialect
from heliograph.db.errors import DatabaseError, DatabaseLost, DatabaseOwned
from heliograph.db.postgres import PostgresDialect
from tests.db.postgres import shared_postgres

MIGRATIONS = (Migration("0001_items", "CREATE TABLE items (id BIGINT PRIMARY KEY)"),)
LATER = (*MIGRATIONS, Migration("0002_more", "CREATE TABLE more (id BIGINT PRIMARY KEY)"))

OWN_AND_WAIT = """
import sys
from heliograph.db.dialects import open_dialect
dialect = open_dialect(sys.argv[1])
dialect.lock_exclusively("another")
print("owned", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "_OWNING_TIMEOUT", 0.2)


async def test_the_second_is_refused_and_changes_nothing(url: str) -> None:
    first = await Database.open(url, MIGRATIONS, exclusive=True)
    with pytest.raises(DatabaseOwned, match="another router uses this database"):
        await Database.open(url, LATER, exclusive=True)
    await first.write(lambda tx: tx.execute("INSERT INTO items VALUES (1)"))
    names = await first.read(lambda tx: tx.query("SELECT name FROM migrations"))
    assert names == [("0001_items",)]
    await first.close()
    second = await Database.open(url, LATER, exclusive=True)
    assert await second.read(lambda tx: tx.query("SELECT id FROM items")) == [(1,)]
    await second.close()


async def test_a_database_that_is_not_exclusive_can_be_shared(url: str) -> None:
    owner = await Database.open(url, MIGRATIONS, exclusive=True)
    guest = await Database.open(url, MIGRATIONS)
    await guest.write(lambda tx: tx.execute("INSERT INTO items VALUES (1)"))
    assert await owner.read(lambda tx: tx.query("SELECT id FROM items")) == [(1,)]
    await guest.close()
    await owner.close()


async def test_a_killed_process_owns_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", OWN_AND_WAIT, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert await asyncio.to_thread(other.stdout.readline) == b"owned\n"
        with pytest.raises(DatabaseOwned):
            await Database.open(url, MIGRATIONS, exclusive=True)
        other.kill()
        other.wait()
        monkeypatch.setattr(postgres, "_OWNING_TIMEOUT", 30)
        await (await Database.open(url, MIGRATIONS, exclusive=True)).close()


async def test_a_lock_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "test.db.lock").mkdir()
    with pytest.raises(DatabaseError, match=r"test\.db\.lock"):
        await Database.open(f"sqlite:///{tmp_path}/test.db", MIGRATIONS, exclusive=True)


async def test_owned_again_after_it_was_lost(postgres_url: str) -> None:
    server = shared_postgres()
    database = await Database.open(postgres_url, MIGRATIONS, exclusive=True)
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start)
    await database.write(lambda tx: tx.execute("INSERT INTO items VALUES (1)"))
    with pytest.raises(DatabaseOwned):
        await Database.open(postgres_url, MIGRATIONS, exclusive=True)
    await database.close()


async def test_a_connection_that_broke_on_our_side_only(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server may hold it, and its lock, for hours."""
    database = await Database.open(postgres_url, MIGRATIONS, exclusive=True)
    abandoned: list[PostgresDialect] = []

    def insert(tx: Transaction) -> None:
        if not abandoned:
            raise DatabaseLost("the connection broke")
        tx.execute("INSERT INTO items VALUES (1)")

    with monkeypatch.context() as patch:
        patch.setattr(PostgresDialect, "close", lambda dialect: abandoned.append(dialect))
        await database.write(insert)
    [dialect] = abandoned
    with pytest.raises(DatabaseLost):
        dialect.query("SELECT 1", ())
    dialect.close()
    await database.close()


async def test_taken_over_while_it_was_lost(postgres_url: str) -> None:
    """All that waits fails together, not one after the other."""
    database = await Database.open(postgres_url, MIGRATIONS, exclusive=True)
    [[pid]] = await database.write(lambda tx: tx.query("SELECT pg_backend_pid()"))
    killer = open_dialect(postgres_url)
    assert killer.query("SELECT pg_terminate_backend(?, 60000)", (pid,)) == [(True,)]
    killer.close()
    other = await Database.open(postgres_url, MIGRATIONS, exclusive=True)
    jobs = [database.write(lambda tx: tx.execute("SELECT 1")) for _ in range(20)]
    results = await asyncio.gather(*jobs, return_exceptions=True)
    assert all(isinstance(result, DatabaseOwned) for result in results)
    await other.close()
    await database.write(lambda tx: tx.execute("INSERT INTO items VALUES (1)"))
    await database.close()


@pytest.mark.parametrize("lost_before", [True, False])
async def test_closing_does_not_wait_long_for_what_is_lost(
    postgres_url: str, lost_before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heliograph.db.database.CLOSE_TIMEOUT", 0.5)
    server = shared_postgres()
    database = await Database.open(postgres_url, MIGRATIONS, retry_for=300)
    await asyncio.to_thread(server.kill)
    try:
        if not lost_before:
            database.limit_wait(0.5)
        job = database.write(lambda tx: tx.execute("INSERT INTO items VALUES (1)"))
        await asyncio.sleep(0.3 if lost_before else 0)
        begin = time.monotonic()
        database.limit_wait(0.5)
        await database.close()
        with pytest.raises(DatabaseLost):
            await job
        assert time.monotonic() - begin < 30
    finally:
        await asyncio.to_thread(server.start)


async def test_back_before_the_time_to_close_is_over(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    server = shared_postgres()
    database = await Database.open(postgres_url, MIGRATIONS, retry_for=300)
    await asyncio.to_thread(server.kill)
    job = database.write(lambda tx: tx.execute("INSERT INTO items VALUES (1)"))
    database.limit_wait(60)
    await asyncio.to_thread(server.start)
    await job
    await database.close()
    assert "retrying in" in caplog.text
