"""What actions may be about: tokens, subscriptions and messaging routers of the store."""

from typing import NamedTuple

from heliograph.db.dialects import Transaction

__all__ = ["ActionSubject", "address_of", "population", "subjects"]

_TABLES = {"subscription": "subscriptions", "token": "tokens", "server": "servers"}
OTHER_POPULATION = 100
"""Assumed number of subjects that the store cannot count, such as networks."""


class ActionSubject(NamedTuple):
    """A possible subject. `hashed` is what its hash in the journal is made of."""

    entity: bytes
    hashed: bytes


def population(tx: Transaction, column: str) -> int:
    """Return how many subjects there are that hashes of a journal's column may stand for."""
    if column not in _TABLES:
        return OTHER_POPULATION
    [[count]] = tx.query(f"SELECT COUNT(*) FROM {_TABLES[column]}")
    return int(count)


def subjects(tx: Transaction, column: str, after: bytes, limit: int) -> list[ActionSubject]:
    """Return a page of what hashes of a journal's column may stand for, by ID."""
    if column == "server":
        rows = tx.query("SELECT server_id, address FROM servers ORDER BY server_id")
        keyed = [
            ActionSubject(b"%020d" % server_id, address.encode()) for server_id, address in rows
        ]
        return [item for item in keyed if item.entity > after][:limit]
    rows = tx.query(
        f"SELECT {column}_id FROM {_TABLES[column]} WHERE {column}_id > ?"
        f" ORDER BY {column}_id LIMIT ?",
        (after, limit),
    )
    return [ActionSubject(bytes(entity), bytes(entity)) for (entity,) in rows]


def address_of(tx: Transaction, subject: bytes) -> bytes:
    """Return the address of a messaging router that is a subject; empty if it is gone."""
    rows = tx.query("SELECT address FROM servers WHERE server_id = ?", (int(subject),))
    return rows[0][0].encode() if rows else b""
