import os
from dataclasses import replace

import pytest

from heliograph.crypto.keys import dh, generate_key_pair
from heliograph.db.dialects import Row, Transaction
from heliograph.ntf.lifecycle import Rejected
from heliograph.ntf.store import pending, receiving, tokens, wakeups
from heliograph.ntf.store.records import Incoming, PushKind, Token
from heliograph.ntf.store.subscriptions import subscriptions
from heliograph.ntf.store.subscriptions.subscriptions import Added, NewSubscription
from heliograph.wire.keys import Algorithm
from heliograph.wire.ntf.tokens import InvalidReason, PushProvider, TokenStatus
from tests.ntf.support import a_device, a_new_token

NOW, TTL = 1_000_000, 60_000
ADDRESS = "smp://LcJUMfVhwD8yxjAiSaDzzGF3-kLG4Uh0Fl_ZIjrRwjI=@smp.example.com"
OF_TOKEN = "SELECT 1 FROM subscriptions WHERE token_id = ?"


def register(tx: Transaction, new: tokens.NewToken, seq: int = 1, now: int = NOW) -> Token:
    token = tokens.register(tx, new, seq, now, now + TTL)
    assert token is not None
    return token


def row_of(tx: Transaction, token: Token, kind: PushKind) -> tuple[object, ...] | None:
    rows = tx.query(
        "SELECT provider, seq, attempts, next_at, expires_at FROM pending_pushes"
        " WHERE token_id = ? AND kind = ?",
        (token.token_id, kind.value),
    )
    return rows[0] if rows else None


def subscribe(tx: Transaction, token: Token) -> bytes:
    notifier_id = os.urandom(24)
    new = NewSubscription(os.urandom(24), token.token_id, ADDRESS, notifier_id, b"key")
    assert isinstance(subscriptions.add(tx, new), Added)
    return notifier_id


def receive(tx: Transaction, notifier_id: bytes, seq: int) -> None:
    incoming = Incoming(notifier_id, os.urandom(24), b"meta", 1.0)
    receiving.receive(tx, 1, [incoming], [seq], NOW, NOW + TTL)


def test_a_new_token_is_registered_and_its_verification_pending(tx: Transaction) -> None:
    new = a_new_token()
    token = register(tx, new, seq=7)
    assert token == tokens.find(tx, new.token_id)
    assert token.status is TokenStatus.REGISTERED
    assert token.dh_secret == dh(new.dh_key, new.keys.private)
    assert row_of(tx, token, PushKind.VERIFICATION) == ("apns_test", 7, 0, NOW, NOW + TTL)
    [push] = pending.due_for(tx, [token.token_id], NOW)
    assert (push.kind, push.device, push.code) == (PushKind.VERIFICATION, new.device, new.code)


def test_the_same_registration_again_is_the_same_token(tx: Transaction) -> None:
    new = a_new_token()
    token = register(tx, new)
    again = replace(
        new, token_id=os.urandom(24), code=os.urandom(32), keys=generate_key_pair(Algorithm.X25519)
    )
    assert register(tx, again, seq=2, now=NOW + 5) == token
    assert row_of(tx, token, PushKind.VERIFICATION) == (
        "apns_test",
        2,
        0,
        NOW + 5,
        NOW + 5 + TTL,
    )


def test_another_secret_is_refused(tx: Transaction) -> None:
    new = a_new_token()
    register(tx, new)
    other = replace(new, dh_key=generate_key_pair(Algorithm.X25519).public)
    assert tokens.register(tx, other, 2, NOW, NOW + TTL) is None
    weak = replace(new, dh_key=new.dh_key[:12] + bytes(32))
    assert tokens.register(tx, weak, 2, NOW, NOW + TTL) is None


def test_another_key_is_another_token(tx: Transaction) -> None:
    new = a_new_token()
    other = a_new_token(new.device)
    assert register(tx, new).token_id != register(tx, other).token_id
    assert {item.token_id for item in tokens.find_many(tx, [new.token_id, other.token_id])} == {
        new.token_id,
        other.token_id,
    }


