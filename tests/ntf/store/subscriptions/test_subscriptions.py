import os
from dataclasses import replace

import pytest

from heliograph.db.dialects import Transaction
from heliograph.ntf.store import tokens
from heliograph.ntf.store.records import QueueKey, Token
from heliograph.ntf.store.subscriptions import associations, servers, subscriptions
from heliograph.ntf.store.subscriptions.servers import ServerRecord
from heliograph.ntf.store.subscriptions.subscriptions import (
    Added,
    NewSubscription,
    SubscriptionRefusal,
)
from heliograph.wire.ntf.tokens import NtfSubStatus, SubscriptionState, TokenStatus
from tests.ntf.support import a_new_token

ADDRESS = "smp://LcJUMfVhwD8yxjAiSaDzzGF3-kLG4Uh0Fl_ZIjrRwjI=@smp.example.com"
OTHER = ADDRESS.replace("smp.ex", "other.ex")
ACTIVE = NtfSubStatus(SubscriptionState.ACTIVE)
PENDING = NtfSubStatus(SubscriptionState.PENDING)
OF_TOKEN = "SELECT 1 FROM subscriptions WHERE token_id = ?"


@pytest.fixture
def token(tx: Transaction) -> Token:
    return an_active_token(tx)


def an_active_token(tx: Transaction) -> Token:
    new = a_new_token()
    tokens.register(tx, new, 1, 0, 1)
    token, _ = tokens.verify(tx, new.token_id, new.code)
    assert token is not None
    return token


def new(token: Token, address: str = ADDRESS) -> NewSubscription:
    return NewSubscription(os.urandom(24), token.token_id, address, os.urandom(24), os.urandom(48))


def add(tx: Transaction, new: NewSubscription) -> Added:
    added = subscriptions.add(tx, new)
    assert isinstance(added, Added)
    return added


def state(tx: Transaction, new: NewSubscription) -> tuple[SubscriptionState, bytes, bool]:
    [found], _ = subscriptions.find_many(tx, [new.subscription_id])
    return found.status.state, found.status.error, found.associated


def test_a_new_one_is_pending(tx: Transaction, token: Token) -> None:
    one = new(token)
    added = add(tx, one)
    assert added.is_new
    assert added.server == ServerRecord(1, ADDRESS)
    assert added.subscription.status == PENDING
    assert subscriptions.find_many(tx, [one.subscription_id, b"no"])[0] == [added.subscription]


def test_the_same_again_is_the_same(tx: Transaction, token: Token) -> None:
    one = new(token)
    first = add(tx, one)
    again = add(tx, replace(one, subscription_id=os.urandom(24)))
    assert again == Added(first.subscription, first.server, is_new=False)


def test_another_token_or_key_is_refused(tx: Transaction, token: Token) -> None:
    one, other = new(token), an_active_token(tx)
    add(tx, one)
    values = (os.urandom(24), token.token_id, ADDRESS, one.notifier_id)
    assert (
        subscriptions.add(tx, NewSubscription(*values, b"another key"))
        is SubscriptionRefusal.NOT_ALLOWED
    )
    stolen = NewSubscription(
        os.urandom(24), other.token_id, ADDRESS, one.notifier_id, one.notifier_key
    )
    assert subscriptions.add(tx, stolen) is SubscriptionRefusal.NOT_ALLOWED
    elsewhere = NewSubscription(
        os.urandom(24), other.token_id, OTHER, one.notifier_id, one.notifier_key
    )
    assert add(tx, elsewhere).is_new


@pytest.mark.parametrize("status", TokenStatus)
def test_the_status_of_the_token_decides(
    tx: Transaction, token: Token, status: TokenStatus
) -> None:
    tx.execute("UPDATE tokens SET status = ?", (status.value,))
    allowed = status in (TokenStatus.ACTIVE, TokenStatus.EXPIRED) or status.is_invalid
    assert isinstance(subscriptions.add(tx, new(token)), Added) == allowed


def test_a_deleted_token_gets_none(tx: Transaction, token: Token) -> None:
    tokens.delete(tx, token.token_id)
    assert subscriptions.add(tx, new(token)) is SubscriptionRefusal.NOT_ALLOWED
    assert not tx.query("SELECT 1 FROM servers")


def test_the_limit_is_for_new_ones_of_the_token(tx: Transaction, token: Token) -> None:
    first = new(token)
    assert isinstance(subscriptions.add(tx, first, limit=1), Added)
    assert subscriptions.add(tx, new(token, OTHER), limit=1) is SubscriptionRefusal.TOO_MANY
    assert isinstance(subscriptions.add(tx, first, limit=1), Added)
    assert isinstance(subscriptions.add(tx, new(an_active_token(tx)), limit=1), Added)
    assert len(tx.query(OF_TOKEN, (token.token_id,))) == 1
    assert [server.address for server in servers.in_use(tx)] == [ADDRESS]


