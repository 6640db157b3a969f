"""PostgreSQL by its pipeline: every kind of value, and errors that come after their cause."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from heliograph.db import postgres, worker
from heliograph.db.database import Database
from heliograph.db.dialects import open_dialect
from heliograph.db.errors import DatabaseError, DatabaseLost
from heliograph.db.postgres import PLANS_KEPT, PostgresDialect

INSERT = "INSERT INTO items (id, data, note, size) VALUES (?, ?, ?, ?)"

numbers = st.integers(-(2**63), 2**63 - 1)
texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


@pytest.fixture
def dialect(postgres_url: str) -> Iterator[PostgresDialect]:
    dialect = open_dialect(postgres_url)
    assert isinstance(dialect, PostgresDialect)
    dialect.define("CREATE TABLE items (id BIGINT PRIMARY KEY, data {blob}, note TEXT, size FLOAT)")
    yield dialect
    dialect.close()


def ids(dialect: PostgresDialect) -> list[int]:
    return [number for (number,) in dialect.query("SELECT id FROM items ORDER BY id", ())]


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = time.monotonic()

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(postgres, "time", clock)
    return clock


_same_database = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


class TestValues:
    @_same_database
    @given(numbers, st.binary(), texts, st.floats(allow_nan=False))
    def test_each_comes_back(
        self, dialect: PostgresDialect, number: int, data: bytes, note: str, size: float
    ) -> None:
        dialect.begin()
        row = number, data, note, size
        dialect.execute(INSERT, row)
        assert dialect.query("SELECT id, data, note, size FROM items", ()) == [row]
        assert dialect.query("SELECT 1 FROM items WHERE id = ? AND note = ?", (number, note))
        dialect.rollback()

    def test_nothing(self, dialect: PostgresDialect) -> None:
        dialect.execute(INSERT, (1, None, None, None))
        assert dialect.query("SELECT data, note, size FROM items", ()) == [(None, None, None)]

    @_same_database
    @given(
        st.one_of(
            st.tuples(st.just("id"), st.lists(numbers, min_size=1, unique=True)),
            st.tuples(st.just("data"), st.lists(st.binary(), min_size=1, unique=True)),
            st.tuples(st.just("note"), st.lists(texts, min_size=1, unique=True)),
        )
    )
    def test_each_of_a_list_is_found(
        self, dialect: PostgresDialect, case: tuple[str, list[Any]]
    ) -> None:
        column, values = case
        dialect.begin()
        if column == "id":
            dialect.many("INSERT INTO items (id) VALUES (?)", [(value,) for value in values])
        else:
            insert = f"INSERT INTO items (id, {column}) VALUES (?, ?)"
            dialect.many(insert, list(enumerate(values)))
        sql = f"SELECT {column} FROM items WHERE {column} IN {{in}} AND id <= ?"
        found = dialect.query_in(sql, values, (2**63 - 1,))
        assert {value for (value,) in found} == set(values)
        assert len(dialect.query_in(sql, values[:1], (2**63 - 1,))) == 1
        dialect.rollback()

    @pytest.mark.parametrize("bad", [object(), {1}, bytearray(b"x")])
    def test_a_value_that_is_none(self, dialect: PostgresDialect, bad: Any) -> None:
        with pytest.raises(TypeError, match="PostgreSQL has no"):
            dialect.execute(INSERT, (1, bad, None, None))
        dialect.execute(INSERT, (1, b"", None, None))

    @pytest.mark.parametrize("bad", [(1, None, "\0", None), (2**63, None, None, None)])
    def test_a_value_that_does_not_fit(self, dialect: PostgresDialect, bad: Any) -> None:
        with pytest.raises(DatabaseError):
            dialect.execute(INSERT, bad)
        assert ids(dialect) == []


class TestErrors:
    def test_of_a_statement_at_the_commit(self, dialect: PostgresDialect) -> None:
        dialect.begin()
        dialect.execute(INSERT, (1, None, None, None))
        dialect.execute(INSERT, (1, None, None, None))
        dialect.execute(INSERT, (2, None, None, None))
        with pytest.raises(DatabaseError, match="duplicate key"):
            dialect.commit()
        dialect.rollback()
        assert ids(dialect) == []

    def test_of_a_statement_at_the_next_query(self, dialect: PostgresDialect) -> None:
        dialect.begin()
        dialect.many(INSERT, [(1, None, None, None)] * 2)
        with pytest.raises(DatabaseError, match="duplicate key"):
            ids(dialect)
        dialect.rollback()
        assert ids(dialect) == []

    def test_of_a_statement_that_nobody_waited_for(self, dialect: PostgresDialect) -> None:
        dialect.begin()
        dialect.many(INSERT, [(1, None, None, None)] * 2)
        dialect.rollback()
        dialect.execute(INSERT, (1, None, None, None))
        assert ids(dialect) == [1]

    def test_rolled_back_when_plans_are_old(self, dialect: PostgresDialect, clock: Clock) -> None:
        """A transaction that failed takes nothing but its end."""
        dialect.begin()
        with pytest.raises(DatabaseError):
            dialect.query("SELECT nothing", ())
        clock.now += PLANS_KEPT + 1
        dialect.rollback()
        assert ids(dialect) == []

    def test_a_commit_after_one_is_none(self, dialect: PostgresDialect) -> None:
        """PostgreSQL itself calls that a success."""
        dialect.begin()
        dialect.execute(INSERT, (1, None, None, None))
        with pytest.raises(DatabaseError):
            dialect.query("SELECT nothing", ())
        with pytest.raises(DatabaseError, match="failed before"):
            dialect.commit()
        assert ids(dialect) == []

    def test_a_statement_that_cannot_be_prepared(self, dialect: PostgresDialect) -> None:
        for _ in range(2):
            with pytest.raises(DatabaseError, match="does not exist"):
                dialect.query("SELECT data FROM later", ())
        dialect.define("CREATE TABLE later (data BIGINT)")
        assert dialect.query("SELECT data FROM later", ()) == []

    def test_prepared_in_vain_behind_one_that_failed(self, dialect: PostgresDialect) -> None:
        dialect.begin()
        dialect.many(INSERT, [(1, None, None, None)] * 2)
        with pytest.raises(DatabaseError):
            dialect.query("SELECT note FROM items", ())
        dialect.rollback()
        assert dialect.query("SELECT note FROM items", ()) == []

    def test_a_connection_that_is_gone(self, dialect: PostgresDialect, postgres_url: str) -> None:
        [[pid]] = dialect.query("SELECT pg_backend_pid()", ())
        dialect.begin()
        dialect.execute(INSERT, (1, None, None, None))
        other = open_dialect(postgres_url)
        assert other.query("SELECT pg_terminate_backend(?)", (pid,)) == [(True,)]
        with pytest.raises(DatabaseLost):
            dialect.commit()
        dialect.rollback()
        assert other.query("SELECT id FROM items", ()) == []
        other.close()


def test_more_than_any_buffer_holds(dialect: PostgresDialect) -> None:
    """Both sides would wait for ever, if this one only sent."""
    data = bytes(1000)
    dialect.begin()
    dialect.many(INSERT, [(number, data, "note", 1.5) for number in range(20_000)])
    rows = dialect.query("SELECT data FROM items WHERE id >= ?", (0,))
    assert len(rows) == 20_000
    dialect.commit()


class TestConnecting:
    """The server of the tests has no TCP: what is asked of the library is looked at."""

    def asked(self, monkeypatch: pytest.MonkeyPatch, url: str) -> dict[str, Any]:
        asked: dict[str, Any] = {}

        def connect(**parameters: Any) -> Any:
            asked.update(parameters)
            raise psycopg.OperationalError("not here")

        monkeypatch.setattr(psycopg, "connect", connect)
        with pytest.raises(DatabaseLost, match="not here"):
            PostgresDialect(url)
        return asked

    def test_a_silent_network_is_noticed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked = self.asked(monkeypatch, "postgresql://u:p@h/d")
        assert asked["tcp_user_timeout"] == 15_000
        assert asked["keepalives_idle"] == 15
        assert asked["password"] == "p"

    def test_the_url_has_the_last_word(self, monkeypatch: pytest.MonkeyPatch) -> None:
        url = "postgresql://h/d?connect_timeout=60&tcp_user_timeout=0&client_encoding=latin1"
        asked = self.asked(monkeypatch, url)
        assert (asked["connect_timeout"], asked["tcp_user_timeout"]) == ("60", "0")
        assert asked["client_encoding"] == "utf8"


def test_a_plan_is_no_older_than_a_moment(dialect: PostgresDialect, clock: Clock) -> None:
    """One that was made for an empty table may read all of a full one."""

    def discarded() -> int:
        [[count]] = dialect.query(
            "SELECT generic_plans FROM pg_prepared_statements WHERE statement = 'DISCARD PLANS'", ()
        )
        return int(count)

    for elapsed, expected in ((PLANS_KEPT + 1, 3), (PLANS_KEPT / 4, 0)):
        before = discarded()
        for _ in range(3):
            clock.now += elapsed
            ids(dialect)
        assert discarded() == before + expected


def test_a_statement_behind_a_lock_ends(dialect: PostgresDialect, postgres_url: str) -> None:
    dialect.execute(INSERT, (1, b"", "", 0.0))
    waiting = open_dialect(postgres_url, statement_timeout=0.2)
    dialect.begin()
    dialect.query("SELECT 1 FROM items WHERE id = 1 FOR UPDATE", ())
    waiting.begin()
    waiting.execute("UPDATE items SET note = 'x' WHERE id = 1", ())
    with pytest.raises(DatabaseLost, match="statement timeout"):
        waiting.commit()
    waiting.close()
    dialect.rollback()


async def test_a_router_has_a_time_limit_for_statements(
    dialect: PostgresDialect, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "STATEMENT_TIMEOUT", 0.2)
    dialect.execute(INSERT, (1, b"", "", 0.0))
    async with Database.open(postgres_url, (), retry_for=0.1) as database:
        dialect.begin()
        dialect.query("SELECT 1 FROM items WHERE id = 1 FOR UPDATE", ())
        update = "UPDATE items SET note = 'x' WHERE id = 1"
        writing = [database.write(lambda tx: tx.execute(update)) for _ in range(20)]
        results = await asyncio.gather(*writing, return_exceptions=True)
        assert {type(result) for result in results} == {DatabaseLost}
        dialect.rollback()
        await database.write(lambda tx: tx.execute(update))
