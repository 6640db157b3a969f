"""Pending pushes in the store: stored notifications, delivery outcomes and expiry.

Functions of a transaction. A push is pending while its row exists; there is no other queue.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from heliograph.db.dialects import Row, Transaction
from heliograph.ntf.lifecycle import Rejected, TokenTransition, step
from heliograph.ntf.store import tokens
from heliograph.ntf.store.devices import decode_device
from heliograph.ntf.store.records import Incoming, Notice, PendingPush, PushKind, Token
from heliograph.wire.ntf.push import MAX_PUSH_MESSAGES
from heliograph.wire.ntf.tokens import DeviceToken, InvalidReason, TokenStatus

_UPSERT_NOTIFICATION = (
    "INSERT INTO last_notifications (token_id, subscription_id, seq, timestamp, nonce, meta)"
    " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (token_id, subscription_id) DO UPDATE SET"
    " seq = excluded.seq, timestamp = excluded.timestamp, nonce = excluded.nonce,"
    " meta = excluded.meta"
)
_PENDING_PUSH = (
    "SELECT d.token_id, d.kind, t.device, t.dh_secret, t.code, d.seq, d.since, d.attempts,"
    " d.expires_at FROM pending_pushes d JOIN tokens t ON t.token_id = d.token_id"
)
_MESSAGE = PushKind.MESSAGE.value
_ACTIVE = TokenStatus.ACTIVE.value
_DELIVERABLE = f"(d.kind <> '{_MESSAGE}' OR t.status = '{_ACTIVE}')"
_ACCEPTS_NOTIFICATIONS = frozenset(
    status.value for status in (TokenStatus.REGISTERED, TokenStatus.CONFIRMED, TokenStatus.ACTIVE)
)
"""Token statuses for which notifications are stored: ACTIVE, or verifiable and so ACTIVE later."""


class NmsgOutcome(Enum):
    """What the store did with an NMSG."""

    STORED = "stored"
    """Also if a newer NMSG of the same subscription in the same batch replaced it."""
    REPEATED = "repeated"
    UNKNOWN = "unknown"
    DROPPED = "dropped"


class ReceivedNmsg(NamedTuple):
    """An NMSG and its outcome.

    For an unknown notifier, `subscription_id` holds the notifier ID and the token is None.
    """

    nonce: bytes
    at: float
    seq: int
    outcome: NmsgOutcome
    token_id: bytes | None = None
    subscription_id: bytes | None = None
    provider: str | None = None
    status: str | None = None


class StoredBatch(NamedTuple):
    """The result of storing a batch of NMSG.

    `pushes` can be delivered now. `newest` maps each token with a pending push to the `seq` that
    push covers, also if the token cannot be pushed to yet.
    """

    pushes: list[PendingPush]
    unknown: int
    received: list[ReceivedNmsg]
    newest: dict[bytes, int]


_UNDELIVERABLE = (NmsgOutcome.UNKNOWN, NmsgOutcome.DROPPED)


class ExpiredPush(NamedTuple):
    token_id: bytes
    kind: PushKind
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
    *,
    history: bool = False,
) -> StoredBatch:
    """Store the last notification of each subscription and a pending push for each token.

    Messaging routers resend what was not confirmed: an NMSG with a stored nonce is a repeat. With
    `history`, nonces before the last are stored, too: another process may get what is resent.
    """
    rows = tx.query_in(
        "SELECT s.notifier_id, s.subscription_id, s.token_id, l.nonce, t.status, t.device,"
        " l.nonces"
        " FROM subscriptions s JOIN tokens t ON t.token_id = s.token_id"
        " LEFT JOIN last_notifications l"
        " ON l.token_id = s.token_id AND l.subscription_id = s.subscription_id"
        " WHERE s.notifier_id IN {in} AND s.server_id = ?",
        list({item.notifier_id for item in incoming}),
        server_id,
    )
    nonces = {row[0]: _nonces(row[3], row[6]) for row in rows} if history else {}
    if history:
        incoming = _without_known(incoming, nonces)
    last = {
        item.notifier_id: (seq, item)
        for seq, item in enumerate(incoming, first_seq)
        if not item.is_repeat
    }
    known = {row[0]: _known(row[1:6], last.get(row[0])) for row in rows}
    received = [
        ReceivedNmsg(item.nonce, item.at, seq, *_outcome(item, known.get(item.notifier_id)))
        for seq, item in enumerate(incoming, first_seq)
    ]
    latest: list[Row] = []
    newest: dict[bytes, int] = {}
    providers: dict[bytes, str] = {}
    for notifier_id, (outcome, token_id, subscription_id, provider, _) in known.items():
        if outcome is NmsgOutcome.STORED:
            seq, item = last[notifier_id]
            latest.append((token_id, subscription_id, seq, int(item.at), item.nonce, item.meta))
            newest[token_id] = max(seq, newest.get(token_id, 0))
            providers[token_id] = provider
    tx.many(_UPSERT_NOTIFICATION, sorted(latest))
    if history:
        _store_history(tx, incoming, known, nonces)
    kind = PushKind.MESSAGE
    tx.many(
        tokens.ADD_PENDING,
        [
            tokens.pending_row(token_id, kind, providers[token_id], seq, now, expires_at)
            for token_id, seq in sorted(newest.items())
        ],
    )
    unknown = sum(item.outcome in _UNDELIVERABLE for item in received)
    return StoredBatch(due_for(tx, list(newest), now, kind), unknown, received, newest)


NONCE_SIZE = 24
MAX_HISTORY = 10
"""Nonces before the last one of a subscription that are stored."""


def _nonces(last: bytes | None, previous: bytes | None) -> list[bytes]:
    """Return the stored nonces of a subscription, newest first."""
    old = previous or b""
    found = [old[at : at + NONCE_SIZE] for at in range(0, len(old), NONCE_SIZE)]
    return found if last is None else [last, *found]


def _without_known(
    incoming: Sequence[Incoming], nonces: dict[bytes, list[bytes]]
) -> list[Incoming]:
    return [
        item._replace(is_repeat=item.is_repeat or item.nonce in nonces.get(item.notifier_id, ()))
        for item in incoming
    ]


def _store_history(
    tx: Transaction,
    incoming: Sequence[Incoming],
    known: dict[bytes, Row],
    nonces: dict[bytes, list[bytes]],
) -> None:
    changed: dict[bytes, list[bytes]] = {}
    for item in incoming:
        if not item.is_repeat and item.notifier_id in known:
            before = changed.get(item.notifier_id, nonces[item.notifier_id])
            changed[item.notifier_id] = [item.nonce, *before][: MAX_HISTORY + 1]
    tx.many(
        "UPDATE last_notifications SET nonces = ? WHERE token_id = ? AND subscription_id = ?",
        sorted((b"".join(found[1:]), *known[key][1:3]) for key, found in changed.items()),
    )


def _outcome(item: Incoming, known: Row | None) -> Row:
    """Return the outcome of one NMSG and its columns."""
    if known is None:
        return NmsgOutcome.UNKNOWN, None, item.notifier_id
    if item.is_repeat and known[0] is NmsgOutcome.STORED:
        return NmsgOutcome.REPEATED, *known[1:]
    return known


def _known(row: Row, last: tuple[int, Incoming] | None) -> Row:
    """Return the outcome of a subscription's NMSG and its columns.

    `last` is the last one that is not known as a repeat. If it is stored already, those before it
    in the batch are repeats too.
    """
    subscription_id, token_id, stored, status, device = row
    if status not in _ACCEPTS_NOTIFICATIONS:
        outcome = NmsgOutcome.DROPPED
    else:
        is_repeat = last is None or stored == last[1].nonce
        outcome = NmsgOutcome.REPEATED if is_repeat else NmsgOutcome.STORED
    return outcome, token_id, subscription_id, device.partition(" ")[0], status


def due_for(
    tx: Transaction, token_ids: list[bytes], now: int, kind: PushKind | None = None
) -> list[PendingPush]:
    """Return the pending pushes of these tokens that are due."""
    rows = tx.query_in(
        f"{_PENDING_PUSH} WHERE d.token_id IN {{in}} AND d.next_at <= ? AND {_DELIVERABLE}",
        token_ids,
        now,
    )
    return _with_notices(tx, [row for row in rows if kind is None or row[1] == kind.value])


def due(
    tx: Transaction, provider: str, now: int, limit: int, owner: int | None = None
) -> list[PendingPush]:
    """Return a page of due pushes of a provider, longest due first, without expired ones.

    With an `owner`, leave out those that others have claimed.
    """
    free = "" if owner is None else f" AND (d.owner IS NULL OR d.owner = {owner})"
    rows = tx.query(
        f"{_PENDING_PUSH} WHERE d.provider = ? AND d.next_at <= ? AND d.expires_at > ?"
        f" AND {_DELIVERABLE}{free} ORDER BY d.next_at LIMIT ?",
        (provider, now, now, limit),
    )
    return _with_notices(tx, rows)


def claim(tx: Transaction, pushes: list[PendingPush], owner: int) -> list[PendingPush]:
    """Claim pushes that nobody has claimed; return those that are the owner's."""
    rows = tx.query_in(
        f"UPDATE pending_pushes SET owner = {owner} WHERE token_id IN {{in}}"
        f" AND (owner IS NULL OR owner = {owner}) RETURNING token_id, kind",
        list({push.token_id for push in pushes}),
    )
    own = {(token_id, PushKind(kind)) for token_id, kind in rows}
    return [push for push in pushes if push.key in own]


