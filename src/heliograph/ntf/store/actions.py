"""Actions of the pipeline in the store: functions of a transaction.

An action is applied at most once: its row and its effect are one transaction. A row of an action
that can be undone has what the action removed.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from heliograph.actions.contract import ActionKind, Refusal
from heliograph.db.dialects import Row, Transaction
from heliograph.ntf.store import subscriptions
from heliograph.ntf.store.records import Subscription
from heliograph.ntf.store.subscriptions import Added
from heliograph.wire.ntf.tokens import NtfSubStatus, SubscriptionState, TokenStatus

_GONE = (SubscriptionState.AUTH, SubscriptionState.DELETED)
"""States in which the messaging router has no such queue, as far as it said."""
_NOT_SUBSCRIBED = (*_GONE, SubscriptionState.END)
"""States in which a queue is not subscribed after a reconnection."""


DAY = 86_400_000
"""Milliseconds."""


class ActionState(Enum):
    APPLIED = "applied"
    UNDONE = "undone"


class KnownAction(NamedTuple):
    """An action that was applied, and perhaps undone since."""

    action_id: str
    kind: ActionKind
    subject: bytes
    state: ActionState
    at: int


@dataclass(frozen=True, slots=True)
class Applied:
    """The effect of an action: a queue is to be subscribed, or nothing follows."""

    queue: Added | None = None
    was_active: bool = False


def known(tx: Transaction, action_ids: Sequence[str]) -> dict[str, KnownAction]:
    rows = tx.query_in(
        "SELECT action_id, kind, subject, state, applied_at FROM actions WHERE action_id IN {in}",
        action_ids,
    )
    return {row[0]: _known(row) for row in rows}


def everything(tx: Transaction, limit: int) -> list[KnownAction]:
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


def population(tx: Transaction, kind: ActionKind) -> int:
    """Return how many subjects an action of a kind could have."""
    table = {"subscription": "subscriptions", "token": "tokens", "server": "servers"}[kind.subject]
    [[count]] = tx.query(f"SELECT COUNT(*) FROM {table}")
    return int(count)


class ActionSubject(NamedTuple):
    """A possible subject. `hashed` is what its hash in the journal is made of."""

    entity: bytes
    hashed: bytes


def subjects(tx: Transaction, column: str, after: bytes, limit: int) -> list[ActionSubject]:
    """Return a page of what hashes of a journal's column may stand for, by ID."""
    if column == "server":
        rows = tx.query("SELECT server_id, address FROM servers ORDER BY server_id")
        keyed = [
            ActionSubject(b"%020d" % server_id, address.encode()) for server_id, address in rows
        ]
        return [item for item in keyed if item.entity > after][:limit]
    table = {"subscription": "subscriptions", "token": "tokens"}[column]
    rows = tx.query(
        f"SELECT {column}_id FROM {table} WHERE {column}_id > ? ORDER BY {column}_id LIMIT ?",
        (after, limit),
    )
    return [ActionSubject(bytes(entity), bytes(entity)) for (entity,) in rows]


def address_of(tx: Transaction, subject: bytes) -> bytes:
    """Return the address of a messaging router that is a subject; empty if it is gone."""
    rows = tx.query("SELECT address FROM servers WHERE server_id = ?", (int(subject),))
    return rows[0][0].encode() if rows else b""


@dataclass(frozen=True, slots=True)
class DailyCap:
    """How many actions of a kind may be applied in a day: a share of all subjects, or `least`."""

    percent: float
    least: int

    def of(self, population: int) -> int:
        return max(int(population * self.percent / 100), self.least)


class ResolvedAction(NamedTuple):
    """An action whose hash was resolved. `subject` is an ID of the store."""

    action_id: str
    kind: ActionKind
    subject: bytes


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
    return _decide_batch(tx, batch, caps, now, lambda item: _refusal(tx, item) or Applied())


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
        kind: caps[kind].of(population(tx, kind)) - count_since(tx, kind, now - DAY)
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
    refusal = _refusal(tx, item)
    if refusal is not None:
        return refusal
    applied, removed = _APPLY[item.kind](tx, item.subject)
    tx.execute(
        "INSERT INTO actions"
        " (action_id, kind, subject, state, applied_at, is_recorded, removed)"
        " VALUES (?, ?, ?, ?, ?, 0, ?)",
        (item.action_id, item.kind.value, item.subject, ActionState.APPLIED.value, now, removed),
    )
    return applied


def _refusal(tx: Transaction, item: ResolvedAction) -> Refusal | None:
    """Return why the store does not agree with an action."""
    if item.kind.subject != "subscription":
        return None
    found = _find_subscription(tx, item.subject)
    if found is None:
        return Refusal.UNKNOWN_SUBJECT
    subscription, token_status = found
    if item.kind is ActionKind.RESUBSCRIBE:
        is_agreed = token_status is TokenStatus.ACTIVE
    else:
        is_agreed = subscription.status.state in _GONE
    return None if is_agreed else Refusal.DISAGREED


