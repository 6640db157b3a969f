import asyncio
import os
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from heliograph.db.database import Database
from heliograph.db.dialects import Transaction
from heliograph.db.errors import DatabaseError
from heliograph.ntf import debts, outbox, subscriptions, tokens
from heliograph.ntf.backoff import Backoff
from heliograph.ntf.outbox import Outbox, OutboxEvents, OutboxSettings
from heliograph.ntf.records import DebtKind, Incoming, Owed, Token
from heliograph.ntf.schema import MIGRATIONS
from heliograph.ntf.subscriptions import NewSubscription
from heliograph.push.provider import Accepted, Outcome, Refused, RetryLater, TokenInvalid
from heliograph.wire.push import CheckMessagesPush, MessagePush, VerificationPush
from heliograph.wire.tokens import InvalidReason, PushProvider, TokenStatus
from tests.ntf.support import FAST, Recorder, a_device, a_new_token, eventually, now_ms, until

TTL = 60_000
ADDRESS = "smp://LcJUMfVhwD8yxjAiSaDzzGF3-kLG4Uh0Fl_ZIjrRwjI=@smp.example.com"
LOST = RetryLater(None, "ConnectionLost", connection=True)
BUSY = RetryLater(None, "ServiceUnavailable")


class Shop:
    """An outbox over a store, and what it told."""

    def __init__(self, database: Database, settings: OutboxSettings) -> None:
        self.database = database
        self.test, self.prod = Recorder(), Recorder()
        self.attempted: list[Owed] = []
        self.settled: list[tuple[Owed, Outcome]] = []
        self.expired: list[debts.Expired] = []
        self.changed: list[Token] = []
        self.told: list[tuple[Owed, Outcome]] = []
        """Before the store has it."""
        self.outbox = Outbox(
            database,
            {PushProvider.APNS_TEST: self.test, PushProvider.APNS_PROD: self.prod},
            OutboxEvents(
                self.attempted.append,
                lambda owed, outcome: self.settled.append((owed, outcome)),
                self.expired.extend,
                self.changed.extend,
                self._storing,
            ),
            settings,
        )
        self._seq = 100
        self._queues: dict[bytes, bytes] = {}

    async def _storing(self, settled: list[tuple[Owed, Outcome]]) -> None:
        self.told += settled

    async def token(
        self, provider: PushProvider = PushProvider.APNS_TEST, *, verified: bool = True
    ) -> Token:
        new, now = a_new_token(a_device(provider)), now_ms()
        queue = os.urandom(24)

        def make(tx: Transaction) -> Token | None:
            token = tokens.register(tx, new, 1, now, now + TTL)
            if verified:
                token, _ = tokens.verify(tx, new.token_id, new.code)
                debts.settle(tx, [debts.Paid(new.token_id, DebtKind.VERIFICATION, 1)])
                added = NewSubscription(os.urandom(24), new.token_id, ADDRESS, queue, b"key")
                subscriptions.add(tx, added)
            return token

        token = await self.database.write(make)
        assert token is not None
        self._queues[token.token_id] = queue
        return token

    async def receive(self, *given: Token, ttl: int = TTL, offer: bool = True) -> list[Owed]:
        """As the router does when NMSG come."""
        incoming = [
            Incoming(self._queues[token.token_id], os.urandom(24), b"meta", 1.0) for token in given
        ]
        first, self._seq = self._seq, self._seq + len(incoming)
        now = now_ms()
        stored = await self.database.write(
            lambda tx: debts.receive(tx, 1, incoming, first, now, now + ttl)
        )
        if offer:
            self.outbox.offer(stored.owed)
        return stored.owed

    async def debts(self) -> int:
        count, _ = await self.database.read(debts.totals)
        return count

    async def until_paid(self) -> None:
        await eventually(self.is_paid)

    async def is_paid(self) -> bool:
        return await self.debts() == 0


@pytest.fixture
def settings() -> OutboxSettings:
    return OutboxSettings(window=4, backoff=FAST, refused_delay=0.2)


