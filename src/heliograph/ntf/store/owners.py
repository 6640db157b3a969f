"""Owners of tokens: when each was seen last, and what happens to a token without one.

A token whose owner was not seen for weeks is slowed, then verified, then removed, by actions (see
`heliograph.ntf.store.actions.tokens`). Any command of its owner restores it. Functions of a
transaction; times in milliseconds.
"""

from collections.abc import Mapping, Sequence

from heliograph.db.dialects import Transaction
from heliograph.ntf.store.records import PushKind
from heliograph.wire.ntf.tokens import TokenStatus

__all__ = [
    "DAY",
    "SEEN_INTERVAL",
    "SLOW_MINUTES",
    "delay_new",
    "delay_rest",
    "is_recent",
    "mark_seen",
    "mark_verified",
    "restore",
    "withdraw_verification",
]

DAY = 86_400_000
SEEN_INTERVAL = DAY
"""A command of an owner that was seen within this time is not recorded again."""
SLOW_MINUTES = 24 * 60
"""The least interval of periodic pushes to a slowed token, and of instant ones."""
SLOW_INTERVAL = SLOW_MINUTES * 60_000


def is_recent(seen_at: int, now: int) -> bool:
    """Return whether an owner was seen so recently that it need not be recorded again."""
    return 0 <= now - seen_at < SEEN_INTERVAL


def mark_seen(tx: Transaction, token_ids: Sequence[bytes], now: int) -> list[bytes]:
    """Record that owners were seen; restore and return those of their tokens that were slowed."""
    rows = [(now, token_id) for token_id in sorted(token_ids)]  # as tokens are locked
    tx.many("UPDATE tokens SET seen_at = ? WHERE token_id = ?", rows)
    return restore(tx, token_ids, now)


def restore(tx: Transaction, token_ids: Sequence[bytes], now: int) -> list[bytes]:
    """Push to tokens as if they had never been slowed; return those that had been."""
    rows = tx.query_in(
        "DELETE FROM slowed_tokens WHERE token_id IN {in} RETURNING token_id", token_ids
    )
    restored = [bytes(token_id) for (token_id,) in rows]
    for token_id in restored:
        tx.execute(
            "UPDATE tokens SET cron_due_at = CAST(? AS BIGINT) + CAST(cron_minutes AS BIGINT)"
            " * 60000 WHERE token_id = ?"
            " AND cron_due_at > CAST(? AS BIGINT) + CAST(cron_minutes AS BIGINT) * 60000",
            (now, token_id, now),
        )
        tx.execute(
            "UPDATE pending_pushes SET next_at = ?"
            " WHERE token_id = ? AND attempts = 0 AND next_at > ?",
            (now, token_id, now),
        )
        withdraw_verification(tx, token_id)
    return restored


def withdraw_verification(tx: Transaction, token_id: bytes) -> None:
    """Remove the verification push of an active token, whose owner does not wait for it."""
    tx.execute(
        "DELETE FROM pending_pushes WHERE token_id = ? AND kind = ? AND EXISTS"
        " (SELECT 1 FROM tokens t WHERE t.token_id = pending_pushes.token_id AND t.status = ?)",
        (token_id, PushKind.VERIFICATION.value, TokenStatus.ACTIVE.value),
    )


def mark_verified(tx: Transaction, token_id: bytes, now: int) -> None:
    """Record that a provider accepted the verification push of a slowed token."""
    tx.execute(
        "UPDATE slowed_tokens SET verified_at = ? WHERE token_id = ? AND asked_at IS NOT NULL",
        (now, token_id),
    )


def delay_new(tx: Transaction, next_pushes: Mapping[bytes, int], now: int, ttl: int) -> None:
    """Delay the pushes of slowed tokens that became pending now, to the times given.

    A push that was pending before stays: it will carry the new notification, too.
    """
    latest = now + min(SLOW_INTERVAL, ttl // 2)  # a clock may be wrong, and it must not expire
    tx.many(
        "UPDATE pending_pushes SET next_at = ?"
        " WHERE token_id = ? AND kind = ? AND since = ? AND next_at < ?",
        [
            (at, token_id, PushKind.MESSAGE.value, now, at)
            for token_id, next_at in sorted(next_pushes.items())
            for at in (min(next_at, latest),)
        ],
    )


def delay_rest(tx: Transaction, accepted: Sequence[bytes], now: int) -> None:
    """Delay further pushes to those of the tokens that are slowed: one was accepted now.

    Notifications that arrived while it was in flight are pending already.
    """
    next_at = now + SLOW_INTERVAL
    rows = tx.query_in("SELECT token_id FROM slowed_tokens WHERE token_id IN {in}", accepted)
    for (token_id,) in rows:
        tx.execute(
            "UPDATE slowed_tokens SET next_push_at = ? WHERE token_id = ?", (next_at, token_id)
        )
        tx.execute(
            "UPDATE pending_pushes SET next_at = ?"
            " WHERE token_id = ? AND kind = ? AND expires_at > ?",
            (next_at, token_id, PushKind.MESSAGE.value, next_at),
        )
