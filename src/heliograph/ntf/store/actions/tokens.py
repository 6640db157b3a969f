"""Actions about tokens without an owner: `slow_token`, `verify_token` and `remove_token`.

    (none) ──slow_token──> slowed ──verify_token──> asked ──accepted──> verified ──> removed
       ^                      │                       │                     │
       └────────── any command of the owner, or undo ─┴─────────────────────┘

Each stage needs the one before, which the router has seen itself, and a time without a command of
the owner. See `heliograph.ntf.store.owners`.
"""

import json
from dataclasses import dataclass
from typing import Any

from heliograph.actions.contract import ActionKind, Refusal
from heliograph.db.dialects import Row, Transaction
from heliograph.ntf.store import owners, tokens
from heliograph.ntf.store.actions.rules import ActionRule, Applied, ResolvedAction
from heliograph.ntf.store.owners import DAY
from heliograph.ntf.store.records import PushKind
from heliograph.ntf.store.subscriptions import subscriptions
from heliograph.wire.ntf.tokens import TokenStatus

__all__ = ["RULES"]

MIN_UNSEEN = 7 * DAY
"""No token is touched whose owner was seen within this time, whatever the pipeline decided."""
MIN_SLOWED = DAY
"""Time between slowing a token and verifying it, at least."""
MIN_VERIFIED = 3 * DAY
"""Time that an owner has to answer an accepted verification push, at least."""
VERIFICATION_TTL = 3 * DAY


@dataclass(frozen=True, slots=True)
class _Unowned:
    """What the store knows of a token, as far as these actions need it."""

    status: TokenStatus
    seen_at: int
    slowed_at: int | None
    asked_at: int | None
    verified_at: int | None

    def agrees(self, item: ResolvedAction, now: int) -> bool:
        since = item.evidence.get("unseen_since")
        # The pipeline knows days on which an owner was seen, and no times.
        is_unseen = isinstance(since, int) and self.seen_at <= since // 1000 + owners.SEEN_INTERVAL
        if self.status is not TokenStatus.ACTIVE or not is_unseen:
            return False
        if self.seen_at > now - MIN_UNSEEN:
            return False
        match item.kind:
            case ActionKind.SLOW_TOKEN:
                return self.slowed_at is None
            case ActionKind.VERIFY_TOKEN:
                return _is_past(self.slowed_at, now - MIN_SLOWED) and self.asked_at is None
            case _:
                return _is_past(self.verified_at, now - MIN_VERIFIED)


def _is_past(at: int | None, before: int) -> bool:
    return at is not None and at <= before


def _refusal(tx: Transaction, item: ResolvedAction, now: int) -> Refusal | None:
    rows = tx.query(
        "SELECT t.status, t.seen_at, d.slowed_at, d.asked_at, d.verified_at FROM tokens t"
        " LEFT JOIN slowed_tokens d ON d.token_id = t.token_id WHERE t.token_id = ?",
        (item.subject,),
    )
    for status, *times in rows:
        agrees = _Unowned(TokenStatus(status), *times).agrees(item, now)
        return None if agrees else Refusal.DISAGREED
    return Refusal.UNKNOWN_SUBJECT


def _slow(tx: Transaction, item: ResolvedAction, now: int) -> tuple[Applied, bytes]:
    tx.execute(
        "INSERT INTO slowed_tokens (token_id, slowed_at, next_push_at) VALUES (?, ?, ?)",
        (item.subject, now, now),
    )
    return Applied(), item.subject


def _unslow(tx: Transaction, removed: bytes, now: int) -> Applied | Refusal:
    owners.restore(tx, [removed], now)
    return Applied()


def _verify(tx: Transaction, item: ResolvedAction, now: int) -> tuple[Applied, bytes]:
    [[device]] = tx.query("SELECT device FROM tokens WHERE token_id = ?", (item.subject,))
    provider, expires_at = device.partition(" ")[0], now + VERIFICATION_TTL
    # The code stays, so the number of another verification does not matter.
    row = tokens.pending_row(item.subject, PushKind.VERIFICATION, provider, 0, now, expires_at)
    tx.execute(tokens.ADD_PENDING, row)
    tx.execute("UPDATE slowed_tokens SET asked_at = ? WHERE token_id = ?", (now, item.subject))
    return Applied(), item.subject


def _unverify(tx: Transaction, removed: bytes, now: int) -> Applied | Refusal:
    owners.withdraw_verification(tx, removed)
    tx.execute(
        "UPDATE slowed_tokens SET asked_at = NULL, verified_at = NULL WHERE token_id = ?",
        (removed,),
    )
    return Applied()


_COLUMNS = (
    "token_id, device, status, auth_key, dh_private, dh_secret, code, cron_minutes, cron_due_at,"
    " cron_phase, created_at, unverified_since, seen_at"
)


def _remove(tx: Transaction, item: ResolvedAction, now: int) -> tuple[Applied, bytes]:
    token = tx.query(f"SELECT {_COLUMNS} FROM tokens WHERE token_id = ?", (item.subject,))
    rows = tx.query(
        "SELECT s.subscription_id, s.token_id, v.address, s.notifier_id, s.notifier_key"
        " FROM subscriptions s JOIN servers v ON v.server_id = s.server_id WHERE s.token_id = ?",
        (item.subject,),
    )
    tokens.delete(tx, item.subject)
    packed = [[_packed(value) for value in row] for row in (*token, *rows)]
    return Applied(), json.dumps(packed).encode()


def _packed(value: object) -> object:
    """Return a value that JSON has: blobs become objects."""
    return {"hex": bytes(value).hex()} if isinstance(value, bytes | memoryview) else value


def _restore(tx: Transaction, removed: bytes, now: int) -> Applied | Refusal:
    """Refuse with `DISAGREED` if the device has another token now.

    Queues that somebody else is subscribed to by now stay theirs.
    """
    packed: list[Row] = json.loads(removed)
    token, *rows = (tuple(_unpacked(value) for value in row) for row in packed)
    if tx.query("SELECT 1 FROM tokens WHERE device = ? OR token_id = ?", (token[1], token[0])):
        return Refusal.DISAGREED
    marks = ", ".join("?" * len(token))
    tx.execute(f"INSERT INTO tokens ({_COLUMNS}) VALUES ({marks})", token)
    added = subscriptions.add_many(tx, [subscriptions.NewSubscription(*row) for row in rows])
    queues = [item for item in added if isinstance(item, subscriptions.Added) and item.is_new]
    return Applied(tuple(queues))


def _unpacked(value: Any) -> Any:
    return bytes.fromhex(value["hex"]) if isinstance(value, dict) else value


RULES = {
    ActionKind.SLOW_TOKEN: ActionRule(_slow, _refusal, _unslow),
    ActionKind.VERIFY_TOKEN: ActionRule(_verify, _refusal, _unverify),
    ActionKind.REMOVE_TOKEN: ActionRule(_remove, _refusal, _restore),
}
