"""The store of a router that is a process, whatever database it is."""

from pathlib import Path

from heliograph.db.dialects import open_dialect, sqlite_file

_TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"


def content(url: str) -> bytes:
    """Return every value of every row, or the files."""
    file = sqlite_file(url)
    if file is not None:
        return b"".join(path.read_bytes() for path in _files(file))
    dialect = open_dialect(url, read_only=True)
    try:
        values = [
            value
            for (table,) in dialect.query(_TABLES, ())
            for row in dialect.query(f"SELECT * FROM {table}", ())
            for value in row
        ]
    finally:
        dialect.close()
    return b"\n".join(
        bytes(value) if isinstance(value, bytes | memoryview) else str(value).encode()
        for value in values
    )


def empty(url: str) -> None:
    """Remove everything, tables too."""
    file = sqlite_file(url)
    if file is not None:
        for path in _files(file):
            path.unlink()
        return
    dialect = open_dialect(url)
    try:
        dialect.begin()
        for (table,) in dialect.query(_TABLES, ()):
            dialect.execute(f"DROP TABLE {table} CASCADE", ())
        dialect.execute("DROP SEQUENCE IF EXISTS notification_seq", ())
        dialect.commit()
    finally:
        dialect.close()


def _files(file: Path) -> list[Path]:
    return sorted(file.parent.glob(f"{file.name}*"))
