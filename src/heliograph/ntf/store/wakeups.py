"""Periodic wake-ups in the store: functions of a transaction. Times in milliseconds."""

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
    "most_early",
    "rebase_cron",
    "request_cron",
    "set_cron",
    "set_crons",
    "set_phase",
    "slowed_wake_ups",
    "wake_up_loads",
]


DAY = 86_400_000
PHASE_MINUTES = 1440
"""The least interval that can have a time of the day."""
EARLY_SHARE = 0.25
MAX_EARLY = 6 * 3_600_000
"""Milliseconds that a wake-up may be early, however long the interval is."""


def most_early(minutes: int) -> int:
    """Return the most milliseconds by which a wake-up of this interval may be early."""
    return min(int(minutes * 60_000 * EARLY_SHARE), MAX_EARLY)


class CronDue(NamedTuple):
    """A token whose periodic wake-up is due."""

    token_id: bytes
    minutes: int
    provider: str
    due_at: int
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
        "SELECT t.token_id, t.cron_minutes, t.device, t.cron_due_at, d.token_id, t.cron_phase"
        " FROM tokens t"
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
            due_at,
            slowed is not None,
            phase if minutes >= PHASE_MINUTES else None,
        )
        for token_id, minutes, device, due_at, slowed, phase in rows
    ]


def wake_up_loads(
    tx: Transaction, after: int, limit: int
) -> tuple[list[tuple[int, int, int]], int | None]:
    """Return a page of planned wake-ups: seconds, intervals in minutes, and numbers.

    It has about `limit` of the seconds later than `after`, by time; and where the next page
    begins, None if there is none.
    """
    first = (after + 1) * 1000
    found = tx.query(
        "SELECT cron_due_at FROM tokens WHERE status = ? AND cron_due_at >= ?"
        " ORDER BY cron_due_at LIMIT 1 OFFSET ?",
        (TokenStatus.ACTIVE.value, first, limit - 1),
    )
    last = found[0][0] // 1000 if found else None
    condition, end = ("", ()) if last is None else (" AND cron_due_at < ?", ((last + 1) * 1000,))
    rows = tx.query(
        "SELECT cron_due_at / 1000 AS second, cron_minutes, COUNT(*) FROM tokens"
        f" WHERE status = ? AND cron_due_at >= ?{condition} GROUP BY second, cron_minutes",
        (TokenStatus.ACTIVE.value, first, *end),
    )
    return [(second, minutes, count) for second, minutes, count in rows], last


def slowed_wake_ups(tx: Transaction, after: bytes, limit: int) -> tuple[list[int], bytes | None]:
    """Return a page of the intervals in minutes of slowed tokens, and where the next begins."""
    rows = tx.query(
        "SELECT d.token_id, t.cron_minutes, t.status, t.cron_due_at FROM slowed_tokens d"
        " JOIN tokens t ON t.token_id = d.token_id WHERE d.token_id > ?"
        " ORDER BY d.token_id LIMIT ?",
        (after, limit),
    )
    woken = [
        minutes
        for _, minutes, status, due_at in rows
        if status == TokenStatus.ACTIVE.value and due_at is not None
    ]
    return woken, bytes(rows[-1][0]) if len(rows) == limit else None


def rebase_cron(tx: Transaction, now: int, after: bytes, limit: int) -> bytes | None:
    """Bring wake-ups of a page of tokens that are further away than their interval back to it.

    Return where the next page begins, None if there is none.
    """
    found = tx.query(
        "SELECT token_id FROM tokens WHERE token_id > ? ORDER BY token_id LIMIT 1 OFFSET ?",
        (after, limit - 1),
    )
    condition, last = (" AND token_id <= ?", (found[0][0],)) if found else ("", ())
    tx.execute(
        "UPDATE tokens SET cron_due_at = CAST(? AS BIGINT) + CAST(cron_minutes AS BIGINT) * 60000"
        f" WHERE token_id > ?{condition}"
        " AND cron_due_at > CAST(? AS BIGINT) + CAST(cron_minutes AS BIGINT) * 60000"
        " AND token_id NOT IN (SELECT token_id FROM slowed_tokens)",
        (now, after, *last, now),
    )
    return bytes(found[0][0]) if found else None
