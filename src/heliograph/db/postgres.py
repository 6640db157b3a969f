"""PostgreSQL, by the pipeline of its C library.

Inside a transaction nothing is waited for but the rows of a query: statements that have none travel
with the next that has, or with the commit, which is where their errors appear. Each text is
prepared once, and its plan is kept for a moment.
"""

import itertools
import select
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
from psycopg import pq
from psycopg.adapt import Transformer
from psycopg.conninfo import conninfo_to_dict

from heliograph.db.dialects import OWNED, Row, statements
from heliograph.db.errors import DatabaseError, DatabaseLost, DatabaseMisnamed, DatabaseOwned

_WORDS = {
    "{blob}": "BYTEA",
    "{serial}": "BIGINT",
    # Room for the next version of a row beside it: indexes need not learn of it.
    "{updated}": " WITH (fillfactor = 50)",
}
_SETTINGS = (
    # Almost all we ask for is found by an index, row by row: a plan that was made while a table
    # was small must not be one that reads all of it.
    "SET plan_cache_mode = force_generic_plan",
    "SET enable_seqscan = off",
    "SET enable_hashjoin = off",
    "SET enable_mergejoin = off",
    "SET enable_material = off",
)
_CONNECTING = {
    "connect_timeout": 5,
    # A firewall that forgot a connection drops what comes by it, and says nothing.
    "tcp_user_timeout": 15_000,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}
"""Unless the URL says otherwise."""
_OTHER_CONNECTION = frozenset(("25006", "26000"))
"""A server that became read-only, a prepared statement that is gone: cured by a new connection."""
_PLANS_KEPT = 1.0
"""Seconds: tables grow faster than the server's own statistics."""

_OWNING_TIMEOUT = 3.0
"""So long PostgreSQL may take to see that a killed process is gone."""
_END_FORMER = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE application_name = ? AND pid <> pg_backend_pid()"
)
_SCHEMA = "SELECT current_schema()"
_LOCK_SCHEMA = "SELECT pg_try_advisory_lock(hashtextextended('heliograph ' || current_schema(), 0))"

_TEXT, _BINARY = 0, 1
_BYTEA_OID, _TEXT_OID = 17, 25
_FAILED = frozenset((pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.BAD_RESPONSE))


