"""Moves a whole store: in from the reference's store log, out to it, in memory that stays small.

A log is read twice: first to find what is wrong with it, so that a bad one changes nothing, then to
apply it, some lines a transaction. Applying it again, whole, gives the same store: that is how an
import that was interrupted is finished.

Associations with services are left out in both directions: they belong to the certificates of the
router that made them, and queues are simply subscribed one by one at first.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TypeVar

from heliograph.db.dialects import Dialect, Row, Transaction
from heliograph.ntf import subscriptions, tokens
from heliograph.ntf.storelog import (
    BadLine,
    CronSet,
    LastNotification,
    Record,
    ServiceSet,
    SubscriptionCreated,
    SubscriptionDeleted,
    SubscriptionStatusSet,
    TokenCreated,
    TokenDeleted,
    TokenReplaced,
    TokenStatusSet,
    TokenUsed,
    decode_record,
    encode_record,
)
from heliograph.wire.addresses import SMPQueueNtf, decode_address
from heliograph.wire.push import PNMessageData
from heliograph.wire.tokens import (
    SubscriptionState,
    SubscriptionStatus,
    TokenStatus,
    encode_token_text,
)

__all__ = ["Export", "Import", "StoreLogError"]

LINES = 2000
"""In one transaction, or one page."""

MAX_LINE = 100_000
SHOWN_PROBLEMS = 20
DAY = 86_400

Progress = Callable[[str, int], None]
"""Told what is done, and how many of it so far."""

T = TypeVar("T")

_REGISTER = (
    "INSERT INTO tokens (token_id, device, status, auth_key, dh_private, dh_secret, code,"
    " cron_minutes, cron_due_at, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (token_id) DO UPDATE SET device = excluded.device, status = excluded.status,"
    " auth_key = excluded.auth_key, dh_private = excluded.dh_private,"
    " dh_secret = excluded.dh_secret, code = excluded.code,"
    " cron_minutes = excluded.cron_minutes, cron_due_at = excluded.cron_due_at,"
    " created_at = excluded.created_at"
)
_INSERT_SUBSCRIPTION = (
    "INSERT INTO subscriptions (subscription_id, token_id, server_id, notifier_id, notifier_key,"
    " status, error, associated) VALUES (?, ?, ?, ?, ?, ?, ?, 0)"
)
_UPSERT_NOTIFICATION = (
    "INSERT INTO last_notifications (token_id, subscription_id, seq, timestamp, nonce, meta)"
    " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (token_id, subscription_id) DO UPDATE SET"
    " seq = excluded.seq, timestamp = excluded.timestamp, nonce = excluded.nonce,"
    " meta = excluded.meta"
)
_TOKENS = (
    "SELECT token_id, device, status, auth_key, dh_private, dh_secret, code, cron_minutes,"
    " created_at FROM tokens WHERE token_id > ? ORDER BY token_id LIMIT ?"
)
_SUBSCRIPTIONS = (
    "SELECT s.subscription_id, v.address, s.notifier_id, s.notifier_key, s.token_id, s.status,"
    " s.error FROM subscriptions s JOIN servers v ON v.server_id = s.server_id"
    " JOIN tokens t ON t.token_id = s.token_id"
    " WHERE s.subscription_id > ? ORDER BY s.subscription_id LIMIT ?"
)
_NOTIFICATIONS = (
    "SELECT l.seq, l.token_id, v.address, s.notifier_id, l.timestamp, l.nonce, l.meta"
    " FROM last_notifications l JOIN subscriptions s ON s.subscription_id = l.subscription_id"
    " JOIN servers v ON v.server_id = s.server_id WHERE l.seq > ? ORDER BY l.seq LIMIT ?"
)


class StoreLogError(Exception):
    """Lines that cannot be read, by number. Nothing was imported."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


