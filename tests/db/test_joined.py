"""A database that several processes of one router have joined."""

import asyncio
from collections.abc import Sequence

import pytest

from heliograph.db import postgres
from heliograph.db.database import Database, Migration
from heliograph.db.dialects import Transaction
from heliograph.db.errors import DatabaseError, DatabaseFenced, DatabaseOwned
from heliograph.db.sql import Row
from tests.db.postgres import Postgres

TABLE = (Migration("0001", "CREATE TABLE counts (id BIGINT PRIMARY KEY, value BIGINT NOT NULL)"),)
ADD = (
    "INSERT INTO counts (id, value) VALUES (1, 1)"
    " ON CONFLICT (id) DO UPDATE SET value = counts.value + 1"
)


class Guard:
    sql = "SELECT value FROM counts WHERE id = ?"

    def __init__(self) -> None:
        self.parameters: Sequence[object] = (1,)
        self.seen: list[int] = []

    def passed(self, row: Row) -> None:
        self.seen.append(row[0])


async def joined(url: str) -> Database:
    return await Database.join(url, TABLE, lambda tx: None)


async def test_writers_take_turns_and_are_guarded(postgres_url: str) -> None:
    one, other = await asyncio.gather(joined(postgres_url), joined(postgres_url))
    try:
        await one.write(lambda tx: tx.execute(ADD))
        guard = Guard()
        one.set_guard(guard)
        for database in (one, other, one):
            await database.write(lambda tx: tx.execute(ADD))
        assert guard.seen == [1, 3]
        await other.write(lambda tx: tx.execute("UPDATE counts SET id = 2"))
        for _ in range(2):
            with pytest.raises(DatabaseFenced):
                await one.write(lambda tx: tx.execute(ADD))
        rows = await other.read(lambda tx: tx.query("SELECT id, value FROM counts"))
        assert rows == [(2, 4)]
    finally:
        await one.close()
        await other.close()


async def test_an_owner_and_those_who_joined_exclude_each_other(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "_OWNING_TIMEOUT", 0.2)
    database = await joined(postgres_url)
    with pytest.raises(DatabaseOwned):
        await Database.open(postgres_url, TABLE, exclusive=True, retry_for=0.1)
    await database.close()
    owner = await Database.open(postgres_url, TABLE, exclusive=True)
    with pytest.raises(DatabaseOwned):
        await joined(postgres_url)
    await owner.close()


async def test_a_check_comes_before_the_schema_changes(postgres_url: str) -> None:
    def refuse(tx: Transaction) -> None:
        raise DatabaseError("no")

    with pytest.raises(DatabaseError, match="no"):
        await Database.join(postgres_url, TABLE, refuse)
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
