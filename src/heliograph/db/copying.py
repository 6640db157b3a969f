"""Copy all tables of a database into an empty one, of the same kind or the other.

The source may be in use: it is read as of one moment. The target changes in one transaction, so an
interrupted copy leaves it empty.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

from heliograph.db.database import Migration, migrate
from heliograph.db.dialects import Dialect, open_dialect
from heliograph.db.errors import DatabaseError
from heliograph.db.sql import Row

__all__ = ["check_empty", "copy_database"]

ROWS_PER_PAGE = 2000
OWN_TABLES = frozenset({"migrations", "write_probe"})
"""Tables that every database has, filled when it is created."""

Progress = Callable[[str, int], None]
"""Called with the name of a table, and the number of its rows copied so far."""


def copy_database(
    source_url: str,
    target_url: str,
    migrations: Sequence[Migration],
    progress: Progress = lambda table, count: None,
) -> dict[str, int]:
    """Copy, and return the number of rows of each table. Raises `DatabaseError`."""
    if source_url == target_url:
        raise DatabaseError("source and target are the same database: choose another target")
    with closing(open_dialect(source_url, read_only=True)) as source:
        source.begin_snapshot()
        _check_schema(source, migrations)
        migrate(target_url, migrations)
        with closing(open_dialect(target_url)) as target:
            target.begin()
            try:
                copied = _copy_tables(source, target, progress)
                target.commit()
            except BaseException:
                target.rollback()
                raise
        source.rollback()
    return copied


def check_empty(dialect: Dialect) -> None:
    """Raise `DatabaseError` if a table has rows."""
    for table in dialect.columns():
        if table not in OWN_TABLES and dialect.query(
            f"SELECT 1 FROM {table} LIMIT 1",  # noqa: S608 - of the schema
            (),
        ):
            raise DatabaseError(
                f"the target is not empty: its table {table} has rows: choose an empty database"
            )


def _check_schema(source: Dialect, migrations: Sequence[Migration]) -> None:
    if "migrations" not in source.columns():
        raise DatabaseError("the source is empty: nothing was stored there")
    done = {name for (name,) in source.query("SELECT name FROM migrations", ())}
    if done != {migration.name for migration in migrations}:
        raise DatabaseError(
            "the source has the schema of another version: start the router with this version once"
        )


def _copy_tables(source: Dialect, target: Dialect, progress: Progress) -> dict[str, int]:
    tables = {name: found for name, found in source.columns().items() if name not in OWN_TABLES}
    check_empty(target)
    copied = {}
    for table, columns in tables.items():
        copied[table] = _copy_table(source, target, table, columns, progress)
    return copied


def _copy_table(
    source: Dialect,
    target: Dialect,
    table: str,
    columns: list[tuple[str, int]],
    progress: Progress,
) -> int:
    names = [name for name, _ in columns]
    values = ", ".join("?" * len(names))
    insert = f"INSERT INTO {table} ({', '.join(names)}) VALUES ({values})"  # noqa: S608
    count = 0
    for page in _pages(source, table, columns):
        target.many(insert, page)
        count += len(page)
        progress(table, count)
    counting = f"SELECT COUNT(*) FROM {table}"  # noqa: S608
    [[expected]], [[found]] = source.query(counting, ()), target.query(counting, ())
    if not count == expected == found:
        raise DatabaseError(f"{table}: {expected} rows became {found}: nothing was copied")
    return count


def _pages(source: Dialect, table: str, columns: list[tuple[str, int]]) -> Iterator[list[Row]]:
    """Return all rows, in the order of the primary key, a page at a time."""
    names = [name for name, _ in columns]
    keys = [name for name, position in sorted(columns, key=lambda item: item[1]) if position]
    places = [names.index(key) for key in keys]
    order = ", ".join(keys)
    start = f"SELECT {', '.join(names)} FROM {table}"  # noqa: S608 - of the schema
    after = f" WHERE ({order}) > ({', '.join('?' * len(keys))})"
    page = source.query(f"{start} ORDER BY {order} LIMIT {ROWS_PER_PAGE}", ())
    while page:
        yield page
        last = [page[-1][place] for place in places]
        page = source.query(f"{start}{after} ORDER BY {order} LIMIT {ROWS_PER_PAGE}", last)