@dataclass(slots=True)
class Import:
    """One import. `applied` counts lines, `skipped` those that were left out and why."""

    dialect: Dialect
    now: float
    progress: Progress = field(default=lambda what, count: None)
    applied: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    _next_seq: int = 0

    def check(self, file: Path, *, skip_bad: bool = False) -> None:
        """Read a log and keep nothing of it. Raises `StoreLogError` and `OSError`."""
        problems: list[str] = []
        bad = number = 0
        for number, line in _lines(file):
            try:
                _decode(line)
            except BadLine as exc:
                bad += 1
                if bad <= SHOWN_PROBLEMS:
                    problems.append(f"{file}: line {number}: {exc}")
            if number % LINES == 0:
                self.progress(f"checking {file.name}", number)
        self.progress(f"checked {file.name}", number)
        if bad > SHOWN_PROBLEMS:
            problems.append(f"{file}: and {bad - SHOWN_PROBLEMS} more lines")
        if problems and not skip_bad:
            raise StoreLogError(problems)

    def apply(self, file: Path) -> None:
        """Bring a checked log into the store."""
        [[seq]] = self.dialect.query("SELECT COALESCE(MAX(seq), 0) FROM last_notifications", ())
        [[owed]] = self.dialect.query("SELECT COALESCE(MAX(seq), 0) FROM debts", ())
        self._next_seq = max(seq, owed) + 1
        for page in _pages(_lines(file)):
            self.dialect.begin()
            try:
                tx = Transaction(self.dialect)
                for _, line in page:
                    self._apply_line(tx, line)
                self.dialect.commit()
            except BaseException:
                self.dialect.rollback()
                raise
            self.progress(f"importing {file.name}", self.applied)

    def _apply_line(self, tx: Transaction, line: str) -> None:
        try:
            record = _decode(line)
        except BadLine:
            self._skip("cannot be read")
            return
        if record is None:
            return
        why = self._apply(tx, record)
        if why is None:
            self.applied += 1
        else:
            self._skip(why)

    def _apply(self, tx: Transaction, record: Record) -> str | None:
        """Apply a record, or say why not."""
        match record:
            case TokenCreated():
                self._put_token(tx, record)
            case TokenStatusSet():
                self._set_status(tx, record)
            case TokenReplaced():
                tx.execute(
                    "UPDATE tokens SET device = ?, code = ?, status = ? WHERE token_id = ?",
                    (
                        encode_token_text(record.device),
                        record.code,
                        TokenStatus.REGISTERED.value,
                        record.token_id,
                    ),
                )
            case CronSet():
                due_at = self._cron_due(record.token_id, record.minutes)
                tokens.set_cron(tx, record.token_id, record.minutes, due_at)
            case TokenDeleted():
                tokens.delete(tx, record.token_id)
            case TokenUsed():
                tx.execute(
                    "UPDATE tokens SET created_at = ? WHERE token_id = ?",
                    (record.at * 1000, record.token_id),
                )
            case SubscriptionCreated():
                return self._put_subscription(tx, record)
            case SubscriptionStatusSet():
                tx.execute(
                    "UPDATE subscriptions SET status = ?, error = ? WHERE subscription_id = ?",
                    (record.status.state.value, record.status.error, record.subscription_id),
                )
            case SubscriptionDeleted():
                subscriptions.delete(tx, record.subscription_id)
            case ServiceSet():
                return "associates a service, which is done anew"
            case LastNotification():
                return self._put_notification(tx, record)
        return None

    def _put_token(self, tx: Transaction, record: TokenCreated) -> None:
        token = record.token
        created_at = self.now if record.updated_at is None else record.updated_at
        row = (
            token.token_id,
            encode_token_text(token.device),
            token.status.value,
            token.auth_key,
            token.dh_private,
            token.dh_secret,
            token.code,
            token.cron_minutes,
            self._cron_due(token.token_id, token.cron_minutes),
            int(created_at * 1000),
        )
        tx.execute(_REGISTER, row)

    def _set_status(self, tx: Transaction, record: TokenStatusSet) -> None:
        tx.execute(
            "UPDATE tokens SET status = ? WHERE token_id = ?",
            (record.status.value, record.token_id),
        )
        if record.status is TokenStatus.ACTIVE:
            rows = tx.query(
                "SELECT o.token_id FROM tokens t JOIN tokens o ON o.device = t.device"
                " WHERE t.token_id = ? AND o.token_id <> t.token_id",
                (record.token_id,),
            )
            for (other,) in rows:
                tokens.delete(tx, other)

    def _put_subscription(self, tx: Transaction, record: SubscriptionCreated) -> str | None:
        if not tx.query("SELECT 1 FROM tokens WHERE token_id = ?", (record.token_id,)):
            return "subscribe for a token that is not there"
        server_id = subscriptions.server_for(tx, str(record.queue.server))
        tx.execute(
            "DELETE FROM subscriptions"
            " WHERE subscription_id = ? OR (server_id = ? AND notifier_id = ?)",
            (record.subscription_id, server_id, record.queue.notifier_id),
        )
        own = (record.subscription_id, record.token_id, server_id, record.queue.notifier_id)
        status = record.status
        tx.execute(
            _INSERT_SUBSCRIPTION, (*own, record.notifier_key, status.state.value, status.error)
        )
        return None

    def _put_notification(self, tx: Transaction, record: LastNotification) -> str | None:
        message = record.message
        rows = tx.query(
            "SELECT s.subscription_id FROM subscriptions s JOIN servers v"
            " ON v.server_id = s.server_id"
            " WHERE v.address = ? AND s.notifier_id = ? AND s.token_id = ?",
            (str(message.queue.server), message.queue.notifier_id, record.token_id),
        )
        if not rows:
            return "notify for a subscription that is not there"
        [[subscription_id]] = rows
        values = (self._next_seq, message.timestamp, message.nonce, message.meta)
        tx.execute(_UPSERT_NOTIFICATION, (record.token_id, subscription_id, *values))
        self._next_seq += 1
        return None

    def _cron_due(self, token_id: bytes, minutes: int) -> int | None:
        """Spread over the interval, the same each time."""
        if not minutes:
            return None
        return int(self.now * 1000) + int.from_bytes(token_id[:4]) % (minutes * 60_000)

    def _skip(self, why: str) -> None:
        self.skipped[why] = self.skipped.get(why, 0) + 1


