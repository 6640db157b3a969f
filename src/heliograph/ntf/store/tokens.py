"""Tokens in the store: functions of a transaction."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from heliograph.crypto.errors import CryptoError
from heliograph.crypto.keys import KeyPair, dh
from heliograph.db.dialects import Row, Transaction
from heliograph.ntf.lifecycle import TokenEvent, TokenTransition, may_verify, step
from heliograph.ntf.store import owners
from heliograph.ntf.store.devices import decode_device, encode_device
from heliograph.ntf.store.records import PushKind, Token
from heliograph.ntf.store.subscriptions import associations
from heliograph.wire.ntf.tokens import (
    DeviceToken,
    PushProvider,
    TokenStatus,
)

MAX_UNVERIFIED = 20
"""Registrations of one device that were never verified; the oldest make room for a new one."""
_MAX_REMOVED = 200
"""Registrations that make room at once: an imported device may have any number."""

_UNVERIFIED = f"('{TokenStatus.REGISTERED.value}', '{TokenStatus.CONFIRMED.value}')"
ROW_COST = 3
"""What fetching, decoding and caching a token costs, in times of decoding one (measured)."""
_PAIRS = 100
"""Pairs of device and key in one query."""
_SUBSTITUTE = (
    bytes(24),
    f"{PushProvider.APNS_PROD.text} {'00' * 32}",
    TokenStatus.ACTIVE.value,
    *(bytes(size) for size in (44, 48, 32, 32)),
    0,
    0,
)

COLUMNS = "token_id, device, status, auth_key, dh_private, dh_secret, code, cron_minutes, seen_at"


@dataclass(frozen=True, slots=True)
class NewToken:
    """A registration: what the client sent, and the ID, keys and code it gets if it is new."""

    token_id: bytes
    device: DeviceToken
    auth_key: bytes
    dh_key: bytes
    keys: KeyPair
    dh_secret: bytes = field(repr=False)
    """The DH of `dh_key` and `keys`."""
    code: bytes = field(repr=False)


def token_of(row: Row) -> Token:
    token_id, device, status, *rest = row
    return Token(token_id, decode_device(device), TokenStatus(status), *rest)


def lock(tx: Transaction, token_ids: Collection[bytes]) -> None:
    """Keep other processes from changing tokens and what belongs to them, pushes for example.

    Tokens are locked in one order, and before anything of theirs, to avoid deadlocks.
    """
    tx.lock(
        "SELECT COUNT(*) FROM (SELECT 1 FROM tokens WHERE token_id IN {in}"
        " ORDER BY token_id FOR NO KEY UPDATE) locked",
        list(token_ids),
    )


def find(tx: Transaction, token_id: bytes) -> Token | None:
    """Find a token; locked, in a transaction that writes."""
    locking = tx.locking(" FOR NO KEY UPDATE")
    rows = tx.query(f"SELECT {COLUMNS} FROM tokens WHERE token_id = ?{locking}", (token_id,))
    return token_of(rows[0]) if rows else None


def find_many(tx: Transaction, token_ids: list[bytes]) -> list[Token]:
    """Return the tokens; unknown IDs cost as much, so that the time does not distinguish them."""
    rows = tx.query_in(f"SELECT {COLUMNS} FROM tokens WHERE token_id IN {{in}}", token_ids)
    found = [token_of(row) for row in rows]
    for _ in range(ROW_COST * (len(token_ids) - len(found))):
        token_of(_SUBSTITUTE)
    return found


class RegisteredTokens(NamedTuple):
    """The result of registrations: a token or None for each, and tokens removed to make room."""

    tokens: list[Token | None]
    removed: list[bytes]


def register(tx: Transaction, new: NewToken, seq: int, now: int, expires_at: int) -> Token | None:
    [token] = register_many(tx, [(new, seq)], now, expires_at).tokens
    return token


def register_many(
    tx: Transaction, registrations: Sequence[tuple[NewToken, int]], now: int, expires_at: int
) -> RegisteredTokens:
    """Return for each a new token, or the one with the same keys; None if its secret differs.

    Either way a verification push with the given `seq` is pending.
    """
    devices = [encode_device(new.device) for new, _ in registrations]
    pairs = [
        (device, new.auth_key) for device, (new, _) in zip(devices, registrations, strict=True)
    ]
    known = _find_pairs(tx, pairs)
    results: list[Token | None] = []
    created: list[Row] = []
    verifications: dict[bytes, Row] = {}
    repeated: list[Row] = []
    for pair, (new, seq) in zip(pairs, registrations, strict=True):
        token = known.get(pair)
        if token is None:
            token = _made(new, now)
            created.append(_row(token, pair[0], now))
        elif not _has_secret(token, new):
            results.append(None)
            continue
        else:
            token = advance(tx, token, TokenTransition.REGISTERED_AGAIN)
            repeated.append((token.token_id, PushKind.VERIFICATION.value))
        known[pair] = token
        results.append(token)
        verifications[token.token_id] = _verification(token, seq, now, expires_at)
    tx.many(
        f"INSERT INTO tokens ({COLUMNS}, created_at, unverified_since)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        created,
    )
    tx.many(_SET_UNVERIFIED, [(now, token_id) for token_id, _ in repeated])
    owners.mark_seen(tx, [token_id for token_id, _ in repeated], now)
    tx.many(_REMOVE_PENDING, repeated)
    tx.many(ADD_PENDING, list(verifications.values()))
    removed = make_room(tx, {row[1] for row in created})
    gone = set(removed)
    return RegisteredTokens(
        [None if token is None or token.token_id in gone else token for token in results], removed
    )


_SET_UNVERIFIED = (
    f"UPDATE tokens SET unverified_since = ? WHERE token_id = ? AND status IN {_UNVERIFIED}"
)


def _find_pairs(
    tx: Transaction, pairs: Sequence[tuple[str, bytes]]
) -> dict[tuple[str, bytes], Token]:
    """Find tokens by device and key: one device may have many registrations."""
    found = {}
    unique = list(dict.fromkeys(pairs))
    for start in range(0, len(unique), _PAIRS):
        chunk = unique[start : start + _PAIRS]
        condition = " OR ".join(["(device = ? AND auth_key = ?)"] * len(chunk))
        values = [value for pair in chunk for value in pair]
        locking = tx.locking(" ORDER BY token_id FOR NO KEY UPDATE")
        for row in tx.query(f"SELECT {COLUMNS} FROM tokens WHERE {condition}{locking}", values):
            found[row[1], row[3]] = token_of(row)
    return found


def make_room(tx: Transaction, devices: Collection[str]) -> list[bytes]:
    """Remove and return the oldest unverified tokens of devices that have too many.

    A token that the provider rejected before it was verified counts, too.
    """
    crowded = tx.query_in(
        "SELECT device, COUNT(*) FROM tokens WHERE device IN {in} AND unverified_since IS NOT NULL"
        " GROUP BY device",
        list(devices),
    )
    removed = []
    for device, count in crowded:
        if count > MAX_UNVERIFIED:
            removed += tx.query(
                "SELECT token_id FROM tokens WHERE device = ? AND unverified_since IS NOT NULL"
                " ORDER BY unverified_since, token_id LIMIT ?",
                (device, min(count - MAX_UNVERIFIED, _MAX_REMOVED)),
            )
    return _delete_all(tx, [token_id for (token_id,) in removed])


def collect_unverified(tx: Transaction, before: int, limit: int) -> list[bytes]:
    """Remove and return tokens that were not verified since `before`.

    A token that has subscriptions was verified once, and stays.
    """
    rows = tx.query(
        "SELECT token_id FROM tokens t WHERE unverified_since <= ? AND status <> ?"
        " AND NOT EXISTS (SELECT 1 FROM subscriptions s WHERE s.token_id = t.token_id) LIMIT ?",
        (before, TokenStatus.ACTIVE.value, limit),
    )
    return _delete_all(tx, [token_id for (token_id,) in rows])


def _delete_all(tx: Transaction, token_ids: list[bytes]) -> list[bytes]:
    for token_id in token_ids:
        delete(tx, token_id)
    return token_ids


def _made(new: NewToken, now: int) -> Token:
    return Token(
        new.token_id,
        new.device,
        TokenStatus.REGISTERED,
        new.auth_key,
        new.keys.private,
        new.dh_secret,
        new.code,
        seen_at=now,
    )


def _row(token: Token, device: str, now: int) -> Row:
    return (
        token.token_id,
        device,
        token.status.value,
        token.auth_key,
        token.dh_private,
        token.dh_secret,
        token.code,
        0,
        now,
        now,
        now,
    )


def _has_secret(token: Token, new: NewToken) -> bool:
    try:
        return dh(new.dh_key, token.dh_private) == token.dh_secret
    except CryptoError:
        return False


def verify(tx: Transaction, token_id: bytes, code: bytes) -> tuple[Token | None, list[bytes]]:
    """Return the token, ACTIVE if the code is right, and the device's other tokens, removed."""
    token = find(tx, token_id)
    if token is None or not may_verify(token.status) or token.code != code:
        return None, []
    others = []
    if token.status is not TokenStatus.ACTIVE:
        token = advance(tx, token, TokenTransition.VERIFIED)
        tx.execute("UPDATE tokens SET unverified_since = NULL WHERE token_id = ?", (token_id,))
        rows = tx.query(
            "SELECT token_id FROM tokens WHERE device = ? AND token_id <> ?",
            (encode_device(token.device), token_id),
        )
        others = [other for (other,) in rows]
        for other in others:
            delete(tx, other)
    return token, others


