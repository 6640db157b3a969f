"""Routers in the store: functions of a transaction.

A router is identified by its fingerprint. Its address may change if its owner says so.
"""

from heliograph.db.dialects import Transaction
from heliograph.wire.addresses import ServerAddress, decode_address


def server_for(tx: Transaction, address: ServerAddress, *, trusted: bool = False) -> int:
    """Return the ID of a router. Only a trusted address changes the address of a known router."""
    key = address.scheme.value, address.fingerprint
    text = str(address.without_password())  # which is needed only to create a queue
    rows = tx.query(
        "SELECT server_id, address FROM servers WHERE scheme = ? AND fingerprint = ?", key
    )
    if not rows:
        [[server_id]] = tx.query(
            "INSERT INTO servers (scheme, fingerprint, address) VALUES (?, ?, ?)"
            " RETURNING server_id",
            (*key, text),
        )
        return int(server_id)
    [(server_id, known)] = rows
    if trusted and text != known:
        tx.execute("UPDATE servers SET address = ? WHERE server_id = ?", (text, server_id))
    return int(server_id)


def addresses(tx: Transaction) -> list[ServerAddress]:
    """Return the addresses of all routers."""
    return [decode_address(text) for (text,) in tx.query("SELECT address FROM servers")]