def test_many_are_as_each_by_itself(tx: Transaction, token: Token) -> None:
    """Also those that are there twice, and those that the others leave no room for."""
    other = an_active_token(tx)
    known, first, second, third = new(token), new(token), new(token, OTHER), new(token)
    add(tx, known)
    again = replace(first, subscription_id=os.urandom(24))
    stolen = replace(first, subscription_id=os.urandom(24), token_id=other.token_id)
    nobodys = replace(new(token), token_id=os.urandom(24))
    elsewhere = replace(known, subscription_id=os.urandom(24), address=OTHER)
    many = [
        known,
        first,
        again,
        stolen,
        nobodys,
        second,
        third,
        replace(third, token_id=other.token_id),
        elsewhere,
    ]
    results = subscriptions.add_many(tx, many, limit=3)
    found = [
        (result.is_new, result.server.address, result.subscription.subscription_id)
        if isinstance(result, Added)
        else result
        for result in results
    ]
    assert found == [
        (False, ADDRESS, known.subscription_id),
        (True, ADDRESS, first.subscription_id),
        (False, ADDRESS, first.subscription_id),
        SubscriptionRefusal.NOT_ALLOWED,
        SubscriptionRefusal.NOT_ALLOWED,
        (True, OTHER, second.subscription_id),
        SubscriptionRefusal.TOO_MANY,
        (True, ADDRESS, third.subscription_id),
        SubscriptionRefusal.TOO_MANY,
    ]
    assert len(tx.query(OF_TOKEN, (token.token_id,))) == 3
    assert [state(tx, item)[0] for item in (first, second)] == [SubscriptionState.PENDING] * 2
    [kept], _ = subscriptions.find_many(tx, [third.subscription_id])
    assert kept.token_id == other.token_id
    assert subscriptions.add_many(tx, []) == []


def test_pages_are_in_order_and_complete(tx: Transaction, token: Token) -> None:
    made = [new(token) for _ in range(25)]
    for one in made:
        add(tx, one)
    add(tx, new(token, OTHER))
    expected = [
        QueueKey(one.subscription_id, one.notifier_id, one.notifier_key)
        for one in sorted(made, key=lambda one: one.subscription_id)
    ]
    found: list[QueueKey] = []
    while page := subscriptions.page(
        tx, 1, found[-1].subscription_id if found else b"", 10, associated=None
    ):
        found += page
    assert found == expected


@pytest.mark.parametrize("kind", SubscriptionState)
def test_what_is_over_is_not_subscribed_again(
    tx: Transaction, token: Token, kind: SubscriptionState
) -> None:
    one = new(token)
    add(tx, one)
    status = NtfSubStatus(kind, b"SMP error QUOTA" if kind is SubscriptionState.ERR else b"")
    subscriptions.set_statuses(tx, 1, [(one.notifier_id, status, False)])
    assert state(tx, one) == (kind, status.error, False)
    over = kind in (SubscriptionState.END, SubscriptionState.DELETED, SubscriptionState.AUTH)
    assert bool(subscriptions.page(tx, 1, b"", 10, associated=None)) != over


def test_association_is_paged_and_counted_apart(tx: Transaction, token: Token) -> None:
    alone, associated = new(token), new(token)
    for one in (alone, associated):
        add(tx, one)
    subscriptions.set_statuses(tx, 1, [(associated.notifier_id, ACTIVE, True)])
    pages = {
        which: {item.notifier_id for item in subscriptions.page(tx, 1, b"", 9, associated=which)}
        for which in (None, False, True)
    }
    both = {alone.notifier_id, associated.notifier_id}
    assert pages == {None: both, False: {alone.notifier_id}, True: {associated.notifier_id}}
    assert associations.associated(tx, 1).active == [associated.notifier_id]
    servers.set_service(tx, 1, b"chain", b"key", b"service")
    assert servers.find(tx, 1) == ServerRecord(1, ADDRESS, b"chain", b"key", b"service")
    associations.clear(tx, 1)
    assert associations.associated(tx, 1).active == []
    assert servers.find(tx, 1) == ServerRecord(1, ADDRESS)


@pytest.mark.parametrize("kind", [SubscriptionState.END, SubscriptionState.DELETED])
def test_what_ended_is_no_longer_the_service_s(
    tx: Transaction, token: Token, kind: SubscriptionState
) -> None:
    one, other = new(token), new(token)
    for item in (one, other):
        add(tx, item)
        subscriptions.set_statuses(tx, 1, [(item.notifier_id, ACTIVE, True)])
    subscriptions.set_ended(tx, 1, [one.notifier_id, b"nobody"], kind)
    assert state(tx, one) == (kind, b"", False)
    assert state(tx, other) == (SubscriptionState.ACTIVE, b"", True)


