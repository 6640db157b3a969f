"""Actions that put a restriction in force for some time: throttles, pauses, alerts and reports."""

import re
from collections.abc import Sequence

from heliograph.actions.contract import FLOOD_SECONDS, ActionKind, Refusal
from heliograph.db.dialects import Transaction
from heliograph.ntf.store.actions.records import ActionState
from heliograph.ntf.store.actions.rules import ActionRule, Applied, ResolvedAction
from heliograph.ntf.store.records import PushKind

__all__ = ["FLOORS", "LONGEST", "MAX_RATE", "MIN_RATE", "RULES", "expire_restrictions"]

FLOORS = {
    ActionKind.THROTTLE_TOKEN: 300,
    ActionKind.THROTTLE_SUBSCRIPTION: 300,
    ActionKind.THROTTLE_SERVER: 6_000,
    ActionKind.PAUSE_REGISTRATIONS: 120,
}
"""Events in `FLOOD_SECONDS` below which nothing is throttled, whatever an action says."""
LONGEST = 6 * 3_600_000
"""Milliseconds that a throttle or a pause lasts at most."""
MIN_RATE = 50
"""Notifications a second that are always read of a messaging router."""
MAX_RATE = 1_000_000
"""Notifications a second that no router reads; so every rate fits into the store."""
BASELINES = 4
"""How many times its usual rate a throttled messaging router may have."""
_FINDING = re.compile(r"[a-z_]{1,40}")
_TABLES = {"token": "tokens", "subscription": "subscriptions"}


def _refuse(tx: Transaction, item: ResolvedAction, now: int) -> Refusal | None:
    """Refuse what is unknown, and what is too little to be abuse."""
    table = _TABLES.get(item.kind.subject)
    if table is not None:
        key = f"{item.kind.subject}_id"
        if not tx.query(f"SELECT 1 FROM {table} WHERE {key} = ?", (item.subject,)):
            return Refusal.UNKNOWN_SUBJECT
    is_large = _number(item, "observed") >= FLOORS[item.kind]
    return None if is_large else Refusal.DISAGREED


def _throttle(tx: Transaction, item: ResolvedAction, now: int) -> tuple[Applied, bytes]:
    rate = 0
    if item.kind is ActionKind.THROTTLE_SERVER:
        usual = _number(item, "baseline") / FLOOD_SECONDS
        rate = min(max(MIN_RATE, round(BASELINES * usual)), MAX_RATE)
    return _begin(tx, item, min(item.valid_until, now + LONGEST), rate)


def _show(tx: Transaction, item: ResolvedAction, now: int) -> tuple[Applied, bytes]:
    return _begin(tx, item, item.valid_until, 0)


def _begin(tx: Transaction, item: ResolvedAction, until: int, rate: int) -> tuple[Applied, bytes]:
    found = item.evidence.get("finding")
    finding = found if isinstance(found, str) and _FINDING.fullmatch(found) else "other"
    tx.execute(
        "INSERT INTO restrictions (action_id, kind, subject, until, rate, finding)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        (item.action_id, item.kind.value, item.subject, until, rate, finding),
    )
    return Applied(), item.action_id.encode()


def _lift(tx: Transaction, removed: bytes, now: int) -> Applied | Refusal:
    """End a restriction at once; what waited for its next slot is due."""
    action_id = removed.decode()
    rows = tx.query("SELECT kind, subject FROM restrictions WHERE action_id = ?", (action_id,))
    tx.execute("DELETE FROM restrictions WHERE action_id = ?", (action_id,))
    for kind, subject in rows:
        if kind == ActionKind.THROTTLE_TOKEN.value:
            _make_due(tx, [bytes(subject)], now)
        elif kind == ActionKind.THROTTLE_SUBSCRIPTION.value:
            owners = tx.query(
                "SELECT token_id FROM subscriptions WHERE subscription_id = ?", (subject,)
            )
            _make_due(tx, [bytes(token_id) for (token_id,) in owners], now)
    return Applied()


def _make_due(tx: Transaction, token_ids: Sequence[bytes], now: int) -> None:
    tx.many(
        "UPDATE pending_pushes SET next_at = ?"
        " WHERE token_id = ? AND kind = ? AND attempts = 0 AND next_at > ?",
        [(now, token_id, PushKind.MESSAGE.value, now) for token_id in token_ids],
    )


def _number(item: ResolvedAction, name: str) -> float:
    value = item.evidence.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and isinstance(value, int | float) and value > 0 else 0.0


def expire_restrictions(tx: Transaction, now: int) -> int:
    """Remove restrictions whose time is over; their actions are to be recorded as expired."""
    rows = tx.query("SELECT action_id FROM restrictions WHERE until <= ?", (now,))
    tx.many("DELETE FROM restrictions WHERE action_id = ?", rows)
    tx.many(
        "UPDATE actions SET state = ?, is_recorded = 0, removed = ?"
        " WHERE action_id = ? AND state = ?",
        [
            (ActionState.EXPIRED.value, b"", action_id, ActionState.APPLIED.value)
            for (action_id,) in rows
        ],
    )
    return len(rows)


RULES = {
    **{kind: ActionRule(_throttle, _refuse, _lift) for kind in FLOORS},
    ActionKind.ALERT: ActionRule(_show, undo=_lift),
    ActionKind.REPORT: ActionRule(_show, undo=_lift),
}
