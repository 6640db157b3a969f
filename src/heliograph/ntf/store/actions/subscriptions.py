"""Actions about subscriptions: `resubscribe` and `delete_orphan`."""

import json

from heliograph.actions.contract import ActionKind, Refusal
from heliograph.db.dialects import Transaction
from heliograph.ntf.store.actions.rules import ActionRule, Applied, ResolvedAction
from heliograph.ntf.store.records import Subscription
from heliograph.ntf.store.subscriptions import servers, subscriptions
from heliograph.ntf.store.subscriptions.subscriptions import Added
from heliograph.wire.ntf.tokens import NtfSubStatus, SubscriptionState, TokenStatus

__all__ = ["RULES"]

_GONE = (SubscriptionState.AUTH, SubscriptionState.DELETED)
"""States in which the messaging router has no such queue, as far as it said."""
_NOT_SUBSCRIBED = (*_GONE, SubscriptionState.END)
"""States in which a queue is not subscribed after a reconnection."""


def _refuse_resubscribe(tx: Transaction, item: ResolvedAction, now: int) -> Refusal | None:
    found = _find(tx, item.subject)
    if found is None:
        return Refusal.UNKNOWN_SUBJECT
    return None if found[1] is TokenStatus.ACTIVE else Refusal.DISAGREED


def _resubscribe(tx: Transaction, item: ResolvedAction, now: int) -> tuple[Applied, bytes]:
    [subscription], _ = subscriptions.find_many(tx, [item.subject])
    state = subscription.status.state
    if state in _NOT_SUBSCRIBED:
        # So that it is subscribed after a kill, too.
        status = NtfSubStatus(SubscriptionState.PENDING)
        subscriptions.set_statuses(
            tx, subscription.server_id, [(subscription.notifier_id, status, False)]
        )
    server = servers.find(tx, subscription.server_id)
    queue = Added(subscription, server, is_new=False)
    return Applied((queue,), state is SubscriptionState.ACTIVE), b""


def _refuse_delete(tx: Transaction, item: ResolvedAction, now: int) -> Refusal | None:
    found = _find(tx, item.subject)
    if found is None:
        return Refusal.UNKNOWN_SUBJECT
    return None if found[0].status.state in _GONE else Refusal.DISAGREED


def _delete(tx: Transaction, item: ResolvedAction, now: int) -> tuple[Applied, bytes]:
    [subscription], _ = subscriptions.find_many(tx, [item.subject])
    removed = json.dumps(
        {
            "subscription_id": item.subject.hex(),
            "token_id": subscription.token_id.hex(),
            "address": servers.find(tx, subscription.server_id).address,
            "notifier_id": subscription.notifier_id.hex(),
            "notifier_key": subscription.notifier_key.hex(),
            "state": subscription.status.state.value,
        }
    )
    subscriptions.delete(tx, item.subject)
    return Applied(), removed.encode()


def _deleted(removed: bytes) -> tuple[Subscription, ...]:
    row = json.loads(removed)
    return (
        Subscription(
            bytes.fromhex(row["subscription_id"]),
            bytes.fromhex(row["token_id"]),
            0,
            bytes.fromhex(row["notifier_id"]),
            bytes.fromhex(row["notifier_key"]),
            NtfSubStatus(SubscriptionState(row["state"])),
        ),
    )


def _restore(tx: Transaction, removed: bytes, now: int) -> Applied | Refusal:
    """Refuse with `DISAGREED` if its token is gone, or the queue is subscribed."""
    [old] = _deleted(removed)
    address = json.loads(removed)["address"]
    new = subscriptions.NewSubscription(
        old.subscription_id, old.token_id, address, old.notifier_id, old.notifier_key
    )
    added = subscriptions.add(tx, new)
    if isinstance(added, subscriptions.SubscriptionRefusal) or not added.is_new:
        return Refusal.DISAGREED
    subscriptions.set_statuses(tx, added.server.server_id, [(old.notifier_id, old.status, False)])
    return Applied()


def _find(tx: Transaction, subscription_id: bytes) -> tuple[Subscription, TokenStatus] | None:
    found, _ = subscriptions.find_many(tx, [subscription_id])
    for subscription in found:
        rows = tx.query("SELECT status FROM tokens WHERE token_id = ?", (subscription.token_id,))
        for (status,) in rows:
            return subscription, TokenStatus(status)
    return None


RULES = {
    ActionKind.RESUBSCRIBE: ActionRule(_resubscribe, _refuse_resubscribe),
    ActionKind.DELETE_ORPHAN: ActionRule(_delete, _refuse_delete, _restore, _deleted),
}
