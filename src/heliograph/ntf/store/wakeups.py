"""Periodic wake-ups in the store: functions of a transaction. Times in milliseconds."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from heliograph.db.dialects import Transaction
from heliograph.ntf.store import owners
from heliograph.wire.ntf.tokens import TokenStatus

__all__ = [
    "PHASE_MINUTES",
    "CronDue",
    "count_cron_due",
    "cron_due",
    "rebase_cron",
    "request_cron",
    "set_cron",
    "set_crons",
    "set_phase",
    "wake_up_intervals",
    "wake_up_loads",
]


DAY = 86_400_000
PHASE_MINUTES = 1440
"""The least interval that can have a time of the day."""


class CronDue(NamedTuple):
    """A token whose periodic wake-up is due."""

    token_id: bytes
    minutes: int
    provider: str
    is_slowed: bool = False
    phase: int | None = None
    """The second of the day at which to wake it, if it is woken daily or less often."""

    @property
    def every(self) -> int:
        """Return the minutes until the next wake-up."""
        return max(self.minutes, owners.SLOW_MINUTES) if self.is_slowed else self.minutes


def request_cron(tx: Transaction, token_id: bytes, minutes: int, now: int) -> None:
    """Set the interval of periodic wake-ups; the first is due one interval from now.

    A changed interval counts from the last wake-up.
    """
    rows = tx.query("SELECT cron_minutes, cron_due_at FROM tokens WHERE token_id = ?", (token_id,))
    for before, due_at in rows:
        if not minutes:
            due_at = None
        elif due_at is None:
            due_at = now + minutes * 60_000
        else:
            due_at = max(due_at + (minutes - before) * 60_000, now)
        set_cron(tx, token_id, minutes, due_at)


def set_cron(tx: Transaction, token_id: bytes, minutes: int, due_at: int | None) -> None:
    set_crons(tx, [(minutes, due_at, token_id)])


def set_crons(tx: Transaction, rows: Sequence[tuple[int, int | None, bytes]]) -> None:
    """Set interval in minutes and time of the next wake-up, for each token ID."""
    tx.many("UPDATE tokens SET cron_minutes = ?, cron_due_at = ? WHERE token_id = ?", rows)


def set_phase(tx: Transaction, token_id: bytes, phase: int | None, now: int) -> int | None:
    """Set the second of the day at which a token is woken; return the one before.

    Its next wake-up comes at that time, not later than it would have.
    """
    rows = tx.query("SELECT cron_phase, cron_due_at FROM tokens WHERE token_id = ?", (token_id,))
    for before, due_at in rows:
        if phase is not None and due_at is not None:
            moved = due_at - (due_at - phase * 1000) % DAY
            due_at = moved if moved > now else due_at
        tx.execute(
            "UPDATE tokens SET cron_phase = ?, cron_due_at = ? WHERE token_id = ?",
            (phase, due_at, token_id),
        )
        return None if before is None else int(before)
    return None


def count_cron_due(tx: Transaction, after: int, until: int) -> int:
    """Return how many wake-ups fall due later than `after`, up to `until`."""
    [[count]] = tx.query(
        "SELECT COUNT(*) FROM tokens WHERE status = ? AND cron_due_at > ? AND cron_due_at <= ?",
        (TokenStatus.ACTIVE.value, after, until),
    )
    return int(count)


def cron_due(tx: Transaction, now: int, limit: int) -> list[CronDue]:
    """Return the tokens whose wake-ups have been due for longest."""
    rows = tx.query(
        "SELECT t.token_id, t.cron_minutes, t.device, d.token_id, t.cron_phase FROM tokens t"
        " LEFT JOIN slowed_tokens d ON d.token_id = t.token_id"
        " WHERE t.cron_due_at <= ? AND t.status = ? ORDER BY t.cron_due_at LIMIT ?"
        f"{tx.locking(' FOR NO KEY UPDATE OF t SKIP LOCKED')}",
        (now, TokenStatus.ACTIVE.value, limit),
    )
    return [
        CronDue(
            token_id,
            minutes,
            device.partition(" ")[0],
            slowed is not None,
            phase if minutes >= PHASE_MINUTES else None,
        )
        for token_id, minutes, device, slowed, phase in rows
    ]


def wake_up_intervals(tx: Transaction) -> dict[int, int]:
    """Return how many tokens are woken at each interval in minutes."""
    active = (TokenStatus.ACTIVE.value,)
    rows = tx.query(
        "SELECT cron_minutes, COUNT(*) FROM tokens"
        " WHERE status = ? AND cron_due_at IS NOT NULL GROUP BY cron_minutes",
        active,
    )
    slowed = tx.query(
        "SELECT t.cron_minutes, COUNT(*) FROM slowed_tokens d"
        " JOIN tokens t ON t.token_id = d.token_id"
        " WHERE t.status = ? AND t.cron_due_at IS NOT NULL GROUP BY t.cron_minutes",
        active,
    )
    found: Counter[int] = Counter(dict(rows))
    for minutes, count in slowed:
        found[minutes] -= count
        found[max(minutes, owners.SLOW_MINUTES)] += count
    return {minutes: count for minutes, count in found.items() if minutes and count > 0}


def wake_up_loads(tx: Transaction, slot: int) -> list[tuple[int, int, int]]:
    """Return slots of so many milliseconds, intervals in minutes, and how many are planned."""
    rows = tx.query(
        "SELECT cron_due_at / CAST(? AS BIGINT) AS slot, cron_minutes, COUNT(*) FROM tokens"
        " WHERE status = ? AND cron_due_at IS NOT NULL GROUP BY slot, cron_minutes",
        (slot, TokenStatus.ACTIVE.value),
    )
    return [(slot, minutes, count) for slot, minutes, count in rows]


def rebase_cron(tx: Transaction, now: int) -> None:
    """Bring wake-ups that are further away than their interval back to it."""
    tx.execute(
        "UPDATE tokens SET cron_due_at = CAST(? AS BIGINT) + CAST(cron_minutes AS BIGINT) * 60000"
        " WHERE cron_due_at > CAST(? AS BIGINT) + CAST(cron_minutes AS BIGINT) * 60000"
        " AND token_id NOT IN (SELECT token_id FROM slowed_tokens)",
        (now, now),
    )
