"""Import and export of a whole store as the reference's store log, in bounded memory.

A log is read twice: first to find what is wrong with it, so that a bad one changes nothing, then to
apply it, some lines a transaction. Applying it again, whole, gives the same store: that is how an
import that was interrupted is finished.

Associations with services are left out in both directions: they belong to the certificates of the
router that made them, and queues are simply subscribed one by one at first.
"""

from collections.abc import Iterator
from pathlib import Path

from heliograph.db.dialects import Dialect, Transaction
from heliograph.ntf.reference.storelog import (
    CronSet,
    LastNotification,
    Record,
    ServiceSet,
    SubscriptionCreatedLine,
    SubscriptionDeletedLine,
    SubscriptionStatusSet,
    TokenCreated,
    TokenDeletedLine,
    TokenReplacedLine,
    TokenStatusSet,
    TokenUsed,
    decode_record,
    encode_record,
)
from heliograph.ntf.store import tokens, wakeups
from heliograph.ntf.store.devices import has_plain_text
from heliograph.ntf.store.subscriptions import servers, subscriptions
from heliograph.runtime.reference.storelog import LogExport, LogImport, Progress
from heliograph.wire.addresses import SMPQueueNtf, decode_address
from heliograph.wire.ntf.push import PNMessageData
from heliograph.wire.ntf.tokens import (
    NtfSubStatus,
    SubscriptionState,
    TokenStatus,
    encode_token_text,
)

__all__ = ["NtfExport", "NtfImport"]

DAY = 86_400

_REGISTER = (
    "INSERT INTO tokens (token_id, device, status, auth_key, dh_private, dh_secret, code,"
    " cron_minutes, cron_due_at, created_at, unverified_since, seen_at)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (token_id) DO UPDATE SET device = excluded.device, status = excluded.status,"
    " auth_key = excluded.auth_key, dh_private = excluded.dh_private,"
    " dh_secret = excluded.dh_secret, code = excluded.code,"
    " cron_minutes = excluded.cron_minutes, cron_due_at = excluded.cron_due_at,"
    " created_at = excluded.created_at, unverified_since = excluded.unverified_since,"
    " seen_at = excluded.seen_at"
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


class NtfImport(LogImport[Record]):
    TABLES = ("tokens", "subscriptions")

    def __init__(
        self, dialect: Dialect, now: float, progress: Progress = lambda what, count: None
    ) -> None:
        super().__init__(dialect, progress)
        self._now = now
        self._next_seq = 0

    def decode(self, line: str) -> Record:
        return decode_record(line)

    def begin(self, tx: Transaction) -> None:
        [[seq]] = tx.query("SELECT COALESCE(MAX(seq), 0) FROM last_notifications")
        [[pending_seq]] = tx.query("SELECT COALESCE(MAX(seq), 0) FROM pending_pushes")
        self._next_seq = max(seq, pending_seq) + 1

    def apply_record(self, tx: Transaction, record: Record) -> str | None:
        """Apply a record, or return the reason why not."""
        match record:
            case TokenCreated():
                self._put_token(tx, record)
            case TokenStatusSet():
                self._set_status(tx, record)
            case TokenReplacedLine():
                tx.execute(
                    "UPDATE tokens SET device = ?, code = ?, status = ?, unverified_since = ?"
                    " WHERE token_id = ?",
                    (
                        encode_token_text(record.device),
                        record.code,
                        TokenStatus.REGISTERED.value,
                        int(self._now * 1000),
                        record.token_id,
                    ),
                )
            case CronSet():
                due_at = self._cron_due(record.token_id, record.minutes)
                wakeups.set_cron(tx, record.token_id, record.minutes, due_at)
            case TokenDeletedLine():
                tokens.delete(tx, record.token_id)
            case TokenUsed():
                tx.execute(
                    "UPDATE tokens SET created_at = ? WHERE token_id = ?",
                    (record.at * 1000, record.token_id),
                )
            case SubscriptionCreatedLine():
                return self._put_subscription(tx, record)
            case SubscriptionStatusSet():
                tx.execute(
                    "UPDATE subscriptions SET status = ?, error = ? WHERE subscription_id = ?",
                    (record.status.state.value, record.status.error, record.subscription_id),
                )
            case SubscriptionDeletedLine():
                subscriptions.delete(tx, record.subscription_id)
            case ServiceSet():
                return "associates a service, which the router repeats by itself"
            case LastNotification():
                return self._put_notification(tx, record)
        return None

    def _put_token(self, tx: Transaction, record: TokenCreated) -> None:
        token = record.token
        created_at = self._now if record.updated_at is None else record.updated_at
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
            None if token.status is TokenStatus.ACTIVE else int(self._now * 1000),
            int(self._now * 1000),
        )
        tx.execute(_REGISTER, row)

    def _set_status(self, tx: Transaction, record: TokenStatusSet) -> None:
        tx.execute(
            "UPDATE tokens SET status = ? WHERE token_id = ?",
            (record.status.value, record.token_id),
        )
        if record.status is TokenStatus.ACTIVE:
            tx.execute(
                "UPDATE tokens SET unverified_since = NULL WHERE token_id = ?", (record.token_id,)
            )
            rows = tx.query(
                "SELECT o.token_id FROM tokens t JOIN tokens o ON o.device = t.device"
                " WHERE t.token_id = ? AND o.token_id <> t.token_id",
                (record.token_id,),
            )
            for (other,) in rows:
                tokens.delete(tx, other)

    def _put_subscription(self, tx: Transaction, record: SubscriptionCreatedLine) -> str | None:
        if not tx.query("SELECT 1 FROM tokens WHERE token_id = ?", (record.token_id,)):
            return "subscribe for a token that is not there"
        server_id = servers.find_or_add(tx, str(record.queue.server))
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
        """Return a due time spread over the interval, the same for each import."""
        if not minutes:
            return None
        return int(self._now * 1000) + int.from_bytes(token_id[:4]) % (minutes * 60_000)