def release(tx: Transaction, owner: int) -> None:
    """Let others push what a process that is gone had claimed."""
    tx.execute("UPDATE pending_pushes SET owner = NULL WHERE owner = ?", (owner,))


def pending_for(tx: Transaction, token_id: bytes) -> list[PendingPush]:
    return _with_notices(tx, tx.query(f"{_PENDING_PUSH} WHERE d.token_id = ?", (token_id,)))


def next_due(tx: Transaction, providers: Sequence[str], now: int) -> int | None:
    """Return when the next delayed push is due."""
    times = [
        next_at
        for provider in providers
        for (next_at,) in tx.query(
            "SELECT MIN(next_at) FROM pending_pushes WHERE provider = ? AND next_at > ?",
            (provider, now),
        )
        if next_at is not None
    ]
    return min(times, default=None)


def totals(tx: Transaction) -> tuple[int, int | None]:
    """Return the number of pending pushes, and when the oldest became pending."""
    [[count, oldest]] = tx.query("SELECT COUNT(*), MIN(since) FROM pending_pushes")
    return count, oldest


MAX_EXPIRED_PER_PAGE = 5_000
"""After a long outage there may be any number."""


def expire(tx: Transaction, now: int) -> list[ExpiredPush]:
    """Remove and return a page of expired pushes; if it is full, there may be more."""
    rows = tx.query(
        "SELECT token_id, kind, provider, seq, since, attempts FROM pending_pushes"
        " WHERE expires_at <= ? LIMIT ?",
        (now, MAX_EXPIRED_PER_PAGE),
    )
    tx.many("DELETE FROM pending_pushes WHERE token_id = ? AND kind = ?", [row[:2] for row in rows])
    return [
        ExpiredPush(token_id, PushKind(kind), provider, seq, since / 1000, attempts)
        for token_id, kind, provider, seq, since, attempts in rows
    ]


