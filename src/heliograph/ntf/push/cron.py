"""Periodic wake-ups (TCRN): each token at its own time, fleet and backlog spread, no bursts."""

import asyncio
import logging
from collections import Counter

from heliograph.db.database import Database
from heliograph.db.dialects import Transaction
from heliograph.db.errors import DatabaseError
from heliograph.ntf.push.outbox import Outbox
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
RELOAD_MS = 3_600_000
"""How often the plan is made anew from the store: clients change intervals, tokens come and go."""


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
        self._plan = WakeUpPlan()
        self._planned_at: int | None = None
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
        stepped_back = self._last is not None and at < self._last - STEP_BACK_MS
        is_old = self._planned_at is None or not 0 <= at - self._planned_at < RELOAD_MS

        def wake(tx: Transaction) -> tuple[list[PendingPush], WakeUpPlan]:
            if stepped_back:
                wakeups.rebase_cron(tx, at)
            plan = make_plan(tx) if is_old or stepped_back else self._plan
            new = wakeups.count_cron_due(tx, since, at)
            seconds = max((at - since) / 1000, TICK)
            due = wakeups.cron_due(tx, at, backlog_page(plan.rate, seconds, new))
            self._add_wake_ups(tx, due, plan, at, plan.is_crowded(new, seconds))
            pushes = pending.due_for(tx, [item.token_id for item in due], at, PushKind.CHECK)
            return self._coordinator.claim(tx, pushes), plan

        # A plan that a failed transaction changed must not be used again.
        self._planned_at, planned_at = None, at if is_old or stepped_back else self._planned_at
        pushes, self._plan = await self._database.write(wake)
        self._plan.forget(at)
        self._last, self._planned_at = at, planned_at
        return pushes

    def _since(self, at: int) -> int:
        """Return when what counts as new became due; at the start and after a jump, it is less."""
        if self._last is None:
            return at
        return self._last if 0 <= at - self._last <= MAX_STEP_MS else max(at - MAX_STEP_MS, 0)

    def _add_wake_ups(
        self,
        tx: Transaction,
        due: list[wakeups.CronDue],
        plan: WakeUpPlan,
        at: int,
        is_crowded: bool,
    ) -> None:
        expires_at, kind = at + self._push_ttl, PushKind.CHECK
        pushes = [
            tokens.pending_row(item.token_id, kind, item.provider, 0, at, expires_at)
            for item in due
        ]
        counts = Counter(item.every for item in due if item.phase is None)
        spread = {
            minutes: iter(plan.place(at, minutes, count, is_crowded=is_crowded))
            for minutes, count in counts.items()
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


def make_plan(tx: Transaction) -> WakeUpPlan:
    """Return a plan with all wake-ups of the store."""
    plan = WakeUpPlan(wakeups.wake_up_intervals(tx))
    for slot, minutes, count in wakeups.wake_up_loads(tx, plan.slot):
        plan.add(slot, minutes, count)
    return plan
