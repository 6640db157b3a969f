import os

import pytest

from heliograph.db.dialects import Transaction
from heliograph.db.sql import MAX_IN
from heliograph.ntf.store import pending, receiving, tokens
from heliograph.ntf.store.pending import MarkAccepted, MarkInvalid, MarkRetry
from heliograph.ntf.store.records import Incoming, PushKind, Token
from heliograph.ntf.store.subscriptions import subscriptions
from heliograph.ntf.store.subscriptions.subscriptions import Added, NewSubscription
from heliograph.wire.ntf.push import MAX_PUSH_MESSAGES
from heliograph.wire.ntf.tokens import InvalidReason, PushProvider, TokenStatus
from tests.ntf.support import a_device, a_new_token

NOW, TTL = 1_000_000_000, 60_000
SERVER = 1
ADDRESS = "smp://LcJUMfVhwD8yxjAiSaDzzGF3-kLG4Uh0Fl_ZIjrRwjI=@smp.example.com"
MESSAGE, VERIFICATION = PushKind.MESSAGE, PushKind.VERIFICATION


def an_active_token(
    tx: Transaction, provider: PushProvider = PushProvider.APNS_TEST, *, verified: bool = True
) -> Token:
    token = tokens.register(tx, a_new_token(a_device(provider)), 1, NOW, NOW + TTL)
    assert token is not None
    if verified:
        tokens.verify(tx, token.token_id, token.code)
        pending.apply(tx, [MarkAccepted(token.token_id, VERIFICATION, 1)])
    return token


def subscribe(tx: Transaction, token: Token, count: int = 1) -> list[bytes]:
    ids = [os.urandom(24) for _ in range(count)]
    for notifier_id in ids:
        new = NewSubscription(os.urandom(24), token.token_id, ADDRESS, notifier_id, b"key")
        assert isinstance(subscriptions.add(tx, new), Added)
    return ids


def nmsg(notifier_id: bytes, at: float = 1.0) -> Incoming:
    return Incoming(notifier_id, os.urandom(24), os.urandom(16), at)


def receive(
    tx: Transaction, *incoming: Incoming, seq: int = 10, now: int = NOW, server: int = SERVER
) -> receiving.StoredBatch:
    seqs = range(seq, seq + len(incoming))
    return receiving.receive(tx, server, incoming, seqs, now, now + TTL)


def rows(tx: Transaction, kind: PushKind = MESSAGE) -> dict[bytes, tuple[int, int, int, int]]:
    found = tx.query(
        "SELECT token_id, seq, attempts, next_at, expires_at FROM pending_pushes WHERE kind = ?",
        (kind.value,),
    )
    return {token_id: (seq, attempts, at, end) for token_id, seq, attempts, at, end in found}


def test_a_notification_is_pending(tx: Transaction) -> None:
    token = an_active_token(tx)
    [queue] = subscribe(tx, token)
    incoming = nmsg(queue, 123.9)
    [push], unknown, *_ = receive(tx, incoming)
    assert unknown == 0
    assert (push.token_id, push.kind, push.seq) == (token.token_id, MESSAGE, 10)
    assert (push.device, push.dh_secret) == (token.device, token.dh_secret)
    assert (push.since, push.expires_at) == (NOW / 1000, (NOW + TTL) / 1000)
    [notice] = push.notices
    assert notice == (10, ADDRESS, queue, 123, incoming.nonce, incoming.meta)
    assert pending.due(tx, "apns_test", NOW, 9) == [push]
    assert pending.page(tx, pending.FIRST_PAGE, 9)[0] == [push]


def test_a_batch_is_one_push_per_token_with_the_last_of_each_queue(tx: Transaction) -> None:
    first, second = an_active_token(tx), an_active_token(tx)
    queues, [other] = subscribe(tx, first, 3), subscribe(tx, second)
    incoming = [nmsg(queues[index % 3]) for index in range(9)] + [nmsg(other)]
    stored = receive(tx, *incoming, seq=100)
    by_token = {push.token_id: push for push in stored.pushes}
    assert by_token.keys() == {first.token_id, second.token_id}
    assert [item.seq for item in by_token[first.token_id].notices] == [106, 107, 108]
    assert [item.nonce for item in by_token[first.token_id].notices] == [
        item.nonce for item in incoming[6:9]
    ]
    assert by_token[first.token_id].seq == 108
    assert by_token[second.token_id].seq == 109


def test_the_six_newest_are_kept_oldest_first(tx: Transaction) -> None:
    token = an_active_token(tx)
    queues = subscribe(tx, token, 9)
    for seq, queue in enumerate(queues):
        receive(tx, nmsg(queue), seq=seq + 10)
    [push], *_ = receive(tx, nmsg(queues[0]), seq=50)
    assert [item.notifier_id for item in push.notices] == [*queues[4:9], queues[0]]
    [[kept]] = tx.query("SELECT COUNT(*) FROM last_notifications")
    assert kept == MAX_PUSH_MESSAGES


