"""A fleet of tokens that a plan wakes, second by second, without a store: for tests and benches."""

import math
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import accumulate

from heliograph.ntf.push.wakeups import WakeUpPlan, backlog_page

COUNTED = 50


@dataclass
class WakeUpFleet:
    """Tokens by the time at which they are due. Does what `Cron.wake_due` does."""

    due: list[tuple[int, int]]
    """Time in milliseconds, and interval in minutes."""
    at: int | None = None
    sent: Counter[int] = field(default_factory=Counter)
    """Wake-ups by second."""
    late: list[int] = field(default_factory=list)
    """How many milliseconds each wake-up was late."""
    early: list[float] = field(default_factory=list)
    """By which share of its interval each wake-up was planned early."""

    waiting: deque[tuple[int, int]] = field(default_factory=deque)
    """Those that are due, the oldest first."""

    def __post_init__(self) -> None:
        heapify(self.due)
        self.plan = WakeUpPlan(Counter(minutes for _, minutes in self.due))
        for at, minutes in self.due:
            self.plan.add(at, minutes)

    def tick(self, at: int) -> None:
        since = at if self.at is None else self.at
        new = 0
        while self.due and self.due[0][0] <= at:
            self.waiting.append(heappop(self.due))
            new += self.waiting[-1][0] > since
        seconds = max((at - since) / 1000, 1.0)
        limit = backlog_page(self.plan.rate, seconds, new)
        page = [self.waiting.popleft() for _ in range(min(limit, len(self.waiting)))]
        self.sent[at // 1000] += len(page)
        self.late += [at - due for due, _ in page]
        for minutes, count in Counter(minutes for _, minutes in page).items():
            times = self.plan.place(at, minutes, count)
            self.early += [1 - (time - at) / (minutes * 60_000) for time in times]
            for time in times:
                heappush(self.due, (time, minutes))
        self.plan.commit()
        self.plan.forget(at)
        self.at = at

    def run(self, seconds: Iterable[int]) -> None:
        for second in seconds:
            self.tick(second * 1000)

    def peak(self, first: int, last: int) -> float:
        """Return the largest rate of a window, in units of the mean of these seconds.

        A window is so long that `COUNTED` wake-ups fall into it, and at least a second: in a
        shorter one, one wake-up more or less would count.
        """
        counts = [self.sent[second] for second in range(first, last)]
        total, sums = sum(counts), [0, *accumulate(counts)]
        length = min(max(math.ceil(COUNTED * len(counts) / max(total, 1)), 1), len(counts))
        most = max(after - before for before, after in zip(sums, sums[length:], strict=False))
        return most * len(counts) / (length * max(total, 1))

    def busiest_second(self, first: int, last: int) -> int:
        return max(self.sent[second] for second in range(first, last))
