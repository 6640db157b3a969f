"""The records of the reference's logs, as values."""

from dataclasses import dataclass, field

from heliograph.smp.store.records import NotifierRecord, QueueRecord, QueueStatus, StoredLinkData
from heliograph.wire.errors import BLOCKED
from heliograph.wire.handshakes import ServiceRole


@dataclass(frozen=True, slots=True)
class QueueCreated:
    queue: QueueRecord
    link_data: StoredLinkData | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class LinkSet:
    """The link of a queue, or None if it was deleted."""

    recipient_id: bytes
    link_id: bytes | None
    data: StoredLinkData | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class SenderKeySet:
    recipient_id: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class RecipientKeysSet:
    recipient_id: bytes
    keys: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class NotifierSet:
    """The notifier credentials of a queue, or None if they were deleted."""

    recipient_id: bytes
    notifier: NotifierRecord | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class QueueStatusSet:
    recipient_id: bytes
    status: QueueStatus
    reason: BLOCKED | None = None


@dataclass(frozen=True, slots=True)
class QueueDeleted:
    recipient_id: bytes


@dataclass(frozen=True, slots=True)
class QueueUsed:
    """The day a queue was used, which is not stored here."""

    recipient_id: bytes
    at: int


@dataclass(frozen=True, slots=True)
class ServiceCreated:
    service_id: bytes
    role: ServiceRole
    fingerprint: bytes
    created_at: int = 0


@dataclass(frozen=True, slots=True)
class QueueServiceSet:
    """The service of a queue's messages or, with NOTIFIER, of its notifications."""

    recipient_id: bytes
    role: ServiceRole
    service_id: bytes | None


@dataclass(frozen=True, slots=True)
class MessageLogged:
    """A message of the message log; `body` is None for the quota marker."""

    recipient_id: bytes
    msg_id: bytes
    timestamp: int
    notification: bool
    body: bytes | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class NotificationLogged:
    """A pending notification of the notification log."""

    notifier_id: bytes
    msg_id: bytes
    timestamp: int
    nonce: bytes = field(repr=False)
    meta: bytes = field(repr=False)


SmpRecord = (
    QueueCreated
    | LinkSet
    | SenderKeySet
    | RecipientKeysSet
    | NotifierSet
    | QueueStatusSet
    | QueueDeleted
    | QueueUsed
    | ServiceCreated
    | QueueServiceSet
    | MessageLogged
    | NotificationLogged
)