def test_many_tokens_at_once(tx: Transaction) -> None:
    made = [an_active_token(tx) for _ in range(12)]
    queues = [subscribe(tx, token)[0] for token in made] * (MAX_IN // 10)
    stored = receive(tx, *map(nmsg, queues))
    assert len(queues) > MAX_IN
    assert {push.token_id for push in stored.pushes} == {token.token_id for token in made}


def test_what_is_for_nobody_is_counted(tx: Transaction) -> None:
    token = an_active_token(tx)
    [queue] = subscribe(tx, token)
    stored = receive(tx, nmsg(b"nobody"), nmsg(queue), nmsg(b"nobody"))
    assert (len(stored.pushes), stored.undeliverable) == (1, 2)
    assert [item.outcome.value for item in stored.received] == ["unknown", "stored", "unknown"]
    assert receive(tx, nmsg(queue), server=2)[:2] == ([], 1)


@pytest.mark.parametrize("status", TokenStatus)
def test_the_status_decides(tx: Transaction, status: TokenStatus) -> None:
    """Only active tokens are pushed to; what comes before the code was sent back is kept."""
    token = an_active_token(tx)
    [queue] = subscribe(tx, token)
    tx.execute("UPDATE tokens SET status = ?", (status.value,))
    stored = receive(tx, nmsg(queue))
    kept = status in (TokenStatus.REGISTERED, TokenStatus.CONFIRMED, TokenStatus.ACTIVE)
    assert bool(stored.pushes) == (status is TokenStatus.ACTIVE)
    assert bool(pending.due(tx, "apns_test", NOW, 9)) == (status is TokenStatus.ACTIVE)
    assert stored.undeliverable == (not kept)
    assert bool(rows(tx)) == kept


def test_what_came_before_the_code_is_pending_after_it(tx: Transaction) -> None:
    token = an_active_token(tx)
    [queue] = subscribe(tx, token)
    device, code = a_device(), os.urandom(32)
    tokens.replace_device(tx, token.token_id, device, code, 2, NOW, NOW + TTL)
    assert receive(tx, nmsg(queue)).pushes == []
    tokens.verify(tx, token.token_id, code)
    [push] = pending.due_for(tx, [token.token_id], NOW, MESSAGE)
    assert push.device == device
    assert len(push.notices) == 1


def test_what_is_accepted_is_no_longer_pending(tx: Transaction) -> None:
    token = an_active_token(tx)
    [queue] = subscribe(tx, token)
    [push], *_ = receive(tx, nmsg(queue))
    assert pending.apply(tx, [MarkAccepted(token.token_id, MESSAGE, push.seq)]) == []
    assert not rows(tx)
    [again], *_ = receive(tx, nmsg(queue), seq=11)
    assert (again.seq, again.attempts) == (11, 0)


def test_what_came_while_its_push_was_in_flight_is_pending(tx: Transaction) -> None:
    token = an_active_token(tx)
    [queue] = subscribe(tx, token)
    [push], *_ = receive(tx, nmsg(queue))
    receive(tx, nmsg(queue), seq=11, now=NOW + 5)
    pending.apply(tx, [MarkAccepted(token.token_id, MESSAGE, push.seq)])
    assert rows(tx) == {token.token_id: (11, 0, NOW, NOW + 5 + TTL)}


def test_what_is_repeated_is_not_news(tx: Transaction) -> None:
    token = an_active_token(tx)
    first, second = subscribe(tx, token, 2)
    incoming = [nmsg(first), nmsg(second), nmsg(first)]
    [push], *_ = receive(tx, *incoming)
    again = receive(tx, *incoming, seq=20)
    assert again[:2] == ([], 0)  # pending already
    assert {item.outcome.value for item in again.received} == {"repeated"}
    assert rows(tx)[token.token_id][0] == push.seq
    pending.apply(tx, [MarkAccepted(token.token_id, MESSAGE, push.seq)])
    assert receive(tx, *incoming, seq=30)[:2] == ([], 0)
    assert not rows(tx)
    news = nmsg(second)
    [push], *_ = receive(tx, *incoming, news, seq=40)
    assert [item.nonce for item in push.notices] == [incoming[2].nonce, news.nonce]
    assert [item.seq for item in push.notices] == [12, 43]


def test_a_delayed_action_is_not_sent_sooner(tx: Transaction) -> None:
    token = an_active_token(tx)
    [queue] = subscribe(tx, token)
    receive(tx, nmsg(queue))
    pending.apply(tx, [MarkRetry(token.token_id, MESSAGE, token.device, 10, 3, NOW + 100)])
    assert pending.due(tx, "apns_test", NOW + 99, 9) == []
    assert receive(tx, nmsg(queue), seq=11, now=NOW + 50).pushes == []
    assert pending.next_due(tx, ["apns_test", "apns_prod"], NOW) == NOW + 100
    assert pending.next_due(tx, ["apns_prod"], NOW) is None
    [push] = pending.due(tx, "apns_test", NOW + 100, 9)
    assert (push.seq, push.attempts, push.since) == (11, 3, NOW / 1000)
    assert pending.next_due(tx, ["apns_test"], NOW + 100) is None


def test_the_longest_due_come_first(tx: Transaction) -> None:
    made = [an_active_token(tx) for _ in range(5)]
    for number, token in enumerate(made):
        [queue] = subscribe(tx, token)
        receive(tx, nmsg(queue), seq=10 + number)
        at = NOW - number * 10
        pending.apply(tx, [MarkRetry(token.token_id, MESSAGE, token.device, 10 + number, 1, at)])
    found = [push.token_id for push in pending.due(tx, "apns_test", NOW, 3)]
    assert found == [token.token_id for token in reversed(made[2:])]


def test_providers_are_apart(tx: Transaction) -> None:
    kinds = (PushProvider.APNS_TEST, PushProvider.APNS_PROD)
    for kind in kinds:
        [queue] = subscribe(tx, an_active_token(tx, kind))
        receive(tx, nmsg(queue))
    for kind in kinds:
        [push] = pending.due(tx, kind.text, NOW, 9)
        assert push.device.provider is kind
    assert pending.due(tx, "firebase", NOW, 9) == []


def test_pending_pushes_expire(tx: Transaction) -> None:
    token = an_active_token(tx)
    [queue] = subscribe(tx, token)
    receive(tx, nmsg(queue))
    assert pending.expire(tx, NOW + TTL - 1) == []
    assert pending.due(tx, "apns_test", NOW + TTL, 9) == []
    [left] = pending.page(tx, pending.FIRST_PAGE, 9)[0]
    assert left.since == NOW / 1000
    [expired] = pending.expire(tx, NOW + TTL)
    assert (expired.token_id, expired.seq, expired.since) == (token.token_id, 10, NOW / 1000)
    assert pending.page(tx, pending.FIRST_PAGE, 9)[0] == []
    [push], *_ = receive(tx, nmsg(queue), seq=20, now=NOW + TTL)
    assert push.since == (NOW + TTL) / 1000


def test_a_newer_notification_postpones_expiry(tx: Transaction) -> None:
    token = an_active_token(tx)
    [queue] = subscribe(tx, token)
    receive(tx, nmsg(queue))
    receive(tx, nmsg(queue), seq=11, now=NOW + 1000)
    assert pending.expire(tx, NOW + TTL) == []
    assert len(pending.expire(tx, NOW + TTL + 1000)) == 1


def test_a_delivered_verification_confirms(tx: Transaction) -> None:
    token = an_active_token(tx, verified=False)
    [changed] = pending.apply(tx, [MarkAccepted(token.token_id, VERIFICATION, 1)])
    assert changed.status is TokenStatus.CONFIRMED
    assert not rows(tx, VERIFICATION)


def test_a_verification_of_the_device_before_says_nothing(tx: Transaction) -> None:
    token = an_active_token(tx, verified=False)
    tokens.replace_device(tx, token.token_id, a_device(), b"code", 2, NOW, NOW + TTL)
    assert pending.apply(tx, [MarkAccepted(token.token_id, VERIFICATION, 1)]) == []
    late = MarkRetry(token.token_id, VERIFICATION, token.device, 1, 1, NOW + 9)
    assert (
        pending.apply(tx, [late, MarkInvalid(token.token_id, token.device, InvalidReason.BAD)])
        == []
    )
    assert rows(tx, VERIFICATION) == {token.token_id: (2, 0, NOW, NOW + TTL)}
    found = tokens.find(tx, token.token_id)
    assert found is not None
    assert found.status is TokenStatus.REGISTERED
    [changed] = pending.apply(tx, [MarkAccepted(token.token_id, VERIFICATION, 2)])
    assert changed.status is TokenStatus.CONFIRMED


@pytest.mark.parametrize("reason", InvalidReason)
def test_a_dead_device_has_nothing_pending(tx: Transaction, reason: InvalidReason) -> None:
    token = an_active_token(tx)
    [queue] = subscribe(tx, token)
    receive(tx, nmsg(queue))
    dead = MarkInvalid(token.token_id, token.device, reason)
    [changed] = pending.apply(tx, [dead, dead])
    assert changed.status is TokenStatus.invalid(reason)
    assert not rows(tx)


def test_a_deleted_token_settles_to_nothing(tx: Transaction) -> None:
    token = an_active_token(tx)
    [queue] = subscribe(tx, token)
    receive(tx, nmsg(queue))
    tokens.delete(tx, token.token_id)
    changes: list[pending.PushChange] = [
        MarkAccepted(token.token_id, MESSAGE, 10),
        MarkAccepted(token.token_id, VERIFICATION, 1),
        MarkRetry(token.token_id, MESSAGE, token.device, 10, 1, NOW),
        MarkInvalid(token.token_id, token.device, InvalidReason.BAD),
    ]
    assert pending.apply(tx, changes) == []
    assert pending.page(tx, pending.FIRST_PAGE, 9)[0] == []


def test_a_deleted_subscription_leaves_no_notification(tx: Transaction) -> None:
    token = an_active_token(tx)
    [queue] = subscribe(tx, token)
    receive(tx, nmsg(queue))
    [[subscription_id]] = tx.query("SELECT subscription_id FROM subscriptions")
    subscriptions.delete(tx, subscription_id)
    [push] = pending.due(tx, "apns_test", NOW, 9)
    assert push.notices == ()
