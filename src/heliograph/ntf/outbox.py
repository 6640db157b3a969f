"""Pays what is owed: has providers deliver the debts of the store, and writes down the outcome.

Memory is bounded: each provider has a window of pushes under way, and what does not fit stays a row
of the store until there is room. One dead provider fills its own window and nobody else's.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from heliograph.crypto.boxes import random_nonce
from heliograph.db.database import Database
from heliograph.db.dialects import Transaction
from heliograph.db.errors import DatabaseError
from heliograph.ntf import debts
from heliograph.ntf.backoff import Backoff
from heliograph.ntf.payload import build
from heliograph.ntf.records import DebtKind, Owed, Token
from heliograph.push.provider import (
    Accepted,
    Delivery,
    Outcome,
    Provider,
    Refused,
    RetryLater,
    TokenInvalid,
)
from heliograph.wire.tokens import PushProvider

logger = logging.getLogger(__name__)

IDLE_CHECK = 5.0
EXPIRE_INTERVAL = 60.0
SETTLE_DELAYS = Backoff(first=0.1, last=5.0)
REFUSAL_LOG_INTERVAL = 60.0

Key = tuple[bytes, DebtKind]


@dataclass(slots=True)
class Lane:
    """One provider and what it has under way."""

    provider: Provider
    window: int
    active: int = 0
    waiting: bool = False
    """There may be more in the store than there was room for."""

    @property
    def has_room(self) -> bool:
        return self.active < self.window

    @property
    def wants_more(self) -> bool:
        """By half a window at a time, so that the store is not asked for each push."""
        return self.waiting and self.active <= self.window // 2


async def _nothing(settled: list[tuple[Owed, Outcome]]) -> None:
    return None


@dataclass(frozen=True, slots=True)
class OutboxEvents:
    """What others want to know. `changed` gets tokens whose status the outcome changed."""

    attempted: Callable[[Owed], None]
    settled: Callable[[Owed, Outcome], None]
    expired: Callable[[list[debts.Expired]], None]
    changed: Callable[[list[Token]], None]
    storing: Callable[[list[tuple[Owed, Outcome]]], Awaitable[None]] = _nothing
    """After `settled`, before the store has it: once for each, and awaited."""


@dataclass(frozen=True, slots=True)
class OutboxSettings:
    window: int = 500
    backoff: Backoff = field(default_factory=Backoff)
    refused_delay: float = 300.0


class _Done(NamedTuple):
    """A push that ended and is still to be settled; until then its debt is under way."""

    lane: Lane
    key: Key
    settlement: debts.Settlement
    owed: Owed
    outcome: Outcome


class Outbox:
    def __init__(
        self,
        database: Database,
        providers: dict[PushProvider, Provider],
        events: OutboxEvents,
        settings: OutboxSettings | None = None,
    ) -> None:
        self.settings = settings or OutboxSettings()
        self.lanes = {
            kind: Lane(provider, self.settings.window) for kind, provider in providers.items()
        }
        self._database = database
        self._events = events
        self._active: set[Key] = set()
        self._again: set[Key] = set()
        """Offered anew while under way: looked up in the store once settled."""
        self._done: list[_Done] = []
        self._settling = False
        self._wake = asyncio.Event()
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = 0.0
        self._expire_at = 0.0
        self._refusal_logged_at = 0.0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closing = False

    @property
    def under_way(self) -> int:
        return len(self._active)

    def offer(self, owed: Iterable[Owed]) -> None:
        """Debts that are in the store, to be paid now if there is room."""
        for item in owed:
            lane = self.lanes.get(item.device.provider)
            if lane is None:
                continue  # no such provider is configured: it stays owed until it expires
            if item.key in self._active:
                self._again.add(item.key)
            elif not lane.has_room or self._closing:
                lane.waiting = True
            else:
                self._active.add(item.key)
                lane.active += 1
                self._start(self._pay(lane, item))

    async def run(self) -> None:
        """Take from the store what is due, for ever."""
        while True:
            self._wake.clear()
            self._wake_at(time.time() + IDLE_CHECK)
            try:
                await self._take_due()
            except DatabaseError as exc:
                logger.error("what is owed cannot be read, trying again: %s", exc)
            except Exception:
                logger.exception("what is owed cannot be paid, trying again")
            await self._wake.wait()

    def wake(self) -> None:
        self._wake.set()

    async def close(self, grace: float = 5.0) -> None:
        """Let pushes under way end; what does not end in time stays owed."""
        self._closing = True
        if self._alarm is not None:
            self._alarm.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                while self._tasks:
                    await asyncio.wait(tuple(self._tasks))
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for lane in self.lanes.values():
            await lane.provider.close()

    # Taking.

    async def _take_due(self) -> None:
        """Offer what is due, as far as there is room."""
        now = time.time()
        at = int(now * 1000)
        windows = {}
        for kind, lane in self.lanes.items():
            lane.waiting = not lane.has_room
            if lane.has_room:
                windows[kind.text] = lane.window
        expires = now >= self._expire_at

        def take(
            tx: Transaction,
        ) -> tuple[list[debts.Expired], dict[str, list[Owed]], int | None]:
            expired = debts.expire(tx, at) if expires else []
            # What is under way is due too, so a whole window may have to be read to fill the room.
            owed = {kind: debts.due(tx, kind, at, limit) for kind, limit in windows.items()}
            providers = [kind.text for kind in self.lanes]
            return expired, owed, debts.next_due(tx, providers, at)

        expired, owed, next_at = await self._database.write(take)
        if len(expired) >= debts.EXPIRED_AT_ONCE:
            self._wake.set()
        elif expires:
            self._expire_at = now + EXPIRE_INTERVAL
        if expired:
            self._events.expired(expired)
        for kind, lane in self.lanes.items():
            found = owed.get(kind.text, [])
            if len(found) >= lane.window:
                lane.waiting = True
            self.offer(item for item in found if item.key not in self._active)
            if lane.wants_more:
                self._wake.set()
        if next_at is not None:
            self._wake_at(next_at / 1000)

    def _wake_at(self, at: float) -> None:
        """Look into the store then, or earlier."""
        if self._closing:
            return
        if self._alarm is not None:
            if self._alarm_at <= at:
                return
            self._alarm.cancel()
        self._alarm_at = at
        delay = max(at - time.time(), 0.0)
        self._alarm = asyncio.get_running_loop().call_later(delay, self._ring)

    def _ring(self) -> None:
        """Perhaps a little early: clocks differ."""
        self._alarm = None
        self._wake.set()

    # Paying.

    async def _pay(self, lane: Lane, owed: Owed) -> None:
        outcome: Outcome = RetryLater(None, "InternalError")
        try:
            outcome = await self._deliver(lane.provider, owed)
            self._events.settled(owed, outcome)
        except Exception:
            logger.exception("a push failed in an unexpected way")
        self._done.append(_Done(lane, owed.key, self._settlement(owed, outcome), owed, outcome))
        if not self._settling:
            self._settling = True
            self._start(self._settle())

    async def _deliver(self, provider: Provider, owed: Owed) -> Outcome:
        push = build(owed, random_nonce())
        if push is None:
            return Accepted(None)
        delivery = Delivery(owed.device, push, int(owed.expires_at), _collapse_id(owed.kind))
        self._events.attempted(owed)
        outcome = await provider.send(delivery)
        if isinstance(outcome, RetryLater) and outcome.connection and owed.attempts == 0:
            await provider.refresh()
            self._events.attempted(owed)
            outcome = await provider.send(delivery)
        return outcome

    def _settlement(self, owed: Owed, outcome: Outcome) -> debts.Settlement:
        match outcome:
            case Accepted():
                return debts.Paid(owed.token_id, owed.kind, owed.seq)
            case TokenInvalid():
                return debts.Dead(owed.token_id, owed.device, outcome.reason)
            case Refused():
                self._log_refusal(outcome)
                return self._put_off(owed, self.settings.refused_delay)
            case RetryLater():
                return self._put_off(owed, outcome.after)

    def _put_off(self, owed: Owed, asked: float | None) -> debts.PutOff:
        attempts = owed.attempts + 1
        # Jitter needs no secrecy.
        delay = self.settings.backoff.delay(attempts, random.random(), asked)  # noqa: S311
        next_at = int((time.time() + delay) * 1000)
        return debts.PutOff(owed.token_id, owed.kind, owed.seq, attempts, next_at)

    def _log_refusal(self, refused: Refused) -> None:
        """Not for every push: a wrong key has all of them refused."""
        now = time.monotonic()
        if not self._refusal_logged_at or now > self._refusal_logged_at + REFUSAL_LOG_INTERVAL:
            self._refusal_logged_at = now
            logger.error("the provider refuses our pushes: %s", refused.reason)

    # Settling.

    async def _settle(self) -> None:
        """Write down all outcomes since the last time, in one transaction, until it is done."""
        failures = told = 0
        while self._done:
            batch, self._done = self._done, []
            await self._tell([(done.owed, done.outcome) for done in batch[told:]])
            told = 0
            again = self._again & {done.key for done in batch}
            self._again -= again
            try:
                changed, owed = await self._write(batch, again)
            except Exception as exc:
                self._done = batch + self._done
                told = len(batch)
                self._again |= again
                failures += 1
                logger.error("outcomes of %d pushes cannot be stored yet: %s", len(batch), exc)
                if self._closing:
                    break  # they stay owed: at worst a push is sent twice
                await asyncio.sleep(SETTLE_DELAYS.delay(failures, 0.0))
                continue
            failures = 0
            self._release(batch)
            if changed:
                self._events.changed(changed)
            self.offer(item for item in owed if item.key not in self._active)
        self._settling = False

    async def _tell(self, settled: list[tuple[Owed, Outcome]]) -> None:
        """Whatever becomes of that, pushes go on."""
        try:
            await self._events.storing(settled)
        except Exception:
            logger.exception("outcomes of pushes could not be told")

    def _write(
        self, batch: list[_Done], again: set[Key]
    ) -> "asyncio.Future[tuple[list[Token], list[Owed]]]":
        """Settle, and look up what was offered anew meanwhile."""
        now = round(time.time() * 1000)

        def write(tx: Transaction) -> tuple[list[Token], list[Owed]]:
            changed = debts.settle(tx, [done.settlement for done in batch])
            return changed, debts.due_to(tx, list({token_id for token_id, _ in again}), now)

        return self._database.write(write)

    def _release(self, batch: list[_Done]) -> None:
        """What was settled is no longer under way."""
        for done in batch:
            done.lane.active -= 1
            self._active.discard(done.key)
            if isinstance(done.settlement, debts.PutOff):
                self._wake_at(done.settlement.next_at / 1000)
        # Offered once more while this was written: what was read then may be settled by now.
        keys = {done.key for done in batch}
        if self._again & keys or any(lane.wants_more for lane in self.lanes.values()):
            self._again -= keys
            self._wake.set()

    def _start(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _collapse_id(kind: DebtKind) -> str | None:
    """One call to look is as good as two. Of other pushes, none says all that another says."""
    return "check" if kind is DebtKind.CHECK else None
