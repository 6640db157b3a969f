"""Messages in the store: functions of a transaction."""

from collections.abc import Sequence

from heliograph.agent.keys import Vault
from heliograph.agent.messages.envelope import Content, encode_content, kind_of
from heliograph.agent.records import OutgoingMessage, RcvStatus, ReceivedMessage
from heliograph.db.dialects import Row, Transaction

MAX_PENDING_READ = 50
"""Maximum pending messages of a connection that are read at once."""

REMEMBERED_PER_CONNECTION = 100
"""Number of recent messages of a connection that are remembered whatever their age."""

_OUTGOING = "seq, conn_id, queue_id, number, kind, notification, body, attempts"
_MESSAGE = "message_id, conn_id, broker_id, broker_ts, notification, body"


# Outgoing.


def add_outgoing(
    tx: Transaction,
    vault: Vault,
    conn_id: str,
    content: Content,
    at: int,
    *,
    queue_id: int | None = None,
    notification: bool = False,
) -> int:
    """Store a message to send, and return its number within the connection."""
    [[number]] = tx.query("SELECT next_number FROM connections WHERE conn_id = ?", (conn_id,))
    tx.execute("UPDATE connections SET next_number = next_number + 1 WHERE conn_id = ?", (conn_id,))
    tx.execute(
        "INSERT INTO outgoing (conn_id, queue_id, number, kind, notification, body, attempts,"
        " created_at) VALUES (?, ?, ?, ?, ?, ?, 0, ?)",
        (
            conn_id,
            queue_id,
            number,
            kind_of(content).value,
            int(notification),
            vault.seal(encode_content(content)),
            at,
        ),
    )
    return int(number)


def outgoing_of(tx: Transaction, vault: Vault, conn_id: str) -> list[OutgoingMessage]:
    """Return the next messages to send, in order; bound ones first, as there are few."""
    rows = tx.query(
        f"SELECT {_OUTGOING} FROM outgoing WHERE conn_id = ? AND error IS NULL"
        " ORDER BY queue_id IS NULL, seq LIMIT ?",
        (conn_id, MAX_PENDING_READ),
    )
    return [_outgoing(row, vault) for row in rows]


def count_outgoing(tx: Transaction, conn_id: str) -> int:
    [[count]] = tx.query(
        "SELECT COUNT(*) FROM outgoing WHERE conn_id = ? AND error IS NULL", (conn_id,)
    )
    return int(count)


def busy_connections(tx: Transaction) -> list[str]:
    """Return the connections with possibly pending work."""
    rows = tx.query(
        "SELECT conn_id FROM outgoing WHERE error IS NULL"
        " UNION SELECT conn_id FROM rcv_queues WHERE status = ?",
        (RcvStatus.SECURING.value,),
    )
    return [conn_id for (conn_id,) in rows]


def set_attempts(tx: Transaction, seq: int, attempts: int) -> None:
    tx.execute("UPDATE outgoing SET attempts = ? WHERE seq = ?", (attempts, seq))


def set_failed(tx: Transaction, seq: int, error: str) -> None:
    """Mark a message as failed; it is kept for status displays."""
    tx.execute("UPDATE outgoing SET error = ?, body = ? WHERE seq = ?", (error, b"", seq))


def failed_of(tx: Transaction, conn_id: str) -> list[tuple[int, str]]:
    """Return numbers and errors of the messages that failed."""
    rows = tx.query(
        "SELECT number, error FROM outgoing WHERE conn_id = ? AND error IS NOT NULL ORDER BY seq",
        (conn_id,),
    )
    return [(number, error) for number, error in rows]


def delete_outgoing(tx: Transaction, seq: int) -> None:
    tx.execute("DELETE FROM outgoing WHERE seq = ?", (seq,))


def delete_bound(tx: Transaction, queue_id: int) -> None:
    tx.execute("DELETE FROM outgoing WHERE queue_id = ?", (queue_id,))


# Received.