@pytest.fixture
async def shop(url: str, settings: OutboxSettings) -> AsyncIterator[Shop]:
    database = await Database.open(url, MIGRATIONS, retry_for=0.1)
    shop = Shop(database, settings)
    running = asyncio.create_task(shop.outbox.run())
    await asyncio.sleep(0)
    yield shop
    running.cancel()
    await shop.outbox.close(0.1)
    await database.close()


async def test_what_is_offeredis_paid_and_settled(shop: Shop) -> None:
    token = await shop.token()
    await shop.receive(token)
    await shop.until_paid()
    [push] = shop.test.to(token.device)
    assert isinstance(push, MessagePush)
    [(owed, outcome)] = shop.settled
    assert outcome == Accepted()
    assert shop.test.deliveries[0].expires_at == int(owed.expires_at)
    await until(lambda: shop.outbox.under_way == 0)


async def test_what_the_store_has_is_found_without_being_offered(shop: Shop) -> None:
    token = await shop.token()
    await shop.receive(token, offer=False)
    shop.outbox.wake()
    await shop.until_paid()
    assert len(shop.test.to(token.device)) == 1


async def test_a_lost_connection_is_retried_once_at_once_with_a_new_one(shop: Shop) -> None:
    token = await shop.token()
    shop.test.answers += [LOST]
    began = time.monotonic()
    await shop.receive(token)
    await shop.until_paid()
    assert time.monotonic() - began < 2
    assert shop.test.refreshed == [1]
    assert len(shop.test.deliveries) == 2
    assert shop.test.deliveries[0] == shop.test.deliveries[1]
    assert [outcome for _, outcome in shop.settled] == [Accepted()]


async def test_then_on_schedule_until_accepted(shop: Shop) -> None:
    token = await shop.token()
    shop.test.answers += [LOST] * 5
    await shop.receive(token)
    await shop.until_paid()
    assert shop.test.refreshed == [1]  # later attempts do not ask for more connections
    assert len(shop.test.deliveries) == 6
    assert [owed.attempts for owed, _ in shop.settled] == [0, 1, 2, 3, 4]
    assert {owed.since for owed, _ in shop.settled} == {shop.settled[0][0].since}


async def test_an_answer_is_no_reason_for_a_new_connection(shop: Shop) -> None:
    token = await shop.token()
    shop.test.answers += [BUSY, BUSY]
    await shop.receive(token)
    await shop.until_paid()
    assert shop.test.refreshed == []
    assert len(shop.test.deliveries) == 3


async def test_what_the_provider_asks_for_is_honoured(shop: Shop) -> None:
    token = await shop.token()
    shop.test.answers += [RetryLater(0.6, "TooManyRequests")]
    await shop.receive(token)
    await until(lambda: shop.settled)
    began = time.monotonic()
    await asyncio.sleep(0.3)
    await shop.receive(token)  # does not bring it forward
    await shop.until_paid()
    assert time.monotonic() - began >= 0.5
    assert len(shop.test.deliveries) == 2


async def test_a_dead_device_ends_its_debts(shop: Shop) -> None:
    token = await shop.token()
    shop.test.answers += [TokenInvalid(InvalidReason.UNREGISTERED)]
    await shop.receive(token)
    await shop.until_paid()
    await until(lambda: shop.changed)
    [changed] = shop.changed
    assert changed.status is TokenStatus.INVALID_UNREGISTERED
    assert await shop.receive(token) == []


