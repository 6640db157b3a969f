import os
from dataclasses import replace

import pytest

from heliograph.crypto.keys import dh, generate_key_pair
from heliograph.db.dialects import Transaction
from heliograph.ntf import debts, subscriptions, tokens
from heliograph.ntf.lifecycle import Rejected
from heliograph.ntf.records import DebtKind, Incoming, Token
from heliograph.ntf.subscriptions import Added, NewSubscription
from heliograph.wire.keys import Algorithm
from heliograph.wire.tokens import InvalidReason, PushProvider, TokenStatus
from tests.ntf.support import a_device, a_new_token

NOW, TTL = 1_000_000, 60_000
ADDRESS = "smp://LcJUMfVhwD8yxjAiSaDzzGF3-kLG4Uh0Fl_ZIjrRwjI=@smp.example.com"
OF_TOKEN = "SELECT 1 FROM subscriptions WHERE token_id = ?"


def register(tx: Transaction, new: tokens.NewToken, seq: int = 1, now: int = NOW) -> Token:
    token = tokens.register(tx, new, seq, now, now + TTL)
    assert token is not None
    return token


def debt(tx: Transaction, token: Token, kind: DebtKind) -> tuple[object, ...] | None:
    rows = tx.query(
        "SELECT provider, seq, attempts, next_at, expires_at FROM debts"
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
    debts.receive(tx, 1, [incoming], seq, NOW, NOW + TTL)


def test_a_new_token_is_registered_and_its_verification_owed(tx: Transaction) -> None:
    new = a_new_token()
    token = register(tx, new, seq=7)
    assert token == tokens.find(tx, new.token_id)
    assert token.status is TokenStatus.REGISTERED
    assert token.dh_secret == dh(new.dh_key, new.keys.private)
    assert debt(tx, token, DebtKind.VERIFICATION) == ("apns_test", 7, 0, NOW, NOW + TTL)
    [owed] = debts.due_to(tx, [token.token_id], NOW)
    assert (owed.kind, owed.device, owed.code) == (DebtKind.VERIFICATION, new.device, new.code)


def test_the_same_registration_again_is_the_same_token(tx: Transaction) -> None:
    new = a_new_token()
    token = register(tx, new)
    again = replace(
        new, token_id=os.urandom(24), code=os.urandom(32), keys=generate_key_pair(Algorithm.X25519)
    )
    assert register(tx, again, seq=2, now=NOW + 5) == token
    assert debt(tx, token, DebtKind.VERIFICATION) == ("apns_test", 2, 0, NOW + 5, NOW + 5 + TTL)


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


def test_registering_again_does_not_wait_for_what_was_put_off(tx: Transaction) -> None:
    new = a_new_token()
    token = register(tx, new)
    debts.settle(tx, [debts.PutOff(token.token_id, DebtKind.VERIFICATION, 1, 5, NOW + 300_000)])
    assert not debts.due_to(tx, [token.token_id], NOW + 1)
    register(tx, new, seq=2, now=NOW + 1)
    assert debts.due_to(tx, [token.token_id], NOW + 1)


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
    for table in ("tokens", "subscriptions", "last_notifications", "debts"):
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


def test_another_device_keeps_the_secret_and_takes_debts_along(tx: Transaction) -> None:
    token = register(tx, a_new_token())
    tokens.verify(tx, token.token_id, token.code)
    receive(tx, subscribe(tx, token), 5)
    late = debts.PutOff(token.token_id, DebtKind.MESSAGE, 5, 3, NOW + 300_000)
    debts.settle(tx, [late, debts.Paid(token.token_id, DebtKind.VERIFICATION, 1)])
    device, code = a_device(PushProvider.APNS_PROD), os.urandom(32)
    replaced = tokens.replace_device(tx, token.token_id, device, code, 6, NOW + 9, NOW + TTL)
    status = TokenStatus.REGISTERED
    assert replaced == replace(token, device=device, code=code, status=status)
    assert debt(tx, token, DebtKind.VERIFICATION) == ("apns_prod", 6, 0, NOW + 9, NOW + TTL)
    assert debt(tx, token, DebtKind.MESSAGE) == ("apns_prod", 5, 0, NOW + 9, NOW + TTL)
    [owed] = debts.due(tx, "apns_prod", NOW + 9, 10)
    assert owed.kind is DebtKind.VERIFICATION  # messages wait for the code
    assert not debts.due(tx, "apns_test", NOW + 9, 10)
    tokens.verify(tx, token.token_id, code)
    assert {item.kind for item in debts.due(tx, "apns_prod", NOW + 9, 10)} == {
        DebtKind.VERIFICATION,
        DebtKind.MESSAGE,
    }
    assert tokens.replace_device(tx, b"nobody", device, code, 7, NOW, NOW + TTL) is None


def test_an_invalid_token_is_owed_nothing_and_keeps_its_subscriptions(tx: Transaction) -> None:
    token = register(tx, a_new_token())
    active, _ = tokens.verify(tx, token.token_id, token.code)
    assert active is not None
    receive(tx, subscribe(tx, token), 5)
    invalid = tokens.advance(tx, active, Rejected(InvalidReason.UNREGISTERED))
    assert tokens.find(tx, token.token_id) == invalid
    assert invalid.status is TokenStatus.INVALID_UNREGISTERED
    assert not tx.query("SELECT 1 FROM debts")
    assert not tx.query("SELECT 1 FROM last_notifications")
    assert len(tx.query(OF_TOKEN, (token.token_id,))) == 1


def test_deleting_leaves_nothing(tx: Transaction) -> None:
    token, other = register(tx, a_new_token()), register(tx, a_new_token(), 2)
    for item in (token, other):
        tokens.verify(tx, item.token_id, item.code)
        receive(tx, subscribe(tx, item), 5)
    tokens.delete(tx, token.token_id)
    for table in ("tokens", "subscriptions", "last_notifications", "debts"):
        rows = tx.query(f"SELECT DISTINCT token_id FROM {table}")
        assert rows == [(other.token_id,)]


def test_wake_ups_are_due_at_once_and_then_when_they_would_be(tx: Transaction) -> None:
    token = register(tx, a_new_token())

    def due_at() -> object:
        [[minutes, at]] = tx.query("SELECT cron_minutes, cron_due_at FROM tokens")
        return minutes, at

    tokens.request_cron(tx, token.token_id, 30, NOW)
    assert due_at() == (30, NOW)
    tokens.set_cron(tx, token.token_id, 30, NOW + 30 * 60_000)
    tokens.request_cron(tx, token.token_id, 30, NOW + 5)
    assert due_at() == (30, NOW + 30 * 60_000)
    tokens.request_cron(tx, token.token_id, 60, NOW + 5)
    assert due_at() == (60, NOW + 60 * 60_000)
    tokens.request_cron(tx, token.token_id, 20, NOW + 25 * 60_000)
    assert due_at() == (20, NOW + 25 * 60_000)
    tokens.request_cron(tx, token.token_id, 0, NOW + 5)
    assert due_at() == (0, None)
    tokens.request_cron(tx, b"nobody", 30, NOW)


def test_registrations_made_together_are_as_those_made_one_after_another(tx: Transaction) -> None:
    known, fresh = a_new_token(), a_new_token()
    before = register(tx, known)
    repeated = replace(fresh, token_id=os.urandom(24), code=os.urandom(32))
    stranger = replace(known, dh_key=generate_key_pair(Algorithm.X25519).public)
    asked = [(known, 5), (fresh, 6), (repeated, 7), (stranger, 8)]
    again, made, same, refused = tokens.register_many(tx, asked, NOW, NOW + TTL)
    assert again == before
    assert made is not None
    assert made == same == tokens.find(tx, fresh.token_id)
    assert refused is None
    for token, seq in ((before, 5), (made, 7)):
        assert debt(tx, token, DebtKind.VERIFICATION) == ("apns_test", seq, 0, NOW, NOW + TTL)