def replace_device(
    tx: Transaction,
    token_id: bytes,
    device: DeviceToken,
    code: bytes,
    seq: int,
    now: int,
    expires_at: int,
) -> Token | None:
    """Set another device token and code; the secret and pending pushes stay.

    Their `seq` becomes that of the verification: what is in flight to the device before does not
    settle them, because the other one did not get it.
    """
    token = find(tx, token_id)
    if token is None:
        return None
    tx.execute(
        "UPDATE tokens SET device = ?, code = ?, unverified_since = ? WHERE token_id = ?",
        (encode_device(device), code, now, token_id),
    )
    token = advance(tx, replace(token, device=device, code=code), TokenTransition.REPLACED)
    tx.execute(
        "UPDATE pending_pushes SET provider = ?, attempts = 0, next_at = ?, seq = ?, owner = NULL"
        " WHERE token_id = ?",
        (device.provider.text, now, seq, token_id),
    )
    tx.execute(_REMOVE_PENDING, (token_id, PushKind.VERIFICATION.value))
    tx.execute(ADD_PENDING, _verification(token, seq, now, expires_at))
    return token


def advance(tx: Transaction, token: Token, event: TokenEvent) -> Token:
    status = step(token.status, event)
    if status is not token.status:
        tx.execute(
            "UPDATE tokens SET status = ? WHERE token_id = ?", (status.value, token.token_id)
        )
        if status.is_invalid:
            for table in ("pending_pushes", "last_notifications"):
                tx.execute(f"DELETE FROM {table} WHERE token_id = ?", (token.token_id,))
    return replace(token, status=status)


