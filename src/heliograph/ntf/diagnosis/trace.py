"""The history and pending pushes of one token, for an operator whose user misses pushes.

Read from the store on a separate connection, also while the router runs. Shows no device token,
queue, key or messaging router: only times, counts and the hashes that journals have.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from heliograph.db.dialects import Transaction
from heliograph.documents import JsonObject
from heliograph.journal.hashing import Hasher, notification_id
from heliograph.journal.identity import journal_identity

_SHOWN = ("mode", "attempt", "status", "reason", "code", "notification", "notifications")

__all__ = ["Trace", "describe", "hashed_token", "read_journal", "trace"]


@dataclass(frozen=True, slots=True)
class Notified:
    """The last notification of one subscription."""

    at: float
    notification: str


@dataclass(frozen=True, slots=True)
class TracedPush:
    kind: str
    since: float
    attempts: int
    next_at: float
    expires_at: float


@dataclass(frozen=True, slots=True)
class Trace:
    """Times in Unix seconds."""

    status: str
    provider: str
    created_at: float
    cron_minutes: int
    cron_due_at: float | None
    subscriptions: dict[str, int]
    errors: dict[str, int]
    notified: list[Notified]
    pending_pushes: list[TracedPush]
    events: list[JsonObject] = field(default_factory=list)


def trace(tx: Transaction, token_id: bytes) -> Trace | None:
    """Return None if there is no such token."""
    rows = tx.query(
        "SELECT status, device, created_at, cron_minutes, cron_due_at FROM tokens"
        " WHERE token_id = ?",
        (token_id,),
    )
    if not rows:
        return None
    [(status, device, created_at, minutes, due_at)] = rows
    statuses = tx.query(
        "SELECT status, error, COUNT(*) FROM subscriptions WHERE token_id = ?"
        " GROUP BY status, error ORDER BY status",
        (token_id,),
    )
    counts: dict[str, int] = {}
    for state, _, count in statuses:
        counts[state] = counts.get(state, 0) + count
    notified = tx.query(
        "SELECT timestamp, nonce FROM last_notifications WHERE token_id = ? ORDER BY seq DESC",
        (token_id,),
    )
    pushes = tx.query(
        "SELECT kind, since, attempts, next_at, expires_at FROM pending_pushes WHERE token_id = ?"
        " ORDER BY since",
        (token_id,),
    )
    return Trace(
        status,
        device.partition(" ")[0],
        created_at / 1000,
        minutes,
        None if due_at is None else due_at / 1000,
        counts,
        {bytes(error).decode("utf-8", "replace"): n for _, error, n in statuses if error},
        [Notified(float(at), notification_id(bytes(nonce))) for at, nonce in notified],
        [
            TracedPush(kind, since / 1000, attempts, next_at / 1000, expires_at / 1000)
            for kind, since, attempts, next_at, expires_at in pushes
        ],
    )


def read_journal(found: Trace, journal: Path, token: str) -> Trace:
    """Add the journal's events of the token and its last notifications. Reads the whole journal."""
    # Only here: Arrow takes a while to be imported.
    import pyarrow as pa
    import pyarrow.compute as pc

    from heliograph.journal.storage.reader import read_events

    notifications = pa.array([item.notification for item in found.notified], pa.string())
    where = (pc.field("token") == token) | pc.field("notification").isin(notifications)
    events = [
        {
            "kind": event["kind"],
            "at": event["at"].timestamp(),
            **{name: event[name] for name in _SHOWN if name in event},
        }
        for event in read_events(journal, where)
    ]
    return replace(found, events=sorted(events, key=lambda event: event["at"]))


def hashed_token(directory: Path, token_id: bytes, epoch: int = 0) -> str:
    """Return the hash that stands for the token in one epoch of the directory's journal."""
    hashes = Hasher(journal_identity(directory, epoch).key).of("token")
    return (hashes and hashes[token_id]) or ""


def describe(found: Trace, now: float) -> Iterator[str]:
    """Yield a description, line by line."""
    yield f"status          {found.status}"
    yield f"provider        {found.provider}"
    yield f"registered      {_at(found.created_at, now)}"
    if found.cron_minutes:
        due = "" if found.cron_due_at is None else f", next {_at(found.cron_due_at, now)}"
        yield f"periodic        every {found.cron_minutes} minutes{due}"
    else:
        yield "periodic        no"
    total = sum(found.subscriptions.values())
    by_status = ", ".join(f"{state} {count}" for state, count in found.subscriptions.items())
    yield f"subscriptions   {total}{f': {by_status}' if total else ''}"
    for error, count in found.errors.items():
        yield f"                {count} with the error: {' '.join(error.split())}"
    yield f"notifications   the last of {len(found.notified)} subscriptions, newest first"
    for item in found.notified:
        yield f"                {_at(item.at, now)}  {item.notification}"
    if not found.pending_pushes:
        yield "pending         nothing"
    for push in found.pending_pushes:
        yield f"pending         a {push.kind} push, since {_at(push.since, now)}"
        yield f"                failed {push.attempts} times, next attempt {_at(push.next_at, now)}"
        yield f"                expires {_at(push.expires_at, now)}"
    for event in found.events:
        more = " ".join(str(event[name]) for name in _SHOWN if name in event)
        yield f"journal         {_at(event['at'], now)}  {event['kind']}  {more}".rstrip()


def _at(when: float, now: float) -> str:
    text = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(when))
    seconds = when - now
    units = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 0))
    unit, size = next(item for item in units if abs(seconds) >= item[1])
    number = f"{abs(seconds) / (size or 1):.0f} {unit}"
    return f"{text} ({f'in {number}' if seconds > 0 else f'{number} ago'})"