class NtfExport(LogExport):
    def __init__(self, dialect: Dialect, progress: Progress = lambda what, count: None) -> None:
        super().__init__(dialect, progress)
        self.tokens = 0
        self.subscriptions = 0
        self.notifications = 0
        self.skipped = 0
        """Tokens that are not hex, which a store log cannot hold; providers reject them anyway."""

    def write(self, log: Path | None, last_notifications: Path | None = None) -> None:
        """Write the files. Raises `FileExistsError` and other `OSError`."""
        self.write_files(((log, self._store), (last_notifications, self._last_notifications)))

    def _store(self) -> Iterator[str]:
        for *fields, created_at in self.rows(_TOKENS, b""):
            updated_at = created_at // 1000 // DAY * DAY
            token = tokens.token_of(tuple(fields))
            if not has_plain_text(token.device):
                self.skipped += 1
                continue
            yield encode_record(TokenCreated(token, updated_at))
            self.tokens += 1
            self.report("exporting tokens", self.tokens)
        for row in self.rows(_SUBSCRIPTIONS, b""):
            subscription_id, address, notifier_id, key, token_id, state, error = row
            queue = SMPQueueNtf(decode_address(address), notifier_id)
            status = NtfSubStatus(SubscriptionState(state), error)
            yield encode_record(
                SubscriptionCreatedLine(subscription_id, queue, key, token_id, status)
            )
            self.subscriptions += 1
            self.report("exporting subscriptions", self.subscriptions)

    def _last_notifications(self) -> Iterator[str]:
        for _, token_id, address, notifier_id, at, nonce, meta in self.rows(_NOTIFICATIONS, -1):
            queue = SMPQueueNtf(decode_address(address), notifier_id)
            yield encode_record(LastNotification(token_id, PNMessageData(queue, at, nonce, meta)))
            self.notifications += 1
            self.report("exporting last notifications", self.notifications)
