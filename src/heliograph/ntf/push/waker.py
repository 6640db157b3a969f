"""Wakes of many tokens: every second, as many pushes become pending as their rate allows."""

import asyncio
import logging
import time

from heliograph.db.database import Database
from heliograph.db.dialects import Transaction
from heliograph.db.errors import DatabaseError
from heliograph.ntf.observing.observer import NtfObserver
from heliograph.ntf.push.outbox import Outbox
from heliograph.ntf.store import pending, wakes
from heliograph.ntf.store.coordination import Coordinator
from heliograph.ntf.store.records import PendingPush, PushKind
from heliograph.ntf.store.wakes import Wake, WakeState
from heliograph.runtime.clock import steady_time

__all__ = ["Waker"]

logger = logging.getLogger(__name__)

TICK = 1.0
IDLE_CHECK = 5.0
"""Seconds between looks for new wakes."""
MAX_STEP = 2.0
"""Seconds of a rate that are made up for at once: after a pause there is no burst."""
REPORT_INTERVAL = 60.0


class Waker:
    """Turn the lists of running wakes into pending pushes, and report how far each is."""

    def __init__(
        self,
        database: Database,
        outbox: Outbox,
        observer: NtfObserver,
        push_ttl: float,
        coordinator: Coordinator,
    ) -> None:
        self._database = database
        self._outbox = outbox
        self._observer = observer
        self._coordinator = coordinator
        self._push_ttl = int(push_ttl * 1000)
        self._credit: dict[bytes, float] = {}
        """Parts of a token that a rate allows, but that were not used yet."""
        self._reported: dict[bytes, tuple[WakeState, float]] = {}
        self._at: float | None = None

    async def run(self) -> None:
        while True:
            try:
                if self._coordinator.is_leader:
                    self._outbox.offer(await self.wake(time.monotonic()))
                else:
                    self._at = None
            except DatabaseError as exc:
                logger.error("wakes cannot be read, retrying: %s", exc)
            except Exception:
                logger.exception("wakes failed, retrying")
            await asyncio.sleep(TICK if self._credit else IDLE_CHECK)

    async def wake(self, now: float) -> list[PendingPush]:
        """Add pending pushes for the time since the last call, and return them."""
        step = TICK if self._at is None else min(max(now - self._at, 0.0), MAX_STEP)
        self._at = now
        known = await self._database.read(wakes.all_wakes)
        found = [wake for wake in known if wake.state is WakeState.RUNNING]
        limits = {wake.wake_id: self._limit(wake, step) for wake in found}
        self._credit = {item: self._credit[item] for item in limits}
        pushes: list[PendingPush] = []
        if any(limits.values()):
            at = round(steady_time() * 1000)
            pushes = await self._database.write(lambda tx: self._wake(tx, found, limits, at))
            known = await self._database.read(wakes.all_wakes)
        self._report(known, now)
        return pushes

    def _limit(self, wake: Wake, step: float) -> int:
        credit = self._credit.get(wake.wake_id, 0.0) + wake.rate * step
        self._credit[wake.wake_id] = credit % 1.0
        return int(credit)

    def _wake(
        self, tx: Transaction, found: list[Wake], limits: dict[bytes, int], at: int
    ) -> list[PendingPush]:
        woken = []
        for wake in found:
            limit, expires_at = limits[wake.wake_id], at + self._push_ttl
            current = wakes.find(tx, wake.wake_id)
            if limit and current is not None and current.state is WakeState.RUNNING:
                woken += wakes.wake_next(tx, wake, limit, at, expires_at)
        return self._coordinator.claim(tx, pending.due_for(tx, woken, at, PushKind.CHECK))

    def _report(self, known: list[Wake], now: float) -> None:
        """Record every change of state, and once a minute how far a wake is."""
        for wake in known:
            state, at = self._reported.get(wake.wake_id, (None, 0.0))
            is_due = wake.state is WakeState.RUNNING and now - at >= REPORT_INTERVAL
            if state is not wake.state or is_due:
                self._reported[wake.wake_id] = wake.state, now
                self._observer.wake_progressed(wake)
