"""What the router keeps of a queue, a message, a notification and a service."""

import hashlib
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from heliograph.crypto.boxes import hsalsa20
from heliograph.wire.fields import QueueMode
from heliograph.wire.handshakes import ServiceRole

ID_SIZE = 24
HASH_SIZE = 16


class QueueStatus(Enum):
    ACTIVE = "active"
    OFF = "off"


@dataclass(slots=True, eq=False)
class Notifier:
    """Notifier credentials; `service_id` is the service that the queue is associated with."""

    notifier_id: bytes
    key: bytes
    secret: bytes = field(repr=False)
    service_id: bytes | None = None
    _box_key: bytes | None = field(default=None, repr=False)

    @property
    def box_key(self) -> bytes:
        """What notifications are encrypted with, derived once."""
        if self._box_key is None:
            self._box_key = hsalsa20(self.secret)
        return self._box_key


@dataclass(slots=True, eq=False)
class Queue:
    """A queue as it will be once all that was decided is durable.

    `size` counts its messages, with the mark of a full queue; `accepts` is False from that mark
    until the queue was emptied. Messages with a `seq` before `first` are gone.
    """

    recipient_id: bytes
    sender_id: bytes
    recipient_key: bytes
    secret: bytes = field(repr=False)
    sender_key: bytes | None = None
    mode: QueueMode | None = None
    status: QueueStatus = QueueStatus.ACTIVE
    notifier: Notifier | None = None
    size: int = 0
    accepts: bool = True
    first: int = 0

    def lose(self, count: int, first: int) -> None:
        """So many messages are gone; those left begin at `first`, or later."""
        self.size = max(self.size - count, 0)
        self.accepts = self.accepts or self.size == 0
        self.first = max(self.first, first)


class Message(NamedTuple):
    """`body` None marks a full queue."""

    seq: int
    recipient_id: bytes
    msg_id: bytes
    timestamp: int
    notification: bool
    body: bytes | None


class Notification(NamedTuple):
    seq: int
    notifier_id: bytes
    nonce: bytes
    meta: bytes
    timestamp: int


@dataclass(slots=True, eq=False)
class Service:
    """A service and what is associated with it: how many queues, and the XOR of their IDs' MD5."""

    service_id: bytes
    role: ServiceRole
    fingerprint: bytes
    count: int = 0
    ids_hash: bytes = bytes(HASH_SIZE)

    def toggle(self, notifier_id: bytes, change: int) -> None:
        """Add (1) or remove (-1) a queue."""
        self.count += change
        self.ids_hash = xor(self.ids_hash, id_hash(notifier_id))


def id_hash(entity_id: bytes) -> bytes:
    return hashlib.md5(entity_id, usedforsecurity=False).digest()


def xor(left: bytes, right: bytes) -> bytes:
    return (int.from_bytes(left) ^ int.from_bytes(right)).to_bytes(len(left))
