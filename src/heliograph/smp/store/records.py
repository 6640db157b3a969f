"""Records of queues, messages, notifications and services."""

import hashlib
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from heliograph.crypto.boxes import hsalsa20
from heliograph.wire.errors import BLOCKED
from heliograph.wire.handshakes import ServiceRole
from heliograph.wire.smp.fields import QueueMode
from heliograph.wire.smp.ids import NO_IDS, toggle as toggle_id

ID_SIZE = 24


class QueueStatus(Enum):
    ACTIVE = "active"
    OFF = "off"
    BLOCKED = "blocked"


@dataclass(slots=True, eq=False)
class NotifierRecord:
    """Notifier credentials; `service_id` is the service that the queue is associated with."""

    notifier_id: bytes
    key: bytes
    secret: bytes = field(repr=False)
    service_id: bytes | None = None
    _box_key: bytes | None = field(default=None, repr=False)

    @property
    def box_key(self) -> bytes:
        """Return the key that notifications are encrypted with, derived once."""
        if self._box_key is None:
            self._box_key = hsalsa20(self.secret)
        return self._box_key


class StoredLinkData(NamedTuple):
    """The data of a link, opaque to the router. It is read from the store for each use."""

    fixed: bytes
    user: bytes


class LinkRecord(NamedTuple):
    """The link of a queue, without its data, which is too large to cache."""

    link_id: bytes
    fixed_hash: bytes

    @classmethod
    def of(cls, link_id: bytes, fixed_data: bytes) -> "LinkRecord":
        return cls(link_id, hashlib.sha256(fixed_data).digest())


@dataclass(slots=True, eq=False)
class QueueRecord:
    """A queue, with all changes decided so far, durable or not.

    `size` counts its messages, including the quota marker; `accepts` is False from that marker
    until the queue is empty. Messages with a `seq` below `first` were deleted.

    It has one field per column of its table, and counts of its messages.
    """

    recipient_id: bytes
    sender_id: bytes
    recipient_keys: tuple[bytes, ...]
    secret: bytes = field(repr=False)
    sender_key: bytes | None = None
    mode: QueueMode | None = None
    status: QueueStatus = QueueStatus.ACTIVE
    blocked: BLOCKED | None = None
    """Why the operator blocked the queue, while its status is BLOCKED."""
    link: LinkRecord | None = None
    service_id: bytes | None = None
    """The service that receives the messages of the queue."""
    notifier: NotifierRecord | None = None
    size: int = 0
    accepts: bool = True
    first: int = 0

    @property
    def is_secured_messaging(self) -> bool:
        """Return whether the queue has a sender's key, and is not a contact queue."""
        return self.mode is not QueueMode.CONTACT and self.sender_key is not None

    @property
    def is_contact(self) -> bool:
        """Return whether anybody may read the link data; old contact queues have no mode."""
        if self.mode is None:
            return self.sender_key is None
        return self.mode is QueueMode.CONTACT

    def lose(self, count: int, first: int) -> None:
        """Count `count` messages as deleted; the remaining ones start at `first` or later."""
        self.size = max(self.size - count, 0)
        self.accepts = self.accepts or self.size == 0
        self.first = max(self.first, first)


class StoredMessage(NamedTuple):
    """A message in a queue; `body` is None for the quota marker."""

    seq: int
    recipient_id: bytes
    msg_id: bytes
    timestamp: int
    notification: bool
    body: bytes | None


class StoredNotification(NamedTuple):
    seq: int
    notifier_id: bytes
    nonce: bytes
    meta: bytes
    timestamp: int


@dataclass(slots=True, eq=False)
class ServiceRecord:
    """A service, the number of its queues, and the XOR of the MD5 of their IDs."""

    service_id: bytes
    role: ServiceRole
    fingerprint: bytes
    count: int = 0
    ids_hash: bytes = NO_IDS

    def toggle(self, queue_id: bytes, change: int) -> None:
        """Add (1) or remove (-1) a queue."""
        self.count += change
        self.ids_hash = toggle_id(self.ids_hash, queue_id)
