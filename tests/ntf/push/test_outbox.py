import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterable, Sequence

import pytest

from heliograph.db.database import Database
from heliograph.db.dialects import Transaction
from heliograph.db.errors import DatabaseError
from heliograph.journal.journal import NO_JOURNAL
from heliograph.ntf.journaling import SettledPush
from heliograph.ntf.observer import NtfObserver
from heliograph.ntf.push import outbox
from heliograph.ntf.push.outbox import Outbox, OutboxSettings
from heliograph.ntf.store import pending, subscriptions, tokens
from heliograph.ntf.store.records import Incoming, Notice, PendingPush, PushKind, Token
from heliograph.ntf.store.schema import MIGRATIONS
from heliograph.ntf.store.store import NtfStore
from heliograph.ntf.store.subscriptions import NewSubscription
from heliograph.push.provider import (
    Accepted,
    DeviceTokenInvalid,
    Misconfigured,
    Outcome,
    RetryLater,
)
from heliograph.runtime.backoff import Backoff
from heliograph.wire.ntf.push import CheckMessagesPush, MessagePush, VerificationPush
from heliograph.wire.ntf.tokens import InvalidReason, PushProvider, TokenStatus
from tests.ntf.support import FAST, Recorder, a_device, a_new_token, now_ms
from tests.waiting import eventually, until

TTL = 60_000
ADDRESS = "smp://LcJUMfVhwD8yxjAiSaDzzGF3-kLG4Uh0Fl_ZIjrRwjI=@smp.example.com"
LOST = RetryLater(None, "ConnectionLost", connection=True)
BUSY = RetryLater(None, "ServiceUnavailable")


class ShopObserver(NtfObserver):
    """Remembers what the outbox reports."""

    def __init__(self, shop: "Shop") -> None:
        super().__init__(NO_JOURNAL)
        self._shop = shop

    def push_attempted(self, push: PendingPush) -> None:
        self._shop.attempted.append(push)

    async def pushes_settled(self, settled: Sequence[SettledPush]) -> None:
        self._shop.settled += [(push, outcome) for push, outcome, _ in settled]

    def pushes_expired(self, expired: Sequence[pending.ExpiredPush]) -> None:
        self._shop.expired += expired

    def tokens_changed(self, changed: Iterable[Token]) -> None:
        self._shop.changed += changed


class Shop:
    """An outbox over a store, and what it reported."""

    def __init__(self, database: Database, settings: OutboxSettings) -> None:
        self.database = database
        self.test, self.prod = Recorder(), Recorder()
        self.attempted: list[PendingPush] = []
        self.settled: list[tuple[PendingPush, Outcome]] = []
        self.expired: list[pending.ExpiredPush] = []
        self.changed: list[Token] = []
        self.outbox = Outbox(
            NtfStore(database, 60.0),
            {PushProvider.APNS_TEST: self.test, PushProvider.APNS_PROD: self.prod},
            ShopObserver(self),
            settings,
        )
        self.next_seq = 100
        self._queues: dict[bytes, bytes] = {}

    async def token(
        self, provider: PushProvider = PushProvider.APNS_TEST, *, verified: bool = True
    ) -> Token:
        new, now = a_new_token(a_device(provider)), now_ms()
        queue = os.urandom(24)

        def make(tx: Transaction) -> Token | None:
            token = tokens.register(tx, new, 1, now, now + TTL)
            if verified:
                token, _ = tokens.verify(tx, new.token_id, new.code)
                pending.settle(tx, [pending.MarkAccepted(new.token_id, PushKind.VERIFICATION, 1)])
                added = NewSubscription(os.urandom(24), new.token_id, ADDRESS, queue, b"key")
                subscriptions.add(tx, added)
            return token

        token = await self.database.write(make)
        assert token is not None
        self._queues[token.token_id] = queue
        return token

    async def receive(self, *given: Token, ttl: int = TTL, offer: bool = True) -> list[PendingPush]:
        """As the router does when NMSG come."""
        incoming = [
            Incoming(self._queues[token.token_id], os.urandom(24), b"meta", 1.0) for token in given
        ]
        first, self.next_seq = self.next_seq, self.next_seq + len(incoming)
        now = now_ms()
        stored = await self.database.write(
            lambda tx: pending.receive(tx, 1, incoming, first, now, now + ttl)
        )
        if offer:
            self.outbox.offer(stored.pushes)
        return stored.pushes

    async def pending_pushes(self) -> int:
        count, _ = await self.database.read(pending.totals)
        return count

    async def until_none_pending(self) -> None:
        await eventually(self.is_none_pending)

    async def is_none_pending(self) -> bool:
        return await self.pending_pushes() == 0


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


