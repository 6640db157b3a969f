"""Import and export of a whole store as the reference's logs of queues, messages, notifications.

The chain of a service's certificate is not stored here, so an export has none; its hash identifies
the service.
"""

from collections.abc import Iterator
from pathlib import Path

from heliograph.crypto.boxes import open_box_padded
from heliograph.crypto.errors import CryptoError
from heliograph.db.dialects import Dialect, Transaction
from heliograph.runtime.reference.storelog import LogExport, LogImport, Progress
from heliograph.smp.reference.records import (
    LinkSet,
    MessageLogged,
    NotificationLogged,
    NotifierSet,
    QueueCreated,
    QueueDeleted,
    QueueServiceSet,
    QueueStatusSet,
    QueueUsed,
    RecipientKeysSet,
    SenderKeySet,
    ServiceCreated,
    SmpRecord,
)
from heliograph.smp.reference.storelog import (
    decode_smp_record,
    encode_smp_record,
)
from heliograph.smp.store.changes import (
    INSERT_MESSAGE,
    INSERT_NOTIFICATION,
    QUEUE_COLUMNS,
    UPSERT_LINK,
    UPSERT_QUEUE,
    queue_of,
    queue_row,
)
from heliograph.smp.store.records import LinkRecord, QueueRecord, StoredLinkData
from heliograph.wire.errors import WireError
from heliograph.wire.handshakes import ServiceRole
from heliograph.wire.ntf.push import decode_nmsg_meta
from heliograph.wire.smp.ids import NO_IDS, ids_hash

__all__ = ["SmpExport", "SmpImport"]

DAY = 86_400

_NO_QUEUE = "name a queue that is not there"
_NO_SERVICE = "name a service that is not there"
_TAKEN = "use an ID of another queue"

_QUEUES = (  # made of constants
    f"SELECT {', '.join(f'q.{name.strip()}' for name in QUEUE_COLUMNS.split(','))},"  # noqa: S608
    " l.fixed_data, l.user_data FROM queues q LEFT JOIN links l"
    " ON l.recipient_id = q.recipient_id WHERE q.recipient_id > ?"
    " ORDER BY q.recipient_id LIMIT ?"
)
_MESSAGES = (
    "SELECT seq, recipient_id, msg_id, timestamp, notification, body FROM messages"
    " WHERE seq > ? ORDER BY seq LIMIT ?"
)
_NOTIFICATIONS = (
    "SELECT n.seq, n.notifier_id, n.timestamp, n.nonce, n.meta, q.notifier_secret"
    " FROM notifications n JOIN queues q ON q.notifier_id = n.notifier_id"
    " WHERE n.seq > ? ORDER BY n.seq LIMIT ?"
)
_SERVICE_IDS = {
    ServiceRole.NOTIFIER: ("notifier_id", "notifier_service_id"),
    ServiceRole.MESSAGING: ("recipient_id", "service_id"),
}


