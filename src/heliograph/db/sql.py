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
    """The row of a process that may write, which each of its transactions updates.

    Removing the row waits for such a transaction to end, and no later one can commit.
    """

    @property
    def mark(self) -> str:
        """Return the statement that stores a marker, its first parameter, in the row."""

    @property
    def marker(self) -> str:
        """Return the query of the last marker, which locks the row."""

    @property
    def parameters(self) -> Sequence[object]: ...


def statements(sql: str, words: dict[str, str]) -> Iterable[str]:
    for word, meaning in words.items():
        sql = sql.replace(word, meaning)
    return [statement for statement in map(str.strip, sql.split(";")) if statement]
