"""Periodic wake-ups (TCRN): each token at its own time, fleet and backlog spread, no bursts."""

import asyncio
import logging
from collections import Counter
from functools import partial

from heliograph.db.database import Database
from heliograph.db.dialects import Transaction
from heliograph.db.errors import DatabaseError
from heliograph.ntf.push.outbox import Outbox
from heliograph.ntf.push.plan_reader import PlanReader
from heliograph.ntf.push.wakeups import WakeUpPlan, backlog_page
from heliograph.ntf.store import pending, tokens, wakeups
from heliograph.ntf.store.coordination import Coordinator, SingleProcess
from heliograph.ntf.store.records import PendingPush, PushKind
from heliograph.runtime.clock import steady_time

logger = logging.getLogger(__name__)

TICK = 1.0
MAX_STEP_MS = 30_000
"""What became due in a longer time than this since the last page is backlog."""
STEP_BACK_MS = 5_000
"""A wall clock that goes back further than this was wrong before."""
RELOAD_MS = 60_000
"""How soon the plan is read again, a page each second: clients register and change intervals."""
REBASE_PAGE = 500


class Cron:
    def __init__(
        self,
        database: Database,
        outbox: Outbox,
        push_ttl: float,
        coordinator: Coordinator | None = None,
    ) -> None:
        self._database = database
        self._coordinator = coordinator or SingleProcess()
        self._outbox = outbox
        self._push_ttl = int(push_ttl * 1000)
        self.plan = WakeUpPlan()
        self._planned_at: int | None = None
        self._reader: PlanReader | None = None
        """What reads the next plan."""
        self._last: int | None = None
        """When the last page was made."""

    async def run(self) -> None:
        while True:
            try:
                if self._coordinator.is_leader:
                    self._outbox.offer(await self.wake_due(steady_time()))
            except DatabaseError as exc:
                logger.error("periodic wake-ups cannot be read, retrying: %s", exc)
            except Exception:
                logger.exception("periodic wake-ups failed, retrying")
            await asyncio.sleep(TICK)

    async def wake_due(self, now: float) -> list[PendingPush]:
        """Add a pending wake-up for a page of due tokens, and return them.

        The page has all that became due since the last one, and a share of a backlog.
        """
        at = int(now * 1000)
        since = self._since(at)
        if self._last is not None and at < self._last - STEP_BACK_MS:
            await self._rebase(at)
            self._planned_at = None
        await self._read_plan(at)
        plan = self.plan

        def wake(tx: Transaction) -> tuple[list[PendingPush], list[tuple[int, int, int]]]:
            plan.rollback()  # what a failed attempt had placed
            new = wakeups.count_cron_due(tx, since, at)
            seconds = max((at - since) / 1000, TICK)
            due = wakeups.cron_due(tx, at, backlog_page(plan.rate, seconds, new))
            moves = self._add_wake_ups(tx, due, plan, at)
            pushes = pending.due_for(tx, [item.token_id for item in due], at, PushKind.CHECK)
            return self._coordinator.claim(tx, pushes), moves

        pushes, moves = await self._database.write(wake)
        plan.commit()
        plan.forget(at)
        if self._reader is not None:
            for minutes, before, after in moves:
                self._reader.move(minutes, before, after)
        self._last = at
        return pushes

    async def _read_plan(self, at: int) -> None:
        """Read a page of the next plan, or all of the first: without it, nobody is woken."""
        is_old = self._planned_at is None or not 0 <= at - self._planned_at < RELOAD_MS
        if not is_old:
            return
        if self._planned_at is None or self._reader is None:
            self._reader = PlanReader()
        plan = await self._reader.read_page(self._database)
        while plan is None and self._planned_at is None:
            plan = await self._reader.read_page(self._database)
        if plan is not None:
            self.plan, self._planned_at, self._reader = plan, at, None

    async def _rebase(self, at: int) -> None:
        after: bytes | None = b""
        while after is not None:
            rebase = partial(wakeups.rebase_cron, now=at, after=after, limit=REBASE_PAGE)
            after = await self._database.write(rebase)

    def _since(self, at: int) -> int:
        """Return when what counts as new became due; at the start and after a jump, it is less."""
        if self._last is None:
            return at
        return self._last if 0 <= at - self._last <= MAX_STEP_MS else max(at - MAX_STEP_MS, 0)

    def _add_wake_ups(
        self, tx: Transaction, due: list[wakeups.CronDue], plan: WakeUpPlan, at: int
    ) -> list[tuple[int, int, int]]:
        """Add pending pushes, and return the interval, the time and the next time of each."""
        expires_at, kind = at + self._push_ttl, PushKind.CHECK
        pushes = [
            tokens.pending_row(item.token_id, kind, item.provider, 0, at, expires_at)
            for item in due
        ]
        counts = Counter(item.every for item in due if item.phase is None)
        spread = {
            minutes: iter(plan.place(at, minutes, count)) for minutes, count in counts.items()
        }
        times = [
            next(spread[item.every])
            if item.phase is None
            else plan.at_phase(at, item.every, item.phase * 1000)
            for item in due
        ]
        tx.many(tokens.ADD_PENDING, pushes)
        rows = [(item.minutes, time, item.token_id) for item, time in zip(due, times, strict=True)]
        wakeups.set_crons(tx, rows)
        return [(item.minutes, item.due_at, time) for item, time in zip(due, times, strict=True)]