@pytest.mark.parametrize(
    ("status", "after"),
    [
        (TokenStatus.REGISTERED, TokenStatus.REGISTERED),
        (TokenStatus.CONFIRMED, TokenStatus.CONFIRMED),
        (TokenStatus.ACTIVE, TokenStatus.ACTIVE),
        (TokenStatus.INVALID_BAD, TokenStatus.REGISTERED),
        (TokenStatus.EXPIRED, TokenStatus.REGISTERED),
    ],
)
def test_registering_again_repairs_the_status(
    tx: Transaction, status: TokenStatus, after: TokenStatus
) -> None:
    new = a_new_token()
    token = register(tx, new)
    tx.execute("UPDATE tokens SET status = ?", (status.value,))
    assert register(tx, new, seq=2) == replace(token, status=after)


def test_registering_again_does_not_wait_for_a_backoff(tx: Transaction) -> None:
    new = a_new_token()
    token = register(tx, new)
    pending.apply(
        tx,
        [
            pending.MarkRetry(
                token.token_id, PushKind.VERIFICATION, token.device, 1, 5, NOW + 300_000
            )
        ],
    )
    assert not pending.due_for(tx, [token.token_id], NOW + 1)
    register(tx, new, seq=2, now=NOW + 1)
    assert pending.due_for(tx, [token.token_id], NOW + 1)


def test_the_right_code_activates_and_removes_other_registrations(tx: Transaction) -> None:
    device = a_device()
    first, second = (register(tx, a_new_token(device), seq) for seq in (1, 2))
    other = register(tx, a_new_token(), 3)
    notifier_id = subscribe(tx, tokens.verify(tx, first.token_id, first.code)[0] or first)
    assert tokens.find(tx, second.token_id) is None
    second = register(tx, a_new_token(device), 4)
    token, removed = tokens.verify(tx, second.token_id, second.code)
    assert token == replace(second, status=TokenStatus.ACTIVE)
    assert removed == [first.token_id]
    for table in ("tokens", "subscriptions", "last_notifications", "pending_pushes"):
        where = f"SELECT 1 FROM {table} WHERE token_id = ?"
        assert not tx.query(where, (first.token_id,))
    receive(tx, notifier_id, 9)
    assert tokens.find(tx, other.token_id) == other


def test_a_wrong_code_or_state_or_token_changes_nothing(tx: Transaction) -> None:
    token = register(tx, a_new_token())
    assert tokens.verify(tx, token.token_id, os.urandom(32)) == (None, [])
    assert tokens.verify(tx, b"nobody", token.code) == (None, [])
    tx.execute("UPDATE tokens SET status = 'INVALID,BAD'")
    assert tokens.verify(tx, token.token_id, token.code) == (None, [])
    found = tokens.find(tx, token.token_id)
    assert found is not None
    assert found.status is TokenStatus.INVALID_BAD


def test_a_code_may_come_twice(tx: Transaction) -> None:
    token = register(tx, a_new_token())
    active, _ = tokens.verify(tx, token.token_id, token.code)
    other = register(tx, a_new_token(token.device), 2)
    assert tokens.verify(tx, token.token_id, token.code) == (active, [])
    assert tokens.find(tx, other.token_id) == other


