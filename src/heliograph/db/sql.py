"""Definitions of both dialects: rows, limits and the placeholders of a schema."""

from collections.abc import Iterable
from typing import Any

Row = tuple[Any, ...]
"""A row; columns are of any type."""

MAX_IN = 500
"""Maximum number of values in one `IN` of SQLite, which limits variables."""

OWNED = "another router uses this database: stop it, or give each a database of its own"


def statements(sql: str, words: dict[str, str]) -> Iterable[str]:
    for word, meaning in words.items():
        sql = sql.replace(word, meaning)
    return [statement for statement in map(str.strip, sql.split(";")) if statement]