def is_known(tx: Transaction, queue_id: int, broker_id: bytes) -> bool:
    return bool(
        tx.query(
            "SELECT 1 FROM received WHERE queue_id = ? AND broker_id = ?", (queue_id, broker_id)
        )
    )


def is_repeated(tx: Transaction, conn_id: str, number: int) -> bool:
    """Return whether the sender has sent it before, as it does when it got no answer."""
    return bool(
        tx.query("SELECT 1 FROM received WHERE conn_id = ? AND number = ?", (conn_id, number))
    )


def add_received(
    tx: Transaction,
    vault: Vault,
    conn_id: str,
    queue_id: int,
    broker_id: bytes,
    broker_ts: int,
    at: int,
    *,
    number: int | None = None,
    notification: bool = False,
    body: bytes | None = None,
) -> None:
    """Store a received message. Without a body it is not for the user, and only remembered."""
    tx.execute(
        "INSERT INTO received (conn_id, queue_id, broker_id, broker_ts, number, notification,"
        " body, received_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            conn_id,
            queue_id,
            broker_id,
            broker_ts,
            number,
            int(notification),
            vault.seal(body),
            at,
        ),
    )


def unhandled(
    tx: Transaction, vault: Vault, after: int, limit: int, conn_id: str | None = None
) -> list[ReceivedMessage]:
    """Return messages that the user has not acknowledged, oldest first."""
    which = "" if conn_id is None else " AND conn_id = ?"
    rows = tx.query(
        f"SELECT {_MESSAGE} FROM received WHERE body IS NOT NULL AND message_id > ?{which}"
        " ORDER BY message_id LIMIT ?",
        (after, limit) if conn_id is None else (after, conn_id, limit),
    )
    return [_message(row, vault) for row in rows]


def count_unhandled(tx: Transaction, conn_id: str) -> int:
    [[count]] = tx.query(
        "SELECT COUNT(*) FROM received WHERE conn_id = ? AND body IS NOT NULL", (conn_id,)
    )
    return int(count)


def set_handled(tx: Transaction, conn_id: str, message_id: int) -> bool:
    """Remove a message's body, keep its ID to detect duplicates, and return whether it exists."""
    key = conn_id, message_id
    if not tx.query("SELECT 1 FROM received WHERE conn_id = ? AND message_id = ?", key):
        return False
    tx.execute("UPDATE received SET body = NULL WHERE conn_id = ? AND message_id = ?", key)
    return True


def forget_handled(tx: Transaction, before: int) -> None:
    """Remove handled messages that no router can redeliver, and old failures.

    The last ones of a connection are kept: the clock may be wrong.
    """
    tx.execute(
        "DELETE FROM received WHERE body IS NULL AND received_at < ? AND (number IS NULL OR"
        " number <= (SELECT MAX(r.number) FROM received r WHERE r.conn_id = received.conn_id) - ?)",
        (before, REMEMBERED_PER_CONNECTION),
    )
    tx.execute("DELETE FROM outgoing WHERE error IS NOT NULL AND created_at < ?", (before,))


def count_unhandled_by_connection(tx: Transaction, conn_ids: Sequence[str]) -> dict[str, int]:
    """Return the number of unhandled messages of each connection."""
    rows = tx.query_in(
        "SELECT conn_id, COUNT(*) FROM received WHERE conn_id IN {in} AND body IS NOT NULL"
        " GROUP BY conn_id",
        conn_ids,
    )
    return dict(rows)


def _outgoing(row: Row, vault: Vault) -> OutgoingMessage:
    seq, conn_id, queue_id, number, kind, notification, body, attempts = row
    return OutgoingMessage(
        seq, conn_id, queue_id, number, kind, bool(notification), vault.open(body), attempts
    )


def _message(row: Row, vault: Vault) -> ReceivedMessage:
    message_id, conn_id, broker_id, broker_ts, notification, body = row
    return ReceivedMessage(
        message_id, conn_id, broker_id, broker_ts, bool(notification), vault.open(body)
    )
