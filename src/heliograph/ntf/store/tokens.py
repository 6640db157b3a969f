"""Tokens in the store: functions of a transaction."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from heliograph.crypto.errors import CryptoError
from heliograph.crypto.keys import KeyPair, dh
from heliograph.db.dialects import Row, Transaction
from heliograph.ntf.lifecycle import TokenEvent, TokenTransition, may_verify, step
from heliograph.ntf.store import associations
from heliograph.ntf.store.devices import decode_device, encode_device
from heliograph.ntf.store.records import PushKind, Token
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
_PAIRS = 100
"""Pairs of device and key in one query."""
_SUBSTITUTE = (
    bytes(24),
    f"{PushProvider.APNS_PROD.text} {'00' * 32}",
    TokenStatus.ACTIVE.value,
    *(bytes(size) for size in (44, 48, 32, 32)),
    0,
)

COLUMNS = "token_id, device, status, auth_key, dh_private, dh_secret, code, cron_minutes"


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


def find(tx: Transaction, token_id: bytes) -> Token | None:
    rows = tx.query(f"SELECT {COLUMNS} FROM tokens WHERE token_id = ?", (token_id,))
    return token_of(rows[0]) if rows else None


def find_many(tx: Transaction, token_ids: list[bytes]) -> list[Token]:
    """Return the tokens; unknown IDs cost as much, so that the time does not distinguish them."""
    rows = tx.query_in(f"SELECT {COLUMNS} FROM tokens WHERE token_id IN {{in}}", token_ids)
    found = [token_of(row) for row in rows]
    for _ in range(len(token_ids) - len(found)):
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
            token = _made(new)
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
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        created,
    )
    tx.many(_SET_UNVERIFIED, [(now, token_id) for token_id, _ in repeated])
    tx.many(_REMOVE_PENDING, repeated)
    tx.many(ADD_PENDING, list(verifications.values()))
    removed = _make_room(tx, {row[1] for row in created})
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
        for row in tx.query(f"SELECT {COLUMNS} FROM tokens WHERE {condition}", values):
            found[row[1], row[3]] = token_of(row)
    return found


def _make_room(tx: Transaction, devices: Collection[str]) -> list[bytes]:
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


def _made(new: NewToken) -> Token:
    return Token(
        new.token_id,
        new.device,
        TokenStatus.REGISTERED,
        new.auth_key,
        new.keys.private,
        new.dh_secret,
        new.code,
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
    """Set another device token and code; the secret and pending pushes stay."""
    token = find(tx, token_id)
    if token is None:
        return None
    tx.execute(
        "UPDATE tokens SET device = ?, code = ?, unverified_since = ? WHERE token_id = ?",
        (encode_device(device), code, now, token_id),
    )
    token = advance(tx, replace(token, device=device, code=code), TokenTransition.REPLACED)
    tx.execute(
        "UPDATE pending_pushes SET provider = ?, attempts = 0, next_at = ? WHERE token_id = ?",
        (device.provider.text, now, token_id),
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
    associations.keep_deleted(tx, "token_id", token_id)
    for table in ("tokens", "subscriptions", "last_notifications", "pending_pushes"):
        tx.execute(f"DELETE FROM {table} WHERE token_id = ?", (token_id,))


class CronDue(NamedTuple):
    """A token whose periodic wake-up is due."""

    token_id: bytes
    minutes: int
    provider: str


def request_cron(tx: Transaction, token_id: bytes, minutes: int, now: int) -> None:
    """Set the interval of periodic wake-ups; the first is due one interval from now.

    A changed interval counts from the last wake-up.
    """
    rows = tx.query("SELECT cron_minutes, cron_due_at FROM tokens WHERE token_id = ?", (token_id,))
    for before, due_at in rows:
        if not minutes:
            due_at = None
        elif due_at is None:
            due_at = now + minutes * 60_000
        else:
            due_at = max(due_at + (minutes - before) * 60_000, now)
        set_cron(tx, token_id, minutes, due_at)


def set_cron(tx: Transaction, token_id: bytes, minutes: int, due_at: int | None) -> None:
    set_crons(tx, [(minutes, due_at, token_id)])


def set_crons(tx: Transaction, rows: Sequence[tuple[int, int | None, bytes]]) -> None:
    """Set interval in minutes and time of the next wake-up, for each token ID."""
    tx.many("UPDATE tokens SET cron_minutes = ?, cron_due_at = ? WHERE token_id = ?", rows)


def count_cron_due(tx: Transaction, after: int, until: int) -> int:
    """Return how many wake-ups fall due later than `after`, up to `until`."""
    [[count]] = tx.query(
        "SELECT COUNT(*) FROM tokens WHERE status = ? AND cron_due_at > ? AND cron_due_at <= ?",
        (TokenStatus.ACTIVE.value, after, until),
    )
    return int(count)


def cron_due(tx: Transaction, now: int, limit: int) -> list[CronDue]:
    """Return the tokens whose wake-ups have been due for longest."""
    rows = tx.query(
        "SELECT token_id, cron_minutes, device FROM tokens WHERE cron_due_at <= ? AND status = ?"
        " ORDER BY cron_due_at LIMIT ?",
        (now, TokenStatus.ACTIVE.value, limit),
    )
    return [
        CronDue(token_id, minutes, device.partition(" ")[0]) for token_id, minutes, device in rows
    ]


def rebase_cron(tx: Transaction, now: int, longest: float) -> None:
    """Bring wake-ups that are further away than `longest` intervals back to one interval."""
    tx.execute(
        "UPDATE tokens SET cron_due_at = CAST(? AS BIGINT) + CAST(cron_minutes AS BIGINT) * 60000"
        " WHERE cron_due_at > CAST(? AS BIGINT) + CAST(cron_minutes AS BIGINT) * ?",
        (now, now, int(60_000 * longest)),
    )


ADD_PENDING = (
    "INSERT INTO pending_pushes"
    " (token_id, kind, provider, seq, since, attempts, next_at, expires_at)"
    " VALUES (?, ?, ?, ?, ?, 0, ?, ?) ON CONFLICT (token_id, kind) DO UPDATE SET"
    " seq = excluded.seq, expires_at = excluded.expires_at"
)
"""An existing row keeps its times: a failing provider is not retried sooner."""


def pending_row(
    token_id: bytes, kind: PushKind, provider: str, seq: int, now: int, expires_at: int
) -> Row:
    """Return the parameters of `ADD_PENDING`."""
    return token_id, kind.value, provider, seq, now, now, expires_at


_REMOVE_PENDING = "DELETE FROM pending_pushes WHERE token_id = ? AND kind = ?"


def _verification(token: Token, seq: int, now: int, expires_at: int) -> Row:
    """Return the row of a verification that is due at once, because a client waits for it.

    Remove an earlier row first. `seq` differs from that of a push in flight, which may carry
    another code.
    """
    provider = token.device.provider.text
    return pending_row(token.token_id, PushKind.VERIFICATION, provider, seq, now, expires_at)