Cursor = tuple[bytes, str]
FIRST_PAGE: Cursor = b"", ""


def page(tx: Transaction, after: Cursor, limit: int) -> tuple[list[PendingPush], Cursor | None]:
    """Return a page of all pending pushes, due or not, and the cursor of the next page."""
    token_id, kind = after
    rows = tx.query(
        f"{_PENDING_PUSH} WHERE d.token_id > ? OR (d.token_id = ? AND d.kind > ?)"
        " ORDER BY d.token_id, d.kind LIMIT ?",
        (token_id, token_id, kind, limit),
    )
    return _with_notices(tx, rows), rows[-1][:2] if len(rows) == limit else None


def limit_delays(tx: Transaction, now: int, longest: int) -> None:
    """Make due what is postponed by more than the longest delay: a clock was wrong."""
    tx.execute("UPDATE pending_pushes SET next_at = ? WHERE next_at > ?", (now, now + longest))


@dataclass(frozen=True, slots=True)
class MarkAccepted:
    token_id: bytes
    kind: PushKind
    seq: int


@dataclass(frozen=True, slots=True)
class MarkRetry:
    token_id: bytes
    kind: PushKind
    seq: int
    attempts: int
    next_at: int


@dataclass(frozen=True, slots=True)
class MarkInvalid:
    token_id: bytes
    device: DeviceToken
    reason: InvalidReason