def set_statuses(tx: Transaction, changed: Sequence[Token]) -> None:
    """Store statuses that need no other change."""
    tx.many(
        "UPDATE tokens SET status = ? WHERE token_id = ?",
        [(token.status.value, token.token_id) for token in changed],
    )


def delete(tx: Transaction, token_id: bytes) -> None:
    """Delete a token with its subscriptions, notifications and pending pushes."""
    lock(tx, [token_id])
    associations.keep_deleted(tx, "token_id", token_id)
    for table in (
        "tokens",
        "slowed_tokens",
        "subscriptions",
        "last_notifications",
        "pending_pushes",
    ):
        tx.execute(f"DELETE FROM {table} WHERE token_id = ?", (token_id,))


ADD_PENDING = (
    "INSERT INTO pending_pushes"
    " (token_id, kind, provider, seq, since, attempts, next_at, expires_at)"
    " VALUES (?, ?, ?, ?, ?, 0, ?, ?) ON CONFLICT (token_id, kind) DO UPDATE SET"
    " seq = excluded.seq, expires_at = excluded.expires_at"
)
"""An existing row keeps its times: a failing provider is not retried sooner."""
ADD_CLAIMED = (
    "INSERT INTO pending_pushes"
    " (token_id, kind, provider, seq, since, attempts, next_at, expires_at, owner)"
    " VALUES (?, ?, ?, ?, ?, 0, ?, ?, ?) ON CONFLICT (token_id, kind) DO UPDATE SET"
    " seq = excluded.seq, expires_at = excluded.expires_at, owner = CASE WHEN pending_pushes.owner"
    " IN (SELECT process_id FROM processes) THEN pending_pushes.owner"
    " WHEN pending_pushes.next_at > excluded.next_at THEN NULL ELSE excluded.owner END"
)
"""As `ADD_PENDING`; a push that is due, and that no living process has claimed, is claimed."""


def pending_row(
    token_id: bytes,
    kind: PushKind,
    provider: str,
    seq: int,
    now: int,
    expires_at: int,
    next_at: int | None = None,
) -> Row:
    """Return the parameters of `ADD_PENDING`. It is due at once, unless `next_at` is later."""
    at = now if next_at is None else next_at
    return token_id, kind.value, provider, seq, now, at, expires_at


_REMOVE_PENDING = "DELETE FROM pending_pushes WHERE token_id = ? AND kind = ?"


def _verification(token: Token, seq: int, now: int, expires_at: int) -> Row:
    """Return the row of a verification that is due at once, because a client waits for it.

    Remove an earlier row first. `seq` differs from that of a push in flight, which may carry
    another code.
    """
    provider = token.device.provider.text
    return pending_row(token.token_id, PushKind.VERIFICATION, provider, seq, now, expires_at)
