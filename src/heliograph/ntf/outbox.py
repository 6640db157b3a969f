"""Pays what is owed: has providers deliver the debts of the store, and writes down the outcome.

Memory is bounded: each provider has a window of pushes under way, and what does not fit stays a row
of the store until there is room. One dead provider fills its own window and nobody else's.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any

from heliograph.crypto.boxes import random_nonce
from heliograph.db.database import Database
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

PAGE = 500
IDLE_CHECK = 5.0


@dataclass(slots=True)
class Lane:
    """One provider and what it has under way."""

    provider: Provider
    window: int
    active: int = 0
    waiting: bool = False
    """Something was left in the store because the window was full."""

    @property
    def has_room(self) -> bool:
        return self.active < self.window


@dataclass(frozen=True, slots=True)
class OutboxEvents:
    """What others want to know. `changed` gets tokens whose status the outcome changed."""

    attempted: Callable[[Owed], None]
    settled: Callable[[Owed, Outcome], None]
    expired: Callable[[int], None]
    changed: Callable[[list[Token]], None]


@dataclass(frozen=True, slots=True)
class OutboxSettings:
    window: int = 500
    backoff: Backoff = field(default_factory=Backoff)
    refused_delay: float = 300.0


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
        self._active: dict[tuple[bytes, DebtKind], Owed] = {}
        self._again: set[tuple[bytes, DebtKind]] = set()
        self._settlements: list[debts.Settlement] = []
        self._settling = False
        self._wake = asyncio.Event()
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
                self._active[item.key] = item
                lane.active += 1
                self._start(self._pay(lane, item))

    async def run(self) -> None:
        """Take from the store what is due, for ever."""
        while True:
            delay = IDLE_CHECK
            try:
                delay = await self._take_due()
            except DatabaseError as exc:
                logger.error("what is owed cannot be read, trying again: %s", exc)
            try:
                async with asyncio.timeout(delay):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()

    def wake(self) -> None:
        self._wake.set()

    async def close(self, grace: float = 5.0) -> None:
        """Let pushes under way end; what does not end in time stays owed."""
        self._closing = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace)
        for task in self._tasks:
            task.cancel()
        await self._settle()
        for lane in self.lanes.values():
            await lane.provider.close()

    async def _take_due(self) -> float:
        """Offer a page of debts; how long until there may be more."""
        now = int(time.time() * 1000)
        for lane in self.lanes.values():
            lane.waiting = False

        def take(tx: Any) -> tuple[int, list[Owed], int | None]:
            expired = debts.expire(tx, now)
            return expired, debts.due(tx, now, PAGE + len(self._active)), debts.next_due(tx)

        expired, owed, next_at = await self._database.write(take)
        if expired:
            self._events.expired(expired)
        fresh = [item for item in owed if item.key not in self._active]
        self.offer(fresh)
        if len(fresh) >= PAGE and any(lane.has_room for lane in self.lanes.values()):
            return 0.0
        if next_at is None:
            return IDLE_CHECK
        return min(max((next_at - now) / 1000, 0.05), IDLE_CHECK)

    async def _pay(self, lane: Lane, owed: Owed) -> None:
        outcome: Outcome = RetryLater(None, "internal error", connection=False)
        try:
            outcome = await self._deliver(lane.provider, owed)
        except asyncio.CancelledError:
            raise
        except Exception:
            logger.exception("a push failed in an unexpected way")
        finally:
            lane.active -= 1
            del self._active[owed.key]
        self._events.settled(owed, outcome)
        self._settlements.append(self._settlement(owed, outcome))
        if not self._settling:
            self._settling = True
            self._start(self._settle())
        if lane.waiting:
            self._wake.set()

    async def _deliver(self, provider: Provider, owed: Owed) -> Outcome:
        push = build(owed, random_nonce())
        if push is None:
            return Accepted(None)
        delivery = Delivery(owed.device, push, int(owed.expires_at), None)
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
                return debts.Dead(owed.token_id, outcome.reason)
            case Refused():
                logger.error("the provider refuses our pushes: %s", outcome.reason)
                return self._put_off(owed, self.settings.refused_delay)
            case RetryLater():
                return self._put_off(owed, outcome.after)

    def _put_off(self, owed: Owed, asked: float | None) -> debts.PutOff:
        attempts = owed.attempts + 1
        # Jitter needs no secrecy.
        delay = self.settings.backoff.delay(attempts, random.random(), asked)  # noqa: S311
        next_at = int((time.time() + delay) * 1000)
        return debts.PutOff(owed.token_id, owed.kind, attempts, next_at)

    async def _settle(self) -> None:
        """Write down all outcomes since the last time, in one transaction."""
        while self._settlements:
            batch, self._settlements = self._settlements, []
            again = {
                (item.token_id, item.kind)
                for item in batch
                if isinstance(item, debts.Paid) and (item.token_id, item.kind) in self._again
            }
            self._again -= again
            now = int(time.time() * 1000)

            def write(
                tx: Any,
                batch: list[debts.Settlement] = batch,
                again: set[tuple[bytes, DebtKind]] = again,
                now: int = now,
            ) -> tuple[list[Token], list[Owed]]:
                changed = debts.settle(tx, batch)
                tokens = [token_id for token_id, kind in again if kind is DebtKind.MESSAGE]
                return changed, debts.message_debts(tx, tokens, now)

            try:
                changed, owed = await self._database.write(write)
            except DatabaseError as exc:
                # The debts are still there: at worst a push is sent twice.
                logger.error("outcomes of %d pushes could not be stored: %s", len(batch), exc)
                continue
            if changed:
                self._events.changed(changed)
            self.offer(owed)
        self._settling = False

    def _start(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
