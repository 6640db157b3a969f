"""Messaging routers in the store: functions of a transaction."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from heliograph.db.dialects import Transaction
from heliograph.wire.ntf.tokens import SubscriptionState

_COLUMNS = "server_id, address, service_chain, service_key, service_id"


class ServerRecord(NamedTuple):
    server_id: int
    address: str
    service_chain: bytes | None = None
    service_key: bytes | None = None
    service_id: bytes | None = None


def find(tx: Transaction, server_id: int) -> ServerRecord:
    [row] = tx.query(
        f"SELECT {_COLUMNS} FROM servers WHERE server_id = ?",
        (server_id,),
    )
    return ServerRecord(*row)


def at(tx: Transaction, addresses: Sequence[str]) -> dict[str, ServerRecord]:
    rows = tx.query_in(f"SELECT {_COLUMNS} FROM servers WHERE address IN {{in}}", addresses)
    return {row[1]: ServerRecord(*row) for row in rows}


def find_or_add(tx: Transaction, address: str) -> int:
    rows = tx.query("SELECT server_id FROM servers WHERE address = ?", (address,))
    if rows:
        return int(rows[0][0])
    [[last]] = tx.query("SELECT COALESCE(MAX(server_id), 0) FROM servers")
    server_id = int(last) + 1
    tx.execute("INSERT INTO servers (server_id, address) VALUES (?, ?)", (server_id, address))
    return server_id


def in_use(tx: Transaction) -> list[ServerRecord]:
    """Return the messaging routers that have anything to subscribe to."""
    rows = tx.query(
        f"SELECT {_COLUMNS} FROM servers v"
        " WHERE EXISTS (SELECT 1 FROM subscriptions s WHERE s.server_id = v.server_id)"
        " ORDER BY v.server_id"
    )
    return [ServerRecord(*row) for row in rows]


def proven(tx: Transaction) -> set[int]:
    """Return the messaging routers that have INACTIVE subscriptions, which were ACTIVE before."""
    rows = tx.query(
        "SELECT server_id FROM servers v WHERE EXISTS"
        " (SELECT 1 FROM subscriptions s WHERE s.server_id = v.server_id AND s.status = ?)",
        (SubscriptionState.INACTIVE.value,),
    )
    return {server_id for (server_id,) in rows}


def delete_unused(tx: Transaction, kept: Collection[int]) -> None:
    """Delete the messaging routers without subscriptions and without a service of ours.

    Not those to be `kept`: a new router may get the ID of a deleted one.
    """
    rows = tx.query(
        "SELECT server_id FROM servers WHERE service_id IS NULL AND NOT EXISTS"
        " (SELECT 1 FROM subscriptions s WHERE s.server_id = servers.server_id)"
    )
    unused = [row for row in rows if row[0] not in kept]
    tx.many("DELETE FROM servers WHERE server_id = ?", unused)


def collect_unused(tx: Transaction, now: int, before: int) -> None:
    """Remove messaging routers unused since `before`, with our service identities there."""
    used = "EXISTS (SELECT 1 FROM subscriptions s WHERE s.server_id = servers.server_id)"
    tx.execute(
        f"UPDATE servers SET unused_since = ? WHERE unused_since IS NULL AND NOT {used}", (now,)
    )
    tx.execute(
        f"UPDATE servers SET unused_since = NULL WHERE unused_since IS NOT NULL AND {used}", ()
    )
    tx.execute("DELETE FROM servers WHERE unused_since <= ?", (before,))
    tx.execute(
        "DELETE FROM deleted_associations WHERE server_id NOT IN (SELECT server_id FROM servers)",
        (),
    )


def set_service(
    tx: Transaction,
    server_id: int,
    chain: bytes | None,
    key: bytes | None,
    service_id: bytes | None,
) -> None:
    tx.execute(
        "UPDATE servers SET service_chain = ?, service_key = ?, service_id = ? WHERE server_id = ?",
        (chain, key, service_id, server_id),
    )
