"""Definitions of both dialects: rows, limits and the placeholders of a schema."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

Row = tuple[Any, ...]
"""A row; columns are of any type."""

MAX_IN = 500
"""Maximum number of values in one `IN` of SQLite, which limits variables."""

FENCED = "this process lost its lease, and others have taken its work over"
OWNED = "another router uses this database: stop it, or give each a database of its own"


class Guard(Protocol):
    """A query that returns a row while this process may write."""

    @property
    def sql(self) -> str: ...

    @property
    def parameters(self) -> Sequence[object]: ...

    def passed(self, row: Row) -> None:
        """Take the row; called in the thread of the writer, before the transaction's functions."""


def statements(sql: str, words: dict[str, str]) -> Iterable[str]:
    for word, meaning in words.items():
        sql = sql.replace(word, meaning)
    return [statement for statement in map(str.strip, sql.split(";")) if statement]
