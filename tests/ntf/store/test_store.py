import asyncio
import os
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from heliograph.db.database import Database
from heliograph.db.dialects import Transaction
from heliograph.ntf.store import pending, store, tokens
from heliograph.ntf.store.records import Incoming, PushKind, Token
from heliograph.ntf.store.schema import MIGRATIONS
from heliograph.ntf.store.store import NtfStore, Registration
from heliograph.ntf.store.subscriptions.subscriptions import Added, NewSubscription
from heliograph.wire.ntf.tokens import InvalidReason, TokenStatus
from tests.ntf.support import a_device, a_new_token

ADDRESS = "smp://LcJUMfVhwD8yxjAiSaDzzGF3-kLG4Uh0Fl_ZIjrRwjI=@smp.example.com"


@pytest.fixture
async def ntf_store(url: str) -> AsyncIterator[NtfStore]:
    database = await Database.open(url, MIGRATIONS)
    opened = NtfStore(database, 60.0)
    await opened.start()
    yield opened
    await database.close()


async def register(ntf_store: NtfStore, *, verified: bool = True) -> Token:
    new = a_new_token()
    registration = await ntf_store.register(new)
    token, [push] = registration.token, registration.pushes
    assert token is not None
    assert push.kind is PushKind.VERIFICATION
    if verified:
        token, *_ = await ntf_store.verify(new.token_id, new.code)
        assert token is not None
    return token


async def subscribe(ntf_store: NtfStore, token: Token) -> bytes:
    notifier_id = os.urandom(24)
    new = NewSubscription(os.urandom(24), token.token_id, ADDRESS, notifier_id, b"key")
    [added] = await ntf_store.add_subscriptions([new], None)
    assert isinstance(added, Added)
    return notifier_id


def forget(ntf_store: NtfStore) -> None:
    """As after a restart, which would also end what the tests have in progress."""
    ntf_store._tokens.clear()


async def test_what_is_written_is_what_is_cached(ntf_store: NtfStore) -> None:
    token = await register(ntf_store, verified=False)
    assert await ntf_store.token(token.token_id) == token
    active, *_ = await ntf_store.verify(token.token_id, token.code)
    assert await ntf_store.token(token.token_id) == active
    device, code = a_device(), os.urandom(32)
    replaced, [push], [] = await ntf_store.replace(token.token_id, device, code)
    assert await ntf_store.token(token.token_id) == replaced
    assert (push.device, push.code) == (device, code)
    cached = await ntf_store.token(token.token_id)
    forget(ntf_store)
    await ntf_store.load([token.token_id], [])
    assert await ntf_store.token(token.token_id) == cached
    await ntf_store.delete_token(token.token_id)
    assert await ntf_store.token(token.token_id) is None
    await ntf_store.load([token.token_id], [])
    assert not ntf_store.is_cached(token.token_id)


async def test_a_subscription_brings_its_token(ntf_store: NtfStore) -> None:
    token = await register(ntf_store)
    await subscribe(ntf_store, token)
    forget(ntf_store)
    [[subscription_id]] = await ntf_store.read(
        lambda tx: tx.query("SELECT subscription_id FROM subscriptions")
    )
    [subscription] = await ntf_store.load([], [subscription_id])
    assert subscription.token_id == token.token_id
    assert await ntf_store.token(token.token_id) == token


async def test_refusals_change_nothing(ntf_store: NtfStore) -> None:
    token = await register(ntf_store, verified=False)
    assert await ntf_store.verify(token.token_id, b"wrong") == (None, [], [])
    assert await ntf_store.replace(b"nobody", a_device(), b"code") == (None, [], [])
    new = a_new_token(token.device, auth_key=token.auth_key)
    assert await ntf_store.register(new) == Registration(None, [])
    assert await ntf_store.token(token.token_id) == token


async def test_a_verified_token_removes_others_from_the_cache(ntf_store: NtfStore) -> None:
    first = await register(ntf_store)
    assert first.device is not None
    second = (await ntf_store.register(a_new_token(first.device))).token
    assert second is not None
    await ntf_store.verify(second.token_id, second.code)
    assert not ntf_store.is_cached(first.token_id)


async def test_what_the_outbox_changed_is_refreshed_only_if_cached(ntf_store: NtfStore) -> None:
    token = await register(ntf_store)
    dead = pending.MarkInvalid(token.token_id, token.device, InvalidReason.BAD)
    changed = await ntf_store.database.write(lambda tx: pending.apply(tx, [dead]))
    ntf_store.refresh(changed)
    found = await ntf_store.token(token.token_id)
    assert found is not None
    assert found.status is TokenStatus.INVALID_BAD
    forget(ntf_store)
    ntf_store.refresh(changed)
    assert not ntf_store.is_cached(token.token_id)


