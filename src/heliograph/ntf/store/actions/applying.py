"""Apply and undo actions in the store: functions of a transaction.

An action is applied at most once: its row and its effect are one transaction. A row of an action
that can be undone has what the action removed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from heliograph.actions.contract import ActionKind, Refusal
from heliograph.db.dialects import Transaction
from heliograph.ntf.store.actions import restrictions, subscriptions, tokens, wakes, wakeups
from heliograph.ntf.store.actions.records import ActionState, KnownAction, count_since, known
from heliograph.ntf.store.actions.rules import ActionRule, Applied, ResolvedAction
from heliograph.ntf.store.actions.subjects import population
from heliograph.ntf.store.records import Subscription

__all__ = [
    "Caps",
    "DailyCap",
    "Postponed",
    "Result",
    "apply_batch",
    "deleted_by",
    "preview_batch",
    "undo",
]

DAY = 86_400_000
"""Milliseconds."""

RULES: Mapping[ActionKind, ActionRule] = {
    **subscriptions.RULES,
    **tokens.RULES,
    **wakes.RULES,
    **restrictions.RULES,
    **wakeups.RULES,
}


@dataclass(frozen=True, slots=True)
class DailyCap:
    """How many actions of a kind may be applied in a day: a share of all subjects, or `least`."""

    percent: float
    least: int

    def of(self, population: int) -> int:
        return max(int(population * self.percent / 100), self.least)


class Postponed(Enum):
    """Why an action that is agreed with was not applied now."""

    APPLIED_BEFORE = "applied_before"
    CAPPED = "capped"


Result = Applied | Refusal | Postponed
Caps = Mapping[ActionKind, DailyCap]


def apply_batch(
    tx: Transaction, batch: Sequence[ResolvedAction], caps: Caps, now: int
) -> list[Result]:
    """Apply actions that the store agrees with, each at most once and no more than the caps."""
    return _decide_batch(tx, batch, caps, now, lambda item: _apply(tx, item, now))


def preview_batch(
    tx: Transaction, batch: Sequence[ResolvedAction], caps: Caps, now: int
) -> list[Result]:
    """Return what `apply_batch` would return, without a change."""

    def would_apply(item: ResolvedAction) -> Applied | Refusal:
        return RULES[item.kind].refusal(tx, item, now) or Applied()

    return _decide_batch(tx, batch, caps, now, would_apply)


def _decide_batch(
    tx: Transaction,
    batch: Sequence[ResolvedAction],
    caps: Caps,
    now: int,
    act: Callable[[ResolvedAction], Applied | Refusal],
) -> list[Result]:
    before = known(tx, [item.action_id for item in batch])
    done = set(before)
    left = {
        kind: caps[kind].of(population(tx, kind.subject)) - count_since(tx, kind, now - DAY)
        for kind in {item.kind for item in batch}
    }
    results: list[Result] = []
    for item in batch:
        if item.action_id in done:
            results.append(Postponed.APPLIED_BEFORE)
        elif left[item.kind] <= 0:
            results.append(Postponed.CAPPED)
        else:
            results.append(act(item))
            if isinstance(results[-1], Applied):
                done.add(item.action_id)
                left[item.kind] -= 1
    return results


def _apply(tx: Transaction, item: ResolvedAction, now: int) -> Applied | Refusal:
    rule = RULES[item.kind]
    refusal = rule.refusal(tx, item, now)
    if refusal is not None:
        return refusal
    applied, removed = rule.apply(tx, item, now)
    tx.execute(
        "INSERT INTO actions"
        " (action_id, kind, subject, state, applied_at, is_recorded, removed)"
        " VALUES (?, ?, ?, ?, ?, 0, ?)",
        (item.action_id, item.kind.value, item.subject, ActionState.APPLIED.value, now, removed),
    )
    return applied


def undo(tx: Transaction, action_id: str, now: int) -> Applied | Refusal | None:
    """Restore what an action removed; None if there is nothing to undo.

    `Refusal.DISAGREED` if it cannot be restored.
    """
    rows = tx.query("SELECT kind, state, removed FROM actions WHERE action_id = ?", (action_id,))
    for kind, state, removed in rows:
        restore = RULES[ActionKind(kind)].undo
        if restore is None or state != ActionState.APPLIED.value:
            return None
        restored = restore(tx, bytes(removed), now)
        if isinstance(restored, Applied):
            tx.execute(
                "UPDATE actions SET state = ?, is_recorded = 0, removed = ? WHERE action_id = ?",
                (ActionState.UNDONE.value, b"", action_id),
            )
        return restored
    return None


def deleted_by(known: KnownAction, removed: bytes) -> tuple[Subscription, ...]:
    """Return the subscriptions that an applied action deleted."""
    is_applied = known.state is ActionState.APPLIED
    return RULES[known.kind].deleted(removed) if is_applied else ()
