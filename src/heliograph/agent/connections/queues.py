"""Connections and their queues in the store: functions of a transaction."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from heliograph.agent.connections.servers import server_for
from heliograph.agent.keys import Vault
from heliograph.agent.records import (
    Connection,
    ConnectionStatus,
    NotifierCredentials,
    RcvQueue,
    RcvStatus,
    SndQueue,
    SndStatus,
)
from heliograph.db.dialects import Row, Transaction
from heliograph.wire.addresses import ServerAddress, decode_address

_RCV = (
    "q.queue_id, q.conn_id, s.address, q.rcv_id, q.snd_id, q.status, q.recipient_key, q.dh_secret,"
    " q.e2e_key, q.e2e_secret, q.sender_key, q.sender_can_secure, q.replaces, q.last_broker_ts,"
    " q.notifier_id, q.notifier_key, q.notifier_secret"
)
_RCV_FROM = f"SELECT {_RCV} FROM rcv_queues q JOIN servers s ON s.server_id = q.server_id"
_SND = (
    "q.queue_id, q.conn_id, s.address, q.snd_id, q.status, q.is_current, q.sender_key,"
    " q.e2e_public, q.e2e_secret, q.sender_can_secure"
)
_SND_FROM = f"SELECT {_SND} FROM snd_queues q JOIN servers s ON s.server_id = q.server_id"

_decode_address = lru_cache(maxsize=256)(decode_address)


@dataclass(frozen=True, slots=True)
class NewRcvQueue:
    """A queue that a router has just created."""

    address: ServerAddress
    rcv_id: bytes = field(repr=False)
    snd_id: bytes = field(repr=False)
    recipient_key: bytes = field(repr=False)
    dh_secret: bytes = field(repr=False)
    e2e_key: bytes = field(repr=False)
    sender_can_secure: bool
    notifier: NotifierCredentials | None = None
    link_id: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class NewSndQueue:
    """A new queue that we send to."""

    address: ServerAddress
    snd_id: bytes = field(repr=False)
    sender_key: bytes = field(repr=False)
    e2e_public: bytes = field(repr=False)
    e2e_secret: bytes = field(repr=False)
    sender_can_secure: bool
    is_current: bool = True


# Connections.


def add_connection(tx: Transaction, conn_id: str, at: int) -> None:
    tx.execute(
        "INSERT INTO connections (conn_id, status, enable_ntfs, next_number, created_at)"
        " VALUES (?, ?, 1, 1, ?)",
        (conn_id, ConnectionStatus.ACTIVE.value, at),
    )


def find_connection(tx: Transaction, conn_id: str) -> Connection | None:
    """Return a connection, or None if it is unknown or deleted."""
    rows = tx.query(
        "SELECT conn_id, status, enable_ntfs, created_at FROM connections"
        " WHERE conn_id = ? AND status = ?",
        (conn_id, ConnectionStatus.ACTIVE.value),
    )
    return _connection(rows[0]) if rows else None


def find_connections(tx: Transaction, conn_ids: Sequence[str]) -> list[Connection]:
    """Return those of the connections that were not deleted."""
    rows = tx.query_in(
        "SELECT conn_id, status, enable_ntfs, created_at FROM connections"
        " WHERE conn_id IN {in} AND status = ?",
        conn_ids,
        ConnectionStatus.ACTIVE.value,
    )
    return [_connection(row) for row in rows]


def connections(tx: Transaction) -> list[Connection]:
    """Return the connections that were not deleted, oldest first."""
    rows = tx.query(
        "SELECT conn_id, status, enable_ntfs, created_at FROM connections WHERE status = ?"
        " ORDER BY created_at, conn_id",
        (ConnectionStatus.ACTIVE.value,),
    )
    return [_connection(row) for row in rows]


def set_enable_ntfs(tx: Transaction, conn_id: str, enable: bool) -> None:
    tx.execute("UPDATE connections SET enable_ntfs = ? WHERE conn_id = ?", (int(enable), conn_id))


def delete_connection(tx: Transaction, conn_id: str) -> None:
    """Mark a connection deleted, and its queues to be deleted at their routers."""
    tx.execute(
        "UPDATE connections SET status = ? WHERE conn_id = ?",
        (ConnectionStatus.DELETED.value, conn_id),
    )
    tx.execute(
        "UPDATE rcv_queues SET status = ? WHERE conn_id = ? AND status <> ?",
        (RcvStatus.DELETING.value, conn_id, RcvStatus.GONE.value),
    )
    for table in ("outgoing", "received", "snd_queues"):
        tx.execute(f"DELETE FROM {table} WHERE conn_id = ?", (conn_id,))
    forget_deleted(tx, conn_id)


def forget_deleted(tx: Transaction, conn_id: str) -> None:
    """Remove a deleted connection once none of its queues is left to delete."""
    tx.execute(
        "DELETE FROM connections WHERE conn_id = ? AND status = ? AND NOT EXISTS"
        " (SELECT 1 FROM rcv_queues q WHERE q.conn_id = connections.conn_id AND q.status = ?)",
        (conn_id, ConnectionStatus.DELETED.value, RcvStatus.DELETING.value),
    )


# Queues that we receive from.


def add_rcv_queue(
    tx: Transaction, vault: Vault, conn_id: str, new: NewRcvQueue, replaces: int | None = None
) -> int:
    server_id = server_for(tx, new.address)
    notifier = new.notifier
    [[queue_id]] = tx.query(
        "INSERT INTO rcv_queues (conn_id, server_id, rcv_id, snd_id, status, recipient_key,"
        " dh_secret, e2e_key, sender_can_secure, replaces, notifier_id, notifier_key,"
        " notifier_secret) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING queue_id",
        (
            conn_id,
            server_id,
            new.rcv_id,
            new.snd_id,
            RcvStatus.NEW.value,
            vault.seal(new.recipient_key),
            vault.seal(new.dh_secret),
            vault.seal(new.e2e_key),
            int(new.sender_can_secure),
            replaces,
            notifier and notifier.notifier_id,
            notifier and vault.seal(notifier.auth_key),
            notifier and vault.seal(notifier.dh_secret),
        ),
    )
    return int(queue_id)


def rcv_queue(tx: Transaction, vault: Vault, queue_id: int) -> RcvQueue | None:
    rows = tx.query(f"{_RCV_FROM} WHERE q.queue_id = ?", (queue_id,))
    return _rcv_queue(rows[0], vault) if rows else None


def rcv_queues_of(tx: Transaction, vault: Vault, conn_ids: Sequence[str]) -> list[RcvQueue]:
    """Return all queues of connections, in any status, oldest first."""
    rows = tx.query_in(f"{_RCV_FROM} WHERE q.conn_id IN {{in}} ORDER BY q.queue_id", conn_ids)
    return [_rcv_queue(row, vault) for row in rows]


def rcv_queue_by_id(
    tx: Transaction, vault: Vault, fingerprint: bytes, rcv_id: bytes
) -> RcvQueue | None:
    rows = tx.query(
        f"{_RCV_FROM} WHERE s.scheme = 'smp' AND s.fingerprint = ? AND q.rcv_id = ?",
        (fingerprint, rcv_id),
    )
    return _rcv_queue(rows[0], vault) if rows else None


def rcv_queue_by_notifier(
    tx: Transaction, vault: Vault, fingerprint: bytes, notifier_id: bytes
) -> RcvQueue | None:
    """Return the queue with this notifier ID at this router, or None."""
    rows = tx.query(
        f"{_RCV_FROM} WHERE s.scheme = 'smp' AND s.fingerprint = ? AND q.notifier_id = ?"
        " AND q.status NOT IN ('deleting', 'gone')",
        (fingerprint, notifier_id),
    )
    return _rcv_queue(rows[0], vault) if rows else None


def rcv_queues_to_delete(tx: Transaction, vault: Vault) -> list[RcvQueue]:
    rows = tx.query(f"{_RCV_FROM} WHERE q.status = ?", (RcvStatus.DELETING.value,))
    return [_rcv_queue(row, vault) for row in rows]


def set_rcv_status(tx: Transaction, queue_id: int, status: RcvStatus) -> None:
    tx.execute("UPDATE rcv_queues SET status = ? WHERE queue_id = ?", (status.value, queue_id))


def set_sender(
    tx: Transaction, vault: Vault, queue_id: int, e2e_secret: bytes, sender_key: bytes | None
) -> None:
    """Store the sender's secret, and the key that the queue is still to be secured with."""
    status = RcvStatus.ACTIVE if sender_key is None else RcvStatus.SECURING
    tx.execute(
        "UPDATE rcv_queues SET e2e_secret = ?, sender_key = ?, status = ? WHERE queue_id = ?",
        (vault.seal(e2e_secret), vault.seal(sender_key), status.value, queue_id),
    )


