"""Actions about periodic wake-ups: `move_wakeup`."""

import json

from heliograph.actions.contract import ActionKind, Refusal
from heliograph.db.dialects import Transaction
from heliograph.ntf.store import wakeups
from heliograph.ntf.store.actions.rules import ActionRule, Applied, ResolvedAction
from heliograph.wire.ntf.tokens import TokenStatus

__all__ = ["RULES"]

DAY_SECONDS = 86_400


def _phase(item: ResolvedAction) -> int | None:
    phase = item.evidence.get("phase")
    return phase if type(phase) is int and 0 <= phase < DAY_SECONDS else None


def _refusal(tx: Transaction, item: ResolvedAction, now: int) -> Refusal | None:
    rows = tx.query(
        "SELECT status, cron_minutes, cron_due_at FROM tokens WHERE token_id = ?", (item.subject,)
    )
    for status, minutes, due_at in rows:
        is_daily = due_at is not None and minutes >= wakeups.PHASE_MINUTES
        agrees = status == TokenStatus.ACTIVE.value and is_daily and _phase(item) is not None
        return None if agrees else Refusal.DISAGREED
    return Refusal.UNKNOWN_SUBJECT


def _move(tx: Transaction, item: ResolvedAction, now: int) -> tuple[Applied, bytes]:
    before = wakeups.set_phase(tx, item.subject, _phase(item), now)
    return Applied(), json.dumps({"token": item.subject.hex(), "phase": before}).encode()


def _move_back(tx: Transaction, removed: bytes, now: int) -> Applied | Refusal:
    before = json.loads(removed)
    wakeups.set_phase(tx, bytes.fromhex(before["token"]), before["phase"], now)
    return Applied()


RULES = {ActionKind.MOVE_WAKEUP: ActionRule(_move, _refusal, _move_back)}