def undo(tx: Transaction, action_id: str) -> Applied | Refusal | None:
    """Restore what an action removed; None if there is nothing to undo.

    `Refusal.DISAGREED` if it cannot be restored: its token is gone, or the queue is subscribed.
    """
    rows = tx.query("SELECT kind, state, removed FROM actions WHERE action_id = ?", (action_id,))
    for kind, state, removed in rows:
        if not ActionKind(kind).is_reversible or state == ActionState.UNDONE.value:
            return None
        restored = _restore_subscription(tx, bytes(removed))
        if isinstance(restored, Applied):
            tx.execute(
                "UPDATE actions SET state = ?, is_recorded = 0, removed = ? WHERE action_id = ?",
                (ActionState.UNDONE.value, b"", action_id),
            )
        return restored
    return None


def unrecorded(tx: Transaction, limit: int) -> list[tuple[KnownAction, Subscription | None]]:
    """Return actions whose events may have been lost in a kill, and what each deleted."""
    rows = tx.query(
        "SELECT action_id, kind, subject, state, applied_at, removed FROM actions"
        " WHERE is_recorded = 0 ORDER BY action_id LIMIT ?",
        (limit,),
    )
    return [
        (_known(row[:-1]), _removed_subscription(bytes(row[-1])) if row[-1] else None)
        for row in rows
    ]


def set_recorded(tx: Transaction, action_ids: Sequence[str]) -> None:
    """Mark actions as recorded in the journal."""
    tx.many(
        "UPDATE actions SET is_recorded = 1 WHERE action_id = ?", [(item,) for item in action_ids]
    )


def forget(tx: Transaction, before: int) -> None:
    """Remove the rows of actions that were applied before a time: they cannot be undone then."""
    tx.execute("DELETE FROM actions WHERE applied_at <= ?", (before,))


def _resubscribe(tx: Transaction, subject: bytes) -> tuple[Applied, bytes]:
    [subscription], _ = subscriptions.find_many(tx, [subject])
    state = subscription.status.state
    if state in _NOT_SUBSCRIBED:
        # So that it is subscribed after a kill, too.
        status = NtfSubStatus(SubscriptionState.PENDING)
        subscriptions.set_statuses(
            tx, subscription.server_id, [(subscription.notifier_id, status, False)]
        )
    server = subscriptions.server(tx, subscription.server_id)
    queue = Added(subscription, server, is_new=False)
    return Applied(queue, state is SubscriptionState.ACTIVE), b""


def _delete_orphan(tx: Transaction, subject: bytes) -> tuple[Applied, bytes]:
    [subscription], _ = subscriptions.find_many(tx, [subject])
    removed = json.dumps(
        {
            "subscription_id": subject.hex(),
            "token_id": subscription.token_id.hex(),
            "address": subscriptions.server(tx, subscription.server_id).address,
            "notifier_id": subscription.notifier_id.hex(),
            "notifier_key": subscription.notifier_key.hex(),
            "state": subscription.status.state.value,
        }
    )
    subscriptions.delete(tx, subject)
    return Applied(), removed.encode()


def _report(tx: Transaction, subject: bytes) -> tuple[Applied, bytes]:
    return Applied(), b""


_APPLY: dict[ActionKind, Callable[[Transaction, bytes], tuple[Applied, bytes]]] = {
    ActionKind.RESUBSCRIBE: _resubscribe,
    ActionKind.DELETE_ORPHAN: _delete_orphan,
    ActionKind.REPORT: _report,
}


def _find_subscription(
    tx: Transaction, subscription_id: bytes
) -> tuple[Subscription, TokenStatus] | None:
    found, _ = subscriptions.find_many(tx, [subscription_id])
    for subscription in found:
        rows = tx.query("SELECT status FROM tokens WHERE token_id = ?", (subscription.token_id,))
        for (status,) in rows:
            return subscription, TokenStatus(status)
    return None


def _removed_subscription(removed: bytes) -> Subscription:
    row = json.loads(removed)
    return Subscription(
        bytes.fromhex(row["subscription_id"]),
        bytes.fromhex(row["token_id"]),
        0,
        bytes.fromhex(row["notifier_id"]),
        bytes.fromhex(row["notifier_key"]),
        NtfSubStatus(SubscriptionState(row["state"])),
    )


def _restore_subscription(tx: Transaction, removed: bytes) -> Applied | Refusal:
    old = _removed_subscription(removed)
    address = json.loads(removed)["address"]
    new = subscriptions.NewSubscription(
        old.subscription_id, old.token_id, address, old.notifier_id, old.notifier_key
    )
    added = subscriptions.add(tx, new)
    if isinstance(added, subscriptions.SubscriptionRefusal) or not added.is_new:
        return Refusal.DISAGREED
    subscriptions.set_statuses(tx, added.server.server_id, [(old.notifier_id, old.status, False)])
    return Applied()