def set_broker_ts(tx: Transaction, queue_id: int, timestamp: int) -> None:
    """Set the time of the newest message. Messages may arrive in any order."""
    tx.execute(
        "UPDATE rcv_queues SET last_broker_ts = ? WHERE queue_id = ?"
        " AND (last_broker_ts IS NULL OR last_broker_ts < ?)",
        (timestamp, queue_id, timestamp),
    )


def set_notifier(
    tx: Transaction, vault: Vault, queue_id: int, notifier: NotifierCredentials | None
) -> None:
    """Store the queue's notifier credentials at the router, or None."""
    if notifier is None:
        values: tuple[bytes | None, ...] = (None, None, None)
    else:
        values = (
            notifier.notifier_id,
            vault.seal(notifier.auth_key),
            vault.seal(notifier.dh_secret),
        )
    tx.execute(
        "UPDATE rcv_queues SET notifier_id = ?, notifier_key = ?, notifier_secret = ?"
        " WHERE queue_id = ?",
        (*values, queue_id),
    )


def delete_rcv_queue(tx: Transaction, queue_id: int) -> None:
    tx.execute("DELETE FROM rcv_queues WHERE queue_id = ?", (queue_id,))


# Queues that we send to.


def add_snd_queue(tx: Transaction, vault: Vault, conn_id: str, new: NewSndQueue) -> int:
    [[queue_id]] = tx.query(
        "INSERT INTO snd_queues (conn_id, server_id, snd_id, status, is_current, sender_key,"
        " e2e_public, e2e_secret, sender_can_secure) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
        " RETURNING queue_id",
        (
            conn_id,
            server_for(tx, new.address),
            new.snd_id,
            SndStatus.NEW.value,
            int(new.is_current),
            vault.seal(new.sender_key),
            new.e2e_public,
            vault.seal(new.e2e_secret),
            int(new.sender_can_secure),
        ),
    )
    return int(queue_id)


