"""Queues associated with our service at messaging routers: functions of a transaction."""

from collections.abc import Sequence
from typing import Literal

from heliograph.db.dialects import Transaction
from heliograph.ntf.store.records import AssociatedIds
from heliograph.wire.smp.ids import IDS_HASH_SIZE


def associated(tx: Transaction, server_id: int) -> AssociatedIds:
    active = tx.query(
        "SELECT notifier_id FROM subscriptions WHERE server_id = ? AND associated = 1", (server_id,)
    )
    deleted = tx.query(
        "SELECT notifier_id FROM deleted_associations WHERE server_id = ?", (server_id,)
    )
    [[count, ids_hash]] = tx.query(
        "SELECT surplus_count, surplus_hash FROM servers WHERE server_id = ?", (server_id,)
    )
    return AssociatedIds(
        [notifier_id for (notifier_id,) in active],
        [notifier_id for (notifier_id,) in deleted],
        count,
        ids_hash or bytes(IDS_HASH_SIZE),
    )


def keep_deleted(
    tx: Transaction, column: Literal["subscription_id", "token_id"], value: bytes
) -> None:
    """Keep the notifier IDs of subscriptions that are about to be deleted.

    The messaging router still counts them, as the protocol cannot dissociate them.
    """
    tx.execute(
        "INSERT INTO deleted_associations (server_id, notifier_id)"
        f" SELECT server_id, notifier_id FROM subscriptions WHERE {column} = ? AND associated = 1"
        " ON CONFLICT (server_id, notifier_id) DO NOTHING",
        (value,),
    )


def keep_missing(tx: Transaction, server_id: int, notifier_ids: Sequence[bytes]) -> None:
    """Keep those of the associated queues whose subscriptions were deleted before the answer."""
    rows = tx.query_in(
        "SELECT notifier_id FROM subscriptions WHERE notifier_id IN {in} AND server_id = ?",
        notifier_ids,
        server_id,
    )
    missing = set(notifier_ids) - {notifier_id for (notifier_id,) in rows}
    tx.many(
        "INSERT INTO deleted_associations (server_id, notifier_id) VALUES (?, ?)"
        " ON CONFLICT (server_id, notifier_id) DO NOTHING",
        [(server_id, notifier_id) for notifier_id in missing],
    )


def forget_deleted(tx: Transaction, server_id: int, notifier_ids: Sequence[bytes]) -> None:
    tx.many(
        "DELETE FROM deleted_associations WHERE server_id = ? AND notifier_id = ?",
        [(server_id, notifier_id) for notifier_id in notifier_ids],
    )


def set_surplus(tx: Transaction, server_id: int, count: int, ids_hash: bytes) -> None:
    """Expect these queues at the router, besides the subscribed ones, instead of deleted ones."""
    tx.execute("DELETE FROM deleted_associations WHERE server_id = ?", (server_id,))
    tx.execute(
        "UPDATE servers SET surplus_count = ?, surplus_hash = ? WHERE server_id = ?",
        (count, ids_hash, server_id),
    )


def clear(tx: Transaction, server_id: int) -> None:
    """Dissociate all queues of a router, and forget its service."""
    set_surplus(tx, server_id, 0, bytes(IDS_HASH_SIZE))
    tx.execute(
        "UPDATE subscriptions SET associated = 0 WHERE server_id = ? AND associated = 1",
        (server_id,),
    )
    tx.execute(
        "UPDATE servers SET service_chain = NULL, service_key = NULL, service_id = NULL"
        " WHERE server_id = ?",
        (server_id,),
    )
