"""Wakes of many tokens: lists of tokens in the store, of which a second's worth becomes pending.

Functions of a transaction; times in milliseconds. A token leaves its list in the transaction in
which its push becomes pending, so that a kill neither loses nor repeats one.
"""

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from heliograph.db.dialects import Transaction
from heliograph.ntf.store import tokens
from heliograph.ntf.store.records import PushKind
from heliograph.wire.ntf.tokens import TokenStatus

__all__ = [
    "Wake",
    "WakeState",
    "add_members",
    "all_wakes",
    "allows",
    "begin",
    "control",
    "find",
    "forget",
    "wake_next",
]


class WakeState(Enum):
    RUNNING = "running"
    PAUSED = "paused"
    DONE = "done"
    ABORTED = "aborted"

    @property
    def is_over(self) -> bool:
        return self in (WakeState.DONE, WakeState.ABORTED)


_CONTROLLED = {
    ("pause", WakeState.RUNNING): WakeState.PAUSED,
    ("pause", WakeState.PAUSED): WakeState.PAUSED,
    ("resume", WakeState.PAUSED): WakeState.RUNNING,
    ("resume", WakeState.RUNNING): WakeState.RUNNING,
    ("abort", WakeState.RUNNING): WakeState.ABORTED,
    ("abort", WakeState.PAUSED): WakeState.ABORTED,
    ("abort", WakeState.ABORTED): WakeState.ABORTED,
}
"""The state after a control; others are refused, as a wake that is over stays so."""


class Wake(NamedTuple):
    """A wake of this router. `rate` is in tokens a second; `woken` are those done with."""

    wake_id: bytes
    state: WakeState
    rate: float
    total: int
    woken: int
    controlled_at: int
    begun_at: int


def find(tx: Transaction, wake_id: bytes) -> Wake | None:
    found = [wake for wake in all_wakes(tx) if wake.wake_id == wake_id]
    return found[0] if found else None


def all_wakes(tx: Transaction) -> list[Wake]:
    """Return all wakes, the newest first."""
    rows = tx.query(
        "SELECT wake_id, state, per_minute, total, woken, controlled_at, begun_at FROM wakes"
        " ORDER BY begun_at DESC"
    )
    return [
        Wake(bytes(wake_id), WakeState(state), per_minute / 60, *rest)
        for wake_id, state, per_minute, *rest in rows
    ]


def forget(tx: Transaction, before: int) -> None:
    """Remove wakes that are over and began before a time, and lists of none that began."""
    tx.execute(
        "DELETE FROM wakes WHERE begun_at <= ? AND state IN (?, ?)",
        (before, WakeState.DONE.value, WakeState.ABORTED.value),
    )
    if all(wake.state.is_over for wake in all_wakes(tx)):
        tx.execute("DELETE FROM wake_tokens", ())


def add_members(tx: Transaction, wake_id: bytes, first: int, token_ids: Sequence[bytes]) -> None:
    """List tokens before a wake begins; to do so again changes nothing."""
    tx.many(
        "INSERT INTO wake_tokens (wake_id, position, token_id) VALUES (?, ?, ?)"
        " ON CONFLICT (wake_id, position) DO NOTHING",
        [(wake_id, number, token_id) for number, token_id in enumerate(token_ids, first)],
    )


def count_members(tx: Transaction, wake_id: bytes) -> int:
    [[count]] = tx.query("SELECT COUNT(*) FROM wake_tokens WHERE wake_id = ?", (wake_id,))
    return int(count)


def begin(tx: Transaction, wake_id: bytes, rate: float, now: int) -> None:
    """Begin to wake the listed tokens."""
    tx.execute(
        "INSERT INTO wakes (wake_id, state, per_minute, total, woken, controlled_at, begun_at)"
        " VALUES (?, ?, ?, ?, 0, 0, ?)",
        (
            wake_id,
            WakeState.RUNNING.value,
            max(round(rate * 60), 1),
            count_members(tx, wake_id),
            now,
        ),
    )


def control(tx: Transaction, wake_id: bytes, word: str, at: int) -> WakeState | None:
    """Pause, resume or abort a wake; None if it cannot be, or if a later control was applied."""
    wake = find(tx, wake_id)
    if wake is None or not allows(wake, word, at):
        return None
    state = _CONTROLLED[word, wake.state]
    tx.execute(
        "UPDATE wakes SET state = ?, controlled_at = ? WHERE wake_id = ?",
        (state.value, at, wake_id),
    )
    if state is WakeState.ABORTED:
        tx.execute("DELETE FROM wake_tokens WHERE wake_id = ?", (wake_id,))
    return state


def allows(wake: Wake, word: str, at: int) -> bool:
    """Return whether a control decided at a time changes a wake, or confirms its state."""
    return (word, wake.state) in _CONTROLLED and at > wake.controlled_at


def wake_next(tx: Transaction, wake: Wake, limit: int, now: int, expires_at: int) -> list[bytes]:
    """Add a pending wake-up for the next tokens of a wake that are active, and return them."""
    rows = tx.query(
        "SELECT w.position, w.token_id, t.device, t.status FROM wake_tokens w"
        " LEFT JOIN tokens t ON t.token_id = w.token_id"
        " WHERE w.wake_id = ? ORDER BY w.position LIMIT ?",
        (wake.wake_id, limit),
    )
    active = [row for row in rows if row[3] == TokenStatus.ACTIVE.value]
    tx.many(
        tokens.ADD_PENDING,
        [
            tokens.pending_row(
                bytes(token_id), PushKind.CHECK, device.partition(" ")[0], 0, now, expires_at
            )
            for _, token_id, device, _ in active
        ],
    )
    if rows:
        tx.execute(
            "DELETE FROM wake_tokens WHERE wake_id = ? AND position <= ?",
            (wake.wake_id, rows[-1][0]),
        )
    is_over = len(rows) < limit or not count_members(tx, wake.wake_id)
    tx.execute(
        "UPDATE wakes SET woken = woken + ?, state = ? WHERE wake_id = ?",
        (
            len(rows),
            WakeState.DONE.value if is_over else WakeState.RUNNING.value,
            wake.wake_id,
        ),
    )
    return [bytes(token_id) for _, token_id, _, _ in active]