@dataclass(slots=True)
class Export:
    """One export, of what was in the store when it began. Files appear when they are whole."""

    dialect: Dialect
    progress: Progress = field(default=lambda what, count: None)
    tokens: int = 0
    subscriptions: int = 0
    notifications: int = 0

    def write(self, log: Path, last_notifications: Path | None = None) -> None:
        """Raises `FileExistsError` and other `OSError`."""
        # Of SQLite it gives a snapshot; what PostgreSQL changes meanwhile may be in or not.
        self.dialect.execute("BEGIN", ())
        try:
            _write(log, self._store())
            if last_notifications is not None:
                _write(last_notifications, self._last_notifications())
        finally:
            self.dialect.rollback()

    def _store(self) -> Iterator[str]:
        for *fields, created_at in self._rows(_TOKENS, b""):
            updated_at = created_at // 1000 // DAY * DAY
            yield encode_record(TokenCreated(tokens.token_of(tuple(fields)), updated_at))
            self.tokens += 1
            self._tell("exporting tokens", self.tokens)
        for row in self._rows(_SUBSCRIPTIONS, b""):
            subscription_id, address, notifier_id, key, token_id, state, error = row
            queue = SMPQueueNtf(decode_address(address), notifier_id)
            status = SubscriptionStatus(SubscriptionState(state), error)
            yield encode_record(SubscriptionCreated(subscription_id, queue, key, token_id, status))
            self.subscriptions += 1
            self._tell("exporting subscriptions", self.subscriptions)

    def _last_notifications(self) -> Iterator[str]:
        for _, token_id, address, notifier_id, at, nonce, meta in self._rows(_NOTIFICATIONS, -1):
            queue = SMPQueueNtf(decode_address(address), notifier_id)
            yield encode_record(LastNotification(token_id, PNMessageData(queue, at, nonce, meta)))
            self.notifications += 1
            self._tell("exporting last notifications", self.notifications)

    def _rows(self, sql: str, after: bytes | int) -> Iterator[Row]:
        while True:
            page = self.dialect.query(sql, (after, LINES))
            yield from page
            if len(page) < LINES:
                return
            after = page[-1][0]

    def _tell(self, what: str, count: int) -> None:
        if count % LINES == 0:
            self.progress(what, count)


def _write(file: Path, lines: Iterator[str]) -> None:
    if file.exists():
        raise FileExistsError(17, "it exists already", str(file))
    unfinished = file.with_name(f"{file.name}.unfinished")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as out:
        for line in lines:
            out.write(f"{line}\n")
        out.flush()
        os.fsync(out.fileno())
    unfinished.replace(file)


def _decode(line: str) -> Record | None:
    """None for a line with nothing in it."""
    if len(line) > MAX_LINE:
        raise BadLine("the line is too long")
    return decode_record(line) if line else None


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    with file.open(encoding="utf-8", errors="replace", newline="\n") as source:
        number = 0
        while line := source.readline(MAX_LINE + 2):
            number += 1
            yield number, line.rstrip("\r\n")


def _pages(items: Iterator[T]) -> Iterator[list[T]]:
    while page := list(islice(items, LINES)):
        yield page