def test_only_the_first_end_is_news(tx: Transaction, token: Token) -> None:
    """A router that repeats it, or ends what it deleted, has said nothing."""
    one = new(token)
    subscription_id = add(tx, one).subscription.subscription_id
    ended, deleted = SubscriptionState.END, SubscriptionState.DELETED
    ids = [one.notifier_id] * 2
    assert subscriptions.set_ended(tx, 1, ids, ended) == [subscription_id]
    assert subscriptions.set_ended(tx, 1, ids, ended) == []
    assert subscriptions.set_ended(tx, 1, ids, deleted) == [subscription_id]
    assert subscriptions.set_ended(tx, 1, ids, ended) == []
    assert state(tx, one) == (deleted, b"", False)


def test_a_disconnection_concerns_what_was_active(tx: Transaction, token: Token) -> None:
    made = {kind: new(token) for kind in SubscriptionState}
    for kind, one in made.items():
        add(tx, one)
        subscriptions.set_statuses(tx, 1, [(one.notifier_id, NtfSubStatus(kind), False)])
    inactive = SubscriptionState.INACTIVE
    subscriptions.replace_state(tx, 1, SubscriptionState.ACTIVE, inactive)
    for kind, one in made.items():
        expected = inactive if kind is SubscriptionState.ACTIVE else kind
        assert state(tx, one)[0] is expected


def test_a_start_makes_all_inactive(tx: Transaction, token: Token) -> None:
    one, other = new(token), new(token, OTHER)
    for item, server_id in ((one, 1), (other, 2)):
        add(tx, item)
        subscriptions.set_statuses(tx, server_id, [(item.notifier_id, ACTIVE, True)])
    subscriptions.all_inactive(tx)
    assert {state(tx, one), state(tx, other)} == {(SubscriptionState.INACTIVE, b"", True)}


def test_confirming_concerns_what_is_inactive_in_the_span(tx: Transaction, token: Token) -> None:
    made = {kind: new(token) for kind in SubscriptionState}
    before, inside, associated, after = (new(token) for _ in range(4))
    ids = sorted(os.urandom(24) for _ in range(len(made) + 4))
    spread = [before, inside, *made.values(), associated, after]
    named = [
        replace(item, subscription_id=new_id) for item, new_id in zip(spread, ids, strict=True)
    ]
    kinds = [SubscriptionState.INACTIVE] * 2 + list(made) + [SubscriptionState.INACTIVE] * 2
    for item, kind in zip(named, kinds, strict=True):
        add(tx, item)
        status = NtfSubStatus(kind)
        subscriptions.set_statuses(tx, 1, [(item.notifier_id, status, item is named[-2])])
    elsewhere = replace(new(token, OTHER), subscription_id=ids[1][:-1] + bytes([ids[1][-1] ^ 1]))
    add(tx, elsewhere)
    subscriptions.replace_state(tx, 2, SubscriptionState.PENDING, SubscriptionState.INACTIVE)

    assert {
        item.subscription_id
        for item in subscriptions.page(tx, 1, b"", 99, associated=None)
        if item.is_inactive
    } == {
        item.subscription_id
        for item, kind in zip(named, kinds, strict=True)
        if kind is SubscriptionState.INACTIVE
    }
    subscriptions.mark_active(tx, 1, ids[1], ids[-2], False, associated=False)
    found = [state(tx, item) for item in named]
    confirmed = {1, 2 + list(made).index(SubscriptionState.INACTIVE)}
    for place, (kind, is_now) in enumerate(zip(kinds, found, strict=True)):
        expected = SubscriptionState.ACTIVE if place in confirmed else kind
        assert is_now == (expected, b"", place == len(named) - 2)
    assert state(tx, elsewhere)[0] is SubscriptionState.INACTIVE
    subscriptions.mark_active(tx, 1, ids[-2], ids[-1], None, associated=True)
    assert [state(tx, item) for item in named[-2:]] == [(SubscriptionState.ACTIVE, b"", True)] * 2


def test_a_refused_router(tx: Transaction, token: Token) -> None:
    one, over = new(token), new(token)
    for item in (one, over):
        add(tx, item)
    subscriptions.set_ended(tx, 1, [over.notifier_id], SubscriptionState.END)
    subscriptions.refuse(tx, 1, b"private")
    assert state(tx, one) == (SubscriptionState.ERR, b"private", False)
    assert state(tx, over) == (SubscriptionState.END, b"", False)


def test_a_long_error_of_a_messaging_router_is_cut(tx: Transaction, token: Token) -> None:
    item = add(tx, new(token)).subscription
    status = NtfSubStatus(SubscriptionState.ERR, b"x" * 1_000)
    subscriptions.set_statuses(tx, item.server_id, [(item.notifier_id, status, False)])
    [found], _ = subscriptions.find_many(tx, [item.subscription_id])
    assert found.status.error == b"x" * subscriptions.MAX_ERROR
