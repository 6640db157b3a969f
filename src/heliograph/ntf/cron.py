"""Periodic wake-ups: tokens that asked for them, paged, each at its own time, no bursts."""

import asyncio
import logging
import random
import time

from heliograph.db.database import Database
from heliograph.db.dialects import Transaction
from heliograph.db.errors import DatabaseError
from heliograph.ntf import debts, tokens
from heliograph.ntf.outbox import Outbox
from heliograph.ntf.records import DebtKind, Owed
from heliograph.wire.tokens import TokenStatus

logger = logging.getLogger(__name__)

TICK = 1.0
SPREAD = 300.0
"""A backlog, after a time without service, is worked off over so many seconds."""
LEAST_PAGE = 50


class Cron:
    def __init__(self, database: Database, outbox: Outbox, debt_ttl: float) -> None:
        self._database = database
        self._outbox = outbox
        self._debt_ttl = int(debt_ttl * 1000)

    async def run(self) -> None:
        while True:
            try:
                self._outbox.offer(await self.wake_due(time.time()))
            except DatabaseError as exc:
                logger.error("periodic wake-ups cannot be read, trying again: %s", exc)
            except Exception:
                logger.exception("periodic wake-ups failed, trying again")
            await asyncio.sleep(TICK)

    async def wake_due(self, now: float) -> list[Owed]:
        """Owe a wake-up to a page of due tokens."""
        at = int(now * 1000)

        def wake(tx: Transaction) -> list[Owed]:
            [[count]] = tx.query(
                "SELECT COUNT(*) FROM tokens WHERE cron_due_at <= ? AND status = ?",
                (at, TokenStatus.ACTIVE.value),
            )
            if not count:
                return []
            limit = max(int(count * TICK / SPREAD), LEAST_PAGE)
            rows = tx.query(
                "SELECT token_id, cron_minutes, device FROM tokens"
                " WHERE cron_due_at <= ? AND status = ?"
                " ORDER BY cron_due_at LIMIT ?",
                (at, TokenStatus.ACTIVE.value, limit),
            )
            expires_at, kind = at + self._debt_ttl, DebtKind.CHECK
            for token_id, minutes, device in rows:
                provider = device.partition(" ")[0]
                tx.execute(tokens.OWE, tokens.owed_row(token_id, kind, provider, 0, at, expires_at))
                # A little later each time, so that tokens that began together drift apart.
                wobble = 1.0 + 0.1 * random.random()  # noqa: S311
                tokens.set_cron(tx, token_id, minutes, at + int(minutes * 60_000 * wobble))
            return debts.due_to(tx, [row[0] for row in rows], at, kind)

        return await self._database.write(wake)
