"""Queues that a messaging router counts as those of our service."""

from heliograph.db.dialects import Transaction
from heliograph.ntf.store import tokens
from heliograph.ntf.store.subscriptions import associations, subscriptions
from heliograph.wire.ntf.tokens import SubscriptionState
from heliograph.wire.smp.ids import ids_hash
from tests.ntf.store.subscriptions.test_subscriptions import ACTIVE, add, an_active_token, new


def test_what_was_deleted_here_is_still_expected_at_the_router(tx: Transaction) -> None:
    token = an_active_token(tx)
    added = [add(tx, new(token)).subscription for _ in range(4)]
    ids = [item.notifier_id for item in added]
    subscriptions.set_statuses(tx, 1, [(each, ACTIVE, True) for each in ids[:3]])
    whole = associations.associated(tx, 1).digest()
    assert whole == (3, ids_hash(ids[:3]))
    for item in (added[0], added[3]):
        subscriptions.delete(tx, item.subscription_id)
    found = associations.associated(tx, 1)
    assert (set(found.active), found.deleted) == (set(ids[1:3]), ids[:1])
    assert found.digest() == whole
    subscriptions.set_ended(tx, 1, ids[:1], SubscriptionState.DELETED)
    assert associations.associated(tx, 1).digest() == (2, ids_hash(ids[1:3]))
    tokens.delete(tx, token.token_id)
    assert associations.associated(tx, 1).digest() == (2, ids_hash(ids[1:3]))


def test_one_that_is_subscribed_again_counts_once(tx: Transaction) -> None:
    token = an_active_token(tx)
    one = new(token)
    for _ in range(2):
        add(tx, one)
        subscriptions.set_statuses(tx, 1, [(one.notifier_id, ACTIVE, True)])
        assert associations.associated(tx, 1).digest() == (1, ids_hash([one.notifier_id]))
        subscriptions.delete(tx, one.subscription_id)
    assert associations.associated(tx, 1).digest() == (1, ids_hash([one.notifier_id]))


def test_a_surplus_replaces_what_was_deleted(tx: Transaction) -> None:
    token = an_active_token(tx)
    one = new(token)
    add(tx, one)
    subscriptions.set_statuses(tx, 1, [(one.notifier_id, ACTIVE, True)])
    subscriptions.delete(tx, one.subscription_id)
    associations.set_surplus(tx, 1, 5, ids_hash([b"a"]))
    assert associations.associated(tx, 1).digest() == (5, ids_hash([b"a"]))
    associations.clear(tx, 1)
    assert associations.associated(tx, 1).digest() == (0, bytes(16))