class SmpImport(LogImport[SmpRecord]):
    TABLES = ("queues", "services", "messages", "notifications")

    def __init__(self, dialect: Dialect, progress: Progress = lambda what, count: None) -> None:
        super().__init__(dialect, progress)
        self._next_message = 0
        self._next_notification = 0

    def decode(self, line: str) -> SmpRecord:
        return decode_smp_record(line)

    def begin(self, tx: Transaction) -> None:
        [[seq]] = tx.query("SELECT COALESCE(MAX(seq), 0) FROM messages")
        self._next_message = seq + 1
        [[seq]] = tx.query("SELECT COALESCE(MAX(seq), 0) FROM notifications")
        self._next_notification = seq + 1

    def end(self, tx: Transaction) -> None:
        """Count and hash the queues of every service."""
        for service_id, role in tx.query("SELECT service_id, role FROM services"):
            columns = _SERVICE_IDS.get(ServiceRole(role.encode()))
            if columns is None:
                continue
            named, service = columns
            rows = tx.query(
                f"SELECT {named} FROM queues WHERE {service} = ?",  # noqa: S608 - constants
                (service_id,),
            )
            tx.execute(
                "UPDATE services SET queue_count = ?, ids_hash = ? WHERE service_id = ?",
                (len(rows), ids_hash(entity_id for (entity_id,) in rows), service_id),
            )

    def apply_record(self, tx: Transaction, record: SmpRecord) -> str | None:
        match record:
            case QueueCreated():
                return self._create(tx, record)
            case ServiceCreated():
                return _create_service(tx, record)
            case MessageLogged():
                return self._add_message(tx, record)
            case NotificationLogged():
                return self._add_notification(tx, record)
            case QueueDeleted():
                return _delete(tx, record.recipient_id)
        rows = tx.query(
            f"SELECT {QUEUE_COLUMNS} FROM queues WHERE recipient_id = ?",  # noqa: S608 - constant
            (record.recipient_id,),
        )
        if not rows:
            return _NO_QUEUE
        return _change(tx, queue_of(rows[0]), record)

    def _create(self, tx: Transaction, record: QueueCreated) -> str | None:
        queue = record.queue
        if _is_taken(tx, queue):
            return _TAKEN
        notifier = queue.notifier
        for service_id in (queue.service_id, None if notifier is None else notifier.service_id):
            if service_id is not None and not _is_service(tx, service_id):
                return _NO_SERVICE
        _put(tx, queue, record.link_data)
        return None

    def _add_message(self, tx: Transaction, record: MessageLogged) -> str | None:
        if not tx.query("SELECT 1 FROM queues WHERE recipient_id = ?", (record.recipient_id,)):
            return _NO_QUEUE
        if tx.query(
            "SELECT 1 FROM messages WHERE recipient_id = ? AND msg_id = ?",
            (record.recipient_id, record.msg_id),
        ):
            return "are of a message that is there already"
        tx.execute(
            INSERT_MESSAGE,
            (
                self._next_message,
                record.recipient_id,
                record.msg_id,
                record.timestamp,
                int(record.notification),
                record.body,
            ),
        )
        self._next_message += 1
        return None

    def _add_notification(self, tx: Transaction, record: NotificationLogged) -> str | None:
        secrets = tx.query(
            "SELECT notifier_secret FROM queues WHERE notifier_id = ?", (record.notifier_id,)
        )
        if not secrets:
            return "name a notifier that is not there"
        if _message_of(secrets[0][0], record.nonce, record.meta) != record.msg_id:
            return "are of a notification that its notifier's secret does not open"
        if tx.query(
            "SELECT 1 FROM notifications WHERE notifier_id = ? AND nonce = ?",
            (record.notifier_id, record.nonce),
        ):
            return "are of a notification that is there already"
        row = (record.notifier_id, record.nonce, record.meta, record.timestamp)
        tx.execute(INSERT_NOTIFICATION, (self._next_notification, *row))
        self._next_notification += 1
        return None


def _change(
    tx: Transaction,
    queue: QueueRecord,
    record: LinkSet
    | SenderKeySet
    | RecipientKeysSet
    | NotifierSet
    | QueueStatusSet
    | QueueServiceSet
    | QueueUsed,
) -> str | None:
    """Apply a record to a stored queue, or return the reason why not."""
    match record:
        case QueueUsed():
            return None
        case LinkSet(data=None):
            queue.link = None
            tx.execute("DELETE FROM links WHERE recipient_id = ?", (queue.recipient_id,))
        case LinkSet(link_id=bytes() as link_id, data=StoredLinkData() as data):
            link = LinkRecord.of(link_id, data.fixed)
            if queue.link not in (None, link):
                return "set another link than the queue has"
            queue.link = link
            if _is_taken(tx, queue):
                return _TAKEN
            tx.execute(UPSERT_LINK, (queue.recipient_id, *data))
        case SenderKeySet():
            if queue.sender_key not in (None, record.key):
                return "secure a queue that has another key"
            queue.sender_key = record.key
        case RecipientKeysSet():
            queue.recipient_keys = record.keys
        case NotifierSet():
            queue.notifier = record.notifier
            if _is_taken(tx, queue):
                return _TAKEN
        case QueueStatusSet():
            queue.status, queue.blocked = record.status, record.reason
        case QueueServiceSet():
            if record.service_id is not None and not _is_service(tx, record.service_id):
                return _NO_SERVICE
            if record.role is ServiceRole.MESSAGING:
                queue.service_id = record.service_id
            elif queue.notifier is not None:
                queue.notifier.service_id = record.service_id
    tx.execute(UPSERT_QUEUE, queue_row(queue))
    return None