async def test_an_offered_push_is_sent_and_settled(shop: Shop) -> None:
    token = await shop.token()
    await shop.receive(token)
    await shop.until_none_pending()
    [push] = shop.test.to(token.device)
    assert isinstance(push, MessagePush)
    [(pending_push, outcome)] = shop.settled
    assert outcome == Accepted()
    assert shop.test.deliveries[0].expires_at == int(pending_push.expires_at)
    await until(lambda: shop.outbox.in_flight == 0)


async def test_only_what_was_carried_is_reported(shop: Shop) -> None:
    address = ADDRESS + "".join(f",smp{number}.example.org" for number in range(60))
    notices = tuple(
        Notice(seq, address, os.urandom(24), 1, os.urandom(24), b"meta") for seq in range(6)
    )
    device = a_device(PushProvider.APNS_TEST)
    at = time.time()
    shop.outbox.offer(
        [PendingPush(b"t", PushKind.MESSAGE, device, bytes(32), b"", 6, at, 0, at + 60, notices)]
    )
    await until(lambda: shop.settled)
    [(push, outcome)] = shop.settled
    assert outcome == Accepted()
    assert push.notices == notices[-2:]


async def test_what_the_store_has_is_found_without_being_offered(shop: Shop) -> None:
    token = await shop.token()
    await shop.receive(token, offer=False)
    shop.outbox.wake()
    await shop.until_none_pending()
    assert len(shop.test.to(token.device)) == 1


async def test_a_lost_connection_is_retried_once_at_once_with_a_new_one(shop: Shop) -> None:
    token = await shop.token()
    shop.test.answers += [LOST]
    await shop.receive(token)
    await shop.until_none_pending()
    assert shop.test.refreshed == [1]
    assert len(shop.test.deliveries) == 2
    assert shop.test.deliveries[0] == shop.test.deliveries[1]
    assert [outcome for _, outcome in shop.settled] == [Accepted()]


async def test_then_on_schedule_until_accepted(shop: Shop) -> None:
    token = await shop.token()
    shop.test.answers += [LOST] * 5
    await shop.receive(token)
    await shop.until_none_pending()
    assert shop.test.refreshed == [1]  # later attempts do not ask for more connections
    assert len(shop.test.deliveries) == 6
    assert [push.attempts for push, _ in shop.settled] == [0, 1, 2, 3, 4]
    assert {push.since for push, _ in shop.settled} == {shop.settled[0][0].since}


async def test_an_answer_is_no_reason_for_a_new_connection(shop: Shop) -> None:
    token = await shop.token()
    shop.test.answers += [BUSY, BUSY]
    await shop.receive(token)
    await shop.until_none_pending()
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
    await shop.until_none_pending()
    assert time.monotonic() - began >= 0.5
    assert len(shop.test.deliveries) == 2


async def test_a_dead_device_ends_its_pending_pushes(shop: Shop) -> None:
    token = await shop.token()
    shop.test.answers += [DeviceTokenInvalid(InvalidReason.UNREGISTERED)]
    await shop.receive(token)
    await shop.until_none_pending()
    await until(lambda: shop.changed)
    [changed] = shop.changed
    assert changed.status is TokenStatus.INVALID_UNREGISTERED
    assert await shop.receive(token) == []


