"""What is owed, in the store: notifications come in, debts are paid, put off or expire.

Functions of a transaction. A token owes a push while a row says so; nothing else is a queue.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from heliograph.db.dialects import Row, Transaction
from heliograph.ntf import tokens
from heliograph.ntf.lifecycle import Rejected, Simple, step
from heliograph.ntf.records import DebtKind, Incoming, Notice, Owed, Token
from heliograph.wire.push import MAX_PUSH_MESSAGES
from heliograph.wire.tokens import DeviceToken, InvalidReason, TokenStatus, decode_token_text

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
_MESSAGE = DebtKind.MESSAGE.value
_ACTIVE = TokenStatus.ACTIVE.value
_PAYABLE = f"(d.kind <> '{_MESSAGE}' OR t.status = '{_ACTIVE}')"
_KEPT_FOR = frozenset(
    status.value for status in (TokenStatus.REGISTERED, TokenStatus.CONFIRMED, TokenStatus.ACTIVE)
)
"""Statuses of tokens that may be verified: what comes before that is owed after it."""


class Fate(Enum):
    """What became of an NMSG."""

    STORED = "stored"
    """Also if a newer one of the same subscription, in the same batch, took its place."""
    REPEATED = "repeated"
    UNKNOWN = "unknown"
    DROPPED = "dropped"


class Fated(NamedTuple):
    """An NMSG and what became of it. If it is for nobody, its notifier's ID is all there is of it,
    in place of a subscription's.
    """

    nonce: bytes
    at: float
    seq: int
    fate: Fate
    token_id: bytes | None = None
    subscription_id: bytes | None = None
    provider: str | None = None
    status: str | None = None


class Stored(NamedTuple):
    """What became of a batch of NMSG: pushes to make now, how many were for nobody, and of each.

    `newest` says through which `seq` each token is owed now, also if it cannot be pushed to yet.
    """

    owed: list[Owed]
    unknown: int
    fated: list[Fated]
    newest: dict[bytes, int]


_FOR_NOBODY = (Fate.UNKNOWN, Fate.DROPPED)


class Expired(NamedTuple):
    token_id: bytes
    kind: DebtKind
    provider: str
    seq: int
    since: float
    attempts: int


def receive(
    tx: Transaction,
    server_id: int,
    incoming: Sequence[Incoming],
    first_seq: int,
    now: int,
    expires_at: int,
) -> Stored:
    """Keep the last notification of each subscription, and owe a push to each token.

    Messaging routers repeat what they do not know to have arrived: what is stored is not news.
    """
    rows = tx.query_in(
        "SELECT s.notifier_id, s.subscription_id, s.token_id, l.nonce, t.status, t.device"
        " FROM subscriptions s JOIN tokens t ON t.token_id = s.token_id"
        " LEFT JOIN last_notifications l"
        " ON l.token_id = s.token_id AND l.subscription_id = s.subscription_id"
        " WHERE s.notifier_id IN {in} AND s.server_id = ?",
        list({item.notifier_id for item in incoming}),
        server_id,
    )
    last = {item.notifier_id: (seq, item) for seq, item in enumerate(incoming, first_seq)}
    known = {row[0]: _known(row[1:], last[row[0]][1].nonce) for row in rows}
    fated = [
        Fated(item.nonce, item.at, seq, *known.get(item.notifier_id) or _unknown(item))
        for seq, item in enumerate(incoming, first_seq)
    ]
    latest: list[Row] = []
    newest: dict[bytes, int] = {}
    providers: dict[bytes, str] = {}
    for notifier_id, (fate, token_id, subscription_id, provider, _) in known.items():
        if fate is Fate.STORED:
            seq, item = last[notifier_id]
            latest.append((token_id, subscription_id, seq, int(item.at), item.nonce, item.meta))
            newest[token_id] = max(seq, newest.get(token_id, 0))
            providers[token_id] = provider
    tx.many(_UPSERT_NOTIFICATION, sorted(latest))
    kind = DebtKind.MESSAGE
    tx.many(
        tokens.OWE,
        [
            tokens.owed_row(token_id, kind, providers[token_id], seq, now, expires_at)
            for token_id, seq in sorted(newest.items())
        ],
    )
    unknown = sum(fate.fate in _FOR_NOBODY for fate in fated)
    return Stored(due_to(tx, list(newest), now, kind), unknown, fated, newest)


def _unknown(item: Incoming) -> Row:
    return Fate.UNKNOWN, None, item.notifier_id


def _known(row: Row, last: bytes) -> Row:
    """What becomes of the NMSG of a subscription, and what is known of it; `last` of their nonces.

    What came before one that is stored already is as old.
    """
    subscription_id, token_id, stored, status, device = row
    if status not in _KEPT_FOR:
        fate = Fate.DROPPED
    else:
        fate = Fate.REPEATED if stored == last else Fate.STORED
    return fate, token_id, subscription_id, device.partition(" ")[0], status


def due_to(
    tx: Transaction, token_ids: list[bytes], now: int, kind: DebtKind | None = None
) -> list[Owed]:
    """What these tokens are owed and may be tried now."""
    rows = tx.query_in(
        f"{_DEBT} WHERE d.token_id IN {{in}} AND d.next_at <= ? AND {_PAYABLE}", token_ids, now
    )
    return _with_notices(tx, [row for row in rows if kind is None or row[1] == kind.value])


def due(tx: Transaction, provider: str, now: int, limit: int) -> list[Owed]:
    """A page of what may be tried now, longest due first. What has expired is not in it."""
    rows = tx.query(
        f"{_DEBT} WHERE d.provider = ? AND d.next_at <= ? AND d.expires_at > ? AND {_PAYABLE}"
        " ORDER BY d.next_at LIMIT ?",
        (provider, now, now, limit),
    )
    return _with_notices(tx, rows)


def owed_to(tx: Transaction, token_id: bytes) -> list[Owed]:
    return _with_notices(tx, tx.query(f"{_DEBT} WHERE d.token_id = ?", (token_id,)))


def next_due(tx: Transaction, providers: Sequence[str], now: int) -> int | None:
    """When the next of what is put off may be tried."""
    times = [
        next_at
        for provider in providers
        for (next_at,) in tx.query(
            "SELECT MIN(next_at) FROM debts WHERE provider = ? AND next_at > ?", (provider, now)
        )
        if next_at is not None
    ]
    return min(times, default=None)


def totals(tx: Transaction) -> tuple[int, int | None]:
    """How many debts, and since when the oldest."""
    [[count, oldest]] = tx.query("SELECT COUNT(*), MIN(since) FROM debts")
    return count, oldest


EXPIRED_AT_ONCE = 5_000
"""After a long time without service there may be any number."""


def expire(tx: Transaction, now: int) -> list[Expired]:
    """A page of what has expired, which is owed no longer; there may be more if it is full."""
    rows = tx.query(
        "SELECT token_id, kind, provider, seq, since, attempts FROM debts WHERE expires_at <= ?"
        " LIMIT ?",
        (now, EXPIRED_AT_ONCE),
    )
    tx.many("DELETE FROM debts WHERE token_id = ? AND kind = ?", [row[:2] for row in rows])
    return [
        Expired(token_id, DebtKind(kind), provider, seq, since / 1000, attempts)
        for token_id, kind, provider, seq, since, attempts in rows
    ]


Place = tuple[bytes, str]
FIRST: Place = b"", ""


def page(tx: Transaction, after: Place, limit: int) -> tuple[list[Owed], Place | None]:
    """Some of all that is owed, due or not, and where the next page begins, if there is one."""
    token_id, kind = after
    rows = tx.query(
        f"{_DEBT} WHERE d.token_id > ? OR (d.token_id = ? AND d.kind > ?)"
        " ORDER BY d.token_id, d.kind LIMIT ?",
        (token_id, token_id, kind, limit),
    )
    return _with_notices(tx, rows), rows[-1][:2] if len(rows) == limit else None


@dataclass(frozen=True, slots=True)
class Paid:
    token_id: bytes
    kind: DebtKind
    seq: int


@dataclass(frozen=True, slots=True)
class PutOff:
    token_id: bytes
    kind: DebtKind
    seq: int
    attempts: int
    next_at: int


@dataclass(frozen=True, slots=True)
class Dead:
    token_id: bytes
    device: DeviceToken
    reason: InvalidReason


Settlement = Paid | PutOff | Dead


def settle(tx: Transaction, settlements: Iterable[Settlement]) -> list[Token]:
    """Write down what providers said; the tokens whose status changed.

    A notification that came while its push was under way is owed still, and so is a verification
    that was asked for again. A device that was replaced meanwhile says nothing of the new one.
    """
    paid, put_off, changed = [], [], []
    verifications: dict[bytes, int] = {}
    for item in settlements:
        match item:
            case Paid():
                paid.append((item.token_id, item.kind.value, item.seq))
                if item.kind is DebtKind.VERIFICATION:
                    verifications[item.token_id] = item.seq
            case PutOff():
                key = item.token_id, item.kind.value
                put_off.append((item.attempts, item.next_at, *key, _MESSAGE, item.seq))
            case Dead():
                token = tokens.find(tx, item.token_id)
                if token is not None and token.device == item.device:
                    changed += _advance(tx, token, Rejected(item.reason))
    changed += _confirm(tx, verifications)
    tx.many("DELETE FROM debts WHERE token_id = ? AND kind = ? AND seq <= ?", paid)
    tx.many(
        "UPDATE debts SET attempts = ?, next_at = ?"
        " WHERE token_id = ? AND kind = ? AND (kind = ? OR seq <= ?)",
        put_off,
    )
    return changed


def _confirm(tx: Transaction, verifications: dict[bytes, int]) -> list[Token]:
    """The tokens whose verification was delivered, and not asked for again since."""
    columns = ", ".join(f"t.{column}" for column in tokens.COLUMNS.split(", "))
    rows = tx.query_in(
        f"SELECT d.seq, {columns} FROM debts d JOIN tokens t ON t.token_id = d.token_id"
        " WHERE d.token_id IN {in} AND d.kind = ?",
        list(verifications),
        DebtKind.VERIFICATION.value,
    )
    changed = []
    for seq, *row in rows:
        token = tokens.token_of(tuple(row))
        status = step(token.status, Simple.DELIVERED)
        if seq <= verifications[token.token_id] and status is not token.status:
            changed.append(replace(token, status=status))
    tokens.set_statuses(tx, changed)
    return changed


def verification(token: Token, seq: int, now: int, expires_at: int) -> Owed:
    """What a token is owed that was just registered, anew or again: it need not be read back."""
    return Owed(
        token.token_id,
        DebtKind.VERIFICATION,
        token.device,
        token.dh_secret,
        token.code,
        seq,
        now / 1000,
        0,
        expires_at / 1000,
    )


def _advance(tx: Transaction, token: Token, event: Simple | Rejected) -> list[Token]:
    advanced = tokens.advance(tx, token, event)
    return [advanced] if advanced.status is not token.status else []


def _with_notices(tx: Transaction, rows: list[Row]) -> list[Owed]:
    messages = [row[0] for row in rows if row[1] == _MESSAGE]
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
            tuple(reversed(notices[token_id])) if kind == _MESSAGE else (),
        )
        for token_id, kind, device, dh_secret, code, seq, since, attempts, expires_at in rows
    ]
