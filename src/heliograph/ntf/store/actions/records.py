"""The table of actions that were applied: functions of a transaction."""

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from heliograph.actions.contract import ActionKind
from heliograph.db.dialects import Row, Transaction

__all__ = [
    "ActionState",
    "KnownAction",
    "count_since",
    "forget",
    "known",
    "latest",
    "set_recorded",
    "unrecorded",
]


class ActionState(Enum):
    APPLIED = "applied"
    UNDONE = "undone"
    EXPIRED = "expired"
    """Its time was over: a throttle, pause or alert has ended by itself."""


class KnownAction(NamedTuple):
    """An action that was applied, and perhaps undone since. `at` is in milliseconds."""

    action_id: str
    kind: ActionKind
    subject: bytes
    state: ActionState
    at: int


def known(tx: Transaction, action_ids: Sequence[str]) -> dict[str, KnownAction]:
    rows = tx.query_in(
        "SELECT action_id, kind, subject, state, applied_at FROM actions WHERE action_id IN {in}",
        action_ids,
    )
    return {row[0]: _known(row) for row in rows}


def latest(tx: Transaction, limit: int) -> list[KnownAction]:
    """Return the actions applied last."""
    rows = tx.query(
        "SELECT action_id, kind, subject, state, applied_at FROM actions"
        " ORDER BY applied_at DESC, action_id LIMIT ?",
        (limit,),
    )
    return [_known(row) for row in rows]


def _known(row: Row) -> KnownAction:
    action_id, kind, subject, state, at = row
    return KnownAction(action_id, ActionKind(kind), bytes(subject), ActionState(state), at)


def count_since(tx: Transaction, kind: ActionKind, since: int) -> int:
    """Return how many actions of a kind were applied since a time, undone or not."""
    [[count]] = tx.query(
        "SELECT COUNT(*) FROM actions WHERE kind = ? AND applied_at > ?", (kind.value, since)
    )
    return int(count)


def unrecorded(tx: Transaction, limit: int) -> list[tuple[KnownAction, bytes]]:
    """Return actions whose events may have been lost in a kill, and what each removed."""
    rows = tx.query(
        "SELECT action_id, kind, subject, state, applied_at, removed FROM actions"
        " WHERE is_recorded = 0 ORDER BY action_id LIMIT ?",
        (limit,),
    )
    return [(_known(row[:-1]), bytes(row[-1])) for row in rows]


def set_recorded(tx: Transaction, action_ids: Sequence[str]) -> None:
    """Mark actions as recorded in the journal."""
    tx.many(
        "UPDATE actions SET is_recorded = 1 WHERE action_id = ?", [(item,) for item in action_ids]
    )


def forget(tx: Transaction, before: int) -> None:
    """Remove the rows of actions that were applied before a time: they cannot be undone then."""
    tx.execute("DELETE FROM actions WHERE applied_at <= ?", (before,))
