"""Keys for links that are being joined, in the store: functions of a transaction."""

from heliograph.agent.keys import Vault
from heliograph.db.dialects import Transaction

_PLACE = "fingerprint = ? AND link_id = ?"


def key_for(
    tx: Transaction, vault: Vault, fingerprint: bytes, link_id: bytes, fresh: bytes
) -> bytes:
    """Return the sender key stored for a link, or store a fresh one."""
    place = fingerprint, link_id
    rows = tx.query(f"SELECT sender_key FROM link_keys WHERE {_PLACE}", place)  # noqa: S608
    if rows:
        return vault.open(bytes(rows[0][0]))
    tx.execute(
        "INSERT INTO link_keys (fingerprint, link_id, sender_key) VALUES (?, ?, ?)",
        (*place, vault.seal(fresh)),
    )
    return fresh


def forget_key(tx: Transaction, fingerprint: bytes, link_id: bytes) -> None:
    tx.execute(f"DELETE FROM link_keys WHERE {_PLACE}", (fingerprint, link_id))  # noqa: S608
