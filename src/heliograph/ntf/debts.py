"""What is owed, in the store: notifications come in, debts are paid, put off or expire.

Functions of a transaction. A token owes a push while a row says so; nothing else is a queue.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from heliograph.db.dialects import Row, Transaction
from heliograph.ntf import tokens
from heliograph.ntf.lifecycle import Rejected, Simple
from heliograph.ntf.records import DebtKind, Incoming, Notice, Owed, Token
from heliograph.wire.push import MAX_PUSH_MESSAGES
from heliograph.wire.tokens import InvalidReason, TokenStatus, decode_token_text

_UPSERT_NOTIFICATION = (
    "INSERT INTO last_notifications (token_id, subscription_id, seq, timestamp, nonce, meta)"
    " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (token_id, subscription_id) DO UPDATE SET"
    " seq = excluded.seq, timestamp = excluded.timestamp, nonce = excluded.nonce,"
    " meta = excluded.meta"
)
_DEBT = (
    "SELECT d.token_id, d.kind, t.device, t.dh_secret, t.code, d.seq, d.since, d.attempts,"
    " d.expires_at FROM debts d JOIN tokens t ON t.token_id = d.token_id"
)


class Stored(NamedTuple):
    """What became of a batch of NMSG: pushes owed, and how many were for nobody or for later."""

    owed: list[Owed]
    unknown: int
    inactive: int
    token_ids: set[bytes]


def receive(
    tx: Transaction,
    server_id: int,
    incoming: Sequence[Incoming],
    first_seq: int,
    now: int,
    expires_at: int,
) -> Stored:
    """Keep the last notification of each subscription, and owe a push to each active token."""
    rows = tx.query_in(
        "SELECT s.notifier_id, s.subscription_id, s.token_id, t.status FROM subscriptions s"
        " JOIN tokens t ON t.token_id = s.token_id WHERE s.notifier_id IN {in} AND s.server_id = ?",
        list({item.notifier_id for item in incoming}),
        server_id,
    )
    known = {notifier_id: rest for notifier_id, *rest in rows}
    latest: dict[bytes, tuple[object, ...]] = {}
    newest: dict[bytes, int] = {}
    unknown = inactive = 0
    for seq, item in enumerate(incoming, first_seq):
        found = known.get(item.notifier_id)
        if found is None:
            unknown += 1
            continue
        subscription_id, token_id, status = found
        timestamp = int(item.at)
        latest.pop(subscription_id, None)
        latest[subscription_id] = (
            token_id,
            subscription_id,
            seq,
            timestamp,
            item.nonce,
            item.meta,
        )
        if status == TokenStatus.ACTIVE.value:
            newest[token_id] = seq
        else:
            inactive += 1
    tx.many(_UPSERT_NOTIFICATION, sorted(latest.values()))
    kind = DebtKind.MESSAGE.value
    tx.many(
        tokens.OWE,
        [
            (token_id, kind, seq, now, 0, now, expires_at)
            for token_id, seq in sorted(newest.items())
        ],
    )
    token_ids = {row[2] for row in rows}
    return Stored(message_debts(tx, list(newest), now), unknown, inactive, token_ids)


def message_debts(tx: Transaction, token_ids: list[bytes], now: int) -> list[Owed]:
    """What these tokens are owed and may be tried now."""
    rows = tx.query_in(
        f"{_DEBT} WHERE d.token_id IN {{in}} AND d.kind = ? AND d.next_at <= ?",
        token_ids,
        DebtKind.MESSAGE.value,
        now,
    )
    return _with_notices(tx, rows)


def due(tx: Transaction, now: int, limit: int) -> list[Owed]:
    """A page of what may be tried now, longest due first. What has expired is not in it."""
    rows = tx.query(
        f"{_DEBT} WHERE d.next_at <= ? AND d.expires_at > ? ORDER BY d.next_at LIMIT ?",
        (now, now, limit),
    )
    return _with_notices(tx, rows)


def owed_to(tx: Transaction, token_id: bytes) -> list[Owed]:
    return _with_notices(tx, tx.query(f"{_DEBT} WHERE d.token_id = ?", (token_id,)))


def next_due(tx: Transaction) -> int | None:
    [[next_at]] = tx.query("SELECT MIN(next_at) FROM debts")
    return None if next_at is None else int(next_at)


def totals(tx: Transaction) -> tuple[int, int | None]:
    """How many debts, and since when the oldest."""
    [[count, oldest]] = tx.query("SELECT COUNT(*), MIN(since) FROM debts")
    return count, oldest


def expire(tx: Transaction, now: int) -> int:
    [[count]] = tx.query("SELECT COUNT(*) FROM debts WHERE expires_at <= ?", (now,))
    if count:
        tx.execute("DELETE FROM debts WHERE expires_at <= ?", (now,))
    return int(count)


@dataclass(frozen=True, slots=True)
class Paid:
    token_id: bytes
    kind: DebtKind
    seq: int


@dataclass(frozen=True, slots=True)
class PutOff:
    token_id: bytes
    kind: DebtKind
    attempts: int
    next_at: int


@dataclass(frozen=True, slots=True)
class Dead:
    token_id: bytes
    reason: InvalidReason


Settlement = Paid | PutOff | Dead


def settle(tx: Transaction, settlements: Iterable[Settlement]) -> list[Token]:
    """Write down what providers said; the tokens whose status changed."""
    paid, put_off, changed = [], [], []
    for item in settlements:
        match item:
            case Paid():
                paid.append((item.token_id, item.kind.value, item.seq))
                if item.kind is DebtKind.VERIFICATION:
                    changed += _advance(tx, item.token_id, Simple.DELIVERED)
            case PutOff():
                put_off.append((item.attempts, item.next_at, item.token_id, item.kind.value))
            case Dead():
                changed += _advance(tx, item.token_id, Rejected(item.reason))
    # A notification that came while its push was under way is owed still.
    tx.many("DELETE FROM debts WHERE token_id = ? AND kind = ? AND seq <= ?", paid)
    tx.many("UPDATE debts SET attempts = ?, next_at = ? WHERE token_id = ? AND kind = ?", put_off)
    return changed


def _advance(tx: Transaction, token_id: bytes, event: Simple | Rejected) -> list[Token]:
    token = tokens.find(tx, token_id)
    if token is None:
        return []
    advanced = tokens.advance(tx, token, event)
    return [advanced] if advanced.status is not token.status else []


def _with_notices(tx: Transaction, rows: list[Row]) -> list[Owed]:
    messages = [row[0] for row in rows if row[1] == DebtKind.MESSAGE.value]
    notices: dict[bytes, list[Notice]] = defaultdict(list)
    stale = []
    for token_id, subscription_id, *notice in tx.query_in(
        "SELECT l.token_id, l.subscription_id, l.seq, v.address, s.notifier_id, l.timestamp,"
        " l.nonce, l.meta FROM last_notifications l"
        " JOIN subscriptions s ON s.subscription_id = l.subscription_id"
        " JOIN servers v ON v.server_id = s.server_id"
        " WHERE l.token_id IN {in} ORDER BY l.seq DESC",
        messages,
    ):
        if len(notices[token_id]) < MAX_PUSH_MESSAGES:
            notices[token_id].append(Notice(*notice))
        else:
            stale.append((token_id, subscription_id))
    tx.many("DELETE FROM last_notifications WHERE token_id = ? AND subscription_id = ?", stale)
    return [
        Owed(
            token_id,
            DebtKind(kind),
            decode_token_text(device),
            dh_secret,
            code,
            seq,
            since / 1000,
            attempts,
            expires_at / 1000,
            tuple(reversed(notices[token_id])) if kind == DebtKind.MESSAGE.value else (),
        )
        for token_id, kind, device, dh_secret, code, seq, since, attempts, expires_at in rows
    ]
