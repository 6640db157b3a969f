"""Tokens in the store: functions of a transaction, and the rows they read and write."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from heliograph.crypto.errors import CryptoError
from heliograph.crypto.keys import KeyPair, dh
from heliograph.db.dialects import Row, Transaction
from heliograph.ntf.lifecycle import Simple, TokenEvent, may_verify, step
from heliograph.ntf.records import DebtKind, Token
from heliograph.wire.tokens import (
    DeviceToken,
    TokenStatus,
    decode_token_text,
    encode_token_text,
)

COLUMNS = "token_id, device, status, auth_key, dh_private, dh_secret, code, cron_minutes"


@dataclass(frozen=True, slots=True)
class NewToken:
    """What a registration brings, and what it would be given."""

    token_id: bytes
    device: DeviceToken
    auth_key: bytes
    dh_key: bytes
    keys: KeyPair
    dh_secret: bytes = field(repr=False)
    """Of `dh_key` and `keys`."""
    code: bytes = field(repr=False)


def token_of(row: Row) -> Token:
    token_id, device, status, *rest = row
    return Token(token_id, decode_token_text(device), TokenStatus(status), *rest)


def find(tx: Transaction, token_id: bytes) -> Token | None:
    rows = tx.query(f"SELECT {COLUMNS} FROM tokens WHERE token_id = ?", (token_id,))
    return token_of(rows[0]) if rows else None


def find_many(tx: Transaction, token_ids: list[bytes]) -> list[Token]:
    rows = tx.query_in(f"SELECT {COLUMNS} FROM tokens WHERE token_id IN {{in}}", token_ids)
    return [token_of(row) for row in rows]


def register(tx: Transaction, new: NewToken, seq: int, now: int, expires_at: int) -> Token | None:
    [token] = register_many(tx, [(new, seq)], now, expires_at)
    return token


def register_many(
    tx: Transaction, registrations: Sequence[tuple[NewToken, int]], now: int, expires_at: int
) -> list[Token | None]:
    """A new token, or the one registered before with the same keys; None if its secret differs.

    Either way its verification is owed, with the number that comes with the registration.
    """
    devices = [encode_token_text(new.device) for new, _ in registrations]
    rows = tx.query_in(
        f"SELECT {COLUMNS} FROM tokens WHERE device IN {{in}}", list(dict.fromkeys(devices))
    )
    known = {(row[1], row[3]): token_of(row) for row in rows}
    results: list[Token | None] = []
    created: list[Row] = []
    owed: dict[bytes, Row] = {}
    repeated: list[Row] = []
    for device, (new, seq) in zip(devices, registrations, strict=True):
        key = device, new.auth_key
        token = known.get(key)
        if token is None:
            token = _made(new)
            created.append(_row(token, device, now))
        elif not _has_secret(token, new):
            results.append(None)
            continue
        else:
            token = advance(tx, token, Simple.REGISTERED_AGAIN)
            repeated.append((token.token_id, DebtKind.VERIFICATION.value))
        known[key] = token
        results.append(token)
        owed[token.token_id] = _verification(token, seq, now, expires_at)
    tx.many(
        f"INSERT INTO tokens ({COLUMNS}, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", created
    )
    tx.many(_FORGIVE, repeated)
    tx.many(OWE, list(owed.values()))
    return results


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
    )


def _has_secret(token: Token, new: NewToken) -> bool:
    try:
        return dh(new.dh_key, token.dh_private) == token.dh_secret
    except CryptoError:
        return False


def verify(tx: Transaction, token_id: bytes, code: bytes) -> tuple[Token | None, list[bytes]]:
    """The token, active if the code is right, and other registrations of its device, removed."""
    token = find(tx, token_id)
    if token is None or not may_verify(token.status) or token.code != code:
        return None, []
    others = []
    if token.status is not TokenStatus.ACTIVE:
        token = advance(tx, token, Simple.VERIFIED)
        rows = tx.query(
            "SELECT token_id FROM tokens WHERE device = ? AND token_id <> ?",
            (encode_token_text(token.device), token_id),
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
    """Another device token with a new code, the same secret. What it is owed goes with it."""
    token = find(tx, token_id)
    if token is None:
        return None
    tx.execute(
        "UPDATE tokens SET device = ?, code = ? WHERE token_id = ?",
        (encode_token_text(device), code, token_id),
    )
    token = advance(tx, replace(token, device=device, code=code), Simple.REPLACED)
    tx.execute(
        "UPDATE debts SET provider = ?, attempts = 0, next_at = ? WHERE token_id = ?",
        (device.provider.text, now, token_id),
    )
    tx.execute(_FORGIVE, (token_id, DebtKind.VERIFICATION.value))
    tx.execute(OWE, _verification(token, seq, now, expires_at))
    return token


def advance(tx: Transaction, token: Token, event: TokenEvent) -> Token:
    status = step(token.status, event)
    if status is not token.status:
        tx.execute(
            "UPDATE tokens SET status = ? WHERE token_id = ?", (status.value, token.token_id)
        )
        if status.is_invalid:
            for table in ("debts", "last_notifications"):
                tx.execute(f"DELETE FROM {table} WHERE token_id = ?", (token.token_id,))
    return replace(token, status=status)


def set_statuses(tx: Transaction, changed: Sequence[Token]) -> None:
    """Of tokens that were advanced to what may be pushed to."""
    tx.many(
        "UPDATE tokens SET status = ? WHERE token_id = ?",
        [(token.status.value, token.token_id) for token in changed],
    )


def delete(tx: Transaction, token_id: bytes) -> None:
    """With everything that belongs to it."""
    for table in ("tokens", "subscriptions", "last_notifications", "debts"):
        tx.execute(f"DELETE FROM {table} WHERE token_id = ?", (token_id,))


def request_cron(tx: Transaction, token_id: bytes, minutes: int, now: int) -> None:
    """Another interval. A token that was never woken is due at once, others when they would be."""
    rows = tx.query("SELECT cron_minutes, cron_due_at FROM tokens WHERE token_id = ?", (token_id,))
    for before, due_at in rows:
        if not minutes:
            due_at = None
        elif due_at is None:
            due_at = now
        else:
            due_at = max(due_at + (minutes - before) * 60_000, now)
        set_cron(tx, token_id, minutes, due_at)


def set_cron(tx: Transaction, token_id: bytes, minutes: int, due_at: int | None) -> None:
    tx.execute(
        "UPDATE tokens SET cron_minutes = ?, cron_due_at = ? WHERE token_id = ?",
        (minutes, due_at, token_id),
    )


OWE = (
    "INSERT INTO debts (token_id, kind, provider, seq, since, attempts, next_at, expires_at)"
    " VALUES (?, ?, ?, ?, ?, 0, ?, ?) ON CONFLICT (token_id, kind) DO UPDATE SET"
    " seq = excluded.seq, expires_at = excluded.expires_at"
)
"""A debt that exists keeps its place: a provider in trouble is not asked sooner."""


def owed_row(
    token_id: bytes, kind: DebtKind, provider: str, seq: int, now: int, expires_at: int
) -> Row:
    """For `OWE`."""
    return token_id, kind.value, provider, seq, now, now, expires_at


_FORGIVE = "DELETE FROM debts WHERE token_id = ? AND kind = ?"


def _verification(token: Token, seq: int, now: int, expires_at: int) -> Row:
    """At once, also if an earlier one was put off: a client waits for it.

    So what is owed already is to be forgiven first. `seq` tells it from an earlier one that is
    under way, perhaps with another code.
    """
    provider = token.device.provider.text
    return owed_row(token.token_id, DebtKind.VERIFICATION, provider, seq, now, expires_at)
