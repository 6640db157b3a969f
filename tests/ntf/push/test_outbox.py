import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from heliograph.db.database import Database
from heliograph.db.dialects import Transaction
from heliograph.db.errors import DatabaseError
from heliograph.journal.journal import NO_JOURNAL
from heliograph.ntf.observing.observer import NtfObserver
from heliograph.ntf.observing.pushes import AnsweredPush, PushObserver
from heliograph.ntf.observing.stats import Stats
from heliograph.ntf.push import outbox
from heliograph.ntf.push.lanes import Pause
from heliograph.ntf.push.outbox import Outbox, OutboxSettings
from heliograph.ntf.store import pending, receiving, tokens
from heliograph.ntf.store.records import Incoming, Notice, PendingPush, PushKind, Token
from heliograph.ntf.store.schema import MIGRATIONS
from heliograph.ntf.store.store import NtfStore
from heliograph.ntf.store.subscriptions import subscriptions
from heliograph.ntf.store.subscriptions.subscriptions import NewSubscription
from heliograph.push.provider import (
    Accepted,
    DeviceTokenInvalid,
    Misconfigured,
    PushOutcome,
    RetryLater,
)
from heliograph.runtime.backoff import Backoff
from heliograph.runtime.clock import steady_time
from heliograph.wire.ntf.push import CheckMessagesPush, MessagePush, VerificationPush
from heliograph.wire.ntf.tokens import InvalidReason, PushProvider, TokenStatus
from tests.ntf.support import FAST, Recorder, a_device, a_new_token, now_ms
from tests.waiting import eventually, until

TTL = 60_000
ADDRESS = "smp://LcJUMfVhwD8yxjAiSaDzzGF3-kLG4Uh0Fl_ZIjrRwjI=@smp.example.com"
LOST = RetryLater(None, "ConnectionLost", connection=True)
BUSY = RetryLater(None, "ServiceUnavailable")


class RigObserver(NtfObserver):
    """Remembers what the outbox reports."""

    def __init__(self, rig: "OutboxRig") -> None:
        super().__init__(NO_JOURNAL)
        self._rig = rig
        self.pushes = RigPushes(rig)

    def tokens_changed(self, changed: Iterable[Token]) -> None:
        self._rig.changed += changed


class RigPushes(PushObserver):
    def __init__(self, rig: "OutboxRig") -> None:
        super().__init__(NO_JOURNAL, Stats(), lambda _: None)
        self._rig = rig

    def attempted(self, push: PendingPush) -> None:
        self._rig.attempted.append(push)

    async def answered(self, answered: Sequence[AnsweredPush]) -> None:
        self._rig.answered += [(push, outcome) for push, outcome, _ in answered]

    def expired(self, expired: Sequence[pending.ExpiredPush]) -> None:
        self._rig.expired += expired


