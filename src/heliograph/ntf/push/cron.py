"""Periodic wake-ups (TCRN): each token at its own time, a backlog spread, no bursts."""

import asyncio
import logging
import random
from typing import NamedTuple

from heliograph.db.database import Database
from heliograph.db.dialects import Transaction
from heliograph.db.errors import DatabaseError
from heliograph.ntf.push.outbox import Outbox
from heliograph.ntf.store import pending, tokens
from heliograph.ntf.store.records import PendingPush, PushKind
from heliograph.ntf.store.sharing import Alone, Sharing
from heliograph.runtime.clock import steady_time

logger = logging.getLogger(__name__)

TICK = 1.0
BACKLOG_SECONDS = 300.0
"""A backlog, after a time without service, is worked off over this many seconds."""
MIN_BACKLOG_PAGE = 50
MAX_STEP_MS = 30_000
"""What became due in a longer time than this since the last page is backlog."""
STEP_BACK_MS = 5_000
"""A wall clock that goes back further than this was wrong before."""
JITTER = 0.1


class _DuePage(NamedTuple):
    """How far a page goes: what became due after `since`, and some of what was due before."""

    since: int
    backlog_rate: float | None
    """Wake-ups of the backlog a second; None if the backlog must be counted."""


class WakeUpPacer:
    """Decide how many wake-ups are sent: all that became due, and an even share of a backlog."""

    def __init__(self) -> None:
        self._at: int | None = None
        self._backlog_rate: float | None = None

    def plan(self, at: int) -> _DuePage:
        """Plan the page at `at`, in milliseconds; record its result with `sent`."""
        if self._at is None or not 0 <= at - self._at <= MAX_STEP_MS:
            return _DuePage(at if self._at is None else max(at - MAX_STEP_MS, 0), None)
        return _DuePage(self._at, self._backlog_rate)

    def stepped_back(self, at: int) -> bool:
        return self._at is not None and at < self._at - STEP_BACK_MS

    def sent(self, at: int, backlog_rate: float, *, all_due: bool) -> None:
        """Record that a page was sent; `all_due` if nothing due is left."""
        self._at = at
        self._backlog_rate = 0.0 if all_due else backlog_rate


class Cron:
    def __init__(
        self,
        database: Database,
        outbox: Outbox,
        push_ttl: float,
        sharing: Sharing | None = None,
    ) -> None:
        self._database = database
        self._sharing = sharing or Alone()
        self._outbox = outbox
        self._push_ttl = int(push_ttl * 1000)
        self._pacer = WakeUpPacer()

    async def run(self) -> None:
        while True:
            try:
                if self._sharing.is_leader:
                    self._outbox.offer(await self.wake_due(steady_time()))
            except DatabaseError as exc:
                logger.error("periodic wake-ups cannot be read, retrying: %s", exc)
            except Exception:
                logger.exception("periodic wake-ups failed, retrying")
            await asyncio.sleep(TICK)

    async def wake_due(self, now: float) -> list[PendingPush]:
        """Add a pending wake-up for a page of due tokens, and return them."""
        at = int(now * 1000)
        page, stepped_back = self._pacer.plan(at), self._pacer.stepped_back(at)

        def wake(tx: Transaction) -> tuple[list[PendingPush], float, bool]:
            if stepped_back:
                tokens.rebase_cron(tx, at, 1 + JITTER)
            rate = page.backlog_rate
            if rate is None:
                rate = tokens.count_cron_due(tx, 0, page.since) / BACKLOG_SECONDS
            seconds = max((at - page.since) / 1000, TICK)
            limit = tokens.count_cron_due(tx, page.since, at)
            limit += max(int(rate * seconds), MIN_BACKLOG_PAGE)
            due = tokens.cron_due(tx, at, limit)
            self._add_wake_ups(tx, due, at)
            pushes = pending.due_for(tx, [token_id for token_id, _, _ in due], at, PushKind.CHECK)
            return self._sharing.claim(tx, pushes), rate, len(due) < limit

        pushes, rate, all_due = await self._database.write(wake)
        self._pacer.sent(at, rate, all_due=all_due)
        return pushes

    def _add_wake_ups(self, tx: Transaction, due: list[tokens.CronDue], at: int) -> None:
        expires_at, kind = at + self._push_ttl, PushKind.CHECK
        pushes, next_times = [], []
        for token_id, minutes, provider in due:
            pushes.append(tokens.pending_row(token_id, kind, provider, 0, at, expires_at))
            # A little later each time, so that tokens that began together drift apart.
            interval = minutes * 60_000 * (1.0 + JITTER * random.random())  # noqa: S311
            next_times.append((minutes, at + int(interval), token_id))
        tx.many(tokens.ADD_PENDING, pushes)
        tokens.set_crons(tx, next_times)
