"""The outbox: deliver the pending pushes of the store through providers, and store the outcome.

Memory is bounded: each provider has a window of pushes in flight, and other pushes stay in the
store until there is room. A dead provider fills its own window only.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, cast

from heliograph.crypto.boxes import random_nonce
from heliograph.db.dialects import Transaction
from heliograph.db.errors import DatabaseError
from heliograph.ntf.observing.observer import NtfObserver
from heliograph.ntf.observing.pushes import AnsweredPush
from heliograph.ntf.push.lanes import Lane, Pause
from heliograph.ntf.push.padding import Padding
from heliograph.ntf.push.payload import build
from heliograph.ntf.store import pending
from heliograph.ntf.store.records import PendingPush, PushKind, Token
from heliograph.ntf.store.store import NtfStore
from heliograph.push.provider import (
    Accepted,
    Delivery,
    DeviceTokenInvalid,
    Misconfigured,
    Provider,
    PushOutcome,
    RetryLater,
)
from heliograph.runtime.backoff import Backoff
from heliograph.runtime.clock import steady_time
from heliograph.tasks import TaskScope
from heliograph.wire.ntf.push import PUSH_SIZE
from heliograph.wire.ntf.tokens import PushProvider, WPDeviceToken

logger = logging.getLogger(__name__)

IDLE_CHECK = 5.0
EXPIRE_INTERVAL = 60.0
STORE_DELAYS = Backoff(first=0.1, last=5.0)
REFUSAL_LOG_INTERVAL = 60.0
SOON_RETRIED = 7
"""Attempts before a refusal is taken to last: a clock that was wrong for seconds causes one."""

Key = tuple[bytes, PushKind]


@dataclass(frozen=True, slots=True)
class OutboxSettings:
    window: int = 500
    backoff: Backoff = field(default_factory=Backoff)
    refused_delay: float = 300.0
    max_retry_after: float = 600.0
    """The longest Retry-After of a provider that is obeyed."""
    apns_padded_length: int = PUSH_SIZE

    @property
    def max_delay(self) -> float:
        """Return the longest time between two attempts."""
        return max(self.backoff.last, self.refused_delay, self.max_retry_after)


class _Done(NamedTuple):
    """A finished push whose outcome is not stored yet; until then it counts as in flight."""

    lane: Lane
    key: Key
    change: pending.PushChange
    answered: AnsweredPush


class Outbox:
    """Delivers pending pushes, as many at a time as a provider's window allows.

    Its attributes are the pushes in flight, outcomes that wait to be stored, and one alarm.
    """

    def __init__(
        self,
        store: NtfStore,
        providers: dict[PushProvider, Provider],
        observer: NtfObserver,
        settings: OutboxSettings | None = None,
    ) -> None:
        self.settings = settings or OutboxSettings()
        self.lanes = {
            kind: Lane(provider, self.settings.window) for kind, provider in providers.items()
        }
        self.paused: Callable[[PushProvider, Pause], None] = lambda provider, pause: None
        """Called when a provider or a host is to get no pushes for a while."""
        self._coordinator = store.coordinator
        self._padding = Padding(self.settings.apns_padded_length)
        self._store = store
        self._database = store.database
        self._observer = observer
        self._active: set[Key] = set()
        self._again: set[Key] = set()
        """Offered again while in flight: looked up in the store once the outcome is stored."""
        self._done: list[_Done] = []
        self._postponed: list[pending.MarkRetry] = []
        self._is_storing = False
        self._wake = asyncio.Event()
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = 0.0
        self._expire_at = 0.0
        self._refusal_logged_at = 0.0
        self._tasks = TaskScope()
        self._closing = False

    @property
    def in_flight(self) -> int:
        return len(self._active)

    def offer(self, pushes: Iterable[PendingPush]) -> None:
        """Deliver pending pushes of the store now, as far as there is room."""
        now = time.monotonic()
        for item in pushes:
            lane = self.lanes.get(item.device.provider)
            if lane is None:
                continue  # no such provider is configured: it stays pending until it expires
            if item.key in self._active:
                self._again.add(item.key)
            elif not lane.has_room(now) or self._closing or not self._coordinator.may_send:
                lane.waiting = True
            elif delay := lane.delay(item, now):
                self._postpone(item, delay)
            else:
                self._active.add(item.key)
                lane.start(item)
                self._tasks.spawn(self._push(lane, item), name="push")

    async def run(self) -> None:
        """Deliver due pushes until cancelled."""
        while True:
            self._wake.clear()
            self._wake_at(steady_time() + IDLE_CHECK)
            self._wake_after_pauses()
            try:
                await self._take_due()
            except DatabaseError as exc:
                logger.error("pending pushes cannot be read, retrying: %s", exc)
            except Exception:
                logger.exception("pending pushes cannot be delivered, retrying")
            await self._wake.wait()

    def wake(self) -> None:
        self._wake.set()

    def keep_pause(self, provider: PushProvider, pause: Pause) -> None:
        """Keep a pause that another process has begun."""
        if (lane := self.lanes.get(provider)) is not None:
            lane.pause(pause, time.monotonic())
            self._wake_after_pauses()

    async def close(self, grace: float = 5.0) -> None:
        """Wait for pushes in flight; those that take longer than `grace` stay pending."""
        self._closing = True
        if self._alarm is not None:
            self._alarm.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await self._tasks.wait()
        await self._tasks.close()
        for lane in self.lanes.values():
            await lane.provider.close()

    # Reading what is due.

    async def _take_due(self) -> None:
        """Offer what is due, as far as there is room."""
        now = steady_time()
        at = int(now * 1000)
        windows = {}
        for kind, lane in self.lanes.items():
            lane.window = self._coordinator.share_of(self.settings.window)
            has_room = lane.has_room(time.monotonic())
            lane.waiting = not has_room
            if has_room and self._coordinator.may_send:  # else others may, if it claims nothing
                windows[kind.text] = lane.window
        expires = time.monotonic() >= self._expire_at and self._coordinator.is_leader
        owner = self._coordinator.owner

        def take(
            tx: Transaction,
        ) -> tuple[list[pending.ExpiredPush], dict[str, list[PendingPush]], int | None]:
            expired = pending.expire(tx, at) if expires else []
            if expires:
                pending.limit_delays(tx, at, int(self.settings.max_delay * 1000))
            # What is in flight is due too, so a whole window may have to be read to fill the room.
            pushes = {
                kind: self._coordinator.claim(tx, pending.due(tx, kind, at, limit, owner))
                for kind, limit in windows.items()
            }
            providers = [kind.text for kind in self.lanes]
            return expired, pushes, pending.next_due(tx, providers, at)

        expired, pushes, next_at = await self._database.write_concurrently(take)
        if len(expired) >= pending.MAX_EXPIRED_PER_PAGE:
            self._wake.set()
        elif expires:
            self._expire_at = time.monotonic() + EXPIRE_INTERVAL
        if expired:
            logger.warning("%d pushes expired undelivered", len(expired))
            self._observer.pushes.expired(expired)
        for kind, lane in self.lanes.items():
            found = pushes.get(kind.text, [])
            if len(found) >= lane.window:
                lane.waiting = True
            self.offer(item for item in found if item.key not in self._active)
            if lane.wants_more(time.monotonic()):
                self._wake.set()
        if next_at is not None:
            self._wake_at(next_at / 1000)

    def _wake_at(self, at: float) -> None:
        """Read the store at `at` or earlier."""
        if self._closing:
            return
        if self._alarm is not None:
            if self._alarm_at <= at:
                return
            self._alarm.cancel()
        self._alarm_at = at
        delay = max(at - steady_time(), 0.0)
        self._alarm = asyncio.get_running_loop().call_later(delay, self._ring)

    def _wake_after_pauses(self) -> None:
        now = time.monotonic()
        for lane in self.lanes.values():
            if lane.paused_until > now:
                self._wake_at(steady_time() + lane.paused_until - now)

    def _ring(self) -> None:
        self._alarm = None
        self._wake.set()

    # Delivery.

    async def _push(self, lane: Lane, push: PendingPush) -> None:
        sent, outcome = push, cast(PushOutcome, RetryLater(None, "InternalError"))
        started = time.monotonic()
        try:
            sent, outcome = await self._deliver(lane.provider, push)
        except Exception:
            logger.exception("a push failed in an unexpected way")
        seconds = time.monotonic() - started
        self._observer.traffic.provider_answered(push.device.provider.text, seconds)
        answered = AnsweredPush(sent, outcome, steady_time())
        self._done.append(_Done(lane, push.key, self._change(push, outcome), answered))
        self._start_storing()

    def _postpone(self, push: PendingPush, delay: float) -> None:
        """Leave a push to a later time, without an attempt."""
        next_at = self._next_at(delay * (1.0 + 0.2 * random.random()))  # noqa: S311  jitter
        self._postponed.append(_retry_at(push, push.attempts, next_at))
        self._start_storing()

    def _start_storing(self) -> None:
        if not self._is_storing:
            self._is_storing = True
            self._tasks.spawn(self._store_outcomes(), name="store outcomes of pushes")

    async def _deliver(
        self, provider: Provider, push: PendingPush
    ) -> tuple[PendingPush, PushOutcome]:
        """Send a push; return it with the notifications that it carried, and the outcome."""
        kind = push.device.provider
        size = self._padding.length(kind)
        payload, sent = build(push, random_nonce(), size)
        if payload is None:
            return sent, Accepted(None)
        delivery = Delivery(push.device, payload, int(push.expires_at), _collapse_id(push.kind))
        self._observer.pushes.attempted(push)
        outcome = await provider.send(delivery)
        if _is_too_large(outcome) and self._padding.shorten(kind, size):
            return await self._deliver(provider, push)
        has_one_host = not isinstance(push.device, WPDeviceToken)  # one must not disturb others
        is_stale = isinstance(outcome, RetryLater) and outcome.connection
        if is_stale and has_one_host and push.attempts == 0:
            await provider.refresh()
            self._observer.pushes.attempted(push)
            outcome = await provider.send(delivery)
        return sent, outcome

    def _change(self, push: PendingPush, outcome: PushOutcome) -> pending.PushChange:
        match outcome:
            case Accepted():
                return pending.MarkAccepted(push.token_id, push.kind, push.seq)
            case DeviceTokenInvalid():
                return pending.MarkInvalid(push.token_id, push.device, outcome.reason)
            case Misconfigured():
                self._log_refusal(outcome)
                is_lasting = push.attempts >= SOON_RETRIED
                return self._retry(push, self.settings.refused_delay if is_lasting else 0.0)
            case RetryLater():
                return self._retry(push, min(outcome.after or 0.0, self.settings.max_retry_after))

    def _retry(self, push: PendingPush, at_least: float) -> pending.MarkRetry:
        """Schedule the next attempt, no sooner than in `at_least` seconds."""
        attempts, backoff = push.attempts + 1, self.settings.backoff
        delay = backoff.delay(attempts, random.random(), at_least)  # noqa: S311  jitter
        return _retry_at(push, attempts, self._next_at(delay))

    @staticmethod
    def _next_at(delay: float) -> int:
        return int((steady_time() + delay) * 1000)

    def _log_refusal(self, outcome: Misconfigured) -> None:
        """Log a refusal once a minute: with a wrong key every push is refused."""
        now = time.monotonic()
        if not self._refusal_logged_at or now > self._refusal_logged_at + REFUSAL_LOG_INTERVAL:
            self._refusal_logged_at = now
            logger.error("the provider refuses our pushes: %s", outcome.reason)

    # Storing outcomes.

    async def _store_outcomes(self) -> None:
        """Store all outcomes since the last time in one transaction, until there are no more."""
        failures = reported = 0
        while self._done or self._postponed:
            batch, self._done = self._done, []
            postponed, self._postponed = self._postponed, []
            await self._report([done.answered for done in batch[reported:]])
            reported = 0
            again = self._again & {done.key for done in batch}
            self._again -= again
            try:
                changed, due = await self._write(batch, postponed, again)
            except Exception as exc:
                self._done = batch + self._done
                self._postponed = postponed + self._postponed
                reported = len(batch)
                self._again |= again
                failures += 1
                logger.error("outcomes of %d pushes cannot be stored yet: %s", len(batch), exc)
                if self._closing:
                    break  # they stay pending: at worst a push is sent twice
                await asyncio.sleep(STORE_DELAYS.delay(failures, 0.0))
                continue
            failures = 0
            self._release(batch, postponed)
            if changed:
                self._store.refresh(changed)
                self._observer.tokens_changed(changed)
            self.offer(item for item in due if item.key not in self._active)
        self._is_storing = False

    async def _report(self, answered: list[AnsweredPush]) -> None:
        """Report outcomes before they are stored; a failure to do so must not stop pushes."""
        try:
            await self._observer.pushes.answered(answered)
        except Exception:
            logger.exception("outcomes of pushes cannot be reported")

    def _write(
        self, batch: list[_Done], postponed: list[pending.MarkRetry], again: set[Key]
    ) -> "asyncio.Future[tuple[list[Token], list[PendingPush]]]":
        """Store outcomes, and read what was offered again meanwhile."""
        now = round(steady_time() * 1000)
        keys = again
        if self._coordinator.owner is not None:
            # Other processes may have added notifications to what was in flight here.
            keys = again | {done.key for done in batch}

        def write(tx: Transaction) -> tuple[list[Token], list[PendingPush]]:
            changes = [*(done.change for done in batch), *postponed]
            changed = pending.apply(tx, changes, self._store.restrictions, now)
            if any(isinstance(item, pending.MarkInvalid) for item in changes):
                self._coordinator.take_deleted(tx)
            due = pending.due_for(tx, list({token_id for token_id, _ in keys}), now)
            return changed, self._coordinator.claim(tx, due)

        return self._database.write_concurrently(write)

    def _release(self, batch: list[_Done], postponed: list[pending.MarkRetry]) -> None:
        """Forget pushes whose outcome is stored, and plan the next attempts."""
        retries = [done.change for done in batch]
        now = time.monotonic()
        for done in batch:
            self._active.discard(done.key)
            push, outcome = done.answered.push, done.answered.outcome
            pause = done.lane.end(push, outcome, now)
            if pause is not None:
                self.paused(push.device.provider, pause)
        self._wake_after_pauses()
        for change in (*retries, *postponed):
            if isinstance(change, pending.MarkRetry):
                self._wake_at(change.next_at / 1000)
        # Offered again while this was stored: what was read then may be sent by now.
        keys = {done.key for done in batch}
        if self._again & keys or any(lane.wants_more(now) for lane in self.lanes.values()):
            self._again -= keys
            self._wake.set()


def _retry_at(push: PendingPush, attempts: int, next_at: int) -> pending.MarkRetry:
    return pending.MarkRetry(push.token_id, push.kind, push.device, push.seq, attempts, next_at)


def _is_too_large(outcome: PushOutcome) -> bool:
    return isinstance(outcome, Misconfigured) and outcome.reason == "PayloadTooLarge"


def _collapse_id(kind: PushKind) -> str | None:
    """Return an ID for wake-ups, of which one replaces another; other pushes differ."""
    return "check" if kind is PushKind.CHECK else None