Settlement = MarkAccepted | MarkRetry | MarkInvalid


def settle(tx: Transaction, settlements: Iterable[Settlement]) -> list[Token]:
    """Store delivery outcomes and return the tokens whose status changed.

    A notification that arrived, or a verification requested again, while the push was in flight
    stays pending. An outcome for a replaced device does not concern the new one.
    """
    accepted, retried, changed = [], [], []
    verifications: dict[bytes, int] = {}
    for item in settlements:
        match item:
            case MarkAccepted():
                accepted.append((item.token_id, item.kind.value, item.seq))
                if item.kind is PushKind.VERIFICATION:
                    verifications[item.token_id] = item.seq
            case MarkRetry():
                key = item.token_id, item.kind.value
                retried.append((item.attempts, item.next_at, *key, _MESSAGE, item.seq))
            case MarkInvalid():
                token = tokens.find(tx, item.token_id)
                if token is not None and token.device == item.device:
                    changed += _advance(tx, token, Rejected(item.reason))
    changed += _confirm(tx, verifications)
    tx.many("DELETE FROM pending_pushes WHERE token_id = ? AND kind = ? AND seq <= ?", accepted)
    tx.many(
        "UPDATE pending_pushes SET attempts = ?, next_at = ?, owner = NULL"
        " WHERE token_id = ? AND kind = ? AND (kind = ? OR seq <= ?)",
        retried,
    )
    return changed


def _confirm(tx: Transaction, verifications: dict[bytes, int]) -> list[Token]:
    """Confirm tokens whose verification was delivered and not requested again since."""
    columns = ", ".join(f"t.{column}" for column in tokens.COLUMNS.split(", "))
    rows = tx.query_in(
        f"SELECT d.seq, {columns} FROM pending_pushes d JOIN tokens t ON t.token_id = d.token_id"
        " WHERE d.token_id IN {in} AND d.kind = ?",
        list(verifications),
        PushKind.VERIFICATION.value,
    )
    changed = []
    for seq, *row in rows:
        token = tokens.token_of(tuple(row))
        status = step(token.status, TokenTransition.DELIVERED)
        if seq <= verifications[token.token_id] and status is not token.status:
            changed.append(replace(token, status=status))
    tokens.set_statuses(tx, changed)
    return changed


def verification(token: Token, seq: int, now: int, expires_at: int) -> PendingPush:
    """Return the pending verification of a token that was just registered, without a read."""
    return PendingPush(
        token.token_id,
        PushKind.VERIFICATION,
        token.device,
        token.dh_secret,
        token.code,
        seq,
        now / 1000,
        0,
        expires_at / 1000,
    )


def _advance(tx: Transaction, token: Token, event: TokenTransition | Rejected) -> list[Token]:
    advanced = tokens.advance(tx, token, event)
    return [advanced] if advanced.status is not token.status else []


def _with_notices(tx: Transaction, rows: list[Row]) -> list[PendingPush]:
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
        PendingPush(
            token_id,
            PushKind(kind),
            decode_device(device),
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