def test_another_device_keeps_the_secret_and_the_pending_pushes(tx: Transaction) -> None:
    token = register(tx, a_new_token())
    tokens.verify(tx, token.token_id, token.code)
    receive(tx, subscribe(tx, token), 5)
    late = pending.MarkRetry(token.token_id, PushKind.MESSAGE, token.device, 5, 3, NOW + 300_000)
    pending.apply(tx, [late, pending.MarkAccepted(token.token_id, PushKind.VERIFICATION, 1)])
    tx.execute("UPDATE pending_pushes SET owner = 3")
    device, code = a_device(PushProvider.APNS_PROD), os.urandom(32)
    replaced = tokens.replace_device(tx, token.token_id, device, code, 6, NOW + 9, NOW + TTL)
    status = TokenStatus.REGISTERED
    assert replaced == replace(token, device=device, code=code, status=status)
    assert row_of(tx, token, PushKind.VERIFICATION) == ("apns_prod", 6, 0, NOW + 9, NOW + TTL)
    assert row_of(tx, token, PushKind.MESSAGE) == ("apns_prod", 6, 0, NOW + 9, NOW + TTL)
    # Any process may send it: the one that had it may still wait for the device before.
    assert tx.query("SELECT DISTINCT owner FROM pending_pushes") == [(None,)]
    [push] = pending.due(tx, "apns_prod", NOW + 9, 10)
    assert push.kind is PushKind.VERIFICATION  # messages wait for the code
    assert not pending.due(tx, "apns_test", NOW + 9, 10)
    tokens.verify(tx, token.token_id, code)
    assert {item.kind for item in pending.due(tx, "apns_prod", NOW + 9, 10)} == {
        PushKind.VERIFICATION,
        PushKind.MESSAGE,
    }
    assert tokens.replace_device(tx, b"nobody", device, code, 7, NOW, NOW + TTL) is None


def test_an_invalid_token_has_nothing_pending_and_keeps_its_subscriptions(tx: Transaction) -> None:
    token = register(tx, a_new_token())
    active, _ = tokens.verify(tx, token.token_id, token.code)
    assert active is not None
    receive(tx, subscribe(tx, token), 5)
    invalid = tokens.advance(tx, active, Rejected(InvalidReason.UNREGISTERED))
    assert tokens.find(tx, token.token_id) == invalid
    assert invalid.status is TokenStatus.INVALID_UNREGISTERED
    assert not tx.query("SELECT 1 FROM pending_pushes")
    assert not tx.query("SELECT 1 FROM last_notifications")
    assert len(tx.query(OF_TOKEN, (token.token_id,))) == 1


def test_deleting_leaves_nothing(tx: Transaction) -> None:
    token, other = register(tx, a_new_token()), register(tx, a_new_token(), 2)
    for item in (token, other):
        tokens.verify(tx, item.token_id, item.code)
        receive(tx, subscribe(tx, item), 5)
    tokens.delete(tx, token.token_id)
    for table in ("tokens", "subscriptions", "last_notifications", "pending_pushes"):
        rows = tx.query(f"SELECT DISTINCT token_id FROM {table}")
        assert rows == [(other.token_id,)]


def test_wake_ups_are_due_one_interval_after_the_request_or_the_last_one(tx: Transaction) -> None:
    token = register(tx, a_new_token())

    def due_at() -> object:
        [[minutes, at]] = tx.query("SELECT cron_minutes, cron_due_at FROM tokens")
        return minutes, at

    wakeups.request_cron(tx, token.token_id, 30, NOW)
    assert due_at() == (30, NOW + 30 * 60_000)
    wakeups.request_cron(tx, token.token_id, 30, NOW + 5)
    assert due_at() == (30, NOW + 30 * 60_000)
    wakeups.request_cron(tx, token.token_id, 60, NOW + 5)
    assert due_at() == (60, NOW + 60 * 60_000)
    wakeups.request_cron(tx, token.token_id, 20, NOW + 25 * 60_000)
    assert due_at() == (20, NOW + 25 * 60_000)
    wakeups.request_cron(tx, token.token_id, 0, NOW + 5)
    assert due_at() == (0, None)
    wakeups.request_cron(tx, b"nobody", 30, NOW)


def test_a_clock_that_was_ahead_is_corrected_in_pages(tx: Transaction) -> None:
    tokens = [register(tx, a_new_token()) for _ in range(7)]
    for token in tokens:
        wakeups.set_cron(tx, token.token_id, 20, NOW + 86_400_000)
    after: bytes | None = b""
    pages = 0
    while after is not None:
        after = wakeups.rebase_cron(tx, NOW, after, 3)
        pages += 1
    assert pages == 3
    assert set(tx.query("SELECT cron_due_at FROM tokens")) == {(NOW + 20 * 60_000,)}


