"""Read the plan of wake-ups from the store, page by page, while tokens are woken.

Pages go by time, so that a wake-up that moves meanwhile is counted once: `move` says what the pages
so far had. No page holds the connection for more than a few milliseconds, and none is read in a
transaction that writes.
"""

import asyncio
from collections import Counter

from heliograph.db.database import Database
from heliograph.ntf.push.wakeups import WakeUpPlan
from heliograph.ntf.store import owners, wakeups

__all__ = ["PAGE", "PlanReader"]

PAGE = 5_000
SLOWED_PAGE = 1_000


class PlanReader:
    """A plan that is being read."""

    def __init__(self) -> None:
        self._planned: Counter[tuple[int, int]] = Counter()
        """Wake-ups by second and interval in minutes."""
        self._second: int | None = -1
        """The last one that was read; None if all were."""
        self._slowed: Counter[int] = Counter()
        self._slowed_after: bytes | None = b""

    async def read_page(self, database: Database) -> WakeUpPlan | None:
        """Read a page; return the plan once there are no more."""
        if (second := self._second) is not None:
            rows, self._second = await database.read(
                lambda tx: wakeups.wake_up_loads(tx, second, PAGE)
            )
            self._planned.update({(at, minutes): count for at, minutes, count in rows})
        elif (after := self._slowed_after) is not None:
            found, self._slowed_after = await database.read(
                lambda tx: wakeups.slowed_wake_ups(tx, after, SLOWED_PAGE)
            )
            self._slowed.update(found)
        is_read = self._second is None and self._slowed_after is None
        return await asyncio.to_thread(self._plan) if is_read else None

    def move(self, minutes: int, before: int, after: int) -> None:
        """Record that a wake-up was moved from one time to another, in milliseconds."""
        for at, count in ((before // 1000, -1), (after // 1000, 1)):
            if self._second is None or at <= self._second:
                self._planned[at, minutes] += count

    def _plan(self) -> WakeUpPlan:
        intervals: Counter[int] = Counter()
        for (_, minutes), count in self._planned.items():
            intervals[minutes] += count
        for minutes, count in self._slowed.items():
            intervals[minutes] -= count
            intervals[max(minutes, owners.SLOW_MINUTES)] += count
        plan = WakeUpPlan({minutes: count for minutes, count in intervals.items() if count > 0})
        for (second, minutes), count in self._planned.items():
            plan.add(second * 1000, minutes, count)
        return plan
