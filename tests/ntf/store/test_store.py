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
from heliograph.ntf.store.subscriptions import Added, NewSubscription
from heliograph.wire.ntf.tokens import InvalidReason, TokenStatus
from tests.ntf.support import a_device, a_new_token

ADDRESS = "smp://LcJUMfVhwD8yxjAiSaDzzGF3-kLG4Uh0Fl_ZIjrRwjI=@smp.example.com"


@pytest.fixture
async def kept(url: str) -> AsyncIterator[NtfStore]:
    database = await Database.open(url, MIGRATIONS)
    opened = NtfStore(database, 60.0)
    await opened.start()
    yield opened
    await database.close()


async def register(kept: NtfStore, *, verified: bool = True) -> Token:
    new = a_new_token()
    registration = await kept.register(new)
    token, [push] = registration.token, registration.pushes
    assert token is not None
    assert push.kind is PushKind.VERIFICATION
    if verified:
        token, *_ = await kept.verify(new.token_id, new.code)
        assert token is not None
    return token


async def subscribe(kept: NtfStore, token: Token) -> bytes:
    notifier_id = os.urandom(24)
    new = NewSubscription(os.urandom(24), token.token_id, ADDRESS, notifier_id, b"key")
    [added] = await kept.add_subscriptions([new], None)
    assert isinstance(added, Added)
    return notifier_id


def forget(kept: NtfStore) -> None:
    """As after a restart, which would also end what the tests have in progress."""
    kept._tokens.clear()


async def test_what_is_written_is_what_is_cached(kept: NtfStore) -> None:
    token = await register(kept, verified=False)
    assert await kept.token(token.token_id) == token
    active, *_ = await kept.verify(token.token_id, token.code)
    assert await kept.token(token.token_id) == active
    device, code = a_device(), os.urandom(32)
    replaced, [push] = await kept.replace(token.token_id, device, code)
    assert await kept.token(token.token_id) == replaced
    assert (push.device, push.code) == (device, code)
    cached = await kept.token(token.token_id)
    forget(kept)
    await kept.load([token.token_id], [])
    assert await kept.token(token.token_id) == cached
    await kept.delete_token(token.token_id)
    assert await kept.token(token.token_id) is None
    await kept.load([token.token_id], [])
    assert not kept.is_cached(token.token_id)


async def test_a_subscription_brings_its_token(kept: NtfStore) -> None:
    token = await register(kept)
    await subscribe(kept, token)
    forget(kept)
    [[subscription_id]] = await kept.read(
        lambda tx: tx.query("SELECT subscription_id FROM subscriptions")
    )
    [subscription] = await kept.load([], [subscription_id])
    assert subscription.token_id == token.token_id
    assert await kept.token(token.token_id) == token


async def test_refusals_change_nothing(kept: NtfStore) -> None:
    token = await register(kept, verified=False)
    assert await kept.verify(token.token_id, b"wrong") == (None, [], [])
    assert await kept.replace(b"nobody", a_device(), b"code") == (None, [])
    new = a_new_token(token.device, auth_key=token.auth_key)
    assert await kept.register(new) == Registration(None, [])
    assert await kept.token(token.token_id) == token


async def test_a_verified_token_removes_others_from_the_cache(kept: NtfStore) -> None:
    first = await register(kept)
    assert first.device is not None
    second = (await kept.register(a_new_token(first.device))).token
    assert second is not None
    await kept.verify(second.token_id, second.code)
    assert not kept.is_cached(first.token_id)


async def test_what_the_outbox_changed_is_refreshed_only_if_cached(kept: NtfStore) -> None:
    token = await register(kept)
    dead = pending.MarkInvalid(token.token_id, token.device, InvalidReason.BAD)
    changed = await kept.database.write(lambda tx: pending.settle(tx, [dead]))
    kept.refresh(changed)
    found = await kept.token(token.token_id)
    assert found is not None
    assert found.status is TokenStatus.INVALID_BAD
    forget(kept)
    kept.refresh(changed)
    assert not kept.is_cached(token.token_id)