class OutboxRig:
    """An outbox over a store, and what it reported."""

    def __init__(self, database: Database, settings: OutboxSettings) -> None:
        self.database = database
        self.test, self.prod = Recorder(), Recorder()
        self.attempted: list[PendingPush] = []
        self.answered: list[tuple[PendingPush, PushOutcome]] = []
        self.expired: list[pending.ExpiredPush] = []
        self.changed: list[Token] = []
        self.outbox = Outbox(
            NtfStore(database, 60.0),
            {PushProvider.APNS_TEST: self.test, PushProvider.APNS_PROD: self.prod},
            RigObserver(self),
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
                pending.apply(tx, [pending.MarkAccepted(new.token_id, PushKind.VERIFICATION, 1)])
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
        seqs = range(self.next_seq, self.next_seq + len(incoming))
        self.next_seq += len(incoming)
        now = now_ms()
        stored = await self.database.write(
            lambda tx: receiving.receive(tx, 1, incoming, seqs, now, now + ttl)
        )
        if offer:
            self.outbox.offer(stored.pushes)
        return stored.pushes

    async def pending_pushes(self) -> int:
        count = "SELECT COUNT(*) FROM pending_pushes"
        [[pushes]] = await self.database.read(lambda tx: tx.query(count))
        return int(pushes)

    async def until_none_pending(self) -> None:
        await eventually(self.is_none_pending)

    async def is_none_pending(self) -> bool:
        return await self.pending_pushes() == 0


@pytest.fixture
def settings() -> OutboxSettings:
    return OutboxSettings(window=4, backoff=FAST, refused_delay=0.2)


@pytest.fixture
async def rig(url: str, settings: OutboxSettings) -> AsyncIterator[OutboxRig]:
    database = await Database.open(url, MIGRATIONS, retry_for=0.1)
    rig = OutboxRig(database, settings)
    running = asyncio.create_task(rig.outbox.run())
    await asyncio.sleep(0)
    yield rig
    running.cancel()
    await rig.outbox.close(0.1)
    await database.close()


async def test_an_offered_push_is_sent_and_settled(rig: OutboxRig) -> None:
    token = await rig.token()
    await rig.receive(token)
    await rig.until_none_pending()
    [push] = rig.test.to(token.device)
    assert isinstance(push, MessagePush)
    [(pending_push, outcome)] = rig.answered
    assert outcome == Accepted()
    assert rig.test.deliveries[0].expires_at == int(pending_push.expires_at)
    await until(lambda: rig.outbox.in_flight == 0)


async def test_only_what_was_carried_is_reported(rig: OutboxRig) -> None:
    address = ADDRESS + "".join(f",smp{number}.example.org" for number in range(60))
    notices = tuple(
        Notice(seq, address, os.urandom(24), 1, os.urandom(24), b"meta") for seq in range(6)
    )
    device = a_device(PushProvider.APNS_TEST)
    at = time.time()
    rig.outbox.offer(
        [PendingPush(b"t", PushKind.MESSAGE, device, bytes(32), b"", 6, at, 0, at + 60, notices)]
    )
    await until(lambda: rig.answered)
    [(push, outcome)] = rig.answered
    assert outcome == Accepted()
    assert push.notices == notices[-2:]


async def test_what_the_store_has_is_found_without_being_offered(rig: OutboxRig) -> None:
    token = await rig.token()
    await rig.receive(token, offer=False)
    rig.outbox.wake()
    await rig.until_none_pending()
    assert len(rig.test.to(token.device)) == 1


async def test_a_lost_connection_is_retried_once_at_once_with_a_new_one(rig: OutboxRig) -> None:
    token = await rig.token()
    rig.test.answers += [LOST]
    await rig.receive(token)
    await rig.until_none_pending()
    assert rig.test.refreshed == [1]
    assert len(rig.test.deliveries) == 2
    assert rig.test.deliveries[0] == rig.test.deliveries[1]
    assert [outcome for _, outcome in rig.answered] == [Accepted()]


async def test_then_on_schedule_until_accepted(rig: OutboxRig) -> None:
    token = await rig.token()
    rig.test.answers += [LOST] * 5
    await rig.receive(token)
    await rig.until_none_pending()
    assert rig.test.refreshed == [1]  # later attempts do not ask for more connections
    assert len(rig.test.deliveries) == 6
    assert [push.attempts for push, _ in rig.answered] == [0, 1, 2, 3, 4]
    assert {push.since for push, _ in rig.answered} == {rig.answered[0][0].since}


async def test_an_answer_is_no_reason_for_a_new_connection(rig: OutboxRig) -> None:
    token = await rig.token()
    rig.test.answers += [BUSY, BUSY]
    await rig.receive(token)
    await rig.until_none_pending()
    assert rig.test.refreshed == []
    assert len(rig.test.deliveries) == 3


async def test_what_the_provider_asks_for_is_honoured(rig: OutboxRig) -> None:
    token = await rig.token()
    rig.test.answers += [RetryLater(0.6, "TooManyRequests")]
    await rig.receive(token)
    await until(lambda: rig.answered)
    began = time.monotonic()
    await asyncio.sleep(0.3)
    await rig.receive(token)  # does not bring it forward
    await rig.until_none_pending()
    assert time.monotonic() - began >= 0.5
    assert len(rig.test.deliveries) == 2


async def test_a_dead_device_ends_its_pending_pushes(rig: OutboxRig) -> None:
    token = await rig.token()
    rig.test.answers += [DeviceTokenInvalid(InvalidReason.UNREGISTERED)]
    await rig.receive(token)
    await rig.until_none_pending()
    await until(lambda: rig.changed)
    [changed] = rig.changed
    assert changed.status is TokenStatus.INVALID_UNREGISTERED
    assert await rig.receive(token) == []


async def test_what_is_refused_waits_longer_and_is_logged_once(
    rig: OutboxRig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.test.always = Misconfigured("InvalidProviderToken")
    made = [await rig.token() for _ in range(3)]
    await rig.receive(*made)
    await until(lambda: len(rig.answered) >= 3)
    assert await rig.pending_pushes() == 3
    rig.test.always = Accepted()
    await rig.until_none_pending()
    assert len([text for text in caplog.messages if "InvalidProviderToken" in text]) == 1


async def test_a_refusal_that_does_not_last_delays_little(rig: OutboxRig) -> None:
    """As by a clock that was wrong for seconds: the provider takes our tokens for invalid."""
    rig.outbox.settings = replace(rig.outbox.settings, refused_delay=60.0)
    rig.test.answers += [Misconfigured("InvalidProviderToken")] * 3
    await rig.receive(await rig.token())
    await rig.until_none_pending()
    assert len(rig.test.deliveries) == 4


async def test_a_lasting_refusal_waits_as_long_as_configured(rig: OutboxRig) -> None:
    hour = 3600.0
    rig.outbox.settings = replace(rig.outbox.settings, refused_delay=hour)
    rig.test.always = Misconfigured("InvalidProviderToken")
    await rig.receive(await rig.token())

    async def waits_an_hour() -> bool:
        return await next_at(rig) > time.time() + hour - 60

    await eventually(waits_an_hour)
    assert len(rig.test.deliveries) == outbox.SOON_RETRIED + 1


async def test_a_rate_limit_of_the_account_slows_down_the_whole_lane(rig: OutboxRig) -> None:
    """Other pushes would get the same answer: one is tried at a time, and no other waits longer."""
    made = [await rig.token() for _ in range(20)]
    rig.test.always = RetryLater(None, "TooManyProviderTokenUpdates", account_wide=True)
    await rig.receive(*made)
    await until(lambda: rig.answered)
    await asyncio.sleep(0.7)
    assert len(rig.test.deliveries) <= rig.outbox.settings.window + 1
    await rig.receive(await rig.token(PushProvider.APNS_PROD))
    await until(lambda: rig.prod.deliveries)  # another provider is not concerned
    rig.test.always, rig.test.most_in_flight = Accepted(), 0
    rig.test.gate.clear()
    await until(lambda: rig.test.in_flight)
    await asyncio.sleep(0.2)
    assert rig.test.most_in_flight == 1
    rig.test.gate.set()
    await rig.until_none_pending()


@pytest.fixture
def no_idle_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "IDLE_CHECK", 3600.0)


@pytest.mark.usefixtures("no_idle_check")
async def test_pushes_go_on_when_a_pause_of_another_process_ends(rig: OutboxRig) -> None:
    """Nothing else wakes this process, as it has been refused nothing."""
    token = await rig.token()
    rig.outbox.keep_pause(PushProvider.APNS_TEST, Pause("", time.monotonic() + 0.5, 1))
    rig.outbox.keep_pause(PushProvider.WEB_PUSH, Pause("", time.monotonic() + 0.5, 1))
    await rig.receive(token)
    assert rig.outbox.in_flight == 0
    await rig.until_none_pending()


async def test_a_delivered_verification_confirms_and_is_reported(rig: OutboxRig) -> None:
    token = await rig.token(verified=False)
    rig.outbox.wake()
    await rig.until_none_pending()
    [push] = rig.test.to(token.device)
    assert isinstance(push, VerificationPush)
    await until(lambda: rig.changed)
    assert rig.changed[0].status is TokenStatus.CONFIRMED


async def test_many_notifications_are_few_pushes_and_all_are_covered(rig: OutboxRig) -> None:
    token = await rig.token()
    rig.test.gate.clear()
    await rig.receive(token)
    await until(lambda: rig.test.in_flight)
    for _ in range(50):
        await rig.receive(token)
    rig.test.gate.set()
    await rig.until_none_pending()
    assert len(rig.test.deliveries) == 2
    assert rig.answered[-1][0].seq == rig.next_seq - 1


async def test_the_window_bounds_pushes_in_flight(rig: OutboxRig) -> None:
    rig.test.gate.clear()
    made = [await rig.token() for _ in range(30)]
    tasks = len(asyncio.all_tasks())
    await rig.receive(*made)
    await until(lambda: rig.test.in_flight == 4)
    assert rig.outbox.in_flight == 4
    rig.outbox.wake()
    await asyncio.sleep(0.05)
    assert rig.outbox.in_flight == 4
    assert len(asyncio.all_tasks()) <= tasks + 4
    rig.test.gate.set()
    await rig.until_none_pending()
    assert rig.test.most_in_flight == 4
    assert sorted(len(rig.test.to(token.device)) for token in made) == [1] * 30


async def test_a_dead_provider_does_not_slow_another(rig: OutboxRig) -> None:
    rig.test.gate.clear()
    await rig.receive(*[await rig.token() for _ in range(20)])
    await until(lambda: rig.test.in_flight == 4)
    others = [await rig.token(PushProvider.APNS_PROD) for _ in range(20)]
    await rig.receive(*others, offer=False)
    rig.outbox.wake()
    await until(lambda: len(rig.prod.deliveries) == 20)
    assert len(rig.test.deliveries) == 4
    again = await rig.token(PushProvider.APNS_PROD)
    rig.prod.answers += [BUSY]
    await rig.receive(again)
    await until(lambda: len(rig.prod.to(again.device)) == 2)
    await until(lambda: rig.outbox.in_flight == 4)
    assert await rig.pending_pushes() == 20
    rig.test.gate.set()
    await rig.until_none_pending()


async def test_nothing_is_asked_of_the_store_while_a_provider_is_stuck(
    rig: OutboxRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full window, or pushes without a provider, must not cause busy polling."""
    rig.test.gate.clear()
    unknown = await rig.token(PushProvider.APNS_DEV)
    unverified = await rig.token()
    made = [await rig.token() for _ in range(9)]
    await rig.receive(unknown, unverified, *made)
    device, code = a_device(), b"code"
    now = now_ms()
    await rig.database.write(
        lambda tx: tokens.replace_device(tx, unverified.token_id, device, code, 1, now, now + TTL)
    )
    await until(lambda: rig.test.in_flight == 4)
    await asyncio.sleep(0.05)
    looks = 0
    write = rig.database.write

    def counting(function: object) -> object:
        nonlocal looks
        looks += 1
        return write(function)  # type: ignore[arg-type]

    monkeypatch.setattr(rig.database, "write", counting)
    await asyncio.sleep(0.3)
    assert looks <= 1
    rig.test.gate.set()


@pytest.fixture
def frequent_expiry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for expired pushes each time that the outbox looks for due ones."""
    monkeypatch.setattr(outbox, "EXPIRE_INTERVAL", 0.0)


@pytest.mark.usefixtures("frequent_expiry")
async def test_pending_pushes_expire(rig: OutboxRig) -> None:
    token = await rig.token()
    rig.test.always = BUSY
    await rig.receive(token, ttl=200)
    await until(lambda: len(rig.test.deliveries) >= 2)
    await asyncio.sleep(0.3)
    count = len(rig.test.deliveries)
    rig.outbox.wake()
    await rig.until_none_pending()
    await until(lambda: rig.expired)
    [expired] = rig.expired
    assert (expired.token_id, expired.kind) == (token.token_id, PushKind.MESSAGE)
    await asyncio.sleep(0.1)
    assert len(rig.test.deliveries) == count


@pytest.mark.usefixtures("frequent_expiry")
async def test_any_number_expires_page_by_page(
    rig: OutboxRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages: list[int] = []
    expire = pending.expire

    def counted(tx: Transaction, now: int) -> list[pending.ExpiredPush]:
        found = expire(tx, now)
        pages.append(len(found))
        return found

    monkeypatch.setattr(pending, "MAX_EXPIRED_PER_PAGE", 2)
    monkeypatch.setattr(pending, "expire", counted)
    rig.test.always = BUSY
    for _ in range(5):
        await rig.receive(await rig.token(), ttl=100)
    await asyncio.sleep(0.15)
    rig.outbox.wake()
    await until(lambda: len(rig.expired) == 5)
    assert max(pages) == 2


async def test_pushes_of_a_provider_that_is_not_configured_stay_pending(rig: OutboxRig) -> None:
    await rig.receive(await rig.token(PushProvider.APNS_DEV))
    rig.outbox.wake()
    await asyncio.sleep(0.05)
    assert await rig.pending_pushes() == 1
    assert rig.outbox.in_flight == 0


async def test_an_unexpected_failure_is_retried_later(
    rig: OutboxRig, caplog: pytest.LogCaptureFixture
) -> None:
    token = await rig.token()
    failures = 2

    async def send(delivery: object) -> PushOutcome:
        nonlocal failures
        if failures:
            failures -= 1
            raise RuntimeError("a bug")
        return Accepted()

    rig.test.send = send  # type: ignore[method-assign]
    await rig.receive(token)
    await rig.until_none_pending()
    assert failures == 0
    assert "a push failed in an unexpected way" in caplog.text


async def test_a_device_replaced_while_its_push_was_in_flight(rig: OutboxRig) -> None:
    """The old device's end is not the new one's, and the new one's verification is pending."""
    token = await rig.token()
    rig.test.gate.clear()
    rig.test.answers += [DeviceTokenInvalid(InvalidReason.UNREGISTERED)]
    await rig.receive(token)
    await until(lambda: rig.test.in_flight)
    device, code, now = a_device(), os.urandom(32), now_ms()
    await rig.database.write(
        lambda tx: tokens.replace_device(tx, token.token_id, device, code, 500, now, now + TTL)
    )
    rig.test.gate.set()
    rig.outbox.wake()
    await until(lambda: rig.test.to(device))
    [push] = rig.test.to(device)
    assert isinstance(push, VerificationPush)
    await until(lambda: rig.changed)
    assert rig.changed[0].status is TokenStatus.CONFIRMED
    assert await rig.pending_pushes() == 1  # the message, until the code comes back


async def test_a_verification_requested_while_one_is_in_flight(rig: OutboxRig) -> None:
    token = await rig.token(verified=False)
    rig.test.gate.clear()
    rig.outbox.wake()
    await until(lambda: rig.test.in_flight)
    device, code, now = a_device(), os.urandom(32), now_ms()

    def replace(tx: Transaction) -> list[PendingPush]:
        tokens.replace_device(tx, token.token_id, device, code, 500, now, now + TTL)
        return pending.due_for(tx, [token.token_id], now)

    rig.outbox.offer(await rig.database.write(replace))
    rig.test.gate.set()
    await rig.until_none_pending()
    assert len(rig.test.to(token.device)) == 1
    assert len(rig.test.to(device)) == 1


async def test_a_token_deleted_while_its_push_was_in_flight(rig: OutboxRig) -> None:
    token = await rig.token()
    rig.test.gate.clear()
    await rig.receive(token)
    await until(lambda: rig.test.in_flight)
    await rig.receive(token)
    await rig.database.write(lambda tx: tokens.delete(tx, token.token_id))
    rig.test.gate.set()
    await until(lambda: rig.outbox.in_flight == 0)
    assert len(rig.test.deliveries) == 1
    assert await rig.pending_pushes() == 0


async def test_offered_again_at_every_moment_until_the_outcome_is_stored(rig: OutboxRig) -> None:
    """No moment between a push and the storing of its outcome may swallow a newer notification."""
    token = await rig.token()
    for turns in range(25):
        before = len(rig.answered)
        await rig.receive(token)
        await until(lambda before=before: len(rig.answered) > before)  # type: ignore[misc]
        for _ in range(turns):
            await asyncio.sleep(0)
        await rig.receive(token)
        await eventually(rig.is_none_pending, 2)  # well before the store is looked at without need
        assert rig.answered[-1][0].seq == rig.next_seq - 1


async def test_outcomes_wait_for_a_store_that_fails(
    rig: OutboxRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Until it is written what became of a push, it is not made again."""
    monkeypatch.setattr(outbox, "STORE_DELAYS", Backoff(0.02, 0.02))
    token = await rig.token()
    apply = pending.apply
    failures = 3

    def failing(tx: Transaction, *items: Any) -> list[Token]:
        nonlocal failures
        if failures:
            failures -= 1
            raise DatabaseError("the disk is full")
        return apply(tx, *items)

    monkeypatch.setattr(pending, "apply", failing)
    await rig.receive(token)
    await until(lambda: failures < 3)
    await rig.receive(token)
    rig.outbox.wake()
    await rig.until_none_pending()
    assert len(rig.test.deliveries) == 2  # for two notifications
    assert len(rig.answered) == 2  # reported once each, also if the store fails
    assert "cannot be stored yet: the disk is full" in caplog.text


async def test_a_store_that_cannot_be_read_is_tried_again(
    rig: OutboxRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(outbox, "IDLE_CHECK", 0.02)
    token = await rig.token()
    due = pending.due
    failures: list[Exception] = [DatabaseError("lost"), RuntimeError("a bug")]

    def failing(*arguments: object) -> list[PendingPush]:
        if failures:
            raise failures.pop()
        return due(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(pending, "due", failing)
    await rig.receive(token, offer=False)
    rig.outbox.wake()
    await rig.until_none_pending()
    assert "pending pushes cannot be read, retrying: lost" in caplog.text


async def test_closing_drains_pushes_and_keeps_the_rest_pending(url: str) -> None:
    database = await Database.open(url, MIGRATIONS)
    rig = OutboxRig(database, OutboxSettings(window=2, backoff=FAST))
    made = [await rig.token() for _ in range(4)]
    rig.test.gate.clear()
    await rig.receive(*made)
    await until(lambda: rig.test.in_flight == 2)
    closing = asyncio.create_task(rig.outbox.close())
    await asyncio.sleep(0.05)
    rig.test.gate.set()
    await closing
    assert rig.test.closed
    assert rig.prod.closed
    assert await rig.pending_pushes() == 2
    await rig.receive(made[0])
    assert len(rig.test.deliveries) == 2
    await database.close()


async def test_closing_does_not_wait_for_ever(url: str) -> None:
    database = await Database.open(url, MIGRATIONS)
    rig = OutboxRig(database, OutboxSettings(window=2, backoff=FAST))
    rig.test.gate.clear()
    await rig.receive(await rig.token())
    await until(lambda: rig.test.in_flight)
    await rig.outbox.close(0.05)
    assert rig.test.closed
    assert await rig.pending_pushes() == 1
    await database.close()


async def test_pending_pushes_survive_a_restart(url: str) -> None:
    database = await Database.open(url, MIGRATIONS)
    rig = OutboxRig(database, OutboxSettings(backoff=FAST))
    rig.test.always = BUSY
    made = [await rig.token() for _ in range(3)]
    await rig.receive(*made)
    await until(lambda: len(rig.answered) == 3)
    await rig.outbox.close()
    await database.close()
    database = await Database.open(url, MIGRATIONS)
    rig = OutboxRig(database, OutboxSettings(backoff=FAST))
    running = asyncio.create_task(rig.outbox.run())
    await rig.until_none_pending()
    assert {delivery.device for delivery in rig.test.deliveries} == {token.device for token in made}
    running.cancel()
    await rig.outbox.close()
    await database.close()


async def test_only_a_call_to_look_replaces_an_earlier_one(rig: OutboxRig) -> None:
    token = await rig.token()
    await rig.receive(token)
    await rig.until_none_pending()
    now = now_ms()
    row = tokens.pending_row(token.token_id, PushKind.CHECK, "apns_test", 9, now, now + TTL)
    await rig.database.write(lambda tx: tx.execute(tokens.ADD_PENDING, row))
    rig.outbox.wake()
    await rig.until_none_pending()
    message, check = rig.test.deliveries
    assert isinstance(check.push, CheckMessagesPush)
    assert (message.collapse_id, check.collapse_id) == (None, "check")


async def test_pushes_continue_if_outcomes_cannot_be_reported(
    rig: OutboxRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(self: RigPushes, answered: object) -> None:
        raise RuntimeError("not this time")

    monkeypatch.setattr(RigPushes, "answered", broken)
    token = await rig.token()
    for _ in range(2):
        await rig.receive(token)
        await rig.until_none_pending()
    assert len(rig.test.deliveries) == 2
    assert "cannot be reported" in caplog.text


async def next_at(rig: OutboxRig) -> float:
    [[at]] = await rig.database.read(lambda tx: tx.query("SELECT next_at FROM pending_pushes"))
    return float(at) / 1000


@pytest.mark.parametrize("asked", [1e10, 86_400.0])
async def test_a_provider_silences_nobody_for_more_than_minutes(
    rig: OutboxRig, asked: float
) -> None:
    rig.test.answers += [RetryLater(asked, "TooManyRequests")]
    await rig.receive(await rig.token())
    await until(lambda: rig.answered)

    async def is_retried() -> bool:
        return await next_at(rig) > time.time() + 1

    await eventually(is_retried)
    assert await next_at(rig) <= time.time() + rig.outbox.settings.max_retry_after + 1


async def test_a_clock_that_jumps_for_a_moment_delays_nothing(
    rig: OutboxRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.test.answers += [RetryLater(None, "ServiceUnavailable")]
    token = await rig.token()
    right = time.time
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: right() + 3600)
        await rig.receive(token)
        await until(lambda: rig.answered)
    await until(lambda: len(rig.answered) == 2)
    await rig.until_none_pending()


@pytest.mark.usefixtures("frequent_expiry")
async def test_what_a_wrong_clock_postponed_is_due_again(rig: OutboxRig) -> None:
    await rig.receive(await rig.token(), offer=False)
    far = now_ms() + 4 * 86_400_000
    await rig.database.write(lambda tx: tx.execute("UPDATE pending_pushes SET next_at = ?", (far,)))
    rig.outbox.wake()
    await rig.until_none_pending()


@pytest.mark.usefixtures("frequent_expiry")
async def test_a_clock_that_was_wrong_for_days_is_set_right(
    rig: OutboxRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(outbox, "steady_time", lambda: steady_time() + 4 * 86_400)
        await rig.outbox._take_due()
    await rig.receive(await rig.token(), offer=False)
    far = now_ms() + 4 * 86_400_000
    await rig.database.write(lambda tx: tx.execute("UPDATE pending_pushes SET next_at = ?", (far,)))
    rig.outbox.wake()
    await rig.until_none_pending()