CHANGES: dict[str, Callable[[NtfStore, Token], Any]] = {
    "verify": lambda ntf_store, token: ntf_store.verify(token.token_id, token.code),
    "replace": lambda ntf_store, token: ntf_store.replace(token.token_id, a_device(), b"code"),
    "delete": lambda ntf_store, token: ntf_store.delete_token(token.token_id),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_a_slow_read_does_not_bring_back_what_was_before(
    ntf_store: NtfStore, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader saw the token before the change, and tells after it."""
    token = await register(ntf_store, verified=False)
    forget(ntf_store)
    read, changed = ntf_store.database.read, asyncio.Event()

    async def late(function: Callable[[Transaction], Any]) -> Any:
        result = await read(function)
        await changed.wait()
        return result

    monkeypatch.setattr(ntf_store.database, "read", late)
    loads = [asyncio.create_task(ntf_store.load([token.token_id], [])) for _ in range(2)]
    await asyncio.sleep(0.05)
    await CHANGES[change](ntf_store, token)
    forget(ntf_store)  # as if it had been dropped to make room
    changed.set()
    await asyncio.gather(*loads)
    monkeypatch.undo()
    cached = await ntf_store.token(token.token_id)
    stored = await ntf_store.read(lambda tx: tokens.find(tx, token.token_id))
    assert cached == stored
    assert not ntf_store._changed  # memory that nothing else shows


async def test_the_cache_is_bounded_and_drops_nothing_that_is_needed(
    ntf_store: NtfStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "CACHED_TOKENS", 10)
    made = [await register(ntf_store, verified=False) for _ in range(25)]

    def cached() -> int:
        return sum(ntf_store.is_cached(token.token_id) for token in made)

    assert cached() <= 10
    # The last dropped: as when a command was waiting while others were served.
    dropped = [t.token_id for t in made if not ntf_store.is_cached(t.token_id)][-1]
    found = await ntf_store.token(dropped)
    assert found is not None
    assert found.token_id == dropped
    assert cached() <= 10
    assert await ntf_store.token(made[0].token_id) is None  # `load` first


async def test_numbers_go_on_after_a_restart(url: str) -> None:
    database = await Database.open(url, MIGRATIONS)
    ntf_store = NtfStore(database, 60.0)
    await ntf_store.start()
    token = await register(ntf_store)
    queue = await subscribe(ntf_store, token)

    async def receive(ntf_store: NtfStore) -> int:
        incoming = [Incoming(queue, os.urandom(24), b"meta", 1.0) for _ in range(3)]
        [push], unknown, *_ = await ntf_store.receive(1, incoming)
        assert unknown == 0
        return push.seq

    first = await receive(ntf_store)
    assert await receive(ntf_store) > first
    last = await receive(ntf_store)
    ntf_store = NtfStore(database, 60.0)
    await ntf_store.start()
    assert await receive(ntf_store) > last
    # Also if only a verification is left to tell where it was.
    await ntf_store.delete_token(token.token_id)
    [push] = (await ntf_store.register(a_new_token())).pushes
    ntf_store = NtfStore(database, 60.0)
    await ntf_store.start()
    [later] = (await ntf_store.register(a_new_token())).pushes
    assert later.seq > push.seq
    await database.close()


async def test_wake_ups_are_asked_for_once(ntf_store: NtfStore) -> None:
    token = await register(ntf_store)
    await ntf_store.set_cron(token.token_id, 30)
    [[before]] = await ntf_store.read(lambda tx: tx.query("SELECT cron_due_at FROM tokens"))
    await asyncio.sleep(0.01)
    await ntf_store.set_cron(token.token_id, 30)
    [[after]] = await ntf_store.read(lambda tx: tx.query("SELECT cron_due_at FROM tokens"))
    assert after - before < 1000


async def test_registrations_that_make_room_leave_the_cache(ntf_store: NtfStore) -> None:
    device = a_device()
    made = [await ntf_store.register(a_new_token(device))]
    await asyncio.sleep(0.01)  # times are in milliseconds, and the oldest makes room
    made += [await ntf_store.register(a_new_token(device)) for _ in range(tokens.MAX_UNVERIFIED)]
    first = made[0].token
    assert first is not None
    assert made[-1].removed == [first.token_id]
    assert not ntf_store.is_cached(first.token_id)


async def test_unverified_tokens_are_collected(ntf_store: NtfStore) -> None:
    token = await register(ntf_store, verified=False)
    verified = await register(ntf_store)
    assert await ntf_store.collect_unverified(60.0, 10) == []
    assert await ntf_store.collect_unverified(-60.0, 10) == [token.token_id]
    assert not ntf_store.is_cached(token.token_id)
    assert ntf_store.is_cached(verified.token_id)
