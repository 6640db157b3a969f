"""Pending pushes in the store: which are due, whose they are, their outcomes and expiry.

Functions of a transaction. A push is pending while its row exists; there is no other queue.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from heliograph.db.dialects import Row, Transaction
from heliograph.ntf.lifecycle import Rejected, TokenTransition, step
from heliograph.ntf.store import owners, tokens
from heliograph.ntf.store.devices import decode_device, encode_device
from heliograph.ntf.store.records import Notice, PendingPush, PushKind, Token
from heliograph.ntf.store.restrictions import NO_RESTRICTIONS, Restrictions
from heliograph.wire.ntf.push import MAX_PUSH_MESSAGES
from heliograph.wire.ntf.tokens import DeviceToken, InvalidReason, TokenStatus

_PENDING_PUSH = (
    "SELECT d.token_id, d.kind, t.device, t.dh_secret, t.code, d.seq, d.since, d.attempts,"
    " d.expires_at FROM pending_pushes d JOIN tokens t ON t.token_id = d.token_id"
)
_MESSAGE = PushKind.MESSAGE.value
_ACTIVE = TokenStatus.ACTIVE.value
_DELIVERABLE = f"(d.kind <> '{_MESSAGE}' OR t.status = '{_ACTIVE}')"


class ExpiredPush(NamedTuple):
    token_id: bytes
    kind: PushKind
    provider: str
    seq: int
    since: float
    attempts: int


def due_for(
    tx: Transaction,
    token_ids: list[bytes],
    now: int,
    kind: PushKind | None = None,
    owner: int | None = None,
) -> list[PendingPush]:
    """Return the pending pushes of these tokens that are due; with an `owner`, those it claimed.

    The tokens must be locked.
    """
    which = _DELIVERABLE if owner is None else f"{_DELIVERABLE} AND d.owner = {owner}"
    rows = tx.query_in(
        f"{_PENDING_PUSH} WHERE d.token_id IN {{in}} AND d.next_at <= ? AND {which}",
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
    free = "" if owner is None else f" AND {_claimable('d.owner', owner)}"
    locking = tx.locking(" FOR UPDATE OF d SKIP LOCKED")
    rows = tx.query(
        f"{_PENDING_PUSH} WHERE d.provider = ? AND d.next_at <= ? AND d.expires_at > ?"
        f" AND {_DELIVERABLE}{free} ORDER BY d.next_at LIMIT ?{locking}",
        (provider, now, now, limit),
    )
    return _with_notices(tx, rows, are_locked=False)


def _claimable(column: str, owner: int) -> str:
    """Return the condition that no other living process has claimed a push."""
    return (
        f"({column} IS NULL OR {column} = {owner}"
        f" OR {column} NOT IN (SELECT process_id FROM processes))"
    )


def claim(tx: Transaction, pushes: list[PendingPush], owner: int) -> list[PendingPush]:
    """Claim pushes that no living process has claimed; return those that are the owner's."""
    own: set[tuple[bytes, PushKind]] = set()
    for kind in {push.kind for push in pushes}:
        rows = tx.query_in(
            f"UPDATE pending_pushes SET owner = {owner} WHERE token_id IN {{in}} AND kind = ?"
            f" AND {_claimable('owner', owner)} RETURNING token_id",
            [push.token_id for push in pushes if push.kind is kind],
            kind.value,
        )
        own |= {(token_id, kind) for (token_id,) in rows}
    return [push for push in pushes if push.key in own]


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


MAX_EXPIRED_PER_PAGE = 5_000
"""After a long outage there may be any number."""


def expire(tx: Transaction, now: int) -> list[ExpiredPush]:
    """Remove and return a page of expired pushes; if it is full, there may be more."""
    rows = tx.query(
        "SELECT token_id, kind, provider, seq, since, attempts FROM pending_pushes"
        f" WHERE expires_at <= ? LIMIT ?{tx.locking(' FOR UPDATE SKIP LOCKED')}",
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
    pushes = _with_notices(tx, rows, are_locked=False)
    return pushes, rows[-1][:2] if len(rows) == limit else None


def limit_delays(tx: Transaction, now: int, longest: int) -> None:
    """Make due what is postponed by more than the longest delay: a clock was wrong.

    Not pushes to slowed tokens: their delays are limited when they begin.
    """
    tx.execute(
        "UPDATE pending_pushes SET next_at = ? WHERE next_at > ?"
        " AND token_id NOT IN (SELECT token_id FROM slowed_tokens)",
        (now, now + longest),
    )


@dataclass(frozen=True, slots=True)
class MarkAccepted:
    token_id: bytes
    kind: PushKind
    seq: int


@dataclass(frozen=True, slots=True)
class MarkRetry:
    token_id: bytes
    kind: PushKind
    device: DeviceToken
    seq: int
    attempts: int
    next_at: int


@dataclass(frozen=True, slots=True)
class MarkInvalid:
    token_id: bytes
    device: DeviceToken
    reason: InvalidReason


PushChange = MarkAccepted | MarkRetry | MarkInvalid


def apply(
    tx: Transaction,
    changes: Iterable[PushChange],
    restrictions: Restrictions = NO_RESTRICTIONS,
    now: int = 0,
) -> list[Token]:
    """Store delivery outcomes and return the tokens whose status changed.

    A notification that arrived, or a verification requested again, while the push was in flight
    stays pending, until the next slot if it is throttled. An outcome for a replaced device does
    not concern the new one.
    """
    accepted, retried, changed = [], [], []
    verifications: dict[bytes, int] = {}
    changes = list(changes)
    tokens.lock(tx, {item.token_id for item in changes})
    for item in changes:
        match item:
            case MarkAccepted():
                accepted.append((item.token_id, item.kind.value, item.seq))
                if item.kind is PushKind.VERIFICATION:
                    verifications[item.token_id] = item.seq
                    owners.mark_verified(tx, item.token_id, now)
            case MarkRetry():
                key = item.token_id, item.kind.value
                same = _MESSAGE, encode_device(item.device), item.seq
                retried.append((item.attempts, item.next_at, *key, *same))
            case MarkInvalid():
                token = tokens.find(tx, item.token_id)
                if token is not None and token.device == item.device:
                    changed += _advance(tx, token, Rejected(item.reason))
    changed += _confirm(tx, verifications)
    tx.many("DELETE FROM pending_pushes WHERE token_id = ? AND kind = ? AND seq <= ?", accepted)
    messages = {key: seq for key, kind, seq in accepted if kind == _MESSAGE}
    restrictions.slow_down(tx, messages, now)
    owners.delay_rest(tx, list(messages), now)
    tx.many(
        "UPDATE pending_pushes SET attempts = ?, next_at = ?, owner = NULL"
        " WHERE token_id = ? AND kind = ? AND (kind = ? AND EXISTS (SELECT 1 FROM tokens t"
        " WHERE t.token_id = pending_pushes.token_id AND t.device = ?) OR seq <= ?)",
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
        status = step(token.status, TokenTransition.VERIFICATION_ACCEPTED)
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


def _with_notices(
    tx: Transaction, rows: list[Row], *, are_locked: bool = True
) -> list[PendingPush]:
    """Return pushes with their notifications; remove surplus ones if the tokens `are_locked`."""
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
    if are_locked or not tx.is_joined:
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