def snd_queues_of(tx: Transaction, vault: Vault, conn_id: str) -> list[SndQueue]:
    rows = tx.query(f"{_SND_FROM} WHERE q.conn_id = ? ORDER BY q.queue_id", (conn_id,))
    return [_snd_queue(row, vault) for row in rows]


def set_snd_status(tx: Transaction, queue_id: int, status: SndStatus) -> None:
    tx.execute("UPDATE snd_queues SET status = ? WHERE queue_id = ?", (status.value, queue_id))


def replace_snd_status(tx: Transaction, queue_id: int, before: SndStatus, after: SndStatus) -> None:
    tx.execute(
        "UPDATE snd_queues SET status = ? WHERE queue_id = ? AND status = ?",
        (after.value, queue_id, before.value),
    )


def set_sender_key(tx: Transaction, vault: Vault, queue_id: int, key: bytes) -> None:
    tx.execute(
        "UPDATE snd_queues SET sender_key = ? WHERE queue_id = ?", (vault.seal(key), queue_id)
    )


def set_recipient_secures(tx: Transaction, queue_id: int) -> None:
    tx.execute("UPDATE snd_queues SET sender_can_secure = 0 WHERE queue_id = ?", (queue_id,))


def make_current(tx: Transaction, conn_id: str, queue_id: int) -> list[int]:
    """Make this the current queue to send to, and return the IDs of the queues it replaces.

    If a newer one is current already and works, that one stays, and has replaced this one.
    """
    rows = tx.query(
        "SELECT queue_id, status FROM snd_queues"
        " WHERE conn_id = ? AND is_current = 1 AND queue_id <> ?",
        (conn_id, queue_id),
    )
    if any(id > queue_id and status != SndStatus.REFUSED.value for id, status in rows):
        return [queue_id]
    tx.execute(
        "UPDATE snd_queues SET is_current = CASE queue_id WHEN ? THEN 1 ELSE 0 END"
        " WHERE conn_id = ?",
        (queue_id, conn_id),
    )
    return [int(previous) for previous, _ in rows]


def delete_snd_queue(tx: Transaction, queue_id: int) -> None:
    tx.execute("DELETE FROM snd_queues WHERE queue_id = ?", (queue_id,))


def _connection(row: Row) -> Connection:
    conn_id, status, enable_ntfs, created_at = row
    return Connection(conn_id, ConnectionStatus(status), bool(enable_ntfs), created_at)


def _rcv_queue(row: Row, vault: Vault) -> RcvQueue:
    queue_id, conn_id, address, rcv_id, snd_id, status, *rest = row
    recipient_key, dh_secret, e2e_key, e2e_secret, sender_key, can_secure, *rest = rest
    replaces, last_broker_ts, notifier_id, notifier_key, notifier_secret = rest
    notifier = None
    if notifier_id is not None:
        notifier = NotifierCredentials(
            notifier_id, vault.open(notifier_key), vault.open(notifier_secret)
        )
    return RcvQueue(
        queue_id,
        conn_id,
        _decode_address(address),
        rcv_id,
        snd_id,
        RcvStatus(status),
        vault.open(recipient_key),
        vault.open(dh_secret),
        vault.open(e2e_key),
        vault.open(e2e_secret),
        vault.open(sender_key),
        bool(can_secure),
        replaces,
        last_broker_ts,
        notifier,
    )


def _snd_queue(row: Row, vault: Vault) -> SndQueue:
    queue_id, conn_id, address, snd_id, status, is_current, *rest = row
    sender_key, e2e_public, e2e_secret, can_secure = rest
    return SndQueue(
        queue_id,
        conn_id,
        _decode_address(address),
        snd_id,
        SndStatus(status),
        bool(is_current),
        vault.open(sender_key),
        e2e_public,
        vault.open(e2e_secret),
        bool(can_secure),
    )