def test_registrations_made_together_are_as_those_made_one_after_another(tx: Transaction) -> None:
    known, fresh = a_new_token(), a_new_token()
    before = register(tx, known)
    repeated = replace(fresh, token_id=os.urandom(24), code=os.urandom(32))
    stranger = replace(known, dh_key=generate_key_pair(Algorithm.X25519).public)
    asked = [(known, 5), (fresh, 6), (repeated, 7), (stranger, 8)]
    again, made, same, refused = tokens.register_many(tx, asked, NOW, NOW + TTL).tokens
    assert again == before
    assert made is not None
    assert made == same == tokens.find(tx, fresh.token_id)
    assert refused is None
    for token, seq in ((before, 5), (made, 7)):
        assert row_of(tx, token, PushKind.VERIFICATION) == (
            "apns_test",
            seq,
            0,
            NOW,
            NOW + TTL,
        )


def test_a_device_has_a_bounded_number_of_unverified_registrations(tx: Transaction) -> None:
    """The oldest make room: one who knows a device token cannot keep its owner out."""
    device, limit = a_device(), tokens.MAX_UNVERIFIED
    active = register(tx, a_new_token(device))
    tokens.verify(tx, active.token_id, active.code)
    made = [register(tx, a_new_token(device), now=NOW + index) for index in range(limit + 3)]
    left = [token.token_id for token in made if tokens.find(tx, token.token_id) is not None]
    assert left == [token.token_id for token in made[3:]]
    assert tokens.find(tx, active.token_id) is not None
    [[count]] = tx.query("SELECT COUNT(*) FROM pending_pushes WHERE kind = 'verification'")
    assert count == limit + 1


def test_rejected_registrations_of_a_device_are_bounded_too(tx: Transaction) -> None:
    device = a_device()
    for index in range(tokens.MAX_UNVERIFIED + 3):
        token = register(tx, a_new_token(device), now=NOW + index)
        tokens.advance(tx, token, Rejected(InvalidReason.BAD))
    [[count]] = tx.query("SELECT COUNT(*) FROM tokens")
    assert count == tokens.MAX_UNVERIFIED
    assert len(tokens.collect_unverified(tx, NOW + 1_000, 100)) == count


def test_registering_costs_the_same_for_a_device_with_many_registrations(
    tx: Transaction, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "MAX_UNVERIFIED", 10_000)
    device = a_device()
    many = [(a_new_token(device), seq) for seq in range(300)]
    tokens.register_many(tx, many, NOW, NOW + TTL)
    parsed = []
    parse = tokens.token_of

    def counted(row: Row) -> Token:
        parsed.append(row)
        return parse(row)

    monkeypatch.setattr(tokens, "token_of", counted)
    register(tx, many[7][0])
    register(tx, a_new_token(device))
    assert len(parsed) == 1


def test_unverified_tokens_are_collected(tx: Transaction) -> None:
    old, again, moved, verified, subscribed = (a_new_token() for _ in range(5))
    for new in (old, again, moved, verified, subscribed):
        register(tx, new)
    tokens.verify(tx, verified.token_id, verified.code)
    tokens.verify(tx, subscribed.token_id, subscribed.code)
    added = NewSubscription(os.urandom(24), subscribed.token_id, ADDRESS, b"queue", b"key")
    subscriptions.add(tx, added)
    later = NOW + 1_000
    register(tx, again, seq=2, now=later)
    for new in (moved, subscribed):
        now = later if new is moved else NOW
        tokens.replace_device(tx, new.token_id, a_device(), b"code", 3, now, now + TTL)
    assert tokens.collect_unverified(tx, NOW - 1, 10) == []
    assert tokens.collect_unverified(tx, NOW, 10) == [old.token_id]
    assert {*tokens.collect_unverified(tx, later, 10)} == {again.token_id, moved.token_id}
    assert tokens.find(tx, verified.token_id) is not None
    assert tokens.find(tx, subscribed.token_id) is not None
    [[count]] = tx.query("SELECT COUNT(*) FROM pending_pushes WHERE token_id = ?", (old.token_id,))
    assert count == 0