class PostgresDialect:
    def __init__(self, url: str, *, read_only: bool = False) -> None:
        self._connection = _connect(url)
        # Nobody is to blame but us if a connection that only reads is told to write.
        self._cured_by_another = _OTHER_CONNECTION - {"25006"} if read_only else _OTHER_CONNECTION
        self._libpq = self._connection.pgconn
        self._libpq.nonblocking = 1
        self._libpq.enter_pipeline_mode()
        self._loader = Transformer(self._connection)
        self._poll = select.poll()
        self._prepared: dict[str, bytes] = {}
        self._preparing: list[str] = []
        self._names = itertools.count()
        self._plans_until = 0.0
        self._sent = False
        self._in_transaction = False
        try:
            for setting in _SETTINGS:
                self.execute(setting, ())
            if read_only:
                self.execute("SET default_transaction_read_only = on", ())
        except BaseException:
            self.close()
            raise

    def execute(self, sql: str, parameters: Sequence[Any]) -> None:
        self.many(sql, (parameters,))

    def many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        with self._errors():
            for row in rows:
                self._send(sql, row)
            if not self._in_transaction:
                self._receive()

    def query(self, sql: str, parameters: Sequence[Any]) -> list[Row]:
        with self._errors():
            self._send(sql, parameters)
            result = self._receive()
            self._loader.set_pgresult(result)
            return self._loader.load_rows(0, result.ntuples, tuple)

    def query_in(self, sql: str, values: Sequence[Any], others: Sequence[Any]) -> list[Row]:
        return self.query(sql.replace("IN {in}", "= ANY (?)"), (list(values), *others))

    def begin(self) -> None:
        self._in_transaction = True
        self.execute("BEGIN", ())

    def commit(self) -> None:
        self._in_transaction = False
        with self._errors():
            self._send("COMMIT", ())
            if self._receive().command_status == b"ROLLBACK":
                raise DatabaseError("the transaction had failed before")

    def rollback(self) -> None:
        self._in_transaction = False
        if self._libpq.status == pq.ConnStatus.OK:
            if self._sent:
                with suppress(DatabaseError), self._errors():
                    self._receive()
            with self._errors():
                self._enqueue("ROLLBACK", ())  # and nothing before it, which would be refused
                self._receive()

    def define(self, sql: str) -> None:
        for statement in statements(sql, _WORDS):
            self.execute(statement, ())

    def own(self, owner: str) -> None:
        """By an advisory lock on the schema, which the server gives back with the connection."""
        if self.query(_SCHEMA, ()) == [(None,)]:
            raise DatabaseMisnamed("the search_path names no schema that exists: create it first")
        self.execute("SELECT set_config('application_name', ?, false)", (owner,))
        # A connection of ours that broke may still be open on the other side.
        self.query(_END_FORMER, (owner,))
        deadline = time.monotonic() + _OWNING_TIMEOUT
        while not self.query(_LOCK_SCHEMA, ())[0][0]:
            if time.monotonic() > deadline:
                raise DatabaseOwned(OWNED)
            time.sleep(0.1)

    def backup(self, target: Path) -> None:
        raise DatabaseError("back up PostgreSQL with pg_dump")

    def close(self) -> None:
        self._connection.close()

    def _send(self, sql: str, parameters: Sequence[Any]) -> None:
        encoded = [_encoded(parameter) for parameter in parameters]
        if (now := time.monotonic()) > self._plans_until:
            self._plans_until = now + _PLANS_KEPT
            self._enqueue("DISCARD PLANS", ())
        self._enqueue(sql, encoded)

    def _enqueue(self, sql: str, encoded: Sequence[tuple[bytes | None, int]]) -> None:
        name = self._prepared.get(sql)
        if name is None:
            name = self._prepared[sql] = b"%d" % next(self._names)
            self._preparing.append(sql)
            self._libpq.send_prepare(name, _numbered(sql).encode())
        self._libpq.send_query_prepared(
            name, [value for value, _ in encoded], [form for _, form in encoded], _BINARY
        )
        self._sent = True

    def _receive(self) -> Any:
        """Wait for all that was sent; the result of the last."""
        self._libpq.pipeline_sync()
        self._sent = False
        last = failed = None
        while (result := self._next()) is None or result.status != pq.ExecStatus.PIPELINE_SYNC:
            if result is not None:
                last = result
                if failed is None and result.status in _FAILED:
                    failed = result
        preparing, self._preparing = self._preparing, []
        if failed is not None:
            for sql in preparing:
                del self._prepared[sql]
            raise psycopg.errors.error_from_result(failed)
        return last

    def _next(self) -> Any:
        """The next result, or None between those of two statements. The others go on meanwhile."""
        while self._libpq.is_busy():
            unsent = self._libpq.flush()
            self._poll.register(
                self._libpq.socket, select.POLLIN | (select.POLLOUT if unsent else 0)
            )
            self._poll.poll()
            self._libpq.consume_input()
        result = self._libpq.get_result()
        if result is None and self._libpq.status != pq.ConnStatus.OK:
            raise psycopg.OperationalError("the connection is lost")
        return result

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as exc:
            lost = self._libpq.status != pq.ConnStatus.OK or exc.sqlstate in self._cured_by_another
            raise (DatabaseLost if lost else DatabaseError)(_without_secrets(exc)) from exc


def _connect(url: str) -> "psycopg.Connection[Any]":
    try:
        parameters = conninfo_to_dict(url)
    except psycopg.Error as exc:
        # What the message quotes may be a password.
        reason = str(exc).partition('"')[0].strip(" :")
        raise DatabaseMisnamed(
            f"the store URL cannot be understood ({reason}): in names and passwords,"
            " special characters are written as %XX"
        ) from None
    # Text is UTF-8, whatever the encoding of the database is.
    asked: dict[str, Any] = {**_CONNECTING, **parameters, "client_encoding": "utf8"}
    try:
        return psycopg.connect(**asked)
    except psycopg.Error as exc:
        raise DatabaseLost(_without_secrets(exc)) from exc


def _encoded(value: Any) -> tuple[bytes | None, int]:
    """A parameter, of the type that its place in the statement has."""
    match value:
        case None:
            return None, _BINARY
        case bytes():
            return value, _BINARY
        case str():
            return value.encode(), _BINARY
        case int():
            return b"%d" % value, _TEXT
        case float():
            return repr(value).encode(), _TEXT
        case list():
            return _array(value)
    raise TypeError(f"PostgreSQL has no {type(value).__name__}")


def _array(values: list[Any]) -> tuple[bytes, int]:
    """All of one type, and at least one."""
    first = values[0]
    if isinstance(first, int):
        return b"{%s}" % b",".join(b"%d" % value for value in values), _TEXT
    oid = _TEXT_OID if isinstance(first, str) else _BYTEA_OID
    parts = [struct.pack("!5i", 1, 0, oid, len(values), 1)]
    for value in values:
        item = value.encode() if isinstance(value, str) else value
        parts += (struct.pack("!i", len(item)), item)
    return b"".join(parts), _BINARY


def _numbered(sql: str) -> str:
    """With PostgreSQL's own signs for parameters."""
    first, *rest = sql.split("?")
    return first + "".join(f"${number}{text}" for number, text in enumerate(rest, 1))


def _without_secrets(exc: Exception) -> str:
    """The first line: the rest may quote parameters."""
    return (str(exc).splitlines() or [type(exc).__name__])[0]