async def test_what_is_refused_waits_longer_and_is_logged_once(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    shop.test.always = Misconfigured("InvalidProviderToken")
    made = [await shop.token() for _ in range(3)]
    await shop.receive(*made)
    await until(lambda: len(shop.settled) >= 3)
    assert await shop.pending_pushes() == 3
    shop.test.always = Accepted()
    await shop.until_none_pending()
    assert len([text for text in caplog.messages if "InvalidProviderToken" in text]) == 1


async def test_a_delivered_verification_confirms_and_is_reported(shop: Shop) -> None:
    token = await shop.token(verified=False)
    shop.outbox.wake()
    await shop.until_none_pending()
    [push] = shop.test.to(token.device)
    assert isinstance(push, VerificationPush)
    await until(lambda: shop.changed)
    assert shop.changed[0].status is TokenStatus.CONFIRMED


async def test_many_notifications_are_few_pushes_and_all_are_covered(shop: Shop) -> None:
    token = await shop.token()
    shop.test.gate.clear()
    await shop.receive(token)
    await until(lambda: shop.test.in_flight)
    for _ in range(50):
        await shop.receive(token)
    shop.test.gate.set()
    await shop.until_none_pending()
    assert len(shop.test.deliveries) == 2
    assert shop.settled[-1][0].seq == shop.next_seq - 1


async def test_the_window_bounds_pushes_in_flight(shop: Shop) -> None:
    shop.test.gate.clear()
    made = [await shop.token() for _ in range(30)]
    tasks = len(asyncio.all_tasks())
    await shop.receive(*made)
    await until(lambda: shop.test.in_flight == 4)
    assert shop.outbox.in_flight == 4
    shop.outbox.wake()
    await asyncio.sleep(0.05)
    assert shop.outbox.in_flight == 4
    assert len(asyncio.all_tasks()) <= tasks + 4
    shop.test.gate.set()
    await shop.until_none_pending()
    assert shop.test.most_in_flight == 4
    assert sorted(len(shop.test.to(token.device)) for token in made) == [1] * 30


async def test_a_dead_provider_does_not_slow_another(shop: Shop) -> None:
    shop.test.gate.clear()
    await shop.receive(*[await shop.token() for _ in range(20)])
    await until(lambda: shop.test.in_flight == 4)
    others = [await shop.token(PushProvider.APNS_PROD) for _ in range(20)]
    await shop.receive(*others, offer=False)
    shop.outbox.wake()
    await until(lambda: len(shop.prod.deliveries) == 20)
    assert len(shop.test.deliveries) == 4
    again = await shop.token(PushProvider.APNS_PROD)
    shop.prod.answers += [BUSY]
    await shop.receive(again)
    await until(lambda: len(shop.prod.to(again.device)) == 2)
    await until(lambda: shop.outbox.in_flight == 4)
    assert await shop.pending_pushes() == 20
    shop.test.gate.set()
    await shop.until_none_pending()


async def test_nothing_is_asked_of_the_store_while_a_provider_is_stuck(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full window, or pushes without a provider, must not cause busy polling."""
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
    await until(lambda: shop.test.in_flight == 4)
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


@pytest.fixture
def frequent_expiry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for expired pushes each time that the outbox looks for due ones."""
    monkeypatch.setattr(outbox, "EXPIRE_INTERVAL", 0.0)


@pytest.mark.usefixtures("frequent_expiry")
async def test_pending_pushes_expire(shop: Shop) -> None:
    token = await shop.token()
    shop.test.always = BUSY
    await shop.receive(token, ttl=200)
    await until(lambda: len(shop.test.deliveries) >= 2)
    await asyncio.sleep(0.3)
    count = len(shop.test.deliveries)
    shop.outbox.wake()
    await shop.until_none_pending()
    await until(lambda: shop.expired)
    [expired] = shop.expired
    assert (expired.token_id, expired.kind) == (token.token_id, PushKind.MESSAGE)
    await asyncio.sleep(0.1)
    assert len(shop.test.deliveries) == count


@pytest.mark.usefixtures("frequent_expiry")
async def test_any_number_expires_page_by_page(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    pages: list[int] = []
    expire = pending.expire

    def counted(tx: Transaction, now: int) -> list[pending.ExpiredPush]:
        found = expire(tx, now)
        pages.append(len(found))
        return found

    monkeypatch.setattr(pending, "MAX_EXPIRED_PER_PAGE", 2)
    monkeypatch.setattr(pending, "expire", counted)
    shop.test.always = BUSY
    for _ in range(5):
        await shop.receive(await shop.token(), ttl=100)
    await asyncio.sleep(0.15)
    shop.outbox.wake()
    await until(lambda: len(shop.expired) == 5)
    assert max(pages) == 2


async def test_pushes_of_a_provider_that_is_not_configured_stay_pending(shop: Shop) -> None:
    await shop.receive(await shop.token(PushProvider.APNS_DEV))
    shop.outbox.wake()
    await asyncio.sleep(0.05)
    assert await shop.pending_pushes() == 1
    assert shop.outbox.in_flight == 0


async def test_an_unexpected_failure_is_retried_later(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    token = await shop.token()
    failures = 2

    async def send(delivery: object) -> Outcome:
        nonlocal failures
        if failures:
            failures -= 1
            raise RuntimeError("a bug")
        return Accepted()

    shop.test.send = send  # type: ignore[method-assign]
    await shop.receive(token)
    await shop.until_none_pending()
    assert failures == 0
    assert "a push failed in an unexpected way" in caplog.text


async def test_a_device_replaced_while_its_push_was_in_flight(shop: Shop) -> None:
    """The old device's end is not the new one's, and the new one's verification is pending."""
    token = await shop.token()
    shop.test.gate.clear()
    shop.test.answers += [DeviceTokenInvalid(InvalidReason.UNREGISTERED)]
    await shop.receive(token)
    await until(lambda: shop.test.in_flight)
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
    assert await shop.pending_pushes() == 1  # the message, until the code comes back


async def test_a_verification_requested_while_one_is_in_flight(shop: Shop) -> None:
    token = await shop.token(verified=False)
    shop.test.gate.clear()
    shop.outbox.wake()
    await until(lambda: shop.test.in_flight)
    device, code, now = a_device(), os.urandom(32), now_ms()

    def replace(tx: Transaction) -> list[PendingPush]:
        tokens.replace_device(tx, token.token_id, device, code, 500, now, now + TTL)
        return pending.due_for(tx, [token.token_id], now)

    shop.outbox.offer(await shop.database.write(replace))
    shop.test.gate.set()
    await shop.until_none_pending()
    assert len(shop.test.to(token.device)) == 1
    assert len(shop.test.to(device)) == 1


async def test_a_token_deleted_while_its_push_was_in_flight(shop: Shop) -> None:
    token = await shop.token()
    shop.test.gate.clear()
    await shop.receive(token)
    await until(lambda: shop.test.in_flight)
    await shop.receive(token)
    await shop.database.write(lambda tx: tokens.delete(tx, token.token_id))
    shop.test.gate.set()
    await until(lambda: shop.outbox.in_flight == 0)
    assert len(shop.test.deliveries) == 1
    assert await shop.pending_pushes() == 0


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
        await eventually(shop.is_none_pending, 2)  # well before the store is looked at without need
        assert shop.settled[-1][0].seq == shop.next_seq - 1


async def test_outcomes_wait_for_a_store_that_fails(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Until it is written what became of a push, it is not made again."""
    monkeypatch.setattr(outbox, "SETTLE_DELAYS", Backoff(0.02, 0.02))
    token = await shop.token()
    settle = pending.settle
    failures = 3

    def failing(tx: Transaction, items: object) -> list[Token]:
        nonlocal failures
        if failures:
            failures -= 1
            raise DatabaseError("the disk is full")
        return settle(tx, items)  # type: ignore[arg-type]

    monkeypatch.setattr(pending, "settle", failing)
    await shop.receive(token)
    await until(lambda: failures < 3)
    await shop.receive(token)
    shop.outbox.wake()
    await shop.until_none_pending()
    assert len(shop.test.deliveries) == 2  # for two notifications
    assert len(shop.settled) == 2  # reported once each, also if the store fails
    assert "cannot be stored yet: the disk is full" in caplog.text


async def test_a_store_that_cannot_be_read_is_tried_again(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(outbox, "IDLE_CHECK", 0.02)
    token = await shop.token()
    due = pending.due
    failures: list[Exception] = [DatabaseError("lost"), RuntimeError("a bug")]

    def failing(*arguments: object) -> list[PendingPush]:
        if failures:
            raise failures.pop()
        return due(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(pending, "due", failing)
    await shop.receive(token, offer=False)
    shop.outbox.wake()
    await shop.until_none_pending()
    assert "pending pushes cannot be read, retrying: lost" in caplog.text


async def test_closing_drains_pushes_and_keeps_the_rest_pending(url: str) -> None:
    database = await Database.open(url, MIGRATIONS)
    shop = Shop(database, OutboxSettings(window=2, backoff=FAST))
    made = [await shop.token() for _ in range(4)]
    shop.test.gate.clear()
    await shop.receive(*made)
    await until(lambda: shop.test.in_flight == 2)
    closing = asyncio.create_task(shop.outbox.close())
    await asyncio.sleep(0.05)
    shop.test.gate.set()
    await closing
    assert shop.test.closed
    assert shop.prod.closed
    assert await shop.pending_pushes() == 2
    await shop.receive(made[0])
    assert len(shop.test.deliveries) == 2
    await database.close()


async def test_closing_does_not_wait_for_ever(url: str) -> None:
    database = await Database.open(url, MIGRATIONS)
    shop = Shop(database, OutboxSettings(window=2, backoff=FAST))
    shop.test.gate.clear()
    await shop.receive(await shop.token())
    await until(lambda: shop.test.in_flight)
    await shop.outbox.close(0.05)
    assert shop.test.closed
    assert await shop.pending_pushes() == 1
    await database.close()


async def test_pending_pushes_survive_a_restart(url: str) -> None:
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
    await shop.until_none_pending()
    assert {delivery.device for delivery in shop.test.deliveries} == {
        token.device for token in made
    }
    running.cancel()
    await shop.outbox.close()
    await database.close()


async def test_only_a_call_to_look_replaces_an_earlier_one(shop: Shop) -> None:
    token = await shop.token()
    await shop.receive(token)
    await shop.until_none_pending()
    now = now_ms()
    row = tokens.pending_row(token.token_id, PushKind.CHECK, "apns_test", 9, now, now + TTL)
    await shop.database.write(lambda tx: tx.execute(tokens.ADD_PENDING, row))
    shop.outbox.wake()
    await shop.until_none_pending()
    message, check = shop.test.deliveries
    assert isinstance(check.push, CheckMessagesPush)
    assert (message.collapse_id, check.collapse_id) == (None, "check")


async def test_pushes_continue_if_outcomes_cannot_be_reported(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(self: ShopObserver, settled: object) -> None:
        raise RuntimeError("not this time")

    monkeypatch.setattr(ShopObserver, "pushes_settled", broken)
    token = await shop.token()
    for _ in range(2):
        await shop.receive(token)
        await shop.until_none_pending()
    assert len(shop.test.deliveries) == 2
    assert "cannot be reported" in caplog.text


async def next_at(shop: Shop) -> float:
    [[at]] = await shop.database.read(lambda tx: tx.query("SELECT next_at FROM pending_pushes"))
    return float(at) / 1000


@pytest.mark.parametrize("asked", [1e10, 86_400.0])
async def test_a_provider_silences_nobody_for_more_than_minutes(shop: Shop, asked: float) -> None:
    shop.test.answers += [RetryLater(asked, "TooManyRequests")]
    await shop.receive(await shop.token())
    await until(lambda: shop.settled)

    async def is_retried() -> bool:
        return await next_at(shop) > time.time() + 1

    await eventually(is_retried)
    assert await next_at(shop) <= time.time() + shop.outbox.settings.max_retry_after + 1


async def test_a_clock_that_jumps_for_a_moment_delays_nothing(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.test.answers += [RetryLater(None, "ServiceUnavailable")]
    token = await shop.token()
    right = time.time
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: right() + 3600)
        await shop.receive(token)
        await until(lambda: shop.settled)
    await until(lambda: len(shop.settled) == 2)
    await shop.until_none_pending()


@pytest.mark.usefixtures("frequent_expiry")
async def test_what_a_wrong_clock_postponed_is_due_again(shop: Shop) -> None:
    await shop.receive(await shop.token(), offer=False)
    far = now_ms() + 4 * 86_400_000
    await shop.database.write(
        lambda tx: tx.execute("UPDATE pending_pushes SET next_at = ?", (far,))
    )
    shop.outbox.wake()
    await shop.until_none_pending()
