"""Lose a subscription as it happens: a copy of the router, made from a backup, takes it over."""

from pathlib import Path

from heliograph.db.dialects import Transaction, open_dialect
from heliograph.ntf.config import STORE_NAME
from heliograph.transport.client import Client
from heliograph.wire import smp

__all__ = ["count_ended", "take_over_subscriptions"]

_QUEUES = (
    "SELECT v.address, s.notifier_id, s.notifier_key FROM subscriptions s"
    " JOIN servers v ON v.server_id = s.server_id WHERE s.status = 'ACTIVE'"
)


async def take_over_subscriptions(ntf: Path) -> int:
    """Subscribe to all queues with the keys of a router, disconnect, and return how many."""
    rows = _query(ntf, _QUEUES)
    for address, notifier_id, notifier_key in rows:
        async with Client.connect(address) as client:
            await client.request(smp.NSUB(), bytes(notifier_id), bytes(notifier_key))
    return len(rows)


def count_ended(ntf: Path) -> int:
    """Return how many subscriptions the messaging router has ended."""
    return len(_query(ntf, "SELECT 1 FROM subscriptions WHERE status = 'END'"))


def _query(ntf: Path, sql: str) -> list[tuple[str, bytes, bytes]]:
    dialect = open_dialect(f"sqlite:///{ntf.absolute() / STORE_NAME}", read_only=True)
    try:
        return Transaction(dialect).query(sql)
    finally:
        dialect.close()