async def test_what_is_refused_waits_longer_and_is_logged_once(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    shop.test.always = Refused("InvalidProviderToken")
    made = [await shop.token() for _ in range(3)]
    await shop.receive(*made)
    await until(lambda: len(shop.settled) >= 3)
    assert await shop.debts() == 3
    shop.test.always = Accepted()
    await shop.until_paid()
    assert len([text for text in caplog.messages if "InvalidProviderToken" in text]) == 1


async def test_a_delivered_verification_confirms_and_tells(shop: Shop) -> None:
    token = await shop.token(verified=False)
    shop.outbox.wake()
    await shop.until_paid()
    [push] = shop.test.to(token.device)
    assert isinstance(push, VerificationPush)
    await until(lambda: shop.changed)
    assert shop.changed[0].status is TokenStatus.CONFIRMED


async def test_many_notifications_are_few_pushes_and_all_are_covered(shop: Shop) -> None:
    token = await shop.token()
    shop.test.gate.clear()
    await shop.receive(token)
    await until(lambda: shop.test.under_way)
    for _ in range(50):
        await shop.receive(token)
    shop.test.gate.set()
    await shop.until_paid()
    assert len(shop.test.deliveries) == 2
    assert shop.settled[-1][0].seq == shop._seq - 1


async def test_the_window_bounds_what_is_under_way(shop: Shop) -> None:
    shop.test.gate.clear()
    made = [await shop.token() for _ in range(30)]
    await shop.receive(*made)
    await until(lambda: shop.test.under_way == 4)
    assert shop.outbox.under_way == 4
    shop.outbox.wake()
    await asyncio.sleep(0.05)
    assert shop.outbox.under_way == 4
    assert len(shop.outbox._tasks) <= 5
    shop.test.gate.set()
    await shop.until_paid()
    assert shop.test.most_under_way == 4
    assert sorted(len(shop.test.to(token.device)) for token in made) == [1] * 30


async def test_a_dead_provider_does_not_slow_another(shop: Shop) -> None:
    shop.test.gate.clear()
    await shop.receive(*[await shop.token() for _ in range(20)])
    await until(lambda: shop.test.under_way == 4)
    others = [await shop.token(PushProvider.APNS_PROD) for _ in range(20)]
    await shop.receive(*others, offer=False)
    shop.outbox.wake()
    await until(lambda: len(shop.prod.deliveries) == 20)
    assert len(shop.test.deliveries) == 4
    again = await shop.token(PushProvider.APNS_PROD)
    shop.prod.answers += [BUSY]
    await shop.receive(again)
    await until(lambda: len(shop.prod.to(again.device)) == 2)
    await until(lambda: shop.outbox.under_way == 4)
    assert await shop.debts() == 20
    shop.test.gate.set()
    await shop.until_paid()


async def test_nothing_is_asked_of_the_store_while_a_provider_is_stuck(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full window, and debts of nobody's provider, must not make it look again and again."""
    shop.test.gate.clear()
    unknown = await shop.token(PushProvider.APNS_DEV)
    unverified = await shop.token()
    made = [await shop.token() for _ in range(9)]
    await shop.receive(unknown, unverified, *made)
    device, code = a_device(), b"code"
    now = now_ms()
    await shop.database.write(
        lambda tx: tokens.replace_device(tx, unverified.token_id, device, code, 1, now, now + TTL)
    )
    await until(lambda: shop.test.under_way == 4)
    await asyncio.sleep(0.05)
    looks = 0
    write = shop.database.write

    def counting(function: object) -> object:
        nonlocal looks
        looks += 1
        return write(function)  # type: ignore[arg-type]

    monkeypatch.setattr(shop.database, "write", counting)
    await asyncio.sleep(0.3)
    assert looks <= 1
    shop.test.gate.set()


async def test_debts_expire(shop: Shop) -> None:
    token = await shop.token()
    shop.test.always = BUSY
    await shop.receive(token, ttl=200)
    await until(lambda: len(shop.test.deliveries) >= 2)
    await asyncio.sleep(0.3)
    count = len(shop.test.deliveries)
    shop.outbox._expire_at = 0.0
    shop.outbox.wake()
    await shop.until_paid()
    await until(lambda: shop.expired)
    [expired] = shop.expired
    assert (expired.token_id, expired.kind) == (token.token_id, DebtKind.MESSAGE)
    await asyncio.sleep(0.1)
    assert len(shop.test.deliveries) == count


async def test_any_number_expires_page_by_page(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    pages: list[int] = []
    expire = debts.expire

    def counted(tx: Transaction, now: int) -> list[debts.Expired]:
        found = expire(tx, now)
        pages.append(len(found))
        return found

    monkeypatch.setattr(debts, "EXPIRED_AT_ONCE", 2)
    monkeypatch.setattr(debts, "expire", counted)
    shop.test.always = BUSY
    for _ in range(5):
        await shop.receive(await shop.token(), ttl=100)
    await asyncio.sleep(0.15)
    shop.outbox._expire_at = 0.0
    shop.outbox.wake()
    await until(lambda: len(shop.expired) == 5)
    assert max(pages) == 2


async def test_a_provider_that_is_not_configured_leaves_debts_alone(shop: Shop) -> None:
    await shop.receive(await shop.token(PushProvider.APNS_DEV))
    shop.outbox.wake()
    await asyncio.sleep(0.05)
    assert await shop.debts() == 1
    assert shop.outbox.under_way == 0


async def test_an_unexpected_failure_is_put_off(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    token = await shop.token()
    failures = 2

    async def send(delivery: object) -> Outcome:
        nonlocal failures
        assert shop.told
        if failures:
            failures -= 1
            raise RuntimeError("a bug")
        return Accepted()

    shop.test.send = send  # type: ignore[method-assign]
    await shop.receive(token)
    await shop.until_paid()
    assert failures == 0
    assert "a push failed in an unexpected way" in caplog.text


async def test_a_device_replaced_while_its_push_was_under_way(shop: Shop) -> None:
    """The old device's end is not the new one's, and the new one's verification is owed."""
    token = await shop.token()
    shop.test.gate.clear()
    shop.test.answers += [TokenInvalid(InvalidReason.UNREGISTERED)]
    await shop.receive(token)
    await until(lambda: shop.test.under_way)
    device, code, now = a_device(), os.urandom(32), now_ms()
    await shop.database.write(
        lambda tx: tokens.replace_device(tx, token.token_id, device, code, 500, now, now + TTL)
    )
    shop.test.gate.set()
    shop.outbox.wake()
    await until(lambda: shop.test.to(device))
    [push] = shop.test.to(device)
    assert isinstance(push, VerificationPush)
    await until(lambda: shop.changed)
    assert shop.changed[0].status is TokenStatus.CONFIRMED
    assert await shop.debts() == 1  # the message, until the code comes back


async def test_a_verification_asked_for_again_while_one_is_under_way(shop: Shop) -> None:
    token = await shop.token(verified=False)
    shop.test.gate.clear()
    shop.outbox.wake()
    await until(lambda: shop.test.under_way)
    device, code, now = a_device(), os.urandom(32), now_ms()

    def replace(tx: Transaction) -> list[Owed]:
        tokens.replace_device(tx, token.token_id, device, code, 500, now, now + TTL)
        return debts.due_to(tx, [token.token_id], now)

    shop.outbox.offer(await shop.database.write(replace))
    shop.test.gate.set()
    await shop.until_paid()
    assert len(shop.test.to(token.device)) == 1
    assert len(shop.test.to(device)) == 1


async def test_a_token_deleted_while_its_push_was_under_way(shop: Shop) -> None:
    token = await shop.token()
    shop.test.gate.clear()
    await shop.receive(token)
    await until(lambda: shop.test.under_way)
    await shop.receive(token)
    await shop.database.write(lambda tx: tokens.delete(tx, token.token_id))
    shop.test.gate.set()
    await until(lambda: shop.outbox.under_way == 0)
    assert len(shop.test.deliveries) == 1
    assert await shop.debts() == 0


async def test_offered_again_at_every_moment_of_the_settlement(shop: Shop) -> None:
    """No moment between a push and its settlement may swallow a newer notification."""
    token = await shop.token()
    for turns in range(25):
        before = len(shop.settled)
        await shop.receive(token)
        await until(lambda before=before: len(shop.settled) > before)  # type: ignore[misc]
        for _ in range(turns):
            await asyncio.sleep(0)
        await shop.receive(token)
        await eventually(shop.is_paid, 2)  # well before the store is looked at without need
        assert shop.settled[-1][0].seq == shop._seq - 1


async def test_outcomes_wait_for_a_store_that_fails(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Until it is written what became of a push, it is not made again."""
    monkeypatch.setattr(outbox, "SETTLE_DELAYS", Backoff(0.02, 0.02))
    token = await shop.token()
    settle = debts.settle
    failures = 3

    def failing(tx: Transaction, items: object) -> list[Token]:
        nonlocal failures
        if failures:
            failures -= 1
            raise DatabaseError("the disk is full")
        return settle(tx, items)  # type: ignore[arg-type]

    monkeypatch.setattr(debts, "settle", failing)
    await shop.receive(token)
    await until(lambda: failures < 3)
    await shop.receive(token)
    shop.outbox.wake()
    await shop.until_paid()
    assert len(shop.test.deliveries) == 2  # for two notifications
    assert shop.told == shop.settled  # once each, also if the store fails
    assert "cannot be stored yet: the disk is full" in caplog.text


async def test_a_store_that_cannot_be_read_is_tried_again(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(outbox, "IDLE_CHECK", 0.02)
    token = await shop.token()
    due = debts.due
    failures: list[Exception] = [DatabaseError("lost"), RuntimeError("a bug")]

    def failing(*arguments: object) -> list[Owed]:
        if failures:
            raise failures.pop()
        return due(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(debts, "due", failing)
    await shop.receive(token, offer=False)
    shop.outbox.wake()
    await shop.until_paid()
    assert "what is owed cannot be read, trying again: lost" in caplog.text


async def test_closing_lets_pushes_end_and_keeps_the_rest_owed(url: str) -> None:
    database = await Database.open(url, MIGRATIONS)
    shop = Shop(database, OutboxSettings(window=2, backoff=FAST))
    made = [await shop.token() for _ in range(4)]
    shop.test.gate.clear()
    await shop.receive(*made)
    await until(lambda: shop.test.under_way == 2)
    closing = asyncio.create_task(shop.outbox.close())
    await asyncio.sleep(0.05)
    shop.test.gate.set()
    await closing
    assert shop.test.closed
    assert shop.prod.closed
    assert await shop.debts() == 2
    await shop.receive(made[0])
    assert len(shop.test.deliveries) == 2
    await database.close()


async def test_closing_does_not_wait_for_ever(url: str) -> None:
    database = await Database.open(url, MIGRATIONS)
    shop = Shop(database, OutboxSettings(window=2, backoff=FAST))
    shop.test.gate.clear()
    await shop.receive(await shop.token())
    await until(lambda: shop.test.under_way)
    await shop.outbox.close(0.05)
    assert shop.test.closed
    assert await shop.debts() == 1
    await database.close()


async def test_debts_survive_a_restart(url: str) -> None:
    database = await Database.open(url, MIGRATIONS)
    shop = Shop(database, OutboxSettings(backoff=FAST))
    shop.test.always = BUSY
    made = [await shop.token() for _ in range(3)]
    await shop.receive(*made)
    await until(lambda: len(shop.settled) == 3)
    await shop.outbox.close()
    await database.close()
    database = await Database.open(url, MIGRATIONS)
    shop = Shop(database, OutboxSettings(backoff=FAST))
    running = asyncio.create_task(shop.outbox.run())
    await shop.until_paid()
    assert {delivery.device for delivery in shop.test.deliveries} == {
        token.device for token in made
    }
    running.cancel()
    await shop.outbox.close()
    await database.close()


async def test_only_a_call_to_look_replaces_an_earlier_one(shop: Shop) -> None:
    token = await shop.token()
    await shop.receive(token)
    await shop.until_paid()
    now = now_ms()
    row = tokens.owed_row(token.token_id, DebtKind.CHECK, "apns_test", 9, now, now + TTL)
    await shop.database.write(lambda tx: tx.execute(tokens.OWE, row))
    shop.outbox.wake()
    await shop.until_paid()
    message, check = shop.test.deliveries
    assert isinstance(check.push, CheckMessagesPush)
    assert (message.collapse_id, check.collapse_id) == (None, "check")


async def test_pushes_go_on_if_outcomes_cannot_be_told(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(settled: object) -> None:
        raise RuntimeError("not this time")

    events = replace(shop.outbox._events, storing=broken)
    monkeypatch.setattr(shop.outbox, "_events", events)
    token = await shop.token()
    for _ in range(2):
        await shop.receive(token)
        await shop.until_paid()
    assert len(shop.test.deliveries) == 2
    assert "could not be told" in caplog.text