CHANGES: dict[str, Callable[[NtfStore, Token], Any]] = {
    "verify": lambda kept, token: kept.verify(token.token_id, token.code),
    "replace": lambda kept, token: kept.replace(token.token_id, a_device(), b"code"),
    "delete": lambda kept, token: kept.delete_token(token.token_id),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_a_slow_read_does_not_bring_back_what_was_before(
    kept: NtfStore, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader saw the token before the change, and tells after it."""
    token = await register(kept, verified=False)
    forget(kept)
    read, changed = kept.database.read, asyncio.Event()

    async def late(function: Callable[[Transaction], Any]) -> Any:
        result = await read(function)
        await changed.wait()
        return result

    monkeypatch.setattr(kept.database, "read", late)
    loads = [asyncio.create_task(kept.load([token.token_id], [])) for _ in range(2)]
    await asyncio.sleep(0.05)
    await CHANGES[change](kept, token)
    forget(kept)  # as if it had been dropped to make room
    changed.set()
    await asyncio.gather(*loads)
    monkeypatch.undo()
    cached = await kept.token(token.token_id)
    stored = await kept.read(lambda tx: tokens.find(tx, token.token_id))
    assert cached == stored
    assert not kept._changed  # memory that nothing else shows


async def test_the_cache_is_bounded_and_drops_nothing_that_is_needed(
    kept: NtfStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "CACHED_TOKENS", 10)
    made = [await register(kept, verified=False) for _ in range(25)]

    def cached() -> int:
        return sum(kept.is_cached(token.token_id) for token in made)

    assert cached() <= 10
    # The last dropped: as when a command was waiting while others were served.
    dropped = [t.token_id for t in made if not kept.is_cached(t.token_id)][-1]
    found = await kept.token(dropped)
    assert found is not None
    assert found.token_id == dropped
    assert cached() <= 10
    assert await kept.token(made[0].token_id) is None  # `load` first


async def test_numbers_go_on_after_a_restart(url: str) -> None:
    database = await Database.open(url, MIGRATIONS)
    kept = NtfStore(database, 60.0)
    await kept.start()
    token = await register(kept)
    queue = await subscribe(kept, token)

    async def receive(kept: NtfStore) -> int:
        incoming = [Incoming(queue, os.urandom(24), b"meta", 1.0) for _ in range(3)]
        [push], unknown, *_ = await kept.receive(1, incoming)
        assert unknown == 0
        return push.seq

    first = await receive(kept)
    assert await receive(kept) > first
    last = await receive(kept)
    kept = NtfStore(database, 60.0)
    await kept.start()
    assert await receive(kept) > last
    # Also if only a verification is left to tell where it was.
    await kept.delete_token(token.token_id)
    [push] = (await kept.register(a_new_token())).pushes
    kept = NtfStore(database, 60.0)
    await kept.start()
    [later] = (await kept.register(a_new_token())).pushes
    assert later.seq > push.seq
    await database.close()


async def test_wake_ups_are_asked_for_once(kept: NtfStore) -> None:
    token = await register(kept)
    await kept.set_cron(token.token_id, 30)
    [[before]] = await kept.read(lambda tx: tx.query("SELECT cron_due_at FROM tokens"))
    await asyncio.sleep(0.01)
    await kept.set_cron(token.token_id, 30)
    [[after]] = await kept.read(lambda tx: tx.query("SELECT cron_due_at FROM tokens"))
    assert after - before < 1000


async def test_registrations_that_make_room_leave_the_cache(kept: NtfStore) -> None:
    device = a_device()
    made = [await kept.register(a_new_token(device)) for _ in range(tokens.MAX_UNVERIFIED + 1)]
    first = made[0].token
    assert first is not None
    assert made[-1].removed == [first.token_id]
    assert not kept.is_cached(first.token_id)


async def test_unverified_tokens_are_collected(kept: NtfStore) -> None:
    token = await register(kept, verified=False)
    verified = await register(kept)
    assert await kept.collect_unverified(60.0, 10) == []
    assert await kept.collect_unverified(-60.0, 10) == [token.token_id]
    assert not kept.is_cached(token.token_id)
    assert kept.is_cached(verified.token_id)
