"""Row counts of the store, too costly to compute for each scrape.

Counted on a separate connection, so that clients never wait. The result has no IDs.
"""

import asyncio
from dataclasses import dataclass, field

from heliograph.db.dialects import Dialect, Transaction, open_dialect

_PENDING = (
    "SELECT p.server_id, v.address, p.associated, p.number FROM"
    " (SELECT server_id, associated, COUNT(*) AS number FROM subscriptions"
    " WHERE status IN ('NEW', 'PENDING', 'INACTIVE', 'SERVICE') GROUP BY server_id, associated) p"
    " JOIN servers v ON v.server_id = p.server_id"
)


@dataclass(frozen=True, slots=True)
class Totals:
    """`pending` is keyed by ID and address of a messaging router, and whether a service has it."""

    tokens: dict[str, int] = field(default_factory=dict)
    subscriptions: dict[str, int] = field(default_factory=dict)
    notifications: int = 0
    pending_pushes: dict[str, int] = field(default_factory=dict)
    oldest_pending: float | None = None
    pending: dict[tuple[int, str, bool], int] = field(default_factory=dict)


async def count(url: str) -> Totals:
    return await asyncio.to_thread(_count, url)


def _count(url: str) -> Totals:
    dialect: Dialect = open_dialect(url, read_only=True)
    try:
        return totals(Transaction(dialect))
    finally:
        dialect.close()


def totals(tx: Transaction) -> Totals:
    tokens = tx.query("SELECT status, COUNT(*) FROM tokens GROUP BY status")
    subscriptions = tx.query("SELECT status, COUNT(*) FROM subscriptions GROUP BY status")
    [[notifications]] = tx.query("SELECT COUNT(*) FROM last_notifications")
    pushes = tx.query("SELECT kind, COUNT(*), MIN(since) FROM pending_pushes GROUP BY kind")
    oldest = min((since for _, _, since in pushes), default=None)
    return Totals(
        dict(tokens),
        dict(subscriptions),
        notifications,
        {kind: number for kind, number, _ in pushes},
        None if oldest is None else oldest / 1000,
        {
            (server, address, bool(associated)): number
            for server, address, associated, number in tx.query(_PENDING)
        },
    )