def _put(tx: Transaction, queue: QueueRecord, data: StoredLinkData | None) -> None:
    tx.execute(UPSERT_QUEUE, queue_row(queue))
    if data is None:
        tx.execute("DELETE FROM links WHERE recipient_id = ?", (queue.recipient_id,))
    else:
        tx.execute(UPSERT_LINK, (queue.recipient_id, *data))


def _delete(tx: Transaction, recipient_id: bytes) -> str | None:
    for table in ("messages", "links", "queues"):
        tx.execute(
            f"DELETE FROM {table} WHERE recipient_id = ?",  # noqa: S608 - constants
            (recipient_id,),
        )
    return None


def _create_service(tx: Transaction, record: ServiceCreated) -> str | None:
    if tx.query(
        "SELECT 1 FROM services WHERE fingerprint = ? AND service_id <> ?",
        (record.fingerprint, record.service_id),
    ):
        return "create a service of a certificate that has another"
    tx.execute(
        "INSERT INTO services (service_id, role, fingerprint, queue_count, ids_hash)"
        " VALUES (?, ?, ?, 0, ?) ON CONFLICT (service_id) DO NOTHING",
        (record.service_id, record.role.value.decode(), record.fingerprint, NO_IDS),
    )
    return None


def _is_service(tx: Transaction, service_id: bytes) -> bool:
    return bool(tx.query("SELECT 1 FROM services WHERE service_id = ?", (service_id,)))


def _is_taken(tx: Transaction, queue: QueueRecord) -> bool:
    """Return whether another queue has one of the IDs."""
    ids = [("sender_id", queue.sender_id)]
    if queue.link is not None:
        ids.append(("link_id", queue.link.link_id))
    if queue.notifier is not None:
        ids.append(("notifier_id", queue.notifier.notifier_id))
    return any(
        tx.query(
            f"SELECT 1 FROM queues WHERE {column} = ? AND recipient_id <> ?",  # noqa: S608 - constants
            (value, queue.recipient_id),
        )
        for column, value in ids
    )


class SmpExport(LogExport):
    def __init__(
        self, dialect: Dialect, now: float, progress: Progress = lambda what, count: None
    ) -> None:
        super().__init__(dialect, progress)
        self.queues = 0
        self.services = 0
        self.messages = 0
        self.notifications = 0
        self._today = int(now) // DAY * DAY

    def write(
        self, log: Path | None, messages: Path | None = None, notifications: Path | None = None
    ) -> None:
        """Write the files. Raises `FileExistsError` and other `OSError`."""
        self.write_files(
            (
                (log, self._store),
                (messages, self._messages),
                (notifications, self._notifications),
            )
        )

    def _store(self) -> Iterator[str]:
        for service_id, role, fingerprint in self.dialect.query(
            "SELECT service_id, role, fingerprint FROM services ORDER BY service_id", ()
        ):
            service = ServiceRole(role.encode())
            yield encode_smp_record(ServiceCreated(service_id, service, fingerprint, self._today))
            self.services += 1
        for *columns, fixed, user in self.rows(_QUEUES, b""):
            data = None if fixed is None else StoredLinkData(fixed, user)
            yield encode_smp_record(QueueCreated(queue_of(tuple(columns)), data))
            self.queues += 1
            self.report("exporting queues", self.queues)

    def _messages(self) -> Iterator[str]:
        for _, recipient_id, msg_id, at, notification, body in self.rows(_MESSAGES, -1):
            yield encode_smp_record(
                MessageLogged(recipient_id, msg_id, at, bool(notification), body)
            )
            self.messages += 1
            self.report("exporting messages", self.messages)

    def _notifications(self) -> Iterator[str]:
        """Return the notifications; the ID of the message is in what they say, encrypted."""
        for _, notifier_id, at, nonce, meta, secret in self.rows(_NOTIFICATIONS, -1):
            msg_id = _message_of(secret, nonce, meta)
            if msg_id is None:
                continue  # nobody could read it
            yield encode_smp_record(NotificationLogged(notifier_id, msg_id, at, nonce, meta))
            self.notifications += 1
            self.report("exporting notifications", self.notifications)


def _message_of(secret: bytes, nonce: bytes, meta: bytes) -> bytes | None:
    """Return the ID of the message that a notification is of, or None if it cannot be opened."""
    try:
        return decode_nmsg_meta(open_box_padded(secret, nonce, meta)).msg_id
    except (CryptoError, WireError):
        return None
